"""One connection to a worker, kept between requests for whoever asks next."""

import threading
import time
import weakref

from remote_resident import client
from remote_resident.caller_side.held import Held

KEEP_S = 5.0
"""How long an unused connection is kept."""


class Spare:
    """At most one connection at rest; closed when nobody used it for a while."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._kept: tuple[client.Channel, Held] | None = None
        self._used = 0.0
        self._closer = False

    def __del__(self) -> None:
        """Close what nobody can take any more."""
        if self._kept is not None:
            self._kept[0].close()

    def take(self) -> tuple[client.Channel, Held] | None:
        """Give the connection away, and to whom it leads; None: there is none."""
        with self._guard:
            kept, self._kept = self._kept, None
        return kept

    def keep(self, channel: client.Channel, held: Held, unused_s: float) -> None:
        """Keep a connection for `unused_s`; a second one is closed."""
        with self._guard:
            if self._kept is None:
                self._kept = channel, held
                self._used = time.monotonic()
                if not self._closer:
                    self._closer = True
                    args = (weakref.ref(self), unused_s)
                    threading.Thread(
                        target=_close_unused, args=args, daemon=True
                    ).start()
                return
        channel.close()

    def close(self) -> None:
        """Close what is kept."""
        kept = self.take()
        if kept is not None:
            kept[0].close()

    def close_unused(self, unused_s: float) -> float | None:
        """Close what was not used for so long; the seconds left, None: closed."""
        with self._guard:
            left = self._used + unused_s - time.monotonic()
            if self._kept is not None and left > 0:
                return left
            kept, self._kept = self._kept, None
            self._closer = False
        if kept is not None:
            kept[0].close()
        return None


def _close_unused(ref: "weakref.ref[Spare]", unused_s: float) -> None:
    left: float | None = unused_s
    while left is not None:
        time.sleep(left)
        spare = ref()
        if spare is None:
            return
        left = spare.close_unused(unused_s)
        del spare
