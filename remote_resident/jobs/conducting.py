"""One job in hand, in a thread of its own: from its turn to its end, or back to the queue.

It starts or takes the worker, asks the other idle ones to give memory back, POSTs the job,
reads its stream to the terminal event, and clears the worker for the next one. A start that
finds no room waits for the end of another job where there is one, and is refused otherwise.
"""

import time
from typing import TYPE_CHECKING

from remote_resident.daemon.door import tell
from remote_resident.errors import AdmissionRefused, ProviderError
from remote_resident.jobs import asking, provider, running
from remote_resident.jobs.board import Board
from remote_resident.jobs.job import (
    MOST_RESULTS,
    QUEUED,
    RUNNING,
    Event,
    Outcome,
)
from remote_resident.jobs.lane import HEALTH_S, Live, log_size
from remote_resident.jobs.running import Run, Unknown, failed, failed_by
from remote_resident.jobs.waiting import NOWHERE

if TYPE_CHECKING:
    from remote_resident.caller_side.held import Held


def conduct(board: Board, live: Live, attach: bool) -> None:
    """Bring a job to its end, or back to the queue; `attach`: it runs already."""
    lane, ends = live.lane, board.ends
    outcome: Outcome | None = None
    try:
        outcome = _outcome(board, live, attach)
    except AdmissionRefused as exc:
        if not _waits_for_room(board, live, exc, ends):
            outcome = failed_by(live.job, exc)
    except ProviderError as exc:
        outcome = failed_by(live.job, exc)
    except Exception as exc:  # a bug of ours ends one job, not the host
        tell(f"job {live.job.job_id}", exc)
        text = f"{type(exc).__name__}: {exc}"
        outcome = failed(live.job, text, reason="internal")
    if outcome is None:
        with board.lock:
            board.begin_next()
        return
    board.finish(live, outcome)
    _clear(live, outcome)
    with board.lock:
        lane.in_hand, lane.hungry = None, False
        lane.idle_since = time.monotonic()
        board.ends += 1
        for other in board.lanes.values():
            other.blocked = False
        board.begin_next()


def _outcome(board: Board, live: Live, attach: bool) -> Outcome:
    run = Run(
        live,
        start=lambda: _started(board, live),
        begun=lambda held: _begun_on(board, live, held),
        came=lambda event, line: _came(board, live, event, line),
    )
    if attach:
        try:
            return _attached(live, run)
        except Unknown:
            # it never came to be there
            pass
    return run.run()


def _attached(live: Live, run: Run) -> Outcome:
    if live.job.instance is None or not live.lane.adopt(live.job.instance):
        # another worker may answer there, which never had this job
        return run.lost("its worker ended while no host watched")
    return run.attach()


def _started(board: Board, live: Live) -> "Held":
    manifest = provider.of_job(live.job)
    with board.lock:
        others = [
            lane
            for lane in board.lanes.values()
            if lane is not live.lane and lane.held and lane.in_hand is None
        ]
    for silent in running.hand_over(others):
        tell(f"{silent.key[1]}: its idle worker {silent.pid} gave no memory back")
    return live.lane.ensure(manifest, live.job.device)


def _begun_on(board: Board, live: Live, held: "Held") -> bool:
    with board.lock:
        if live.over:
            return False
        log = live.lane.starter.log.path
        board.change(
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
        board.save(live)
        live.lane.hungry = False
        board.begin_next()
        return True


def _came(board: Board, live: Live, event: Event, line: bytes) -> None:
    live.feed.add(event, line)
    # many a second: what they change is put into the job when somebody looks
    seq = event.get("seq")
    if isinstance(seq, int):
        live.seq = seq
    name = event.get("event")
    if name == "progress":
        live.progress = event
    if name == "result":
        with board.lock:
            job = live.job
            results = (*job.results, event.get("run_url"))[-MOST_RESULTS:]
            gone = job.results_left_out + len(job.results) + 1 - len(results)
            board.change(live, results=results, results_left_out=gone)
    live.changed = True


def _waits_for_room(board: Board, live: Live, exc: AdmissionRefused, ends: int) -> bool:
    """Put a job back in front of its queue, where an end may bring it room."""
    with board.lock:
        lane = live.lane
        others = [
            other
            for other in board.lanes.values()
            if other is not lane and other.in_hand is not None
        ]
        if live.over or not (others or board.ends != ends):
            return False
        lane.blocked = bool(others) and board.ends == ends
        # at once: who is refused a moment later must not wait for this one
        lane.in_hand, lane.hungry = None, True
        board.change(live, state=QUEUED)
        served = board.served.get(live.job.job_id, 0)
        board.queue.put_back(lane.key, live.job.job_id, served)
        board.save(live)
        place = board.places().get(live.job.job_id, NOWHERE)
        board.say_queued(live, place, waits_for=exc.reason, message=str(exc))
        return True


def _clear(live: Live, outcome: Outcome) -> None:
    """End a worker that is no good for the next job, before that one begins."""
    try:
        if live.lane.held is not None and _is_spoilt(live, outcome):
            live.lane.end()
    except Exception as exc:  # or the next job waits for ever
        tell(f"{live.job.slug}: its worker after job {live.job.job_id}", exc)


def _is_spoilt(live: Live, outcome: Outcome) -> bool:
    lane = live.lane
    if live.lost is not None or lane.undeclared or lane.has_ended():
        return True
    said = (
        None if outcome.state == "completed" else asking.health(lane.socket, HEALTH_S)
    )
    # no answer is no verdict: a failed job never costs the model
    return said is not None and said.get("ok") is not True
