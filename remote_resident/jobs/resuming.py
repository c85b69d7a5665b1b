"""What an earlier host left: its jobs are taken up, its workers held or ended.

A worker whose manifest cannot be read any more keeps the job that it has in hand, by what
the job's record says of it, and is ended after that: nobody can ask it for another.
"""

import contextlib
import os
import time

from remote_resident.errors import ProviderError
from remote_resident.jobs import provider, running, starting
from remote_resident.jobs.board import Board
from remote_resident.jobs.feed import Feed
from remote_resident.jobs.job import QUEUED, RUNNING, Job
from remote_resident.jobs.lane import LEAVE_S, Lane, Live
from remote_resident.jobs.running import failed, failed_by
from remote_resident.jobs.watch import in_thread


def take_up(board: Board) -> None:
    """Take up the jobs of an earlier host, and the workers that it left."""
    attached: set[str] = set()
    for job in board.records.live():
        if job.job_id in board.live:
            # submitted to this host before it began
            continue
        live = _resumed(board, job)
        if live is not None and job.state == RUNNING:
            attached.add(job.instance or "")
            live.lane.in_hand = live
            board.conduct(live, attach=True)
    _adopt_idle(board, attached)


def _resumed(board: Board, job: Job) -> Live | None:
    try:
        manifest = provider.of_job(job)
        provider.refuse_mode(manifest)
    except (OSError, ProviderError) as exc:
        if job.state != RUNNING:
            outcome = (
                failed_by(job, exc)
                if isinstance(exc, ProviderError)
                else failed(job, str(exc), reason="file_missing")
            )
            if job.cancelling:
                outcome = running.cancelled(job)
            board.record_end(job, outcome, Feed())
            return None
        manifest = provider.recorded(job)
    live = board.admitted(job, manifest, board.records.tail(job.job_id))
    if job.cancelling:
        live.cancelled_at = time.monotonic()
    if job.state != RUNNING:
        if job.cancelling:
            board.finish(live, running.cancelled(job))
            return None
        board.change(live, state=QUEUED)
        board.queue.add(live.lane.key, job.job_id)
    return live


def _adopt_idle(board: Board, attached: set[str]) -> None:
    """Take the workers that run without a job, so that somebody lets them go."""
    from remote_resident import machine, processes

    for holder in machine.holdings():
        marks = processes.marks(holder.pids[0]) if holder.pids else {}
        mine = holder.uid == os.geteuid() and "entry" in marks
        if not mine or holder.instance in attached or not holder.instance:
            continue
        try:
            manifest = provider.of_holder(holder)
        except (ProviderError, OSError):
            manifest = provider.seen(holder)
        # a name that has no socket is no worker's of ours
        with contextlib.suppress(ProviderError, OSError):
            # a smoke's worker is the smoke's to end
            if marks.get("socket") == str(starting.socket_of(manifest)):
                _adopt(board.lane_of(manifest), holder.instance)


def _adopt(lane: Lane, instance: str) -> None:
    if lane.held is not None or not lane.adopt(instance):
        return
    if lane.undeclared:
        lane.ending = True
        in_thread(lane.end, LEAVE_S)
