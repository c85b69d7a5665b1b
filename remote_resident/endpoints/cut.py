"""Whether a thread's work is to end, waited for together with the ends of processes."""

import contextlib
import os
import select
import threading
from collections.abc import Iterable


class Cut:
    """Set once, for good; whoever waits wakes at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = False
        self._bells: set[int] = set()
        """Descriptors, one for each thread that waits."""

    def set(self) -> None:
        """Say that it is to end."""
        with self._lock:
            self._is_set = True
            for bell in self._bells:
                os.eventfd_write(bell, 1)

    def is_set(self) -> bool:
        """Say whether it is to end."""
        return self._is_set

    def wait(self, timeout_s: float, pids: Iterable[int] = ()) -> bool:
        """Wait until it is set, one of the processes has ended, or the time is over.

        Says whether it is set. Raises OSError where no descriptor is free.
        """
        with contextlib.ExitStack() as stack:
            poll = select.poll()
            for pid in pids:
                try:
                    fd = os.pidfd_open(pid)
                except ProcessLookupError:
                    # it has ended since it was named
                    return self._is_set
                stack.callback(os.close, fd)
                poll.register(fd, select.POLLIN)
            bell = os.eventfd(0, os.EFD_CLOEXEC)
            stack.callback(os.close, bell)
            poll.register(bell, select.POLLIN)
            with self._lock:
                if self._is_set:
                    return True
                self._bells.add(bell)
            stack.callback(self._leave, bell)
            poll.poll(timeout_s * 1000)
        return self._is_set

    def _leave(self, bell: int) -> None:
        with self._lock:
            self._bells.discard(bell)
