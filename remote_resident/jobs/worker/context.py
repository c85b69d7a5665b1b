"""What a job is given to say how it goes, and to hear that it should end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .encoding import text_of
from .events import NAMES

if TYPE_CHECKING:
    from .events import Events
    from .request import Identity, Request

RESERVED = NAMES | {"job_update"}


class JobFailed(BaseException):
    """What `ctx.fail` raises; no Exception, so that a broad handler lets it through."""


class Context:
    """The `ctx` of `run_job(ctx)`; any thread of the job may use it."""

    def __init__(
        self, job_id: str, request: Request, state_dir: Path, events: Events
    ) -> None:
        self.job_id = job_id
        self.params: dict[str, Any] = request.params
        self.identity: Identity = request.identity
        """Who asked: user_id, org_id, project_id; None for what was not said."""
        self.state_dir = state_dir
        """A directory of this job's own."""
        self.failure: str | None = None
        self._request = request
        self._events = events
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked the job to end."""
        return self._cancelled

    def cancel(self) -> None:
        """Ask the job to end."""
        self._cancelled = True

    def progress(
        self, percent: float = -1, label: str = "", timing: object = None
    ) -> None:
        """Say how far the job is; -1 where that is not known."""
        self._say("progress", percent=percent, label=label, timing=timing)

    def metric(self, label: str, value: object) -> None:
        """Say one measured value."""
        self._say("metric", label=label, value=value)

    def log(self, message: str) -> None:
        """Say one line for people."""
        self._say("log", message=message)

    def result(self, url: str) -> None:
        """Say where a result is."""
        self._say("result", run_url=url)

    def emit(self, name: str, payload: object = None) -> None:
        """Say something under a name of the plugin's own.

        Raises ValueError for a name that our own events have.
        """
        if type(name) is not str or name in RESERVED:
            raise ValueError(f"emit: {name!r} found, another name wanted")
        self._say("custom", name=name, payload=payload)

    def fail(self, message: str) -> NoReturn:
        """End the job as failed, with exactly this message.

        Whatever the plugin does with what is raised, the job has failed.
        """
        if self.failure is None:
            self.failure = str(message)
        raise JobFailed(self.failure)

    def resolve(self, url: str) -> str:
        """Put the path that the host gave in the place of an alias: "<TOKEN>/x"."""
        return self._request.resolve(url)

    def _say(self, event: str, **fields: object) -> None:
        parts: list[str] = []
        replaced: list[str] = []
        for name, value in fields.items():
            text, changes = text_of(value, name)
            parts.append(f'"{name}":{text}')
            if changes:
                replaced += changes
        self._events.add(event, ",".join(parts))
        for change in replaced:
            self.log(f"{event}: {change}")
