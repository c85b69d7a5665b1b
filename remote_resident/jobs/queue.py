"""Whose job is next: fair between providers, first in first out within one.

The provider that was served longest ago is next. What begins at once is the caller's to
say; a provider that waits for room holds back those behind it that want the same pool,
or a small one after the other would keep a large one waiting for ever.
"""

from collections import deque
from collections.abc import Callable, Container, Iterable
from itertools import count

Key = tuple[str, str]
"""A tree and a slug."""


class Queue:
    """The jobs that wait; not for several threads at once."""

    def __init__(self) -> None:
        self._waiting: dict[Key, deque[str]] = {}
        self._served: dict[Key, int] = {}
        self._arrived: dict[str, int] = {}
        self._turn = count(1)

    def add(self, key: Key, job_id: str) -> None:
        """Let a job wait behind the others of its provider."""
        self._arrived[job_id] = next(self._turn)
        self._waiting.setdefault(key, deque()).append(job_id)

    def put_back(self, key: Key, job_id: str, served: int) -> None:
        """Let a job that could not begin wait in front, as if it had not been served."""
        self._arrived[job_id] = 0
        self._waiting.setdefault(key, deque()).appendleft(job_id)
        self._served[key] = served

    def remove(self, key: Key, job_id: str) -> None:
        """Let a job wait no more."""
        waiting = self._waiting.get(key, deque())
        if job_id in waiting:
            waiting.remove(job_id)
            self._arrived.pop(job_id, None)

    def take(self, key: Key) -> tuple[str, int]:
        """Give the first job of a provider, and when that provider was served before."""
        job_id = self._waiting[key].popleft()
        self._arrived.pop(job_id, None)
        served = self._served.get(key, 0)
        self._served[key] = next(self._turn)
        return job_id, served

    def has(self, key: Key) -> bool:
        """Say whether a job of a provider waits."""
        return bool(self._waiting.get(key))

    def next(
        self,
        pool_of: Callable[[Key], str],
        busy: Container[Key],
        blocked: Container[Key],
        closed: Iterable[str] = (),
    ) -> Key | None:
        """Give the provider whose first job may begin now; None: all have to wait.

        `busy` providers have one in hand, `blocked` ones wait for room; of a `closed`
        pool nobody's may begin.
        """
        held_back = set(closed)
        for key in self._by_turn(self._served):
            if key in blocked:
                held_back.add(pool_of(key))
            elif key not in busy and pool_of(key) not in held_back:
                return key
        return None

    def order(self) -> list[tuple[Key, str]]:
        """List all that wait in the order of their turns."""
        served = dict(self._served)
        left = {key: deque(waiting) for key, waiting in self._waiting.items()}
        turns = count(max(served.values(), default=0) + 1)
        found = []
        while keys := self._by_turn(served, left):
            key = keys[0]
            found.append((key, left[key].popleft()))
            served[key] = next(turns)
        return found

    def _by_turn(
        self, served: dict[Key, int], waiting: dict[Key, deque[str]] | None = None
    ) -> list[Key]:
        waiting = self._waiting if waiting is None else waiting
        keys = [key for key, jobs in waiting.items() if jobs]

        def turn(key: Key) -> tuple[int, int]:
            return served.get(key, 0), self._arrived.get(waiting[key][0], 0)

        return sorted(keys, key=turn)
