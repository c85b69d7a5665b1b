"""One job as the host knows it: what was asked, and what became of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

QUEUED, STARTING, RUNNING = "queued", "starting", "running"
COMPLETED, FAILED, CANCELLED, LOST = "completed", "failed", "cancelled", "lost"
LIVE = (QUEUED, STARTING, RUNNING)
AUTO = "auto"
MOST_RESULTS = 1000
"""So many of a job's results are kept, the newest; the rest is counted."""

Event = dict[str, Any]
"""One line of a job's stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job, live or ended; times are seconds since the epoch, None: not yet."""

    job_id: str
    slug: str
    tree: str
    provider: str
    """The directory of the provider."""
    lock_tree: str
    """The tree whose locks and kits it names."""
    env_kind: str
    gpu_policy: str
    """As the manifest said when it was submitted, for when it is gone."""
    params: Mapping[str, Any]
    device: str = AUTO
    """auto, cpu, or a device's UUID."""
    state: str = QUEUED
    created: float
    started: float | None = None
    """When its worker was asked to run it."""
    ended: float | None = None
    cancelling: bool = False
    """Its end was asked for."""
    reason: str | None = None
    """Why it did not complete, a token; None: it did, or its own code failed."""
    message: str | None = None
    next: str | None = None
    results: tuple[Any, ...] = ()
    """The newest MOST_RESULTS, in the order in which they came."""
    results_left_out: int = 0
    """How many came before those."""
    progress: Mapping[str, Any] | None = None
    seq: int = 0
    """Number of the newest event that its worker gave."""
    instance: str | None = None
    """Of the worker that runs it, or ran it."""
    socket: str | None = None
    log: str | None = None
    log_start: int = 0
    """Length of the worker's log when it began."""

    @property
    def live(self) -> bool:
        """Say whether its terminal event is still to come."""
        return self.state in LIVE

    def as_dict(self, most_results: int = MOST_RESULTS) -> dict[str, Any]:
        """Give the JSON shape that people's programs see, without the params.

        It has the newest `most_results`, and how many there are besides.
        """
        results = self.results[-most_results:] if most_results else ()
        left_out = self.results_left_out + len(self.results) - len(results)
        return {
            "job_id": self.job_id,
            "slug": self.slug,
            "tree": self.tree,
            "state": self.state,
            "device": self.device,
            "created": self.created,
            "started": self.started,
            "ended": self.ended,
            "cancelling": self.cancelling,
            "reason": self.reason,
            "message": self.message,
            "next": self.next,
            "results": list(results),
            "results_left_out": left_out,
            "progress": self.progress,
        }

    def stored(self) -> dict[str, Any]:
        """Give everything but the params, as it is recorded."""
        # not asdict: it copies all that is in it, params and results too
        names = (one.name for one in fields(self))
        return {name: getattr(self, name) for name in names if name != "params"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended."""

    state: str
    event: Event
    """Its terminal event."""
    reason: str | None = None
    message: str | None = None
    next: str | None = None
    problems: tuple[dict[str, Any], ...] = field(default=())
