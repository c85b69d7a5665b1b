"""The events of one job in the host: kept within a bound, read by any number."""

import json
import threading
from collections.abc import Iterable, Iterator

from remote_resident.jobs.job import Event

MOST_BYTES = 16 * 2**20
CHUNK_BYTES = 256 * 2**10
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
        self._number = 0
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
        lost = event.get("dropped", 0)
        with self._changed:
            # what its worker gave up counts as a gap too
            self._number += 1 + (lost if isinstance(lost, int) else 0)
            self._lines.append((self._number, str(event.get("event")), line))
            self._bytes += len(line) + _LINE_BYTES
            if self._bytes > MOST_BYTES:
                self._shrink(MOST_BYTES // 2)
            self._ended |= ended
            self._changed.notify_all()

    def events(self, look_s: float = 0.25) -> Iterator[Event | None]:
        """Yield what is kept, then what comes, to the terminal event.

        None: nothing new within `look_s` seconds.
        """
        for chunk in self.chunks(look_s):
            if chunk is None:
                yield None
            else:
                yield from map(json.loads, chunk.splitlines())

    def chunks(self, look_s: float = 0.25) -> Iterator[bytes | None]:
        """Yield the same as lines of JSON, as many at once as wait."""
        position = 0
        while True:
            with self._changed:
                if not self._after(position) and not self._ended:
                    self._changed.wait(look_s)
                waiting, ended = self._after(position), self._ended
            if not waiting:
                if ended:
                    return
                yield None
            size, lines = 0, []
            for number, _, line in waiting:
                gap = number - position - 1
                position = number
                lines.append(_with_gap(line, gap) if gap else line)
                size += len(line)
                if size > CHUNK_BYTES:
                    break
            if lines:
                yield b"\n".join([*lines, b""])

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


def _with_gap(line: bytes, gap: int) -> bytes:
    return json.dumps({**json.loads(line), "dropped": gap}).encode()
