"""One cell: a command or Python code in a process of its own, its lines, its end."""

import codecs
import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remote_resident import exec_env, places, processes
from remote_resident.endpoints.redaction import Redaction
from remote_resident.errors import ProviderError
from remote_resident.processes import INSTANCE_VARIABLE

BASE_URL, KEY = "BASE_URL", "INFER_API_KEY"
_CODE = Path(__file__).with_name("code.py")
_CHUNK_BYTES = 65536
_LOOK_S = 0.2
_GRACE_S = 2.0
_DRAIN_S = 2.0

Line = dict[str, Any]


def prefix() -> str:
    """Give what the instance of every cell of this user's daemon begins with."""
    return f"cell-{places.tree_id(places.runtime_dir())}-"


def end_strays() -> None:
    """End the cells of a daemon that is gone: nobody reads them or knows their end."""
    table = processes.process_table().values()
    strays = {p.instance for p in table if (p.instance or "").startswith(prefix())}
    for instance in strays:
        if instance is not None:
            processes.end_all(instance, grace_s=_GRACE_S)


def environment(
    base_url: str, environ: Mapping[str, str], key: str | None = None
) -> dict[str, str]:
    """Build a cell's environment: the host's names by allow-list, and the endpoint's.

    `key` is the credential of a remote endpoint; None: a local one, whose cell gets none.
    """
    inherited = {name: v for name, v in environ.items() if exec_env.allowed(name)}
    # what a cell prints is to be seen as it comes
    own = {"PYTHONUNBUFFERED": "1", BASE_URL: base_url}
    return {**inherited, **own, **({} if key is None else {KEY: key})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a cell is to do."""

    argv: Sequence[str] | None
    """None: `code` is Python code for the tool's own interpreter."""
    code: str | None
    cwd: Path
    env: Mapping[str, str]
    timeout_s: float
    hide: Sequence[str] = ()
    """Values that are taken out of what it prints."""


@dataclass(slots=True)
class Cell:
    """A cell; `end` may be called by any thread, `lines` by one."""

    name: str
    """The endpoint's."""
    work: Work
    over: Callable[[], None]
    """Called, maybe more than once, when all of it is gone."""
    instance: str = field(default_factory=lambda: prefix() + os.urandom(8).hex())
    failure: ProviderError | None = None
    """Why it was ended; None: it ends by itself."""
    process: "subprocess.Popen[bytes] | None" = None
    deadline: float = 0.0
    _result_fd: int = -1
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _timer: threading.Timer | None = None
    _gone: bool = False

    def start(self) -> None:
        """Start it. Raises ProviderError (`cell_failed`) where it cannot be run."""
        work = self.work
        with contextlib.ExitStack() as stack:
            argv, fds = list(work.argv or ()), []
            if work.argv is None:
                code_fd = os.memfd_create("code")
                stack.callback(os.close, code_fd)
                _fill(code_fd, (work.code or "").encode("utf-8", "surrogateescape"))
                self._result_fd = os.memfd_create("result")
                fds = [code_fd, self._result_fd]
                argv = [sys.executable, str(_CODE), *map(str, fds)]
            try:
                with self._lock:
                    if self.failure is not None:
                        raise self.failure
                    self.process = self._spawned(argv, fds)
            except (OSError, ValueError) as exc:
                self._close()
                raise _not_run(self.name, argv[0], exc) from None
        self.deadline = time.monotonic() + work.timeout_s
        # not whoever reads the lines: a reader that waits must not keep the deadline
        self._timer = threading.Timer(work.timeout_s, self.end, [self._late()])
        self._timer.daemon = True
        self._timer.start()

    def _spawned(self, argv: list[str], fds: list[int]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={**self.work.env, INSTANCE_VARIABLE: self.instance},
            cwd=self.work.cwd,
            pass_fds=fds,
            start_new_session=True,
        )

    def lines(self) -> Iterator[Line | None]:
        """Yield what it prints as it comes, None while nothing does, its result last.

        Everything that it started has ended before the last line. Raises ProviderError
        where it had to be ended: `cell_timeout`, or what `end` was told.
        """
        process = self.process
        assert process is not None
        assert process.stdout is not None
        assert process.stderr is not None
        streams = {
            process.stdout.fileno(): _Stream("stdout", self.work.hide),
            process.stderr.fileno(): _Stream("stderr", self.work.hide),
        }
        yield from self._live(process, streams)
        self._sweep(process)
        yield from _rest(streams)
        status = process.wait()
        if self.failure is not None:
            raise self.failure
        code = status if status >= 0 else 128 - status
        yield {"type": "result", "exit_code": code, "result": self._result()}

    def close(self) -> None:
        """End it if it runs, and let go of its output; as often as liked."""
        self.end(None)
        self._close()

    def _live(
        self, process: "subprocess.Popen[bytes]", streams: dict[int, "_Stream"]
    ) -> Iterator[Line | None]:
        pidfd = os.pidfd_open(process.pid)
        poll = select.poll()
        try:
            for fd in (*streams, pidfd):
                poll.register(fd, select.POLLIN)
            while True:
                ready = {fd for fd, _ in poll.poll(_LOOK_S * 1000)}
                for fd in ready & streams.keys():
                    chunk = os.read(fd, _CHUNK_BYTES)
                    if not chunk:
                        poll.unregister(fd)
                    yield from streams[fd].feed(chunk)
                if pidfd in ready:
                    return
                if not ready:
                    yield None
        finally:
            os.close(pidfd)

    def end(self, failure: ProviderError | None) -> None:
        """End it with everything it started; returns once all of that is gone."""
        with self._lock:
            process = self.process
            if process is None:
                # not started yet, and not to be
                self.failure = self.failure or failure
                return
            if self._gone:
                return
            if process.poll() is None and self.failure is None:
                self.failure = failure
            self._sweep(process)

    def _sweep(self, process: "subprocess.Popen[bytes]") -> None:
        processes.end_all(self.instance, grace_s=_GRACE_S, session=process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        self._gone = True
        self.over()

    def _result(self) -> Any:
        if self._result_fd < 0:
            return None
        raw = os.pread(self._result_fd, os.fstat(self._result_fd).st_size, 0)
        try:
            found = json.loads(Redaction(self.work.hide).text(raw.decode()))
        except ValueError:
            # it ended before it had one
            return None
        return found

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._result_fd >= 0:
            os.close(self._result_fd)
            self._result_fd = -1
        if self.process is not None:
            for pipe in (self.process.stdout, self.process.stderr):
                if pipe is not None:
                    pipe.close()

    def _late(self) -> ProviderError:
        return ProviderError(
            f"{self.name}: cell: no end within {self.work.timeout_s!r} s, one wanted",
            reason="cell_timeout",
            next=f"tu remote endpoint run {self.name} --timeout SECONDS -- CMD",
        )


class _Stream:
    """One output of a cell, as text, credentials taken out."""

    def __init__(self, kind: str, hide: Sequence[str]) -> None:
        self.kind = kind
        self._redaction = Redaction(hide)
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decode = decoder("surrogateescape").decode

    def feed(self, chunk: bytes) -> Iterator[Line]:
        yield from self._line(self._decode(self._redaction.feed(chunk)))

    def end(self) -> Iterator[Line]:
        yield from self._line(self._decode(self._redaction.end(), final=True))

    def _line(self, text: str) -> Iterator[Line]:
        if text:
            yield {"type": self.kind, "text": text}


def _rest(streams: dict[int, _Stream]) -> Iterator[Line]:
    """Yield what still stands in the pipes; those that wrote have ended."""
    until = time.monotonic() + _DRAIN_S
    for fd, stream in streams.items():
        os.set_blocking(fd, False)
        with contextlib.suppress(BlockingIOError):
            while time.monotonic() < until and (chunk := os.read(fd, _CHUNK_BYTES)):
                yield from stream.feed(chunk)
        yield from stream.end()


def _fill(fd: int, data: bytes) -> None:
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)


def _not_run(name: str, program: str, exc: Exception) -> ProviderError:
    said = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
    where = getattr(exc, "filename", None) or program
    return ProviderError(
        f"{name}: cell: {where}: {said} found, a program that runs wanted",
        reason="cell_failed",
    )
