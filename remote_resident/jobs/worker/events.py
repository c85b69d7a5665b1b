"""One job's events: numbered, encoded once, kept in a buffer that has a bound.

The job's thread appends, the loop takes. Appending never waits for a reader; where the
buffer is over its bound, events go in this order: those that every reader has had, then
the oldest progress, then log and metric, then what a plugin emits under its own name,
then results. The terminal event is never one of them. Events carry their numbers, so a
reader that meets a gap can tell how many are gone: the next event says `dropped`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING

from .encoding import quoted

if TYPE_CHECKING:
    Entry = tuple[int, bytes]

RANKS = {"progress": 0, "log": 1, "metric": 1, "custom": 2, "result": 3}
"""In which order kinds of events are given up."""
TERMINAL = ("done", "error")
NAMES = frozenset((*RANKS, *TERMINAL, "ping"))
"""Every name that an event of ours has."""

ENTRY_BYTES = 180
"""What Python needs to keep one event besides its text."""
CHUNK_BYTES = 256 << 10
"""How much of what waits goes into one chunk: a slow reader holds one in its socket."""


class Share:
    """How many bytes one job may keep, while so many live."""

    TOTAL_BYTES = 128 << 20
    MOST_BYTES = 8 << 20

    def __init__(self) -> None:
        self.bytes = self.MOST_BYTES

    def among(self, jobs: int) -> None:
        self.bytes = min(self.MOST_BYTES, self.TOTAL_BYTES // max(1, jobs))


class Reader:
    """Where one stream stands."""

    __slots__ = ("bell", "position")

    def __init__(self, position: int, bell: Callable[[], object]) -> None:
        self.position = position
        """Number of the last event that it was given."""
        self.bell = bell
        """Called in the loop's thread when there is more to take."""


class Events:
    """The events of one job; any thread may call any method."""

    def __init__(
        self,
        job_id: str,
        share: Share,
        call_soon: Callable[[Callable[[], object]], object] = lambda do: do(),
    ) -> None:
        self.last = 0
        """Number of the newest event."""
        self.dropped = 0
        """How many are gone that somebody may still have wanted."""
        self.size = 0
        self.terminal: bytes | None = None
        self.progress: bytes | None = None
        """The newest progress, kept also when the buffer gave it up."""
        self.readers: list[Reader] = []
        self._share = share
        self._call_soon = call_soon
        """How to have something done in the loop's thread."""
        self._waiting = False
        self._had = 0
        """Number of the newest event that any reader was given."""
        self._ranks: tuple[deque[Entry], ...] = tuple(deque() for _ in range(4))
        # re-entrant: a destructor that logs may run at any allocation below
        self._lock = threading.RLock()
        job = quoted(job_id)
        self._heads = {
            name: f'{{"event":"{name}","job_id":{job},"seq":' for name in NAMES
        }

    def add(self, name: str, fields: str) -> None:
        """Append an event; `fields` is JSON text, `"name":value,...`.

        After the terminal event nothing is taken any more.
        """
        rank = RANKS[name]
        with self._lock:
            if self.terminal is not None:
                return
            self.last = number = self.last + 1
            line = f"{self._heads[name]}{number},{fields}}}\n".encode()
            self._ranks[rank].append((number, line))
            self.size += len(line) + ENTRY_BYTES
            if rank == 0:
                self.progress = line
            if self.size > self._share.bytes:
                self._shrink(self._share.bytes)
            wake, self._waiting = self._waiting, False
        if wake:
            self._call_soon(self._ring)

    def end(self, name: str, fields: str) -> bool:
        """Append the terminal event; False where there was one already."""
        with self._lock:
            if self.terminal is not None:
                return False
            self.last += 1
            self.terminal = f"{self._heads[name]}{self.last},{fields}}}\n".encode()
            self._waiting = False
        self._call_soon(self._ring)
        return True

    def attach(
        self, after: int = 0, bell: Callable[[], object] = lambda: None
    ) -> Reader:
        """Begin to read after an event's number."""
        with self._lock:
            reader = Reader(min(after, self.last), bell)
            self.readers.append(reader)
            return reader

    def detach(self, reader: Reader) -> None:
        """Stop reading: what was not taken stays for whoever attaches next."""
        with self._lock:
            if reader in self.readers:
                self.readers.remove(reader)

    def take(self, reader: Reader) -> tuple[bytes, bool]:
        """Give a chunk of what waits for a reader, and whether it was the last.

        An empty chunk promises a call of the reader's bell when there is more.
        """
        with self._lock:
            entries = self._after(reader.position)
            if not entries:
                self._waiting = self.terminal is None
                return b"", not self._waiting
            lines, size, position = [], 0, reader.position
            for number, line in entries:
                gap = number - position - 1
                lines.append(_with_gap(line, gap) if gap else line)
                position, size = number, size + len(line)
                if size >= CHUNK_BYTES:
                    break
            reader.position = position
            self._had = max(self._had, position)
            last = self.terminal is not None and position == self.last
        return b"".join(lines), last

    def ping(self, reader: Reader) -> bytes:
        """Make the line that says only that the job lives; it has no number of its own."""
        return f"{self._heads['ping']}{reader.position}}}\n".encode()

    def forget(self) -> None:
        """Give up everything but the terminal event."""
        with self._lock:
            self._shrink(0, least=0)

    def _ring(self) -> None:
        for reader in tuple(self.readers):
            reader.bell()

    def _after(self, position: int) -> list[Entry]:
        """List what is kept after a number, in order."""
        if position >= self.last:
            return []
        runs = []
        for rank in self._ranks:
            run = []
            for entry in reversed(rank):
                if entry[0] <= position:
                    break
                run.append(entry)
            if run:
                run.reverse()
                runs.append(run)
        entries = runs[0] if len(runs) == 1 else sorted(chain.from_iterable(runs))
        if self.terminal is not None:
            entries.append((self.last, self.terminal))
        return entries

    def _shrink(self, limit: int, least: int = 1) -> None:
        """Give up events until the bound holds; `least` of them stay whatever their size."""
        had = min((reader.position for reader in self.readers), default=self._had)
        kept = sum(map(len, self._ranks))
        for only_had in (True, False):
            for rank in self._ranks:
                while rank and self.size > limit and kept > least:
                    if only_had and rank[0][0] > had:
                        break
                    self.size -= len(rank.popleft()[1]) + ENTRY_BYTES
                    self.dropped += not only_had
                    kept -= 1


def _with_gap(line: bytes, gap: int) -> bytes:
    return b'%b,"dropped":%d}\n' % (line[:-2], gap)
