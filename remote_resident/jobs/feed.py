"""The events of one job in the host: kept within a bound, read by any number."""

import json
import threading
from collections.abc import Iterable, Iterator
from itertools import count

from remote_resident.jobs.job import Event

MOST_BYTES = 4 * 2**20
TAIL_EVENTS = 200
TAIL_BYTES = 256 * 2**10
_LINE_BYTES = 180
"""What Python needs to keep one line besides its text."""
_Line = tuple[int, str, bytes]
"""Number, name of the event, its JSON."""
_FIRST_GIVEN_UP = ("progress", "metric", "log")


class Feed:
    """Events in order; a reader that is slow misses some, and is told how many."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._changed = threading.Condition()
        self._lines: list[_Line] = []
        self._number = count(1)
        self._bytes = 0
        self._ended = False
        for event in events:
            self.add(event)

    def add(self, event: Event, line: bytes | None = None) -> None:
        """Append an event; `line` is what it came as, None: it is made here."""
        self._append(event, line)

    def end(self, terminal: Event) -> None:
        """Append the last event."""
        self._append(terminal, None, ended=True)

    def _append(self, event: Event, line: bytes | None, ended: bool = False) -> None:
        # text, not objects: a tenth of the memory
        line = json.dumps(event, default=str).encode() if line is None else line
        with self._changed:
            self._lines.append((next(self._number), str(event.get("event")), line))
            self._bytes += len(line) + _LINE_BYTES
            if self._bytes > MOST_BYTES:
                self._shrink(MOST_BYTES // 2)
            self._ended |= ended
            self._changed.notify_all()

    def read(self, look_s: float = 0.25) -> Iterator[Event | None]:
        """Yield what is kept, then what comes, to the terminal event.

        None: nothing new within `look_s` seconds.
        """
        position = 0
        while True:
            with self._changed:
                if not self._after(position) and not self._ended:
                    self._changed.wait(look_s)
                lines, ended = self._after(position), self._ended
            if not lines:
                if ended:
                    return
                yield None
            for number, _, line in lines:
                gap = number - position - 1
                position = number
                event = json.loads(line)
                yield {**event, "dropped": gap} if gap else event

    def tail(self) -> list[Event]:
        """Give the last events, which are kept for ever."""
        kept: list[Event] = []
        size = 0
        with self._changed:
            for _, _, line in reversed(self._lines):
                size += len(line)
                if len(kept) >= TAIL_EVENTS or (kept and size > TAIL_BYTES):
                    break
                kept.append(json.loads(line))
        return kept[::-1]

    def _after(self, position: int) -> list[_Line]:
        if not self._lines or self._lines[-1][0] <= position:
            return []
        start = len(self._lines)
        while start > 0 and self._lines[start - 1][0] > position:
            start -= 1
        return self._lines[start:]

    def _shrink(self, limit: int) -> None:
        """Give up the oldest: progress first, then metrics and log lines, then all."""
        last = self._lines[-1][0]
        for names in (*((name,) for name in _FIRST_GIVEN_UP), None):
            kept: list[_Line] = []
            for line in self._lines:
                number, name, text = line
                given_up = number != last and (names is None or name in names)
                if self._bytes > limit and given_up:
                    self._bytes -= len(text) + _LINE_BYTES
                else:
                    kept.append(line)
            self._lines = kept
