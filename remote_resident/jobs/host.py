"""The host of jobs: takes them, gives each its turn, watches the workers, remembers.

    submit -> queue -> (turn) a thread per job: start or take the worker, ask the other
    idle ones to give memory back, POST the job, read its stream to the terminal event

One lock guards who waits and who is in hand; nothing that may take long is done under it.
A provider has one worker, which runs one of its jobs at a time; how many providers run at
once is admission's to say, by their budgets. A start that finds no room waits for the end
of another job where there is one, and is refused otherwise.
"""

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_resident import manifest as manifests
from remote_resident import places, start_command
from remote_resident.daemon.door import tell
from remote_resident.errors import AdmissionRefused, ProviderError, UsageError
from remote_resident.jobs import asking, environment, running, settings, starting
from remote_resident.jobs.devices import device_named
from remote_resident.jobs.feed import Feed
from remote_resident.jobs.job import (
    AUTO,
    QUEUED,
    RUNNING,
    STARTING,
    Event,
    Job,
    Outcome,
)
from remote_resident.jobs.lane import HEALTH_S, Lane, Live, log_size, stderr_of
from remote_resident.jobs.params import refuse_bad
from remote_resident.jobs.queue import Key, Queue
from remote_resident.jobs.records import Records
from remote_resident.jobs.running import Run, Unknown, failed, failed_by
from remote_resident.jobs.watch import AGAIN_S, Watch, in_thread
from remote_resident.jobs.worker.ids import refused_id

if TYPE_CHECKING:
    from remote_resident.admission import Holder
    from remote_resident.held import Held
    from remote_resident.manifest import ProviderManifest

_LOOK_S = 0.5
_SAVE_S = 1.0
_STDERR_LINES = 400
_TOLD = 20
"""So many of those who wait are told of each step that they come nearer."""
_LEAVE_S = 30.0
_LONGEST_GRACE_S = 600.0
"""How long jobs may take to heed a cancel at the end of the host, where that ends them."""


Place = dict[str, Any]
"""`position` and `expected_wait_s`."""
NOWHERE: Place = {"position": None, "expected_wait_s": None}


class JobHost:
    """All jobs of this user on this machine; any thread may call any method."""

    def __init__(
        self,
        *,
        liveness_s: float | None = None,
        admit: start_command.Admit | None = starting.admit,
        records: Path | None = None,
    ) -> None:
        self._admit = admit
        self._records = Records(records or places.state_dir() / "jobs.sqlite")
        self._lock = threading.RLock()
        self._watch = Watch(
            liveness_s=liveness_s or settings.liveness_s(),
            grace_s=settings.cancel_grace_s(),
            lock=self._lock,
        )
        self._queue = Queue()
        self._lanes: dict[Key, Lane] = {}
        self._live: dict[str, Live] = {}
        self._served: dict[str, int] = {}
        self._ends = 0
        """How many jobs have ended: room may have come back since it was looked for."""
        self._over = threading.Event()
        self._begun = False

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
            params=dict(params),
            device=device_named(manifest, device),
            created=time.time(),
        )
        with self._lock:
            if self._over.is_set():
                raise ProviderError("the host daemon is ending", reason="stopping")
            if job_id in self._live:
                raise ProviderError(
                    f"job {job_id}: a live job of {self._live[job_id].job.slug} found, "
                    "an id that no live job has wanted",
                    reason="job_exists",
                    next=f"tu remote job attach {job_id}",
                )
            self._records.add(job)
            live = self._admitted(job, manifest)
            self._queue.add(live.lane.key, job_id)
            self._begin_next()
            return live.job

    def cancel(self, job_id: str) -> Job:
        """Ask a job to end; an ended one is given as it is. Raises UsageError."""
        with self._lock:
            live = self._live.get(job_id)
            if live is None:
                return self.job(job_id)
            live.cancelled_at = live.cancelled_at or time.monotonic()
            self._change(live, cancelling=True)
            self._save(live)
            state, lane = live.job.state, live.lane
            if state == QUEUED:
                self._queue.remove(lane.key, job_id)
                # the next of this provider may want less
                lane.blocked = lane.hungry = False
            if state in (QUEUED, STARTING):
                self._finish(live, running.cancelled(live.job))
            abort = state == STARTING and not self._queue.has(lane.key)
            starting_now = lane.give_up_start() if abort else None
            if state == QUEUED:
                self._begin_next()
        if starting_now is not None:
            in_thread(lane.end_start, starting_now)
        if state == RUNNING:
            live.ask_again = time.monotonic() + AGAIN_S
            in_thread(asking.cancel, lane.socket, job_id, HEALTH_S)
        return live.job

    def job(self, job_id: str) -> Job:
        """Give a job, live or remembered. Raises UsageError."""
        with self._lock:
            live = self._live.get(job_id)
            if live is not None:
                return live.now()
        found = self._records.get(job_id)
        if found is None:
            raise UsageError(
                f"job {job_id}: none found of that id", next="tu remote job list"
            )
        return found

    def jobs(self) -> list[Job]:
        """List the jobs that are remembered, newest first, without their params."""
        with self._lock:
            live = {job_id: live.now() for job_id, live in self._live.items()}
        return [live.get(job.job_id, job) for job in self._records.all()]

    def events(self, job_id: str) -> Iterator[Event | None]:
        """Yield a job's events, then what comes; None: nothing new. Raises UsageError."""
        return self._feed(job_id).events()

    def lines(self, job_id: str) -> Iterator[bytes | None]:
        """Yield the same as whole lines of JSON, as many at once as wait."""
        return self._feed(job_id).chunks()

    def _feed(self, job_id: str) -> Feed:
        with self._lock:
            live = self._live.get(job_id)
            if live is not None:
                return live.feed
            self.job(job_id)
        *before, terminal = self._records.tail(job_id)
        feed = Feed(before)
        feed.end(terminal)
        return feed

    def stderr(self, job_id: str) -> list[str]:
        """Give the last lines that a job wrote. Raises UsageError."""
        job = self.job(job_id)
        return stderr_of(job) if job.live else self._records.stderr(job_id)

    def place(self, job_id: str) -> Place:
        """Say where in the queue a job is; see `places`."""
        return self.places().get(job_id, NOWHERE)

    def places(self) -> dict[str, Place]:
        """Say where in the queue each job is, from 1, and how long it will wait.

        `expected_wait_s` is None where one that is ahead has never completed yet; both
        are None (NOWHERE) for a job that waits no more.
        """
        with self._lock:
            return dict(self._placed())

    def _placed(self) -> Iterator[tuple[str, Place]]:
        order = self._queue.order()
        if not order:
            return
        usual = {key: self._records.usual_s(*key) for key in self._lanes}
        in_hand = [x.in_hand for x in self._lanes.values() if x.in_hand is not None]
        left = {live.lane.key: _left_s(live, usual) for live in in_hand}
        # another provider's job is in the way only where there is no room beside it
        alone = any(lane.blocked for lane in self._lanes.values())
        ahead: Counter[Key] = Counter()
        for position, (key, job_id) in enumerate(order, start=1):
            waits = [left[other] for other in left if alone or other == key]
            for other, number in ahead.items():
                if alone or other == key:
                    each_s = usual[other]
                    waits.append(None if each_s is None else each_s * number)
            known = [wait for wait in waits if wait is not None]
            expected_s = sum(known) if len(known) == len(waits) else None
            yield job_id, {"position": position, "expected_wait_s": expected_s}
            ahead[key] += 1

    # --- from start to end of the daemon

    def begin(self) -> None:
        """Take up the jobs of an earlier host, and the workers that it left."""
        attached: set[str] = set()
        with self._lock:
            for job in self._records.live():
                live = self._resumed(job)
                if live is not None and job.state == RUNNING:
                    attached.add(job.instance or "")
                    live.lane.in_hand = live
                    in_thread(self._conduct, live, True)
            self._adopt_idle(attached)
            self._begun = True
            self._begin_next()
        in_thread(self._keep_watch)

    def _resumed(self, job: Job) -> Live | None:
        try:
            manifest = _provider_of(job)
            refuse_mode(manifest)
        except (OSError, ProviderError) as exc:
            reason = exc.reason if isinstance(exc, ProviderError) else "file_missing"
            self._record_end(job, failed(job, str(exc), reason=reason), Feed())
            return None
        live = self._admitted(job, manifest, self._records.tail(job.job_id))
        if job.cancelling:
            live.cancelled_at = time.monotonic()
        if job.state != RUNNING:
            if job.cancelling:
                self._finish(live, running.cancelled(job))
                return None
            self._change(live, state=QUEUED)
            self._queue.add(live.lane.key, job.job_id)
        return live

    def _adopt_idle(self, attached: set[str]) -> None:
        """Take the workers that run without a job, so that somebody lets them go."""
        from remote_resident import machine, processes

        for holder in machine.holdings():
            marks = processes.marks(holder.pids[0]) if holder.pids else {}
            mine = holder.uid == os.geteuid() and "entry" in marks
            if not mine or holder.instance in attached or not holder.instance:
                continue
            with contextlib.suppress(ProviderError, OSError):
                manifest = _provider_held(holder)
                lane = self._lane_of(manifest)
                if marks.get("socket") == str(lane.socket) and lane.held is None:
                    lane.adopt(holder.instance)

    def end(self, stop_services: bool) -> None:
        """Let go: jobs run on for the next host, idle workers are ended.

        With `stop_services` every job is cancelled and every worker ended.
        """
        with self._lock:
            self._over.set()
            lanes = list(self._lanes.values())
            waiting = [live for live in self._live.values() if stop_services]
        for live in waiting:
            self.cancel(live.job.job_id)
        grace_s = min(self._watch.grace_s, _LONGEST_GRACE_S)
        enders = [
            in_thread(lane.end, _LEAVE_S if lane.idle else grace_s)
            for lane in lanes
            if stop_services or lane.idle
        ]
        for ender in enders:
            ender.join(grace_s + _LEAVE_S)
        with self._lock:
            for live in self._live.values():
                self._save(live)
        if not stop_services:
            return
        deadline = time.monotonic() + _LEAVE_S
        while self._live and time.monotonic() < deadline:
            time.sleep(0.02)

    # --- under the lock

    def _lane_of(self, manifest: "ProviderManifest") -> Lane:
        key = (str(manifest.tree), manifest.slug)
        if key not in self._lanes:
            starter = starting.starter_of(manifest, admit=self._admit)
            self._lanes[key] = Lane.of(manifest, starter)
        return self._lanes[key]

    def _admitted(
        self, job: Job, manifest: "ProviderManifest", tail: list[Event] | None = None
    ) -> Live:
        live = Live(job, Feed(tail or ()), self._lane_of(manifest), seq=job.seq)
        self._live[job.job_id] = live
        return live

    def _begin_next(self) -> None:
        """Let every job begin that may."""
        if not self._begun or self._over.is_set():
            return
        lanes = self._lanes
        while True:
            busy = {key for key, lane in lanes.items() if lane.in_hand is not None}
            blocked = {key for key, lane in lanes.items() if lane.blocked}
            # who looks for room anew must find what has just become free
            closed = {x.pool for x in lanes.values() if x.hungry and x.in_hand}
            key = self._queue.next(lambda k: lanes[k].pool, busy, blocked, closed)
            if key is None:
                break
            job_id, self._served[job_id] = self._queue.take(key)
            live = self._live[job_id]
            live.lane.in_hand = live
            self._change(live, state=STARTING)
            self._save(live)
            live.feed.add({"event": STARTING, "job_id": job_id})
            in_thread(self._conduct, live, False)
        self._say_places()

    def _change(self, live: Live, **changes: Any) -> None:
        live.job = replace(live.job, **changes)
        live.changed = True

    def _say_places(self) -> None:
        """Tell those who wait where they stand, where that has changed."""
        for job_id, place in islice(self._placed(), _TOLD):
            live = self._live[job_id]
            if live.position != place["position"]:
                self._say_queued(live, place)

    def _say_queued(self, live: Live, place: Place, **more: Any) -> None:
        job_id = live.job.job_id
        live.position = place["position"]
        live.feed.add({"event": QUEUED, "job_id": job_id, **place, **more})

    def _finish(self, live: Live, outcome: Outcome) -> None:
        """End a job, once: its id is free before its terminal event can be read."""
        with self._lock:
            if live.over:
                return
            live.over = True
            try:
                # the record first: whoever has read the terminal event finds it
                live.job = self._record_end(live.now(), outcome, live.feed)
            except Exception as exc:  # or whoever reads the events waits for ever
                tell(f"recording the end of job {live.job.job_id}", exc)
            self._live.pop(live.job.job_id, None)
        live.feed.end(outcome.event)

    def _record_end(self, job: Job, outcome: Outcome, feed: Feed) -> Job:
        job = replace(
            job,
            state=outcome.state,
            ended=time.time(),
            reason=outcome.reason,
            message=outcome.message,
            next=outcome.next,
        )
        lines = stderr_of(job)[-_STDERR_LINES:]
        self._records.save(job, [*feed.tail(), outcome.event], lines)
        return job

    def _save(self, live: Live) -> None:
        live.changed = False
        live.changed |= not self._records.save(live.now(), live.feed.tail())

    # --- one thread per job in hand

    def _conduct(self, live: Live, attach: bool) -> None:
        """Bring a job to its end, or back to the queue."""
        lane, ends = live.lane, self._ends
        outcome: Outcome | None = None
        try:
            outcome = self._outcome(live, attach)
        except AdmissionRefused as exc:
            if not self._waits_for_room(live, exc, ends):
                outcome = failed_by(live.job, exc)
        except ProviderError as exc:
            outcome = failed_by(live.job, exc)
        except Exception as exc:  # a bug of ours ends one job, not the host
            tell(f"job {live.job.job_id}", exc)
            text = f"{type(exc).__name__}: {exc}"
            outcome = failed(live.job, text, reason="internal")
        if outcome is None:
            with self._lock:
                self._begin_next()
            return
        self._finish(live, outcome)
        self._clear(live, outcome)
        with self._lock:
            lane.in_hand, lane.hungry = None, False
            lane.idle_since = time.monotonic()
            self._ends += 1
            for other in self._lanes.values():
                other.blocked = False
            self._begin_next()

    def _outcome(self, live: Live, attach: bool) -> Outcome:
        run = Run(
            live,
            start=lambda: self._started(live),
            begun=lambda held: self._begun_on(live, held),
            came=lambda event, line: self._came(live, event, line),
        )
        if attach:
            try:
                return self._attached(live, run)
            except Unknown:
                # it never came to be there
                pass
        return run.run()

    def _attached(self, live: Live, run: Run) -> Outcome:
        if live.job.instance is None or not live.lane.adopt(live.job.instance):
            # another worker may answer there, which never had this job
            return run.lost("its worker ended while no host watched")
        return run.attach()

    def _started(self, live: Live) -> "Held":
        manifest = _provider_of(live.job)
        with self._lock:
            others = [
                lane
                for lane in self._lanes.values()
                if lane is not live.lane and lane.held and lane.in_hand is None
            ]
        for silent in running.hand_over(others):
            tell(f"{silent.key[1]}: its idle worker {silent.pid} gave no memory back")
        return live.lane.ensure(manifest, live.job.device)

    def _begun_on(self, live: Live, held: "Held") -> bool:
        with self._lock:
            if live.over:
                return False
            log = live.lane.starter.log.path
            self._change(
                live,
                state=RUNNING,
                started=time.time(),
                instance=held.started.instance,
                socket=str(live.lane.socket),
                log=str(log),
                log_start=log_size(log),
            )
            live.heard = time.monotonic()
            # before the worker is asked: who finds this record looks there for the job
            self._save(live)
            live.lane.hungry = False
            self._begin_next()
            return True

    def _came(self, live: Live, event: Event, line: bytes) -> None:
        live.feed.add(event, line)
        # many a second: what they change is put into the job when somebody looks
        seq = event.get("seq")
        if isinstance(seq, int):
            live.seq = seq
        name = event.get("event")
        if name == "progress":
            live.progress = event
        if name == "result":
            with self._lock:
                results = (*live.job.results, event.get("run_url"))
                self._change(live, results=results)
        live.changed = True

    def _waits_for_room(self, live: Live, exc: AdmissionRefused, ends: int) -> bool:
        """Put a job back in front of its queue, where an end may bring it room."""
        with self._lock:
            lane = live.lane
            others = [
                other
                for other in self._lanes.values()
                if other is not lane and other.in_hand is not None
            ]
            if live.over or not (others or self._ends != ends):
                return False
            lane.blocked = bool(others) and self._ends == ends
            # at once: who is refused a moment later must not wait for this one
            lane.in_hand, lane.hungry = None, True
            self._change(live, state=QUEUED)
            served = self._served.get(live.job.job_id, 0)
            self._queue.put_back(lane.key, live.job.job_id, served)
            self._save(live)
            place = self.place(live.job.job_id)
            self._say_queued(live, place, waits_for=exc.reason, message=str(exc))
            return True

    def _clear(self, live: Live, outcome: Outcome) -> None:
        """End a worker that is no good for the next job, before that one begins."""
        lane = live.lane
        if lane.held is None:
            return
        if live.lost is not None or lane.has_ended():
            lane.end()
        elif outcome.state != "completed":
            said = asking.health(lane.socket, HEALTH_S)
            # no answer is no verdict: a failed job never costs the model
            if said is not None and said.get("ok") is not True:
                lane.end()

    # --- the watching thread

    def _keep_watch(self) -> None:
        saved = time.monotonic()
        while not self._over.wait(_LOOK_S):
            with self._lock:
                lanes = list(self._lanes.values())
            for lane in lanes:
                try:
                    self._watch.look_at(lane)
                except Exception as exc:  # one worker must not leave the others unseen
                    tell(f"looking at {lane.key[1]}", exc)
            if time.monotonic() - saved >= _SAVE_S:
                saved = time.monotonic()
                self._save_changed()

    def _save_changed(self) -> None:
        with self._lock:
            for live in self._live.values():
                try:
                    if live.changed:
                        self._save(live)
                except Exception as exc:  # one job must not end the watch of all
                    tell(f"recording job {live.job.job_id}", exc)


def _left_s(live: Live, usual: Mapping[Key, float | None]) -> float | None:
    """Say how long a job will take still, by its provider's usual time."""
    usual_s = usual[live.lane.key]
    if usual_s is None:
        return None
    return max(0.0, usual_s - (time.time() - (live.job.started or time.time())))


def refuse_mode(manifest: "ProviderManifest") -> None:
    """Raise UsageError for a provider that runs no jobs."""
    if manifest.runtime_mode != "jobs":
        raise UsageError(
            f"{manifest.slug}: mode {manifest.runtime_mode} found, jobs wanted",
            reason="bad_request",
            next=f"tu remote call {manifest.slug}",
        )


def _provider_held(holder: "Holder") -> "ProviderManifest":
    """Read the manifest of a worker that is alive, which may lie outside of a tree."""
    named = holder.manifest_dir or holder.slug
    return manifests.find(Path(holder.tree or "/"), named)


def _provider_of(job: Job) -> "ProviderManifest":
    """Read a job's manifest as it is now."""
    return manifests.load(Path(job.provider) / manifests.FILE, Path(job.lock_tree))
