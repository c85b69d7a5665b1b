"""Orphans that the kernel hands to this process, reaped without touching its children.

The daemon is the parent of whatever its tenants' programs leave behind, so that it sees
them end. A process that it started itself belongs to a Popen, which alone asks for its exit
status.
"""

import contextlib
import ctypes
import gc
import os
import subprocess
import threading
from typing import Any

from remote_resident.processes import process_table

_PR_SET_CHILD_SUBREAPER = 36
_LOOK_S = 1.0


def adopt() -> bool:
    """Become the parent of every orphan below; False where the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def reap_until(ended: threading.Event) -> None:
    """Reap orphans that have ended, until told to stop."""
    seen: set[int] = set()
    while not ended.wait(_LOOK_S):
        if not _any_zombie():
            seen = set()
            continue
        zombies = _zombies()
        # a zombie of the last look: the Popen of a child that ended at once exists by now
        if old := zombies & seen:
            _reap(old)
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


def _reap(pids: set[int]) -> None:
    """Reap zombies; what a Popen stands for, through it, so that it knows the status.

    One that its owner forgot would be looked for again and again otherwise.
    """
    for child in _children():
        if child.pid in pids:
            pids = pids - {child.pid}
            child.poll()
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _children() -> "list[subprocess.Popen[Any]]":
    """List every Popen whose process has not been waited for, whoever made it.

    Asked only while something waits to be reaped: it looks through all objects.
    """
    return [
        thing
        for thing in gc.get_objects()
        if issubclass(type(thing), subprocess.Popen)
        and getattr(thing, "pid", None) is not None
        and thing.returncode is None
    ]
