"""One cell: a command or Python code in a process of its own, its lines, its end.

Its parent is a `reaper`, which the daemon ends last: what a cell leaves behind stays its
descendant until then.
"""

import codecs
import contextlib
import errno
import json
import os
import select
import shlex
import signal
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
from remote_resident.manifest_rules import LONGEST_S

BASE_URL, KEY = "BASE_URL", "INFER_API_KEY"
_CODE, _REAPER = (Path(__file__).with_name(f"{one}.py") for one in ("code", "reaper"))
_CHUNK_BYTES = 65536
_LOOK_S = 0.2
_GRACE_S = 2.0
_DRAIN_S = 2.0
_REAP_S = 8.0
"""Longer than a reaper may take, which ends then at the latest."""
_STATUS_BYTES = 256

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
    grace_s: float = _GRACE_S
    """Seconds from SIGTERM to SIGKILL."""
    instance: str = field(default_factory=lambda: prefix() + os.urandom(8).hex())
    failure: ProviderError | None = None
    """Why it was ended; None: it ends by itself."""
    process: "subprocess.Popen[bytes] | None" = None
    """Its parent, a reaper."""
    deadline: float = 0.0
    _pid: int = 0
    """0: not started."""
    _status_fd: int = -1
    _control_fd: int = -1
    _result_fd: int = -1
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _timer: threading.Timer | None = None
    _status: int | None = None
    """As the kernel has it, a signal below 0; None: not known, or not yet."""
    _gone: bool = False

    def prepare(self) -> None:
        """Start its parent, so that `start` takes less; as often as liked.

        Raises ProviderError (`cell_failed`) where that cannot be.
        """
        with self._lock:
            if self.process is not None or self.failure is not None:
                return
            try:
                self.process = self._prepared()
            except (OSError, ValueError) as exc:
                self._close()
                raise _not_run(self.name, exc) from None

    def start(self) -> None:
        """Start it. Raises ProviderError (`cell_failed`) where it cannot be run."""
        self.prepare()
        with self._lock:
            if self.failure is not None:
                raise self.failure
            assert self.process is not None
            try:
                with contextlib.suppress(BrokenPipeError):
                    os.write(self._control_fd, b"x")
                self._take_pid(self.process)
            except OSError as exc:
                self._close()
                raise _not_run(self.name, exc) from None
        self.deadline = time.monotonic() + self.work.timeout_s
        # not whoever reads the lines: a reader that waits must not keep the deadline
        self._timer = threading.Timer(self.work.timeout_s, self.end, [self._late()])
        self._timer.daemon = True
        self._timer.start()

    def _prepared(self) -> "subprocess.Popen[bytes]":
        work = self.work
        if work.argv is not None:
            return self._spawned(list(work.argv), [])
        code_fd = os.memfd_create("code")
        try:
            _fill(code_fd, (work.code or "").encode("utf-8", "surrogateescape"))
            self._result_fd = os.memfd_create("result")
            fds = [code_fd, self._result_fd]
            return self._spawned([sys.executable, str(_CODE), *map(str, fds)], fds)
        finally:
            os.close(code_fd)

    def _spawned(self, argv: list[str], fds: list[int]) -> "subprocess.Popen[bytes]":
        with contextlib.ExitStack() as theirs:
            self._status_fd, status = os.pipe()
            theirs.callback(os.close, status)
            control, self._control_fd = os.pipe()
            theirs.callback(os.close, control)
            own = [str(status), str(control), self.instance, str(self.work.cwd)]
            try:
                return subprocess.Popen(
                    [sys.executable, "-I", "-S", str(_REAPER), *own, *argv],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    env=self.work.env,
                    cwd="/",
                    pass_fds=[*fds, status, control],
                    start_new_session=True,
                )
            except OSError as exc:
                raise OSError(exc.errno, exc.strerror, argv[0]) from None

    def _take_pid(self, process: "subprocess.Popen[bytes]") -> None:
        """Learn the cell's pid. Raises OSError where it cannot be run."""
        said = os.read(self._status_fd, _STATUS_BYTES).decode().split()
        if said[:1] == ["pid"]:
            self._pid = int(said[1])
            # a cell that ended at once
            self._status = _status_of(said[2:])
            return
        program = sys.executable if self.work.argv is None else self.work.argv[0]
        if said[:1] == ["error"]:
            where = str(self.work.cwd) if said[2] == "cwd" else program
            raise OSError(int(said[1]), os.strerror(int(said[1])), where)
        status = process.wait()
        raise OSError(errno.ECHILD, f"exit status {status} of its parent", program)

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
        yield from self._live(streams)
        with self._lock:
            self._sweep(process)
        yield from _rest(streams)
        if self.failure is not None:
            raise self.failure
        status = self._status
        if status is None:
            # its parent was killed: of the cell nothing more can be known
            status = -signal.SIGKILL
        code = status if status >= 0 else 128 - status
        yield {"type": "result", "exit_code": code, "result": self._result()}

    def close(self) -> None:
        """End it if it runs, and let go of its output; as often as liked."""
        self.end(None)
        self._close()

    def _live(self, streams: dict[int, "_Stream"]) -> Iterator[Line | None]:
        poll = select.poll()
        for fd in (*streams, self._status_fd):
            poll.register(fd, select.POLLIN)
        while self._status is None:
            ready = {fd for fd, _ in poll.poll(_LOOK_S * 1000)}
            for fd in ready & streams.keys():
                chunk = os.read(fd, _CHUNK_BYTES)
                if not chunk:
                    poll.unregister(fd)
                yield from streams[fd].feed(chunk)
            if self._status_fd in ready:
                return
            if not ready:
                yield None

    def end(self, failure: ProviderError | None) -> None:
        """End it with everything it started; returns once all of that is gone."""
        with self._lock:
            process = self.process
            if process is None or not self._pid:
                # not started yet, and not to be
                self.failure = self.failure or failure
                return
            if self._gone:
                return
            if self.failure is None and not self._has_ended():
                self.failure = failure
            self._sweep(process)

    def _has_ended(self) -> bool:
        """Say whether it ended, by itself or with its parent; under the lock."""
        if self._status is not None:
            return True
        poll = select.poll()
        poll.register(self._status_fd, select.POLLIN)
        if not poll.poll(0):
            return False
        said = os.read(self._status_fd, _STATUS_BYTES).decode().split()
        self._status = _status_of(said)
        return True

    def _sweep(self, process: "subprocess.Popen[bytes]") -> None:
        """End all of it; under the lock."""
        if self._gone:
            return
        processes.end_all(self.instance, grace_s=self.grace_s, session=self._pid)
        os.close(self._control_fd)
        self._control_fd = -1
        _wait(process)
        self._has_ended()
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
        for fd in (self._result_fd, self._status_fd, self._control_fd):
            if fd >= 0:
                os.close(fd)
        self._result_fd = self._status_fd = self._control_fd = -1
        if self.process is not None:
            # what was prepared and not started leaves with its descriptor
            _wait(self.process)
            for pipe in (self.process.stdout, self.process.stderr):
                if pipe is not None:
                    pipe.close()

    def _late(self) -> ProviderError:
        return ProviderError(
            f"{self.name}: cell: no end within {self.work.timeout_s!r} s, one wanted",
            reason="cell_timeout",
            next=None if self.work.argv is None else self._longer(self.work.argv),
        )

    def _longer(self, argv: Sequence[str]) -> str:
        given_s = min(10 * self.work.timeout_s, LONGEST_S)
        words = ["tu", "remote", "endpoint", "run", "--timeout", f"{given_s:g}"]
        return shlex.join([*words, self.name, "--", *argv])


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


def _wait(reaper: "subprocess.Popen[bytes]") -> None:
    try:
        reaper.wait(_REAP_S)
    except subprocess.TimeoutExpired:
        reaper.kill()
        reaper.wait()


def _status_of(said: list[str]) -> int | None:
    """Read `exit STATUS`; None: its parent has not said it."""
    return int(said[1]) if said[:1] == ["exit"] else None


def _not_run(name: str, exc: OSError | ValueError) -> ProviderError:
    said = str(exc)
    if isinstance(exc, OSError):
        where = "" if exc.filename is None else f"{exc.filename}: "
        said = f"{where}{exc.strerror or exc}"
    return ProviderError(
        f"{name}: cell: {said} found, a program that runs wanted",
        reason="cell_failed",
    )
