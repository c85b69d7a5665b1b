"""The callers of endpoints: what each is told while it waits, and what it gets."""

import time
from collections import deque
from dataclasses import dataclass, field

from remote_resident.endpoints.cell import Cell
from remote_resident.endpoints.service import Service
from remote_resident.endpoints.swap import Caller, Failure, Standing, State
from remote_resident.errors import ProviderError, UsageError


@dataclass(frozen=True, slots=True)
class Word:
    """What a waiting caller is told."""

    text: str
    limit_s: float | None
    """Within how many seconds this ends; None: not known."""


@dataclass(slots=True, kw_only=True)
class Ticket:
    """One caller of an endpoint."""

    caller: Caller
    words: deque[Word] = field(default_factory=deque)
    """What there is to tell it."""
    granted: bool = False
    failure: Failure | None = None
    """Why it gets no cell, or why its cell is ended; None: nothing of the sort."""
    cell: Cell | None = None
    _last: str = ""
    _start: str = ""

    @property
    def settled(self) -> bool:
        """Say whether it waits no more."""
        return self.granted or self.failure is not None

    def say(self, text: str, limit_s: float | None) -> None:
        """Add a word, where it is news."""
        if text != self._last:
            self._last = text
            self.words.append(Word(text, limit_s))

    def tell(
        self, standing: Standing, service: Service | None, limit_s: float | None
    ) -> None:
        """Add what is to be told of where it stands; `service` is the one named."""
        name, own = standing.name, standing.name == self.caller.name
        if standing.state is None:
            self.say("ready", None)
        elif standing.state is State.STOPPING:
            self.say(f"stopping {name}", limit_s)
        elif own and standing.state is State.STARTING and service is not None:
            self._tell_of_start(service, limit_s)
        elif not own:
            plural = "" if standing.requests == 1 else "s"
            said = f"waiting for {name} ({standing.requests} request{plural})"
            self.say(said, limit_s)

    def _tell_of_start(self, service: Service, limit_s: float | None) -> None:
        if self._start != service.instance:
            self._start = service.instance
            self.say(f"starting {service.endpoint.name}", limit_s)
        if service.asked:
            spent = int(time.time() - service.begun)
            self.say(f"waiting for {service.endpoint.live} ({spent} s)", limit_s)


def error_of(failure: Failure) -> ProviderError:
    """Give the error that tells a failure."""
    kind = UsageError if failure.reason == "unknown_name" else ProviderError
    return kind(failure.text, reason=failure.reason, next=failure.next)
