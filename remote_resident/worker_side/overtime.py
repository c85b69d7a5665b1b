"""A load or a prediction that does not come back, where nobody is left to end it.

Who waits for an answer ends the worker at the limit, from outside, and can say more. What
is here comes a little later, and matters where that one is gone.
"""

from __future__ import annotations

import faulthandler
from time import monotonic

from . import stacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STUCK = 124
"""Exit status where a load or a prediction took longer than it may."""
MARGIN_S = 5.0
"""How much later than who waits outside."""


class Overtime:
    """The attendant's watch over the main thread, and C's over the attendant."""

    def __init__(self, attendant: Any) -> None:
        self.attendant = attendant
        self._watched_until = 0.0
        self._watched_for = 0.0

    def limit_s(self) -> float:
        """Give how long what runs now may take; 0: for ever."""
        options = self.attendant.options
        is_load = not self.attendant.is_open() and not options.once
        return float(options.start_timeout_s if is_load else options.request_timeout_s)

    def due(self) -> float | None:
        """Give when what runs now has taken too long; None: nothing runs, or it may."""
        limit_s, attendant = self.limit_s(), self.attendant
        is_open = attendant.is_open()
        if not limit_s or attendant.gone or (is_open and attendant.running is None):
            return None
        begun: float = attendant.begun if is_open else attendant.began
        return begun + limit_s + _margin_s(limit_s)

    def end(self) -> None:
        """Write down where every thread is, and leave."""
        attendant = self.attendant
        is_load = not attendant.is_open() and not attendant.options.once
        attendant.log(
            f"no end {self.limit_s()} s after the begin of a "
            f"{'load' if is_load else 'prediction'}; leaving"
        )
        stacks.write(attendant.log_fd)
        attendant.leave_at_once(STUCK)

    def wind(self, wait_s: float) -> None:
        """Have the process ended where the attendant does not come to run for too long.

        A call into C can hold the interpreter for ever, and the attendant with it; the
        watchdog is C's own. It is wound up again before it can run down.
        """
        limit_s = self.limit_s()
        if not limit_s:
            if self._watched_for:
                self._watched_for = 0.0
                faulthandler.cancel_dump_traceback_later()
            return
        needed = wait_s + limit_s + _margin_s(limit_s)
        now = monotonic()
        if self._watched_for == limit_s and now + needed < self._watched_until:
            return
        self._watched_for = limit_s
        self._watched_until = now + needed + limit_s / 4
        faulthandler.dump_traceback_later(
            needed + limit_s / 4, exit=True, file=self.attendant.log_fd
        )


def _margin_s(limit_s: float) -> float:
    return min(MARGIN_S, max(1.0, limit_s))
