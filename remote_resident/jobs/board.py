"""Who waits and who is in hand: what all threads of the host share, under one lock.

Nothing that may take long is done under it, once callers are let in.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_resident.caller_side import start_command
from remote_resident.daemon.door import tell
from remote_resident.jobs import starting, waiting
from remote_resident.jobs.feed import Feed
from remote_resident.jobs.job import QUEUED, STARTING, Event, Job, Outcome
from remote_resident.jobs.lane import Lane, Live, pool_of, stderr_of
from remote_resident.jobs.queue import Key, Queue
from remote_resident.jobs.records import Records
from remote_resident.jobs.waiting import Place
from remote_resident.jobs.watch import in_thread

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest

STDERR_LINES = 400
_TOLD = 20
"""So many of those who wait are told of each step that they come nearer."""


class Board:
    """The jobs of this user that have not ended, and the workers for them.

    `conduct(live, attach)` brings a job to its end, in a thread of its own.
    """

    def __init__(
        self,
        records: Path,
        admit: start_command.Admit | None,
        conduct: "Callable[[Board, Live, bool], None]",
    ) -> None:
        self._admit = admit
        self._conduct = conduct
        self.records = Records(records)
        self.lock = threading.RLock()
        self.queue = Queue()
        self.lanes: dict[Key, Lane] = {}
        self.live: dict[str, Live] = {}
        self.served: dict[str, int] = {}
        self.ends = 0
        """How many jobs have ended: room may have come back since it was looked for."""
        self.over = threading.Event()
        self.begun = False

    def lane_of(self, manifest: "ProviderManifest") -> Lane:
        """Give a provider's lane, made where there is none."""
        key = (str(manifest.tree), manifest.slug)
        if key not in self.lanes:
            starter = starting.starter_of(manifest, admit=self._admit)
            self.lanes[key] = Lane.of(manifest, starter)
        lane = self.lanes[key]
        if lane.undeclared:
            # it may be there again
            lane.starter.manifest, lane.pool = manifest, pool_of(manifest)
        return lane

    def admitted(
        self, job: Job, manifest: "ProviderManifest", tail: list[Event] | None = None
    ) -> Live:
        """Take a job among those that live."""
        live = Live(job, Feed(tail or ()), self.lane_of(manifest), seq=job.seq)
        self.live[job.job_id] = live
        return live

    def conduct(self, live: Live, *, attach: bool) -> None:
        """Have a job brought to its end."""
        in_thread(self._conduct, self, live, attach)

    def begin_next(self) -> None:
        """Let every job begin that may."""
        if not self.begun or self.over.is_set():
            return
        lanes = self.lanes
        while True:
            busy = {key for key, lane in lanes.items() if lane.in_hand is not None}
            blocked = {key for key, lane in lanes.items() if lane.blocked}
            # who looks for room anew must find what has just become free
            closed = {x.pool for x in lanes.values() if x.hungry and x.in_hand}
            key = self.queue.next(lambda k: lanes[k].pool, busy, blocked, closed)
            if key is None:
                break
            job_id, self.served[job_id] = self.queue.take(key)
            live = self.live[job_id]
            live.lane.in_hand = live
            self.change(live, state=STARTING)
            self.save(live)
            live.feed.add({"event": STARTING, "job_id": job_id})
            self.conduct(live, attach=False)
        self._say_places()

    def change(self, live: Live, **changes: Any) -> None:
        """Change what is known of a job; recorded a little later."""
        live.job = replace(live.job, **changes)
        live.changed = True

    def places(self) -> dict[str, Place]:
        """Say where in the queue each job is; see `waiting.places`."""
        with self.lock:
            return dict(self._places())

    def _places(self) -> Iterator[tuple[str, Place]]:
        return waiting.places(self.queue.order(), self.lanes, self.records.usual_s)

    def _say_places(self) -> None:
        """Tell those who wait where they stand, where that has changed."""
        for job_id, place in islice(self._places(), _TOLD):
            live = self.live[job_id]
            if live.position != place["position"]:
                self.say_queued(live, place)

    def say_queued(self, live: Live, place: Place, **more: Any) -> None:
        """Tell who reads a job's events where it stands."""
        job_id = live.job.job_id
        live.position = place["position"]
        live.feed.add({"event": QUEUED, "job_id": job_id, **place, **more})

    def finish(self, live: Live, outcome: Outcome) -> None:
        """End a job, once: its id is free before its terminal event can be read."""
        with self.lock:
            if live.over:
                return
            live.over = True
            try:
                # the record first: whoever has read the terminal event finds it
                live.job = self.record_end(live.now(), outcome, live.feed)
            except Exception as exc:  # or whoever reads the events waits for ever
                tell(f"recording the end of job {live.job.job_id}", exc)
            self.live.pop(live.job.job_id, None)
        live.feed.end(outcome.event)

    def record_end(self, job: Job, outcome: Outcome, feed: Feed) -> Job:
        """Record how a job ended."""
        job = replace(
            job,
            state=outcome.state,
            ended=time.time(),
            reason=outcome.reason,
            message=outcome.message,
            next=outcome.next,
        )
        lines = stderr_of(job)[-STDERR_LINES:]
        self.records.save(job, [*feed.tail(), outcome.event], lines)
        return job

    def save(self, live: Live) -> None:
        """Record how a job stands."""
        live.changed = False
        live.changed |= not self.records.save(live.now(), live.feed.tail())

    def save_changed(self) -> None:
        """Record the jobs that differ from their records."""
        with self.lock:
            for live in self.live.values():
                try:
                    if live.changed:
                        self.save(live)
                except Exception as exc:  # one job must not end the watch of all
                    tell(f"recording job {live.job.job_id}", exc)
        self.records.save_unsaved()
