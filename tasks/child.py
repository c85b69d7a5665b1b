"""Run a program in a session of its own: its lines, its deadline, and a sure end.

Whoever reads the lines is the one who waits: nothing runs beside the generator. It looks
at two descriptors, the program's output and the program itself, so that neither a silent
program nor a descendant that keeps the output open can hold it beyond the deadline. What
the program started ends with it, also what left its session: all of it carries one
random id in its environment.
"""

import codecs
import contextlib
import os
import re
import selectors
import signal
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from remote_resident.processes import INSTANCE_VARIABLE, end_all

if TYPE_CHECKING:
    import subprocess

NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""Exit statuses of what could not be started, as shells give them."""
TAIL_LINES = 40

_HOST_FILES = frozenset(
    "SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NETRC".split()
)

_INTERRUPT_GRACE_S = 2.0
_LATE_GRACE_S = 0.4
_DRAIN_S = 0.2
_CHUNK_BYTES = 65536
_LINE_CHARS = 65536
_LINE_END = re.compile(r"\r\n|\n|\r(?!\Z)")
_CONTROL = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles and links
    r"|[\x1b]\[[0-?]*[ -/]*[@-~]"  # colours and cursor moves
    r"|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


class Passing(str):
    """A line that its program overwrote with the next: progress, not a message."""

    __slots__ = ()


def way_out(environ: Mapping[str, str], *, contained: bool = False) -> dict[str, str]:
    """Give those of the caller's variables that lead a program to the network.

    Proxies; and where it sees the host's files (not `contained`) certificates and netrc.
    """
    return {
        name: value
        for name, value in environ.items()
        if name.lower().endswith("_proxy") or (name in _HOST_FILES and not contained)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended."""

    returncode: int
    """Negative: the signal's number."""
    timed_out: bool
    """Whether the deadline ended it."""
    tail: list[str]
    """The last lines, of progress only what stood there last."""
    seconds: float

    @property
    def how(self) -> str:
        """Say in words how it ended."""
        late = f"no end within {self.seconds} s"
        return late if self.timed_out else f"exit {self.returncode}"


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    timeout_s: float | None = None,
    stdin: bytes | None = None,
    pass_fds: Sequence[int] = (),
) -> Generator[str, None, Ended]:
    """Run a program, yield its lines as they come, return how it ended.

    Its output and its error output are one stream; terminal control codes are taken out.
    `stdin`: None: closed. What cannot be started says so in its only line and ends with
    126 or 127, as in a shell. A generator that is closed early, or interrupted, ends the
    program and everything it started.
    """
    child = _Child(instance=os.urandom(8).hex())
    _RUNNING[child.instance] = child
    try:
        try:
            child.start(argv, env, cwd, stdin, (*pass_fds, *_SHARED_FDS))
        except OSError as exc:
            child.over = True
            child.tail.append(f"{argv[0]}: {exc.strerror}")
            yield child.tail[0]
            missing = isinstance(exc, FileNotFoundError)
            return child.ended(NOT_FOUND if missing else NOT_EXECUTABLE)
        for line in child.lines(timeout_s):
            child.keep(line)
            yield line
        child.end(_LATE_GRACE_S)
        return child.ended()
    finally:
        child.close()
        _RUNNING.pop(child.instance, None)


def collected(running: Generator[str, None, Ended]) -> tuple[list[str], Ended]:
    """Wait for the end of what runs, and give all its lines."""
    lines: list[str] = []
    with contextlib.closing(running):
        while True:
            try:
                lines.append(next(running))
            except StopIteration as stop:
                return lines, stop.value


def end_children() -> None:
    """End every program that still runs, with everything it started."""
    for child in list(_RUNNING.values()):
        child.end(_INTERRUPT_GRACE_S)


@contextlib.contextmanager
def inheriting(fd: int) -> Iterator[None]:
    """Give a descriptor to every program that is started in this block.

    For an advisory lock, which lasts until the last process that has it is gone.
    """
    _SHARED_FDS.append(fd)
    try:
        yield
    finally:
        _SHARED_FDS.remove(fd)


@dataclass(slots=True)
class _Child:
    instance: str
    process: "subprocess.Popen[bytes] | None" = None
    timed_out: bool = False
    over: bool = False
    """Whether all of it was ended."""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    started: float = field(default_factory=time.monotonic)

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path | None,
        stdin: bytes | None,
        pass_fds: Sequence[int],
    ) -> None:
        import subprocess

        with _input(stdin) as source:
            self.process = subprocess.Popen(
                argv,
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                env={**env, INSTANCE_VARIABLE: self.instance},
                cwd=cwd,
                pass_fds=tuple(pass_fds),
                start_new_session=True,
            )

    def lines(self, timeout_s: float | None) -> Iterator[str]:
        """Yield lines until the program has ended, or the deadline has passed."""
        assert self.process is not None
        assert self.process.stdout is not None
        out, splitter = self.process.stdout.fileno(), _Splitter()
        os.set_blocking(out, False)
        deadline = None if timeout_s is None else self.started + timeout_s
        pid = os.pidfd_open(self.process.pid)
        try:
            with selectors.DefaultSelector() as watch:
                watch.register(out, selectors.EVENT_READ)
                watch.register(pid, selectors.EVENT_READ)
                while pid in watch.get_map():
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        self.timed_out = True
                        self.end(_LATE_GRACE_S)
                        break
                    ready = {key.fd for key, _ in watch.select(left)}
                    if out in ready:
                        chunk = _read(out)
                        yield from splitter.feed(chunk or b"")
                        if chunk == b"":
                            watch.unregister(out)
                    if pid in ready:
                        watch.unregister(pid)
        finally:
            os.close(pid)
        yield from self._rest(out, splitter)

    def _rest(self, out: int, splitter: "_Splitter") -> Iterator[str]:
        """Yield what was written before the end, not what others go on to write."""
        until = time.monotonic() + _DRAIN_S
        with selectors.DefaultSelector() as watch:
            watch.register(out, selectors.EVENT_READ)
            while watch.select(max(0.0, until - time.monotonic())):
                chunk = _read(out)
                if not chunk or time.monotonic() > until:
                    break
                yield from splitter.feed(chunk)
        yield from splitter.flush()

    def keep(self, line: str) -> None:
        """Put a line into the tail, in the place of the progress that it overwrote."""
        if self.tail and isinstance(self.tail[-1], Passing):
            self.tail.pop()
        self.tail.append(line)

    def end(self, grace_s: float) -> None:
        """End what is left of it; a second interrupt cuts the grace, not the end."""
        if self.over:
            return
        session = self.process.pid if self.process is not None else None
        try:
            end_all(self.instance, grace_s=grace_s, session=session)
        except BaseException:
            end_all(self.instance, grace_s=0.0, session=session)
            raise
        self._reap()
        self.over = True

    def _reap(self) -> None:
        import subprocess

        if self.process is not None:
            # a process that not even SIGKILL ends waits in the kernel: not for ever here
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=1.0)

    def close(self) -> None:
        """End it if it still runs, and let go of its output."""
        try:
            self.end(_INTERRUPT_GRACE_S)
        finally:
            if self.process is not None and self.process.stdout is not None:
                self.process.stdout.close()

    def ended(self, returncode: int | None = None) -> Ended:
        if returncode is None:
            known = self.process.returncode if self.process is not None else None
            returncode = -signal.SIGKILL if known is None else known
        return Ended(
            returncode=returncode,
            timed_out=self.timed_out,
            tail=list(self.tail),
            seconds=time.monotonic() - self.started,
        )


_RUNNING: dict[str, _Child] = {}
"""What runs now, for whoever must end it all: a signal has no other way to know."""
_SHARED_FDS: list[int] = []


class _Splitter:
    """Cuts a stream of bytes into lines; a carriage return ends one that passes."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""

    def feed(self, chunk: bytes) -> Iterator[str]:
        text, at = self._rest + self._decode(chunk), 0
        for end in _LINE_END.finditer(text):
            yield from _line(text[at : end.start()], passing=end.group() == "\r")
            at = end.end()
        self._rest = text[at:]
        while len(self._rest) > _LINE_CHARS:
            yield from _line(self._rest[:_LINE_CHARS], passing=False)
            self._rest = self._rest[_LINE_CHARS:]

    def flush(self) -> Iterator[str]:
        rest = (self._rest + self._decode(b"", final=True)).rstrip("\r")
        self._rest = ""
        if rest:
            yield from _line(rest, passing=False)


def _line(text: str, *, passing: bool) -> Iterator[str]:
    shown = _CONTROL.sub("", text)
    if not passing:
        yield shown
    elif shown:
        yield Passing(shown)


def _read(fd: int) -> bytes | None:
    """Read what is there; None: nothing now, b"": nothing any more."""
    try:
        return os.read(fd, _CHUNK_BYTES)
    except BlockingIOError:
        return None


@contextlib.contextmanager
def _input(data: bytes | None) -> Iterator[int]:
    """Give a descriptor to read `data` from, which no slow reader can block."""
    null = data is None
    fd = os.open(os.devnull, os.O_RDONLY) if null else os.memfd_create("stdin")
    try:
        if data is not None:
            with open(fd, "wb", closefd=False) as file:
                file.write(data)
            os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)
