"""One job: its thread, from the first event to the terminal one."""

from __future__ import annotations

import contextvars
import inspect
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import entry, tags
from .context import Context, JobFailed
from .encoding import error_text, quoted
from .events import Events
from .request import Request

IGNORED = "cancel ignored for {:g} s; worker ended"


class Job:
    """A job from its start on; after its end, what is still told of it."""

    def __init__(
        self, job_id: str, request: Request, state_dir: Path, events: Events
    ) -> None:
        self.id = job_id
        self.events = events
        self.began = time.time()
        self.ended: float | None = None
        self.cancelled_at: float | None = None
        """When it was asked to end, on the monotonic clock; None: it was not."""
        self.may_run = threading.Event()
        """Set once the runtime has come up or failed, or the job was cancelled."""
        self._ctx: Context | None = Context(job_id, request, state_dir, events)
        self._aliases = len(request.aliases)

    def start(
        self,
        plugin: Any,
        fault: Callable[[], str | None],
        release: Callable[[], object],
        end: Callable[..., object],
    ) -> None:
        """Run in a thread of its own; where there is none to be had, end as failed.

        `fault` says why nothing can be run, once `may_run` is set. `release` gives
        back what the job leaves on the device, before `end(job, name, fields)` is
        called with the terminal event.
        """
        if self._aliases:
            self.log(f"Applied {self._aliases} alias override(s)")
        context = contextvars.copy_context()
        thread = threading.Thread(
            target=context.run,
            args=(self._run, plugin, fault, release, end),
            name=f"job-{self.id}",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError as exc:
            end(self, "error", f'"message":{quoted(error_text(exc))}')

    def log(self, message: str) -> None:
        """Say one line for people in the job's stream."""
        self.events.add("log", f'"message":{quoted(message)}')

    def cancel(self) -> None:
        """Ask it to end; the first time counts."""
        ctx = self._ctx
        if ctx is not None:
            ctx.cancel()
        if self.cancelled_at is None:
            self.cancelled_at = time.monotonic()
        self.may_run.set()

    def over(self) -> None:
        """Let go of what only a running job needs."""
        self.ended = time.time()
        self._ctx = None

    def _run(
        self,
        plugin: Any,
        fault: Callable[[], str | None],
        release: Callable[[], object],
        end: Callable[..., object],
    ) -> None:
        tags.JOB.set(self.id)
        outcome = "error", '"message":"internal: the job ended without an outcome"'
        try:
            self.may_run.wait()
            outcome = self._outcome(plugin, fault)
            release()
            tags.flush(self.id)
        finally:
            # whatever was raised meanwhile: a terminal event always comes
            end(self, *outcome)

    def _outcome(self, plugin: Any, fault: Callable[[], str | None]) -> tuple[str, str]:
        """Run the plugin; give the terminal event's name and fields."""
        ctx = self._ctx
        assert ctx is not None
        try:
            if not ctx.cancelled:
                self._call(plugin, ctx, fault())
            message = ctx.failure
        except JobFailed as exc:
            message = ctx.failure if ctx.failure is not None else error_text(exc)
        # whatever ends a job is told; SystemExit must not end its thread untold
        except BaseException as exc:
            message = ctx.failure if ctx.failure is not None else error_text(exc)
            tags.print_exception(exc)
        if message is not None:
            return "error", f'"message":{quoted(message)}'
        status = "cancelled" if ctx.cancelled else "completed"
        return "done", f'"status":"{status}"'

    def _call(self, plugin: Any, ctx: Context, fault: str | None) -> None:
        if fault is not None:
            ctx.fail(fault)
        ctx.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        returned = entry.call(plugin.run_job, ctx)
        # its code has not run, and a job that did nothing must not count as completed
        if inspect.isgenerator(returned) or inspect.isasyncgen(returned):
            raise TypeError(
                "run_job: a generator found, a function or coroutine wanted"
            )
