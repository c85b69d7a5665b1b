"""When the worker leaves, and with which status; everything here runs in the loop.

told to stop    cancel all, wait for them, at most the grace            -> 0
owner gone      let them finish, at most the grace; then as above       -> 0
ignored         every job that lives was cancelled at least a grace ago -> 3
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from .job import Job
from .runner import Runner

IGNORED_STATUS = 3


class Departure:
    """The decision to leave."""

    def __init__(
        self,
        runner: Runner,
        grace_s: float | None,
        leave: Callable[[int], object],
        say: Callable[[str], object],
    ) -> None:
        self._runner = runner
        self._grace_s = grace_s
        self._leave = leave
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False
        self._orphaned = False
        self._left = False
        runner.changed = self.look

    def stop(self, why: str) -> None:
        """Cancel every job, and leave once they have ended or the grace is over."""
        if self._stopping:
            return
        self._stopping = True
        self._say(f"{why}: cancelling {self._runner.count()} job(s)")
        self._runner.refuse_more()
        self._runner.cancel_all()
        if self._grace_s is not None:
            self._loop.call_later(self._grace_s, self._stop_late)
        self.look()

    def orphan(self, why: str) -> None:
        """Let the jobs in hand finish within the grace, then stop."""
        if self._orphaned or self._stopping:
            return
        self._orphaned = True
        self._say(f"the owner is gone: {why}; {self._runner.count()} job(s) in hand")
        self._runner.refuse_more()
        if self._grace_s is not None:
            self._loop.call_later(self._grace_s, self.stop, "the grace is over")
        self.look()

    def look(self) -> None:
        """Look again at who still lives, now and when the next grace is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        jobs = self._runner.live()
        if not jobs:
            if self._stopping or self._orphaned:
                self._go(0)
        elif not self._stopping and self._grace_s is not None:
            due = _all_ignored_at(jobs, self._grace_s)
            if due is not None:
                wait_s = max(0.0, due - time.monotonic())
                self._timer = self._loop.call_later(wait_s, self._escalate)

    def _escalate(self) -> None:
        """Leave if nobody who lives was spared or still has time."""
        grace_s = self._grace_s
        if grace_s is None or self._stopping:
            return

        def ignored(jobs: list[Job]) -> bool:
            due = _all_ignored_at(jobs, grace_s) if jobs else None
            return due is not None and due <= time.monotonic()

        if self._runner.end_ignoring(grace_s, ignored):
            self._say(f"cancel ignored for {grace_s:g} s by every job that lives")
            self._go(IGNORED_STATUS)
        else:
            self.look()

    def _stop_late(self) -> None:
        assert self._grace_s is not None
        self._runner.end_ignoring(self._grace_s, lambda jobs: bool(jobs))
        self._go(0)

    def _go(self, status: int) -> None:
        if not self._left:
            self._left = True
            self._leave(status)


def _all_ignored_at(jobs: list[Job], grace_s: float) -> float | None:
    """Say when the last of them will have ignored its cancel; None where one has none."""
    times = [job.cancelled_at for job in jobs]
    latest = max((at for at in times if at is not None), default=None)
    return None if latest is None or None in times else latest + grace_s
