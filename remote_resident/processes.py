"""Find and end everything that belongs to one instance, and nothing else.

A process belongs to an instance when the kernel's record of it says so: its
environment or its argv carries the instance, or it stands in a session that the instance
made, or it descends from such a process and carries no other instance's mark.
"""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

INSTANCE_VARIABLE = "TU_RESIDENT_INSTANCE"
"""Name of the variable that all descendants of a worker carry."""
SLUG_VARIABLE = "TU_RESIDENT_SLUG"
TREE_VARIABLE = "TU_RESIDENT_TREE"
"""Whose worker it is, in the environment of all its descendants."""
CONTAINER_LABEL = "tu-remote.instance"
"""Label that a container of an instance carries."""

_ENVIRON_MARK = b"\0" + INSTANCE_VARIABLE.encode() + b"="
_ARGV_MARK = b"\0--resident-instance\0"
_KILL_WAIT_S = 10.0
_CLI_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One row of the process table."""

    pid: int
    ppid: int
    sid: int
    state: str
    started: int
    """Clock ticks since boot; with the pid, what a pid alone is not: an identity."""
    instance: str | None
    """The instance whose mark it carries; None: no mark, or not readable."""


def process_table() -> dict[int, Process]:
    """Read every process of this user, by pid; those that end meanwhile are left out."""
    uid = os.geteuid()
    # listdir, not iterdir: a Path for each of some hundred rows costs more than the read
    names = os.listdir("/proc")  # noqa: PTH208
    rows = (_read(int(name), uid) for name in names if name.isdigit())
    return {row.pid: row for row in rows if row is not None}


def started_at(pid: int) -> int | None:
    """Give when a process began, anybody's, in clock ticks since boot; None: it is gone.

    With the pid, what a pid alone is not: an identity.
    """
    try:
        stat = _bytes(f"/proc/{pid}/stat")
    except OSError:
        return None
    # the name may hold blanks and parentheses: only what follows the last is fields
    fields = stat[stat.rfind(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """What the process table shows of one start of a worker."""

    instance: str
    leader: Process | None
    """The worker, or the client of its container; None: only what it left behind."""
    marks: dict[str, str]
    """Its argv's options without the dashes; empty without a leader."""

    @property
    def abandoned(self) -> bool:
        """Say whether it answers one request of a process that is gone.

        A process of another pid namespace counts its parents otherwise: not abandoned.
        """
        owner = self.marks.get("owner-pid", "")
        if self.leader is None or not owner.isdigit():
            return False
        return self.leader.ppid != int(owner) and _is_in_our_namespace(self.leader.pid)


def instances(slug: str, tree: str) -> list[Instance]:
    """List the instances of a provider of a tree that have a living process."""
    found: dict[str, list[Process]] = {}
    for process in process_table().values():
        if process.instance is not None and process.state not in "ZX":
            found.setdefault(process.instance, []).append(process)
    return [
        seen
        for instance, of_it in found.items()
        if (seen := _instance(instance, of_it, (slug, tree))) is not None
    ]


def marks(pid: int) -> dict[str, str]:
    """Read the options of a worker's argv: resident-slug, socket, inputs, ...

    Empty where the process is gone or is no worker.
    """
    try:
        words = os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")
    except OSError:
        return {}
    if "--resident-instance" not in words:
        return {}
    # what follows a bare -- is the provider's own
    last = len(words)
    with contextlib.suppress(ValueError):
        last = words.index("--", words.index("--resident-instance"))
    words = words[:last]
    pairs = zip(words, words[1:], strict=False)  # noqa: RUF007 - costs an import
    return {name[2:]: value for name, value in pairs if name.startswith("--")}


def _instance(
    instance: str, of_it: list[Process], wanted: tuple[str, str]
) -> Instance | None:
    # forks of a worker have its argv: the oldest is the worker itself
    for process in sorted(of_it, key=lambda p: (p.started, p.pid)):
        options = marks(process.pid)
        if options.get("resident-instance") == instance:
            same = (options.get("resident-slug"), options.get("resident-tree"))
            if same != wanted:
                return None
            return Instance(instance=instance, leader=process, marks=options)
    if not any(_descends_from(process.pid, wanted) for process in of_it):
        return None
    return Instance(instance=instance, leader=None, marks={})


def _descends_from(pid: int, wanted: tuple[str, str]) -> bool:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    names = (SLUG_VARIABLE, TREE_VARIABLE)
    return all(
        os.fsencode(f"{name}={value}") in environ
        for name, value in zip(names, wanted, strict=True)
    )


def members(instance: str) -> list[int]:
    """List the pids that belong to an instance, zombies and this process left out."""
    return sorted(_members(instance, process_table(), set()))


def stopped(instance: str) -> int | None:
    """Give the first process of an instance that a signal has stopped; None: none."""
    table = process_table()
    found = _members(instance, table, set())
    return min((pid for pid in found if table[pid].state == "T"), default=None)


def end_all(
    instance: str,
    *,
    grace_s: float = 5.0,
    container_cli: str | None = None,
    session: int | None = None,
) -> list[int]:
    """End everything of an instance and return the pids that were ended.

    SIGTERM first, SIGKILL after `grace_s` seconds to what is left, again until a scan of
    the whole process table finds nothing. Bounded: what the kernel cannot end within
    ten seconds (uninterruptible sleep) is not in the result and still in `members`.
    `container_cli` is the program to end the instance's containers with; None: no
    container is in play. `session` is the pid that the instance's first process had,
    where the caller knows it: what dropped its environment is then found although that
    process is gone. This process is never among the ended.
    """
    if container_cli is not None:
        end_containers(instance, container_cli, grace_s=grace_s)
    hunt = _Hunt(instance)
    if session is not None and _is_gone_or_of(instance, process_table().get(session)):
        hunt.sessions.add(session)
    try:
        if not hunt.until_none(signal.SIGTERM, time.monotonic() + grace_s):
            hunt.until_none(signal.SIGKILL, time.monotonic() + _KILL_WAIT_S)
        hunt.reap()
    finally:
        hunt.close()
    return sorted(hunt.ended)


def end_containers(instance: str, container_cli: str, *, grace_s: float = 5.0) -> None:
    """Stop, then remove, the containers that carry an instance's label."""
    listed = _ask(
        [
            container_cli,
            "ps",
            "--all",
            "--quiet",
            "--filter",
            f"label={CONTAINER_LABEL}={instance}",
        ],
        _CLI_TIMEOUT_S,
    )
    names = listed.split()
    if names:
        stop = [container_cli, "stop", "--time", str(max(0, round(grace_s))), *names]
        _ask(stop, grace_s + _CLI_TIMEOUT_S)
        _ask([container_cli, "rm", "--force", *names], _CLI_TIMEOUT_S)


def _ask(argv: list[str], timeout_s: float) -> str:
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
            text=True,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        # the sweep of processes that follows still ends the client
        return ""


def _read(pid: int, uid: int) -> Process | None:
    try:
        stat = _bytes(f"/proc/{pid}/stat")
        # a process that made itself undumpable is shown as root's: ask its status
        owner = os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116
        if owner != uid and _real_uid(pid) != uid:
            return None
    except OSError:
        return None
    # the name may hold blanks and parentheses: only what follows the last is fields
    fields = stat[stat.rfind(b")") + 2 :].split()
    return Process(
        pid=pid,
        ppid=int(fields[1]),
        sid=int(fields[3]),
        state=fields[0].decode(),
        started=int(fields[19]),
        # a zombie has neither: two reads less for each
        instance=None if fields[0] == b"Z" else _mark(pid),
    )


def _is_in_our_namespace(pid: int) -> bool:
    try:
        theirs, ours = (os.stat(f"/proc/{one}/ns/pid") for one in (pid, "self"))  # noqa: PTH116
    except OSError:
        return False
    return theirs.st_ino == ours.st_ino


def _real_uid(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_bytes().splitlines():
        if line.startswith(b"Uid:"):
            return int(line.split()[1])
    return -1


def _bytes(path: str) -> bytes:
    """Read a file of /proc whole; not by Path, which costs more than the read."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = b""
        while more := os.read(fd, 1 << 16):
            found += more
        return found
    finally:
        os.close(fd)


def _mark(pid: int) -> str | None:
    for name, mark in (("environ", _ENVIRON_MARK), ("cmdline", _ARGV_MARK)):
        try:
            text = b"\0" + _bytes(f"/proc/{pid}/{name}")
        except OSError:
            continue
        _, found, rest = text.partition(mark)
        if found:
            return os.fsdecode(rest.partition(b"\0")[0])
    return None


def _members(
    instance: str, table: dict[int, Process], sessions: set[int]
) -> dict[int, Process]:
    """Pick an instance's living processes; `sessions` remembers those it made."""
    me = os.getpid()
    marked = {p.pid for p in table.values() if p.instance == instance}
    sessions |= _own_sessions(instance, table, marked)
    picked = marked | {
        p.pid for p in table.values() if p.sid in sessions and p.instance is None
    }
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.ppid, []).append(process)
    waiting = list(picked - {me})
    while waiting:
        for child in children.get(waiting.pop(), ()):
            # another instance's worker belongs to whoever started it
            if child.pid not in picked and child.instance is None and child.pid != me:
                picked.add(child.pid)
                waiting.append(child.pid)
    return {
        pid: table[pid] for pid in picked if pid != me and table[pid].state not in "ZX"
    }


def _own_sessions(
    instance: str, table: dict[int, Process], marked: Iterable[int]
) -> set[int]:
    """Tell the sessions that an instance made from those it merely runs in."""
    foreign = {table[pid].sid for pid in _lineage(os.getpid(), table)}
    found = set()
    for pid in marked:
        sid = table[pid].sid
        leader = table.get(sid)
        # a leader that is gone cannot be asked; only ours mark what they start, and they
        # start it in a session of its own
        if sid and sid not in foreign and _is_gone_or_of(instance, leader):
            found.add(sid)
    return found


def _is_gone_or_of(instance: str, leader: Process | None) -> bool:
    return leader is None or leader.state in "ZX" or leader.instance == instance


def _lineage(pid: int, table: dict[int, Process]) -> Iterator[int]:
    while pid in table:
        yield pid
        pid = table[pid].ppid


@dataclass(slots=True)
class _Hunt:
    """The pidfds of an instance's processes, from the first look until all are gone."""

    instance: str
    sessions: set[int] = field(default_factory=set)
    fds: dict[int, int] = field(default_factory=dict)
    """pidfd by pid, open while the process lives."""
    adopted: dict[int, int] = field(default_factory=dict)
    """Pids that were somebody else's children when they were first seen, and when they
    began."""
    signalled: set[tuple[int, int]] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)

    def until_none(self, signum: signal.Signals, deadline: float) -> bool:
        """Signal what is found until nothing is; False when the deadline passed."""
        empty = 0
        # twice: a process that is just being replaced by exec shows no environment
        while empty < 2:
            found = _members(self.instance, process_table(), self.sessions)
            for process in found.values():
                self._signal(process, signum)
            empty = 0 if found else empty + 1
            left = deadline - time.monotonic()
            if found and left <= 0:
                return False
            if found:
                self._wait(left)
        return True

    def _signal(self, process: Process, signum: signal.Signals) -> None:
        fd = self.fds.get(process.pid)
        if fd is None:
            fd = _open(process)
            if fd is None:
                return
            self.fds[process.pid] = fd
            if process.ppid != os.getpid():
                self.adopted[process.pid] = process.started
        if (process.pid, signum) not in self.signalled:
            self.signalled.add((process.pid, signum))
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(fd, signum)

    def _wait(self, timeout_s: float) -> None:
        """Wait until all that are known ended, or the time is over."""
        deadline = time.monotonic() + timeout_s
        poll = select.poll()
        for fd in self.fds.values():
            poll.register(fd, select.POLLIN)
        by_fd = {fd: pid for pid, fd in self.fds.items()}
        if not by_fd:
            # all that were found ended before they could be opened: look again, not at once
            poll.poll(10)
        while by_fd:
            left = deadline - time.monotonic()
            ready = poll.poll(max(0, left) * 1000)
            for fd, _ in ready:
                poll.unregister(fd)
                self._ended(by_fd.pop(fd))
            if not ready and left <= 0:
                return

    def _ended(self, pid: int) -> None:
        os.close(self.fds.pop(pid))
        self.ended.add(pid)

    def reap(self) -> None:
        """Reap the orphans that were handed to this process.

        At the end, since an orphan is handed over only when its parent has ended too. The
        status of a child that this process started is for whoever started it.
        """
        for pid in self.adopted.keys() & self.ended:
            left = _read(pid, os.geteuid())
            if left is None or left.ppid != os.getpid():
                continue
            # the same process still, not a new child that got its pid
            if left.state == "Z" and left.started == self.adopted[pid]:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def close(self) -> None:
        """Close what is still open."""
        for fd in self.fds.values():
            os.close(fd)
        self.fds.clear()


def _open(process: Process) -> int | None:
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return None
    # the pid may have become another process since the scan: with the descriptor open it
    # cannot any more, so that this look is the one that counts
    now = _read(process.pid, os.geteuid())
    if now is None or now.started != process.started:
        os.close(fd)
        return None
    return fd
