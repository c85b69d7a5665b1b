"""Does a job's worker live? One look at a provider's worker, a few times a second.

A worker is lost when its process is stopped, when it gives no sign of life for too long
(no event, no answer to /health), or when it does not heed a cancel. That its process has
ended is seen by the thread that reads its stream, which a lost worker's is cut for.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from remote_resident.jobs import asking
from remote_resident.jobs.job import RUNNING
from remote_resident.jobs.lane import HEALTH_S, LEAVE_S, Lane, Live

AGAIN_S = 10.0
"""How often a cancel is asked for that has not come to an end."""
_HOST_GRACE_S = 15.0
"""What a cancel may be ignored for on top: the worker itself is to end first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What counts as a sign of life, and as none."""

    liveness_s: float
    grace_s: float
    """How long a cancel may be ignored; infinite: for ever."""
    lock: threading.RLock
    """Held while it is decided who is in hand."""

    def look_at(self, lane: Lane) -> None:
        """Look once: lose a worker that is none any more, let an idle one go."""
        live = lane.in_hand
        if live is not None and live.lost is not None:
            # again: it may have been between two requests at the last look
            return cut(live)
        if lane.held is None or lane.ending:
            return None
        if live is None:
            if lane.has_ended() or lane.stopped() or _idle_too_long(lane):
                self._retire(lane)
        elif live.job.state == RUNNING:
            now = time.monotonic()
            why = self._why_lost(lane, live, now)
            if why is not None:
                live.lost = why
                cut(live)
            elif not lane.asking and self._is_to_ask(live, now):
                lane.asking = True
                in_thread(self._ask, live)
        return None

    def _why_lost(self, lane: Lane, live: Live, now: float) -> str | None:
        """Say why a worker counts as lost; None: it does not."""
        silent_s = now - live.heard
        if lane.stopped():
            return f"its worker {lane.pid} is stopped (state T)"
        if silent_s > self.liveness_s:
            return (
                f"its worker {lane.pid} gave no sign of life for {silent_s:.1f} s, "
                f"one within {self.liveness_s} s wanted"
            )
        asked = live.cancelled_at
        if asked is not None and now - asked > self.grace_s + _HOST_GRACE_S:
            return f"its cancel was ignored for {self.grace_s} s"
        return None

    def _is_to_ask(self, live: Live, now: float) -> bool:
        asked_again = live.cancelled_at is not None and now >= live.ask_again
        return asked_again or now - live.heard > self.liveness_s / 10

    def _ask(self, live: Live) -> None:
        """Ask a worker whether it lives; and for the end of its job, if that is due."""
        lane = live.lane
        try:
            if live.cancelled_at is not None and time.monotonic() >= live.ask_again:
                live.ask_again = time.monotonic() + AGAIN_S
                asking.cancel(lane.socket, live.job.job_id, HEALTH_S)
            if asking.health(lane.socket, max(1.0, self.liveness_s / 10)) is not None:
                live.heard = time.monotonic()
        finally:
            lane.asking = False

    def _retire(self, lane: Lane) -> None:
        with self.lock:
            if lane.in_hand is not None:
                return
            lane.ending = True
        in_thread(lane.end, LEAVE_S if lane.stopped_looks == 0 else 0.0)


def cut(live: Live) -> None:
    """Cut a job's stream, so that the thread that reads it sees an end."""
    stream = live.stream
    if stream is not None:
        with contextlib.suppress(OSError):
            stream.shutdown(socket.SHUT_RDWR)


def in_thread(function: Callable[..., object], *args: Any) -> threading.Thread:
    """Call a function in a thread of its own, which ends with the process."""
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


def _idle_too_long(lane: Lane) -> bool:
    return time.monotonic() - lane.idle_since > lane.starter.idle_timeout_s()
