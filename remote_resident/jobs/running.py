"""One job, from its turn to its terminal event: start, hand-over, stream, verdict."""

import contextlib
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from http.client import HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Any

from remote_resident import unix_http
from remote_resident.errors import REASONS, ProviderError
from remote_resident.jobs import asking
from remote_resident.jobs.job import (
    CANCELLED,
    COMPLETED,
    FAILED,
    LOST,
    Event,
    Job,
    Outcome,
)
from remote_resident.jobs.lane import HEALTH_S, Lane, Live, tail_of
from remote_resident.jobs.worker.encoding import DEEPEST, is_deeper

if TYPE_CHECKING:
    from remote_resident.caller_side.held import Held

_TRIES = 3
_TERMINAL = ("done", "error")
_DEEPEST = DEEPEST + 10
"""What a worker of ours nests at most, and the event around it."""


class NotTaken(Exception):
    """The worker was gone, or leaving, before it took the job."""


class Unknown(Exception):
    """The worker knows no job of this id."""


class Refused(Exception):
    """The worker refused the job; `reason` says why."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


class NoEvent(Exception):
    """The worker sent a line that is none of its protocol; the text says what."""


@dataclass(slots=True)
class Run:
    """One job's way through its worker."""

    live: Live
    start: Callable[[], "Held"]
    """Give a worker that accepts."""
    begun: Callable[["Held"], bool]
    """Record that this worker is about to be asked; False: the job is over."""
    came: Callable[[Event, bytes], None]
    """Take an event, and the line that it came as."""

    def run(self) -> Outcome:
        """Have the job run, and say how it ended."""
        for _ in range(_TRIES):
            held = self.start()
            if not self.begun(held):
                return cancelled(self.live.job)
            try:
                job = self.live.job
                return self._read("POST", f"/jobs/{job.job_id}/run", job.params)
            except NotTaken:
                # it was retired in that moment: the next start takes its place
                self.live.lane.end()
            except Refused as exc:
                return failed(self.live.job, str(exc), reason=exc.reason)
        return self.lost("no worker of it stays to take the job")

    def attach(self) -> Outcome:
        """Go on with a job that runs already; raises Unknown where it does not."""
        job = self.live.job
        try:
            return self._read(
                "GET", f"/jobs/{job.job_id}/events?after={self.live.seq}", None
            )
        except NotTaken:
            return self._gone()

    def _read(self, method: str, route: str, body: Any) -> Outcome:
        try:
            terminal = self._terminal(method, route, body)
        except NoEvent as exc:
            # what else it runs and says is not known: it is no good for the next job
            self.live.lost = f"its worker {self.live.lane.pid} sent {exc}"
            terminal = None
        except (OSError, HTTPException, ValueError):
            terminal = None
        if terminal is None:
            return self._gone()
        return outcome_of(self.live.job, terminal)

    def _terminal(self, method: str, route: str, body: Any) -> Event | None:
        """Read to the terminal event; None: the stream was cut before."""
        connection = unix_http.UnixConnection(self.live.lane.socket)
        try:
            connection.connect()
        except OSError:
            raise NotTaken from None
        self.live.stream = connection.sock
        try:
            with unix_http.asked(connection, method, route, body) as answer:
                self.live.heard = time.monotonic()
                _refuse(answer)
                if self.live.cancelled_at is not None:
                    # it may have been asked for before the worker knew the job
                    asking.cancel(self.live.lane.socket, self.live.job.job_id, HEALTH_S)
                return self._events(answer)
        finally:
            self.live.stream = None

    def _events(self, answer: HTTPResponse) -> Event | None:
        with contextlib.suppress(unix_http.Cut):
            for line in unix_http.lines(answer):
                self.live.heard = time.monotonic()
                event = _event_of(line)
                if event.get("event") in _TERMINAL:
                    return dict(event)
                if event.get("event") != "ping":
                    self.came(event, line)
        return None

    def _gone(self) -> Outcome:
        """Say what became of a job whose stream was cut."""
        live, lane = self.live, self.live.lane
        if live.lost is None and not lane.has_ended():
            # a worker that runs on still has what was not read
            again = self._again()
            if again is not None:
                return outcome_of(live.job, again)
        return self.lost(live.lost or lane.how_it_ended())

    def _again(self) -> Event | None:
        live = self.live
        for _ in range(_TRIES):
            route = f"/jobs/{live.job.job_id}/events?after={live.seq}"
            try:
                event = self._terminal("GET", route, None)
            except (NotTaken, Unknown, Refused, NoEvent):
                return None
            except (OSError, HTTPException, ValueError):
                return None
            if event is not None or live.lost is not None:
                return event
        return None

    def lost(self, why: str) -> Outcome:
        """Give the end of a job whose worker is lost; cancelled, if that was asked for."""
        job = self.live.job
        text = f"{job.slug}: job {job.job_id}: {why}"
        if self.live.cancelled_at is not None or job.cancelling:
            return cancelled(job, text)
        text += f"; log {job.log}"
        if tail := tail_of(job):
            text += f", the job's last lines:{tail}"
        next_ = f"tu remote job logs {job.job_id}"
        return replace(failed(job, text, reason=LOST, next=next_), state=LOST)


def outcome_of(job: Job, terminal: Event) -> Outcome:
    """Say how a job ended by its worker's terminal event."""
    if terminal["event"] == "done":
        status = terminal.get("status")
        reason = CANCELLED if status == CANCELLED else None
        return Outcome(CANCELLED if reason else COMPLETED, terminal, reason)
    message = str(terminal.get("message"))
    if job.cancelling:
        # whatever it raised when it was told to end: the end was what was asked for
        return Outcome(CANCELLED, terminal, CANCELLED, message)
    return Outcome(FAILED, terminal, None, message)


def cancelled(job: Job, message: str | None = None) -> Outcome:
    """Give the end of a job that was cancelled without a word of its worker."""
    event = {**_named(job, "done"), "status": CANCELLED}
    if message is not None:
        event["message"] = message
    return Outcome(CANCELLED, event, CANCELLED, message)


def failed(
    job: Job,
    message: str,
    *,
    reason: str,
    next: str | None = None,
    problems: tuple[dict[str, Any], ...] = (),
) -> Outcome:
    """Give the end of a job that was refused."""
    event = {**_named(job, "error"), "message": message, "reason": reason}
    if problems:
        event["problems"] = list(problems)
    if next is not None:
        event["next"] = next
    return Outcome(FAILED, event, reason, message, next, problems)


def failed_by(job: Job, exc: ProviderError) -> Outcome:
    """Give the end of a job whose worker could not be started."""
    problems = tuple(problem.as_dict() for problem in exc.problems)
    return failed(job, str(exc), reason=exc.reason, next=exc.next, problems=problems)


def hand_over(others: list[Lane]) -> list[Lane]:
    """Have idle workers give cached device memory back; give those that did not answer.

    All are asked at once, each for at most two seconds.
    """
    if not others:
        return []
    with ThreadPoolExecutor(len(others), "reclaim") as pool:
        answered = pool.map(lambda lane: asking.reclaim(lane.socket), others)
        return [lane for lane, did in zip(others, answered, strict=True) if not did]


def _event_of(line: bytes) -> Event:
    """Read a line of a worker; raises NoEvent for one that is none."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise NoEvent(f"no JSON ({exc}), an event wanted") from None
    if not isinstance(event, dict):
        raise NoEvent(f"a JSON {type(event).__name__}, an event wanted")
    if line.count(b"[") + line.count(b"{") > _DEEPEST and is_deeper(event, _DEEPEST):
        raise NoEvent(f"an event of more than {_DEEPEST} levels, fewer wanted")
    return event


def _named(job: Job, event: str) -> Event:
    return {"event": event, "job_id": job.job_id}


def _refuse(answer: HTTPResponse) -> None:
    """Raise NotTaken, Unknown or Refused for an answer that is no stream."""
    if answer.status < 300:
        return
    try:
        said = json.loads(answer.read(unix_http.ANSWER_LIMIT_BYTES))
    except ValueError:
        said = {}
    said = said if isinstance(said, dict) else {}
    if answer.status == 503:
        raise NotTaken
    if answer.status == 404:
        raise Unknown
    reason = said.get("reason")
    raise Refused(
        str(said.get("error") or f"its worker answered {answer.status}"),
        reason if reason in REASONS else "bad_request",
    )
