"""What this process owns: stopped at its exit, and not a fork's to stop."""

import atexit
import contextlib
import os
import threading
import time
import weakref
from typing import Protocol

EXIT_GRACE_S = 10.0
_END_S = 10.0
"""What it takes to end a process that does not heed its grace."""


class Owned(Protocol):
    """A worker as one process sees it."""

    def owns_one(self) -> bool:
        """Say whether this process has a worker to end, or is starting one."""

    def stop(self, grace_s: float) -> list[int]:
        """End it; the pids that ended."""

    def renew(self) -> None:
        """Begin with nothing held: this process is a fork."""


_ALL: "weakref.WeakSet[Owned]" = weakref.WeakSet()


def remember(worker: Owned) -> None:
    """Have a worker stopped at this process's exit, for as long as it is in use."""
    _ALL.add(worker)


def stop_owned(grace_s: float = EXIT_GRACE_S) -> list[int]:
    """Stop every owned worker of this process, together; the pids that ended.

    Bounded by `grace_s` and what it takes to end a process; never raises.
    """
    deadline = time.monotonic() + grace_s
    ended: list[int] = []
    owned = [worker for worker in list(_ALL) if worker.owns_one()]
    threads = [
        threading.Thread(target=_stop_quietly, args=(w, deadline, ended), daemon=True)
        for w in owned
    ]
    try:
        for thread in threads:
            thread.start()
    except RuntimeError:
        # some interpreters start no threads this late: one after the other then
        for worker in owned:
            _stop_quietly(worker, deadline, ended)
    for thread in threads:
        if thread.ident is not None:
            # what is not ended by then loses its lifeline with this process
            thread.join(max(0.0, deadline - time.monotonic()) + _END_S)
    return sorted(set(ended))


def _stop_quietly(worker: Owned, deadline: float, ended: list[int]) -> None:
    # nothing may be raised at exit, and the lifeline ends what this could not
    with contextlib.suppress(Exception):
        ended.extend(worker.stop(max(0.0, deadline - time.monotonic())))


def _renew_all() -> None:
    for worker in _ALL:
        worker.renew()


atexit.register(stop_owned)
os.register_at_fork(after_in_child=_renew_all)
