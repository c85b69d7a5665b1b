"""Who wants this worker: its owner's lifeline, and the owner's process."""

# contextlib would cost each start of a worker half the interpreter's own
# ruff: noqa: SIM105

from __future__ import annotations

import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Owners:
    """The descriptors by which an owner's end is seen; none where nobody owns it."""

    def __init__(self, lifeline: int | None) -> None:
        self._lifeline = lifeline
        self._gone: dict[int, str] = {}
        """What it means that one of them has come to its end."""

    def __contains__(self, fd: int) -> bool:
        return fd in self._gone

    def find(self, epoll: Any) -> None:
        """Have the owner's end heard of."""
        if self._lifeline is None:
            return
        self._gone[self._lifeline] = "its end of the lifeline is closed"
        parent = os.getppid()
        # 0: outside this container, where the lifeline alone says it
        if parent > 0 and hasattr(os, "pidfd_open"):
            try:
                self._gone[os.pidfd_open(parent)] = f"process {parent} has ended"
            except OSError:
                pass
        for fd in self._gone:
            epoll.register(fd, select.EPOLLIN)

    def ended(self, fd: int, epoll: Any) -> str | None:
        """Say how the owner's end was seen; None: it was not its end."""
        if fd == self._lifeline:
            try:
                if os.read(fd, 4096):
                    return None
            except OSError:
                pass
        epoll.unregister(fd)
        return self._gone[fd]
