"""What the host daemon and those who live in it pass to each other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked of a route."""

    method: str
    path: str
    """As sent, percent-encoded, without the query."""
    names: Mapping[str, str]
    """What the `{name}` parts of the pattern matched, decoded."""
    query: Mapping[str, str]
    """Decoded; of a name that comes twice, the last."""
    body: Document
    """The decoded JSON object; empty where nothing was sent."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with a status of its own; a plain dict is answered with 200."""

    status: int
    body: Document


@dataclass(frozen=True, slots=True)
class Lines:
    """An answer that comes one JSON object a line, each sent at once.

    The iterator is closed when the reader leaves. That is seen at the next item: one
    that may wait for long yields None, "nothing yet", a few times a second; a None is
    not sent. Bytes are whole lines, sent as they are. What the first item raises is answered as the handler's own failure; what
    a later one raises becomes the last line, and is raised again in `client.stream`.
    """

    iterator: Iterator[Mapping[str, Any] | bytes | None]


Answered = Document | Reply | Lines
Handler = Callable[[Request], Answered]
Route = tuple[str, str, Handler]
"""Method, pattern and handler: `("GET", "/v1/jobs/{id}", self.job)`."""


class Tenant(Protocol):
    """Who lives in the host daemon."""

    name: str

    def routes(self) -> Sequence[Route]:
        """Give the routes; each is called on a thread of its own."""

    def begin(self) -> None:
        """Adopt what still runs; called once, before the socket accepts."""

    def end(self, stop_services: bool) -> None:
        """Let go: what runs runs on, except with `stop_services`."""
