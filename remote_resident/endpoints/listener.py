"""Who listens on a port of 127.0.0.1: by the kernel's tables, not by what it answers."""

import contextlib
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from remote_resident import processes
from remote_resident.endpoints import sockets
from remote_resident.processes import INSTANCE_VARIABLE

_CONNECT_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process that has a listening socket."""

    pid: int
    started: int
    """Clock ticks since boot: with the pid, its identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Who was confirmed to listen on an endpoint's port."""

    inodes: frozenset[str]
    """The kernel's numbers of the listening sockets; empty: by a rule of the firewall."""
    owners: tuple[Owner, ...] = ()
    """Of a container its first process; empty where that is not known."""
    container: str | None = None
    """The container's id and when it was started; None: a process."""


def inodes(port: int) -> frozenset[str]:
    """Find the sockets that listen for 127.0.0.1 on a port; empty: none."""
    return frozenset(str(inode) for inode in sockets.listening(port))


def is_open(port: int) -> bool:
    """Say whether somebody has the port: a listener, or a rule that passes it on.

    A connection that is not refused at once is taken.
    """
    with socket.socket() as trial:
        trial.settimeout(_CONNECT_S)
        try:
            trial.connect(("127.0.0.1", port))
        except TimeoutError:
            # a full queue: somebody listens
            return True
        except OSError:
            return False
    return True


def owners(wanted: Iterable[str], among: Iterable[int] | None = None) -> set[int]:
    """Find the processes that have one of these sockets open.

    `among` None: every process that this user may look into.
    """
    links = {f"socket:[{inode}]" for inode in wanted}
    if not links:
        return set()
    if among is None:
        names = os.listdir("/proc")  # noqa: PTH208 - only the names
        among = [int(name) for name in names if name.isdigit()]
    return {pid for pid in among if _has(pid, links)}


def _has(pid: int, links: set[str]) -> bool:
    directory = f"/proc/{pid}/fd"
    try:
        numbers = os.listdir(directory)  # noqa: PTH208 - only the names
    except OSError:
        return False
    for number in numbers:
        with contextlib.suppress(OSError):
            if os.readlink(f"{directory}/{number}") in links:  # noqa: PTH115
                return True
    return False


def of_start(port: int, instance: str, service_dir: str) -> Listener | None:
    """Confirm that a port is listened on by a process of this start alone.

    Such a process has this instance and this service directory in its environment; one
    that has neither any more, having overwritten its own, must descend from those that
    have. None: nobody listens, or somebody else does too.
    """
    found = inodes(port)
    if not found:
        return None
    members = processes.members(instance)
    ours = [pid for pid in members if _is_ours(pid, instance, service_dir)]
    holding = owners(found, ours)
    if not holding or any(not owners([inode], holding) for inode in found):
        return None
    return Listener(
        inodes=found,
        owners=tuple(one for pid in sorted(holding) for one in owner_of(pid)),
    )


def _is_ours(pid: int, instance: str, service_dir: str) -> bool:
    environ = _environ(pid)
    if os.fsencode(f"{INSTANCE_VARIABLE}={instance}") not in environ:
        return True
    return os.fsencode(f"SERVICE_DIR={service_dir}") in environ


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def stranger(port: int) -> str:
    """Name who is on a port, for a person."""
    found = inodes(port)
    if not found:
        return "a rule of the firewall that passes it on"
    pids = sorted(owners(found))
    if not pids:
        return "a process that cannot be seen from here"
    pid = pids[0]
    with contextlib.suppress(OSError):
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        return f"pid {pid} ({name})"
    return f"pid {pid}"


def search(port: int) -> str:
    """Give the command that shows who is on a port, also to who may not see all."""
    root = "" if os.geteuid() == 0 else "sudo "
    if inodes(port):
        return f"{root}ss -ltnp 'sport = :{port}'"
    # a container whose engine was killed leaves its rule behind
    return f"{root}sh -c 'nft list ruleset; iptables-save -t nat' 2>&- | grep {port}"


def owner_of(pid: int | None) -> tuple[Owner, ...]:
    """Give the identity of a process, anybody's; empty where it is not there."""
    started = None if pid is None else processes.started_at(pid)
    if pid is None or started is None:
        return ()
    return (Owner(pid=pid, started=started),)


def still_there(listener: Listener, port: int) -> bool:
    """Say whether who was confirmed still listens, cheaply."""
    if listener.container is not None and any(
        processes.started_at(owner.pid) != owner.started for owner in listener.owners
    ):
        # what passes the port on may outlast what it is passed to
        return False
    return listener.inodes <= inodes(port) if listener.inodes else is_open(port)
