"""The host of jobs: takes them, gives each its turn, watches the workers, remembers.

    submit -> queue -> (turn) a thread per job: start or take the worker, ask the other
    idle ones to give memory back, POST the job, read its stream to the terminal event

A provider has one worker, which runs one of its jobs at a time; how many providers run at
once is admission's to say, by their budgets.

Its rooms: `board` is what its threads share, `conducting` one job's thread, `resuming` what
an earlier host left, `waiting` who stands where, `watch` whether the workers live.
"""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from remote_resident import manifest as manifests
from remote_resident import places
from remote_resident.caller_side import start_command
from remote_resident.daemon.door import tell
from remote_resident.errors import ProviderError, UsageError
from remote_resident.jobs import (
    asking,
    environment,
    resuming,
    running,
    settings,
    starting,
)
from remote_resident.jobs.board import STDERR_LINES, Board
from remote_resident.jobs.conducting import conduct
from remote_resident.jobs.devices import device_named
from remote_resident.jobs.feed import Feed
from remote_resident.jobs.job import AUTO, QUEUED, RUNNING, STARTING, Event, Job
from remote_resident.jobs.lane import HEALTH_S, LEAVE_S, stderr_of
from remote_resident.jobs.params import refuse_bad
from remote_resident.jobs.provider import refuse_mode
from remote_resident.jobs.waiting import NOWHERE, Place
from remote_resident.jobs.watch import AGAIN_S, Watch, in_thread
from remote_resident.jobs.worker.ids import refused_id

_LOOK_S = 0.5
_SAVE_S = 1.0
_LONGEST_GRACE_S = 600.0
"""How long jobs may take to heed a cancel at the end of the host, where that ends them."""


class JobHost:
    """All jobs of this user on this machine; any thread may call any method."""

    def __init__(
        self,
        *,
        liveness_s: float | None = None,
        admit: start_command.Admit | None = starting.admit,
        records: Path | None = None,
    ) -> None:
        path = records or places.state_dir() / "jobs.sqlite"
        self._board = Board(path, admit, conduct)
        self._watch = Watch(
            liveness_s=liveness_s or settings.liveness_s(),
            grace_s=settings.cancel_grace_s(),
            lock=self._board.lock,
        )

    # --- asked from outside

    def submit(
        self,
        slug: str,
        params: Mapping[str, Any],
        job_id: str | None = None,
        device: str = AUTO,
        *,
        tree: Path | None = None,
        environ: Mapping[str, object] | None = None,
    ) -> Job:
        """Take a job of a provider, to be run when its turn comes.

        `job_id` None makes one; `environ` is what `environment.named` gives the caller.
        Raises UsageError for params that no worker takes, a provider, id or device that
        is none, or that is elsewhere for the caller, ProviderError (`job_exists`) where a
        live job has this id, ManifestError.
        """
        manifest = manifests.find(tree or places.find_tree(), slug)
        refuse_mode(manifest)
        refuse_bad(params)
        environment.refuse_other(manifest, environ or {})
        job_id = os.urandom(6).hex() if job_id is None else job_id
        fault = refused_id(job_id)
        if fault is not None:
            raise UsageError(fault, reason="bad_job_id")
        job = Job(
            job_id=job_id,
            slug=manifest.slug,
            tree=str(manifest.tree),
            provider=str(manifest.directory),
            lock_tree=str(manifest.lock_tree),
            env_kind=manifest.env_kind,
            gpu_policy=manifest.gpu_policy,
            params=dict(params),
            device=device_named(manifest, device),
            created=time.time(),
        )
        with self._board.lock:
            if self._board.over.is_set():
                raise ProviderError("the host daemon is ending", reason="stopping")
            if job_id in self._board.live:
                raise ProviderError(
                    f"job {job_id}: a live job of {self._board.live[job_id].job.slug} found, "
                    "an id that no live job has wanted",
                    reason="job_exists",
                    next=f"tu remote job attach {job_id}",
                )
            self._board.records.add(job)
            live = self._board.admitted(job, manifest)
            self._board.queue.add(live.lane.key, job_id)
            self._board.begin_next()
            return live.job

    def cancel(self, job_id: str) -> Job:
        """Ask a job to end; an ended one is given as it is. Raises UsageError."""
        with self._board.lock:
            live = self._board.live.get(job_id)
            if live is None:
                return self.job(job_id)
            live.cancelled_at = live.cancelled_at or time.monotonic()
            self._board.change(live, cancelling=True)
            self._board.save(live)
            state, lane = live.job.state, live.lane
            if state == QUEUED:
                self._board.queue.remove(lane.key, job_id)
                # the next of this provider may want less
                lane.blocked = lane.hungry = False
            if state in (QUEUED, STARTING):
                self._board.finish(live, running.cancelled(live.job))
            abort = state == STARTING and not self._board.queue.has(lane.key)
            starting_now = lane.give_up_start() if abort else None
            if state == QUEUED:
                self._board.begin_next()
        if starting_now is not None:
            in_thread(lane.end_start, starting_now)
        if state == RUNNING:
            live.ask_again = time.monotonic() + AGAIN_S
            in_thread(asking.cancel, lane.socket, job_id, HEALTH_S)
        return live.job

    def job(self, job_id: str) -> Job:
        """Give a job, live or remembered. Raises UsageError."""
        with self._board.lock:
            live = self._board.live.get(job_id)
            if live is not None:
                return live.now()
        found = self._board.records.get(job_id)
        if found is None:
            raise UsageError(
                f"job {job_id}: none found of that id", next="tu remote job list"
            )
        return found

    def jobs(self, limit: int | None = None) -> tuple[list[Job], int]:
        """List jobs, newest first, without their params, and how many were left out.

        Of more than `limit` those that have not ended come before the others. None: all
        that are remembered.
        """
        with self._board.lock:
            live = {job_id: live.now() for job_id, live in self._board.live.items()}
        jobs, left_out = self._board.records.all(limit)
        return [live.get(job.job_id, job) for job in jobs], left_out

    def events(self, job_id: str) -> Iterator[Event | None]:
        """Yield a job's events, then what comes; None: nothing new. Raises UsageError."""
        return self._feed(job_id).events()

    def lines(self, job_id: str) -> Iterator[bytes | None]:
        """Yield the same as whole lines of JSON, as many at once as wait."""
        return self._feed(job_id).chunks()

    def _feed(self, job_id: str) -> Feed:
        with self._board.lock:
            live = self._board.live.get(job_id)
            if live is not None:
                return live.feed
            self.job(job_id)
        *before, terminal = self._board.records.tail(job_id)
        feed = Feed(before)
        feed.end(terminal)
        return feed

    def stderr(self, job_id: str) -> list[str]:
        """Give the last lines that a job wrote. Raises UsageError."""
        job = self.job(job_id)
        if job.live:
            return stderr_of(job)
        recorded = self._board.records.stderr(job_id)
        # a container's client may hand on the last lines after the terminal event
        written = stderr_of(job)[-STDERR_LINES:]
        return max(recorded, written, key=len)

    def place(self, job_id: str) -> Place:
        """Say where in the queue a job is; see `places`."""
        return self.places().get(job_id, NOWHERE)

    def places(self) -> dict[str, Place]:
        """Say where in the queue each job is, from 1, and how long it will wait.

        `expected_wait_s` is None where one that is ahead has never completed yet; both
        are None (NOWHERE) for a job that waits no more.
        """
        return self._board.places()

    # --- from start to end of the daemon

    def begin(self) -> None:
        """Take up the jobs of an earlier host, and the workers that it left."""
        with self._board.lock:
            resuming.take_up(self._board)
            self._board.begun = True
            self._board.begin_next()
        in_thread(self._keep_watch)

    def end(self, stop_services: bool) -> None:
        """Let go: jobs run on for the next host, idle workers are ended.

        With `stop_services` every job is cancelled and every worker ended.
        """
        with self._board.lock:
            self._board.over.set()
            lanes = list(self._board.lanes.values())
            waiting = [live for live in self._board.live.values() if stop_services]
        for live in waiting:
            self.cancel(live.job.job_id)
        grace_s = min(self._watch.grace_s, _LONGEST_GRACE_S)
        enders = [
            in_thread(lane.end, LEAVE_S if lane.idle else grace_s)
            for lane in lanes
            if stop_services or lane.idle
        ]
        for ender in enders:
            ender.join(grace_s + LEAVE_S)
        with self._board.lock:
            for live in self._board.live.values():
                self._board.save(live)
        deadline = time.monotonic() + (LEAVE_S if stop_services else 0)
        while self._board.live and time.monotonic() < deadline:
            time.sleep(0.02)
        self._board.records.save_unsaved()

    # --- the watching thread

    def _keep_watch(self) -> None:
        saved = time.monotonic()
        while not self._board.over.wait(_LOOK_S):
            with self._board.lock:
                lanes = list(self._board.lanes.values())
            for lane in lanes:
                try:
                    self._watch.look_at(lane)
                except Exception as exc:  # one worker must not leave the others unseen
                    tell(f"looking at {lane.key[1]}", exc)
            if time.monotonic() - saved >= _SAVE_S:
                saved = time.monotonic()
                self._board.save_changed()
