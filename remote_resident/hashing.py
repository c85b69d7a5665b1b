"""Reading files in full and hashing them: several at a time, each exactly once."""

import contextlib
import os
import stat
import time
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from queue import Empty, SimpleQueue
from threading import Event, Thread

from remote_resident.digest_memo import Seen
from remote_resident.file_identity import (
    SETTLED_NS,
    Identity,
    identity,
    kind,
    same_content,
)

BUFFER_BYTES = 1024 * 1024
_TICK_NS = 20_000_000
"""Longer than the clock of any filesystem that keeps fractions of a second."""
_OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
"""What was a regular file may be a fifo or a symlink by now: neither is waited for."""


class Read:
    """One file to read, and what came of it."""

    __slots__ = ("changed", "error", "identity", "key", "kind", "seen")

    def __init__(self, key: str, identity: Identity) -> None:
        self.key = key
        self.identity = identity
        self.seen: Seen | None = None
        self.error: OSError | None = None
        self.kind: str | None = None
        """What stands there now, when it is not a regular file any more."""
        self.changed: tuple[Identity, Identity] | None = None


class Crew:
    """Threads that read files from one list, each into one buffer of its own."""

    def __init__(self, reads: Sequence[Read], threads: int) -> None:
        self._todo = deque(reads)
        self._total = sum(r.identity[0] for r in reads)
        # a token for each file, None for each thread that is over, or what it raised
        self._told: SimpleQueue[BaseException | bool | None] = SimpleQueue()
        self._stop = Event()
        self._readers = [_Reader() for _ in range(threads)]
        # daemon: a read from a dead server must not keep the program from ending
        self._threads = [
            Thread(target=r.run, args=(self._todo, self._told, self._stop), daemon=True)
            for r in self._readers
        ]

    @property
    def read_bytes(self) -> int:
        return sum(r.read_bytes for r in self._readers)

    @property
    def files_opened(self) -> int:
        return sum(r.files_opened for r in self._readers)

    def work(self) -> Generator[tuple[int, int], None, None]:
        """Yield bytes read and bytes to read until all is read."""
        for thread in self._threads:
            thread.start()
        try:
            alive, said = len(self._threads), time.monotonic()
            while alive:
                with contextlib.suppress(Empty):
                    told = self._told.get(timeout=0.1)
                    if isinstance(told, BaseException):
                        raise told
                    alive -= told is None
                if time.monotonic() - said >= 0.05:
                    yield self.read_bytes, self._total
                    said = time.monotonic()
            yield self.read_bytes, self._total
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(timeout=1)


class _Reader:
    """One thread's work, and the exact count of it."""

    def __init__(self) -> None:
        self.read_bytes = 0
        self.files_opened = 0

    def run(
        self,
        todo: "deque[Read]",
        told: "SimpleQueue[BaseException | bool | None]",
        stop: "Event",
    ) -> None:
        view = memoryview(bytearray(BUFFER_BYTES))
        end: BaseException | None = None
        try:
            while todo and not stop.is_set():
                try:
                    read = todo.popleft()
                except IndexError:
                    break
                self._read(read, view, stop)
                told.put(True)
        except BaseException as exc:  # handed to the thread that waits, which raises it
            end = exc
        told.put(end)

    def _read(self, read: Read, view: memoryview, stop: "Event") -> None:
        # a chmod or a new hard link also moves the change time: read again, not refused
        for _ in range(3):
            read.changed = None
            try:
                self._read_once(read, view, stop)
            except OSError as exc:
                read.error = exc
            if read.changed is None or not same_content(*read.changed):
                return

    def _read_once(self, read: Read, view: memoryview, stop: "Event") -> None:
        from hashlib import sha256

        with open(  # noqa: PTH123 - a descriptor that must not wait for a fifo
            os.open(read.key, _OPEN_FLAGS), "rb", buffering=0
        ) as file:
            self.files_opened += 1
            st = os.fstat(file.fileno())
            if not stat.S_ISREG(st.st_mode):
                read.kind = kind(st.st_mode)
                return
            before, started = identity(st), time.time_ns()
            if not same_content(before, read.identity):
                read.changed = (read.identity, before)
                return
            hasher = sha256()
            while count := file.readinto(view):
                hasher.update(view[:count])
                self.read_bytes += count
                if stop.is_set():
                    return
            after = identity(os.fstat(file.fileno()))
        if after != before:
            read.changed = (before, after)
            return
        certain = started - before[2] >= _grain_ns(before[2])
        read.seen = Seen(identity=before, digest=hasher.hexdigest(), certain=certain)


def _grain_ns(ctime_ns: int) -> int:
    """Give the longest that two changes can bear one change time."""
    return _TICK_NS if ctime_ns % 1_000_000_000 else SETTLED_NS


def let_the_tick_pass(reads: Iterable[Read]) -> None:
    age = time.time_ns() - max(r.identity[2] for r in reads)
    if age < _TICK_NS:
        time.sleep(min(_TICK_NS, _TICK_NS - age) / 1e9)


def cores() -> int:
    return len(os.sched_getaffinity(0))
