"""Which jobs live, which have ended, and what begins, cancels and ends them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import gpu
from .events import Events, Share
from .job import IGNORED, Job
from .request import Request

REMEMBERED = 256
"""How many ended jobs are still told of."""
ENDED_BYTES = 8 << 20
"""What the events of all ended jobs together may take."""


class JobExists(Exception):
    """A job of that id lives."""


class Stopping(Exception):
    """The worker takes no more jobs."""


class Runner:
    """The jobs of this worker; any thread may call any method."""

    def __init__(
        self,
        plugin: Any,
        state_root: Path,
        call_soon: Callable[[Callable[[], object]], object] = lambda do: do(),
    ) -> None:
        self.changed: Callable[[], object] = lambda: None
        """Called in the loop's thread when a job has ended or was cancelled."""
        self.stopping = False
        self._plugin = plugin
        self._state_root = state_root
        self._call_soon = call_soon
        self._share = Share()
        self._lock = threading.Lock()
        self._live: dict[str, Job] = {}
        self._ended: OrderedDict[str, Job] = OrderedDict()
        self._fault: str | None = None
        self._up = False

    def begin(self, job_id: str, request: Request) -> Job:
        """Take a job, still to be started; raises JobExists and Stopping."""
        events = Events(job_id, self._share, self._call_soon)
        job = Job(job_id, request, self._state_root / job_id, events)
        with self._lock:
            if self.stopping:
                raise Stopping
            if job_id in self._live:
                raise JobExists
            self._live[job_id] = job
            self._share.among(len(self._live))
            if self._up:
                job.may_run.set()
        return job

    def start(self, job: Job) -> None:
        """Run a job that was taken."""
        job.start(self._plugin, lambda: self._fault, self._release, self.end)

    def runtime_is_up(self, fault: str | None) -> None:
        """Let the jobs run that wait for the runtime, or fail where it did not come."""
        with self._lock:
            self._up, self._fault = True, fault
            waiting = list(self._live.values())
        for job in waiting:
            job.may_run.set()

    def live(self) -> list[Job]:
        """List the jobs whose terminal event is still to come."""
        with self._lock:
            return list(self._live.values())

    def count(self) -> int:
        """Count them."""
        return len(self._live)

    def is_live(self, job_id: str) -> bool:
        """Say whether a job of that id lives."""
        return job_id in self._live

    def was_known(self, job_id: str) -> bool:
        """Say whether a job of that id has ended."""
        return job_id in self._ended

    def find(self, job_id: str) -> Job | None:
        """Give the job of that id: the one that lives, else the last that ended."""
        with self._lock:
            return self._live.get(job_id) or self._ended.get(job_id)

    def cancel(self, job_id: str) -> bool:
        """Ask a job to end; False where none of that id lives."""
        with self._lock:
            job = self._live.get(job_id)
            if job is None:
                return False
            job.cancel()
        self._call_soon(self.changed)
        return True

    def cancel_all(self) -> list[str]:
        """Ask every job to end, and name them."""
        with self._lock:
            jobs = list(self._live.values())
            for job in jobs:
                job.cancel()
        self._call_soon(self.changed)
        return [job.id for job in jobs]

    def end(self, job: Job, name: str, fields: str) -> None:
        """Take a job's end: its id is free before its terminal event can be read."""
        with self._lock:
            if self._live.get(job.id) is not job:
                return
            self._retire(job)
        job.events.end(name, fields)
        self._call_soon(self.changed)

    def end_ignoring(self, grace_s: float, wanted: Callable[[list[Job]], bool]) -> bool:
        """End all as having ignored their cancel, if that holds; no job comes after."""
        with self._lock:
            jobs = list(self._live.values())
            if not wanted(jobs):
                return False
            self.stopping = True
            for job in jobs:
                self._retire(job)
        for job in jobs:
            job.events.end("error", f'"message":"{IGNORED.format(grace_s)}"')
        return True

    def _release(self) -> None:
        """Give back what a job that ends leaves on the device; it is still counted."""
        gpu.release_caches(alone=self.count() == 1)

    def refuse_more(self) -> None:
        """Take no job any more."""
        with self._lock:
            self.stopping = True

    def _retire(self, job: Job) -> None:
        del self._live[job.id]
        job.over()
        self._ended.pop(job.id, None)
        self._ended[job.id] = job
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        self._share.among(len(self._live))
        total = 0
        for ended in reversed(self._ended.values()):
            total += ended.events.size
            if total > ENDED_BYTES and not ended.events.readers and ended is not job:
                total -= ended.events.size
                ended.events.forget()
