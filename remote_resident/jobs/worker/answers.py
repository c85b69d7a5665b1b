"""The JSON shapes of the answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .job import Job


@dataclass(frozen=True)
class Health:
    """How the worker stands; `ok` is false once the runtime did not come up."""

    ok: bool
    plugin: str
    protocol: int
    state: str
    """starting, ready, failed or stopping."""
    detail: str


@dataclass(frozen=True)
class Busy:
    """How many jobs live, abandoned ones included."""

    active_jobs: int


@dataclass(frozen=True)
class Reclaimed:
    """Whether cached GPU memory was given back."""

    released: bool
    plugin_id: str


@dataclass(frozen=True)
class Cancelled:
    """Whether a job of that id lives, and so was asked to end."""

    cancelling: bool
    job_id: str


@dataclass(frozen=True)
class CancelledAll:
    """The jobs that were asked to end."""

    cancelling: list[str]


@dataclass(frozen=True)
class Failure:
    """Why a request was refused."""

    ok: bool
    reason: str
    error: str


@dataclass(frozen=True)
class Status:
    """A job that lives or has ended; null is what is not there yet."""

    job_id: str
    state: str
    """running, completed, cancelled or failed."""
    cancelling: bool
    readers: int
    """How many streams read it; a job that lives with none is abandoned."""
    events: int
    """Number of its newest event."""
    dropped: int
    """Events that are gone and that nobody had read."""
    buffered_bytes: int
    began: float
    """Seconds since the epoch."""
    ended: float | None
    progress: dict[str, Any] | None
    """The newest progress event."""
    terminal: dict[str, Any] | None


def status_of(job: Job) -> Status:
    """Tell how a job stands."""
    events = job.events
    terminal = _decoded(events.terminal)
    return Status(
        job_id=job.id,
        state=_state(terminal),
        cancelling=terminal is None and job.cancelled_at is not None,
        readers=len(events.readers),
        events=events.last,
        dropped=events.dropped,
        buffered_bytes=events.size,
        began=job.began,
        ended=None if terminal is None else job.ended,
        progress=_decoded(events.progress),
        terminal=terminal,
    )


def _state(terminal: dict[str, Any] | None) -> str:
    if terminal is None:
        return "running"
    return str(terminal.get("status", "failed"))


def _decoded(line: bytes | None) -> dict[str, Any] | None:
    if line is None:
        return None
    event: dict[str, Any] = json.loads(line)
    return event
