"""The stacks of a worker that may not answer, by the signals that have them written."""

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remote_resident.spawn import Log

_LINES = 10_000
_LOOK_S = 0.02
_STACK = "most recent call first"


def signalled(pid: int, log: "Log", limit_s: float) -> list[str]:
    """Signal a worker, and give what its log gained; empty: it told no stacks.

    The second signal, which can end it, only where the first is not answered within
    `limit_s`: a thread holds its interpreter.
    """
    before = log.size()
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        if not _catches(pid, number):
            continue
        with contextlib.suppress(OSError):
            os.kill(pid, number)
            if _is_told(log, before, limit_s):
                return log.tail(before, lines=_LINES)
    return []


def _is_told(log: "Log", before: int, limit_s: float) -> bool:
    until, size = time.monotonic() + limit_s, before
    while time.monotonic() < until:
        time.sleep(_LOOK_S)
        size, last = log.size(), size
        # written piece by piece: over when it has stopped growing
        if size == last > before and _holds_stacks(log, before):
            return True
    return _holds_stacks(log, before)


def _holds_stacks(log: "Log", before: int) -> bool:
    return any(_STACK in line for line in log.tail(before, lines=_LINES))


def _catches(pid: int, number: signal.Signals) -> bool:
    """Say whether a process has a handler for a signal, which would end it otherwise."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
