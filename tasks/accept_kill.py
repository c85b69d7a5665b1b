"""The last phase of acceptance: the worker is killed in the middle of a request."""

import contextlib
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from remote_resident import processes
from remote_resident.errors import WorkerRequestError
from tasks.accept_stage import LEFT_S, Stage, end, living

KILLS = 20
"""How often it is tried to kill in a request that is over at once."""
_LOOK_S = 0.01


@dataclass(slots=True, kw_only=True)
class _Shot:
    """One attempt: who was killed, what the caller was told, what was left."""

    pid: int | None = None
    held: dict[int, int] = field(default_factory=dict)
    """pidfds of all that the worker had started, by pid."""
    error: WorkerRequestError | None = None
    left: list[int] = field(default_factory=list)


def kill(stage: Stage) -> str:
    """Kill the worker in a request: the error names it, and the next request is well."""
    known = stage.known
    request = known.requests.largest
    times, shot = 1, _shoot(stage, request)
    while shot.error is None and times < KILLS:
        times, shot = times + 1, _shoot(stage, request)
    said = _named(stage, shot, times)
    if shot.left:
        stage.wrong(
            "stop_failed",
            f"process {', '.join(map(str, shot.left))} of worker {shot.pid} found "
            f"{LEFT_S} s after that was killed, none wanted; it was ended now",
        )
    given = stage.ask("after the kill", known.requests.plain)
    stage.same("the first request and one after the kill", known.reference, given)
    return f"{said}; next request {given.seconds or 0.0:.3f} s with its start"


def _shoot(stage: Stage, request: Mapping[str, Any]) -> _Shot:
    shot = _Shot()
    started = stage.start()
    try:
        if started is None:
            _shoot_once(stage, request, shot)
        else:
            shot.pid = started.pid
            _ask_under_fire(stage, request, shot)
        shot.left = living(shot.held, LEFT_S)
        end(shot.held)
    finally:
        for fd in shot.held.values():
            os.close(fd)
    return shot


def _ask_under_fire(stage: Stage, request: Mapping[str, Any], shot: _Shot) -> None:
    def fire(event: dict[str, Any]) -> None:
        if event.get("event") == "started":
            _fire(stage, shot)

    try:
        stage.ask("killed", request, on_event=fire)
    except WorkerRequestError as exc:
        shot.error = exc


def _shoot_once(stage: Stage, request: Mapping[str, Any], shot: _Shot) -> None:
    """Kill a process that answers one request, as soon as it is seen."""
    before, over = len(stage.instances), threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_S):
            if len(stage.instances) > before and (pid := _worker_of(stage)):
                shot.pid = pid
                _fire(stage, shot)
                return

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        stage.ask("killed", request)
    except WorkerRequestError as exc:
        shot.error = exc
    finally:
        over.set()
        looking.join()


def _worker_of(stage: Stage) -> int | None:
    instance = stage.instances[-1]
    for pid in processes.members(instance):
        if processes.marks(pid).get("resident-instance") == instance:
            return pid
    return None


def _fire(stage: Stage, shot: _Shot) -> None:
    """Stop the worker where it stands, see what belongs to it, and kill it."""
    if shot.pid is None or shot.held:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(shot.pid, signal.SIGSTOP)
    for pid in processes.members(stage.instances[-1]):
        with contextlib.suppress(ProcessLookupError):
            shot.held[pid] = os.pidfd_open(pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(shot.pid, signal.SIGKILL)


def _named(stage: Stage, shot: _Shot, times: int) -> str:
    """Hold what the caller was told against what was done."""
    error = shot.error
    if error is None:
        return f"answered {times} times before it could be killed"
    told = str(error).removeprefix(f"{stage.provider.slug}: ")
    if error.reason != "worker_died" or "SIGKILL" not in told:
        stage.wrong(
            "worker_died",
            f"killed: {told} ({error.reason}) found, worker_died with SIGKILL wanted",
        )
    return f"killed in a request: {error.reason}, SIGKILL named"
