"""One child that holds a model: its pipes, its log, its start and how it ended."""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, BinaryIO

from remote_resident import places

LOG_LIMIT_BYTES = 10 * 2**20
LOGS_KEPT = 3
_READY_LINE_BYTES = 4096
_LOOK_S = 0.02
_SEEN_S = 1.0

_HINTS = {
    0: "left by itself",
    1: "an exception ended it",
    2: "its command line was refused",
    3: "the kit refused",
    124: "a load or a prediction took longer than it may",
    126: "its program cannot be run",
    127: "its program was not found",
}
_SIGNAL_HINTS = {
    signal.SIGKILL: "often the out-of-memory killer",
    signal.SIGABRT: "a library gave up",
    signal.SIGSEGV: "a crash in compiled code",
    signal.SIGBUS: "a file that it had mapped was cut short, or memory failed",
    signal.SIGILL: "compiled for another processor",
    signal.SIGTERM: "somebody ended it",
}

# A fork of this process would hold the lifelines open after its owner is gone, and the
# locks: each is closed in the child. What is executed never inherits them.
_PRIVATE_FDS: set[int] = set()


def _close_private() -> None:
    for fd in _PRIVATE_FDS:
        with contextlib.suppress(OSError):
            os.close(fd)
    _PRIVATE_FDS.clear()


os.register_at_fork(after_in_child=_close_private)


def keep_private(fd: int) -> int:
    """Close a descriptor in every later fork of this process."""
    _PRIVATE_FDS.add(fd)
    return fd


def close_private(fd: int) -> None:
    """Close what `keep_private` was told of; once, also in a fork."""
    if fd in _PRIVATE_FDS:
        _PRIVATE_FDS.discard(fd)
        os.close(fd)


def exit_hint(returncode: int | None) -> str:
    """Say what an exit status means; None: another process's child, not known."""
    if returncode is None:
        return "exit status not known to this process"
    number = -returncode if returncode < 0 else returncode - 128
    if returncode < 0 or 128 < returncode <= 128 + signal.SIGRTMAX:
        with contextlib.suppress(ValueError):
            named = signal.Signals(number)
            hint = _SIGNAL_HINTS.get(named)
            return f"exit status {returncode}: {named.name}" + (
                f", {hint}" if hint else ""
            )
    hint = _HINTS.get(returncode)
    return f"exit status {returncode}" + (f": {hint}" if hint else "")


@dataclass(frozen=True, slots=True)
class Log:
    """A worker's log: appended to by the worker itself, at most three files kept."""

    path: Path

    def open(self) -> BinaryIO:
        """Open for appending, made for its owner alone.

        Raises ProviderError (`disk_full`, `unreadable`).
        """
        places.ensure(self.path.parent)
        self.rotate()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            fd = os.open(self.path, flags, 0o600)
        except OSError as exc:
            raise places.unwritable(self.path, exc, "a log") from exc
        return os.fdopen(fd, "ab", buffering=0)

    def size(self) -> int:
        """Give its length in bytes, 0 where there is none."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def rotate(self) -> None:
        """Move a log over the limit aside; a worker that is writing writes on."""
        if self.size() <= LOG_LIMIT_BYTES:
            return
        import fcntl

        with contextlib.suppress(OSError), self.path.open("rb+") as file:
            # two may find it too long at once
            fcntl.flock(file, fcntl.LOCK_EX)
            if self.size() > LOG_LIMIT_BYTES:
                self._move_aside(file)

    def _move_aside(self, file: IO[bytes]) -> None:
        import shutil
        from itertools import pairwise

        older = [Path(f"{self.path}.{n}") for n in range(LOGS_KEPT - 1, 0, -1)]
        for target, source in pairwise(older):
            if source.exists():
                source.replace(target)
        # copied and cut, not renamed: the worker's descriptor follows the file
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with os.fdopen(os.open(older[-1], flags, 0o600), "wb") as copy:
            shutil.copyfileobj(file, copy)
        file.truncate(0)

    def tail(self, since: int = 0, lines: int = 20) -> list[str]:
        """Read the last lines written after the byte `since`."""
        try:
            with self.path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                since = since if since <= end else 0
                file.seek(max(since, end - 65536))
                text = file.read().decode(errors="replace")
        except OSError:
            return []
        return text.splitlines()[-lines:]

    def last_words(self, since: int) -> str:
        """Say after the log's name what stands in it, or why nothing does."""
        if lines := self.tail(since):
            return ", its last lines:" + "".join(f"\n    {line}" for line in lines)
        with contextlib.suppress(OSError):
            if os.statvfs(self.path).f_bavail == 0:
                return ", whose disk is full"
        return ", to which it wrote nothing"


@dataclass(slots=True)
class Pipes:
    """The lifeline and the ready pipe of a start; a container inherits neither.

    Its standard input is the lifeline there, and the socket's appearance says ready.
    """

    contained: bool
    lifeline_read: int = -1
    lifeline_write: int = -1
    ready_read: int = -1
    ready_write: int = -1

    @classmethod
    def open(cls, *, lifeline: bool, ready: bool, contained: bool) -> "Pipes":
        """Open what is asked for; all of it closes on exec unless passed on."""
        pipes = cls(contained)
        if lifeline:
            pipes.lifeline_read, pipes.lifeline_write = os.pipe()
            keep_private(pipes.lifeline_write)
        if ready and not contained:
            pipes.ready_read, pipes.ready_write = os.pipe()
        return pipes

    def args(self) -> list[str]:
        """Give the worker's arguments that name the descriptors."""
        args = []
        if self.lifeline_read >= 0:
            args += [
                "--lifeline-fd",
                "0" if self.contained else f"{self.lifeline_read}",
            ]
        if self.ready_write >= 0:
            args += ["--ready-fd", f"{self.ready_write}"]
        return args

    def stdin(self) -> int:
        """Give what the child's standard input is."""
        lifeline = self.contained and self.lifeline_read >= 0
        return self.lifeline_read if lifeline else subprocess.DEVNULL

    def passed(self) -> list[int]:
        """List the descriptors that the child inherits under their own numbers."""
        if self.contained:
            return []
        return [fd for fd in (self.lifeline_read, self.ready_write) if fd >= 0]

    def close_theirs(self) -> None:
        """Close the child's ends, so that our reads see the end of file."""
        for name in ("lifeline_read", "ready_write"):
            self._close(name)

    def close(self) -> None:
        """Close all that is open."""
        self.close_theirs()
        self._close("ready_read")
        if self.lifeline_write >= 0:
            close_private(self.lifeline_write)
            self.lifeline_write = -1

    def _close(self, name: str) -> None:
        fd = getattr(self, name)
        if fd >= 0:
            os.close(fd)
            setattr(self, name, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What waiting for a start came to."""

    kind: str
    """ready, ended or timeout."""
    load_s: float | None = None
    """What the worker says its load took; None: not said."""
    returncode: int | None = None


@dataclass(slots=True, kw_only=True)
class Child:
    """A process that was started here."""

    process: "subprocess.Popen[bytes]"
    pidfd: int
    pipes: Pipes
    log: Log
    log_start: int
    """Length of the log when this child began to write."""
    began: float = field(default_factory=time.monotonic)

    @property
    def pid(self) -> int:
        """Give the pid, which is also its session's id."""
        return self.process.pid

    def wait_ready(self, timeout_s: float, socket_path: Path) -> Outcome:
        """Wait for the ready line, the process's end, or the time, whichever is first."""
        deadline = self.began + timeout_s
        said = self._ready_line(deadline)
        while said is None and time.monotonic() < deadline:
            # no pipe, or the model closed it: a socket that exists accepts
            if socket_path.is_socket():
                said = {}
            elif self.wait_end(_LOOK_S):
                break
        if said is not None:
            return Outcome(kind="ready", load_s=said.get("load_s"))
        if self.wait_end(0):
            return Outcome(kind="ended", returncode=self.process.returncode)
        return Outcome(kind="timeout")

    def _ready_line(self, deadline: float) -> dict[str, float] | None:
        """Read the ready line; None: there is no pipe, it closed, or time is up."""
        fd = self.pipes.ready_read
        if fd < 0:
            return None
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        # the pipe may be held open by what a dead worker left behind
        poll.register(self.pidfd, select.POLLIN)
        got = b""
        while not got.endswith(b"\n") and len(got) < _READY_LINE_BYTES:
            left = deadline - time.monotonic()
            ready = {at for at, _ in poll.poll(max(0, left) * 1000)}
            more = os.read(fd, _READY_LINE_BYTES) if fd in ready else b""
            if not more:
                return None
            got += more
        return _parsed(got)

    def wait_end(self, timeout_s: float) -> bool:
        """Wait for the end of the process; True once it has ended and is reaped."""
        if self.process.returncode is None:
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            if poll.poll(max(0, timeout_s) * 1000):
                self.process.wait()
        return self.process.returncode is not None

    def close(self) -> None:
        """Close our ends: the lifeline tells the worker that its owner is gone."""
        self.pipes.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def __del__(self) -> None:
        """Let go of a worker that nobody asks any more: it notices by the lifeline."""
        self.close()


_CHILDREN: list["subprocess.Popen[bytes]"] = []
"""Children that were not seen to end: one that runs on without an object here is reaped
at a later start, and is not collected before, whatever refers to it."""


def _argv_shown(pid: int) -> bytes:
    """Give a process's argv as the process table shows it; OSError: it is in none."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def spawn(  # noqa: PLR0913  (all by keyword but what every start has)
    argv: Sequence[str],
    env: Mapping[str, str],
    pipes: Pipes,
    log: Log,
    *,
    cwd: Path | None = None,
    standard: Mapping[str, int] | None = None,
    shown: Callable[[int], bytes] = _argv_shown,
) -> Child:
    """Start a child in a session of its own, its output appended to the log.

    `cwd` is the directory that it starts in (None: ours); `standard` may name other
    descriptors for `stdin` and `stdout`; `shown` reads the process table. Raises OSError
    where the program cannot be executed; the pipes are then closed.
    """
    given = standard or {}
    _CHILDREN[:] = [child for child in _CHILDREN if child.poll() is None]
    start = log.size()
    try:
        with log.open() as out:
            start = min(start, log.size())
            process = subprocess.Popen(
                list(argv),
                env=dict(env),
                stdin=given.get("stdin", pipes.stdin()),
                stdout=given.get("stdout", out.fileno()),
                stderr=out.fileno(),
                pass_fds=pipes.passed(),
                cwd=cwd,
                start_new_session=True,
            )
        # not reaped by anybody yet: the pid is still this process
        pidfd = os.pidfd_open(process.pid)
        _CHILDREN.append(process)
        _let_it_be_seen(process.pid, pidfd, shown)
    except BaseException:
        pipes.close()
        raise
    pipes.close_theirs()
    return Child(process=process, pidfd=pidfd, pipes=pipes, log=log, log_start=start)


def _let_it_be_seen(pid: int, pidfd: int, shown: Callable[[int], bytes]) -> None:
    """Wait until the process table shows a child's argv, or the child has ended.

    It is empty for an instant after Popen has returned: who decides on room in it would
    count nothing for this child. One that empties its argv at once is not waited for.
    """
    until = time.monotonic() + _SEEN_S
    ended = select.poll()
    ended.register(pidfd, select.POLLIN)
    # another thread may have waited for one that ended: it is in no table then
    with contextlib.suppress(OSError):
        while not shown(pid):
            if ended.poll(1) or time.monotonic() >= until:
                return


def _parsed(line: bytes) -> dict[str, float] | None:
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said if isinstance(said, dict) else None
