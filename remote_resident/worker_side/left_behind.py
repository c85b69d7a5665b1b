"""What a worker that leaves takes with it: all that its model has started and not ended."""

# pathlib would cost each start of a worker half the interpreter's own
# ruff: noqa: PTH208, PTH123

from __future__ import annotations

import os

from . import argv

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator
else:
    import _signal as signal

ROUNDS = 50


def end(instance: str | None) -> int:
    """Kill what carries this instance's mark, stands in our session, or descends from
    either without another instance's mark; how many.

    Not this process and not those above it, a launcher or a container's init. Never
    raises; only for a process that is about to end, whose descriptors may go. What the
    kernel does not end at once is left to the next start's sweep.
    """
    if not instance:
        return 0
    _free_descriptors()
    mark = f"{instance}\0".encode()
    spared = set(_above())
    ended: set[tuple[int, bytes]] = set()
    for _ in range(ROUNDS):
        _free_descriptors()
        found = [one for one in _marked(mark, spared) if one not in ended]
        if not found:
            break
        for pid, began in found:
            ended.add((pid, began))
            _kill(pid, began)
    return len(ended)


def _free_descriptors() -> None:
    """Let go of this process's own where a model has left none to look with."""
    try:
        for fd in os.pipe():
            os.close(fd)
    except OSError:
        most = os.sysconf("SC_OPEN_MAX")
        os.closerange(3, most if most > 0 else 2**20)


def _above() -> Iterator[int]:
    pid = os.getpid()
    while pid > 0:
        yield pid
        fields = _fields(pid)
        pid = int(fields[1]) if fields else 0


def _marked(mark: bytes, spared: set[int]) -> Iterator[tuple[int, bytes]]:
    me = os.getpid()
    ours: dict[int, bytes] = {me: b""}
    strays: dict[int, list[bytes]] = {}
    for pid, fields in _table(spared):
        environ = b"\0" + _read(pid, "environ")
        _, is_marked, told = environ.partition(f"\0{argv.INSTANCE}=".encode())
        if fields[3] == str(me).encode() or told.startswith(mark):
            ours[pid] = fields[19]
        elif not is_marked:
            strays[pid] = fields
    found = set(ours)
    while found:
        found = {pid for pid, fields in strays.items() if int(fields[1]) in found}
        ours.update({pid: strays.pop(pid)[19] for pid in found})
    del ours[me]
    yield from ours.items()


def _table(spared: set[int]) -> Iterator[tuple[int, list[bytes]]]:
    """Give each living process but those that are spared, and its fields."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    for name in names:
        pid = int(name) if name.isdigit() else 0
        fields = _fields(pid) if pid and pid not in spared else None
        # no longer there, or ended and not yet reaped
        if fields and fields[0] not in b"ZX":
            yield pid, fields


def _kill(pid: int, began: bytes) -> None:
    """Kill a process unless its pid has become another's meanwhile."""
    try:
        if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
            os.kill(pid, signal.SIGKILL)
            return
        fd = os.pidfd_open(pid)
        try:
            fields = _fields(pid)
            if fields and fields[19] == began:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            os.close(fd)
    except OSError:
        return


def _fields(pid: int) -> list[bytes]:
    """Give a process's state, parent, group, session and so on; empty: it is gone."""
    stat = _read(pid, "stat")
    # the name may hold blanks and parentheses
    return stat[stat.rfind(b")") + 2 :].split()


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""
