"""Orphans that the kernel hands to this process, reaped without touching its children.

The daemon is the parent of whatever its tenants' programs leave behind, so that it sees
them end. A process that it started itself belongs to a Popen, which alone may ask for its
exit status.
"""

import contextlib
import ctypes
import gc
import os
import subprocess
import threading

from remote_resident.processes import process_table

_PR_SET_CHILD_SUBREAPER = 36
_LOOK_S = 1.0


def adopt() -> bool:
    """Become the parent of every orphan below; False where the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def reap_until(ended: threading.Event, look_s: float = _LOOK_S) -> None:
    """Reap orphans that have ended, until told to stop."""
    seen: set[int] = set()
    while not ended.wait(look_s):
        if not _any_zombie():
            seen = set()
            continue
        zombies = _zombies()
        # a zombie of the last look: the Popen of a child that ended at once exists by now
        for pid in (zombies & seen) - _started_here():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        seen = zombies


def _any_zombie() -> bool:
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    try:
        return os.waitid(os.P_ALL, 0, flags) is not None
    except ChildProcessError:
        return False


def _zombies() -> set[int]:
    me = os.getpid()
    table = process_table().values()
    return {row.pid for row in table if row.ppid == me and row.state == "Z"}


def _started_here() -> set[int]:
    """List the pids of every Popen there is, whoever made it.

    Asked only while something waits to be reaped: it looks through all objects.
    """
    started = set()
    for thing in gc.get_objects():
        if issubclass(type(thing), subprocess.Popen):
            started.add(getattr(thing, "pid", None) or 0)
    return started
