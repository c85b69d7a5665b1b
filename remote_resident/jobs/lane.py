"""One provider's job worker in the host: its start, its end, and what it has in hand."""

import contextlib
import os
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from remote_resident import processes, spawn
from remote_resident.caller_side.held import Held, Started
from remote_resident.errors import ProviderError
from remote_resident.jobs import asking, starting
from remote_resident.jobs.feed import Feed
from remote_resident.jobs.job import AUTO, Event, Job
from remote_resident.jobs.provider import Remembered
from remote_resident.jobs.queue import Key
from remote_resident.spawn import exit_hint

if TYPE_CHECKING:
    import socket

    from remote_resident.manifest import ProviderManifest

HEALTH_S = 5.0
END_GRACE_S = 2.0
LEAVE_S = 30.0
"""How long a worker that has nothing in hand may take to go by itself."""
ENDED_WAIT_S = 5.0
"""How long the end of a process may take once its socket has closed."""
_TAIL_LINES = 20
_MOST_BYTES = 2**20
"""How much of a log is looked through for a job's own lines."""


@dataclass(slots=True)
class Live:
    """A job that has not ended."""

    job: Job
    feed: Feed
    lane: "Lane"
    changed: bool = False
    """It differs from its record."""
    seq: int = 0
    """Number of the newest event that its worker gave."""
    progress: Event | None = None
    """The newest progress; None: none since this host knows the job."""
    position: int | None = None
    """In the queue, as it was last said; None: not said."""
    cancelled_at: float | None = None
    """On the monotonic clock; None: its end was not asked for."""
    ask_again: float = 0.0
    """When its cancel is to be asked for once more, on the monotonic clock."""
    heard: float = field(default_factory=time.monotonic)
    """When its worker last gave a sign of life."""
    lost: str | None = None
    """Why its worker counts as lost; None: it does not."""
    stream: "socket.socket | None" = None
    over: bool = False

    def now(self) -> Job:
        """Give the job with what changes at every event."""
        progress = self.job.progress
        if self.progress is not None:
            shown = ("percent", "label", "timing")
            progress = {key: self.progress.get(key) for key in shown}
        return replace(self.job, seq=self.seq, progress=progress)


@dataclass(slots=True)
class Lane:
    """One provider's worker; only the thread of the job in hand starts it."""

    key: Key
    pool: str
    """device or host: what its jobs wait for."""
    starter: starting.JobStarter
    held: Held | None = None
    device: str | None = None
    answers: int | None = None
    """Who accepts on its socket: in a container not the process that was started; None:
    not looked at."""
    in_hand: Live | None = None
    blocked: bool = False
    """Its next job waits for room, until another one ends."""
    hungry: bool = False
    """It was refused for want of room, and has not begun since."""
    idle_since: float = field(default_factory=time.monotonic)
    stopped_looks: int = 0
    asking: bool = False
    """A thread asks it whether it lives."""
    ending: bool = False
    turn: threading.RLock = field(default_factory=threading.RLock)
    """Held while the worker is started or ended."""
    guard: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, manifest: "ProviderManifest", starter: starting.JobStarter) -> "Lane":
        """Make the lane of a provider, with no worker yet."""
        pool = pool_of(manifest)
        return cls((str(manifest.tree), manifest.slug), pool, starter)

    @property
    def socket(self) -> Path:
        """Name the worker's socket."""
        return self.starter.socket_path

    @property
    def undeclared(self) -> bool:
        """Say whether its manifest could not be read: it starts no worker."""
        return isinstance(self.starter.manifest, Remembered)

    @property
    def idle(self) -> bool:
        """Say whether it has no live job in hand."""
        return self.in_hand is None or self.in_hand.over

    @property
    def pid(self) -> int | None:
        """Give the worker's pid; None: there is none."""
        return None if self.held is None else self.held.started.pid

    def ensure(self, manifest: "ProviderManifest", device: str) -> Held:
        """Give a worker that accepts, on the device that is wanted.

        Raises as `ResidentWorker.ensure_started`.
        """
        with self.turn:
            self.starter.manifest = manifest
            if self.held is not None and device not in (AUTO, self._placed()):
                self.end(END_GRACE_S)
            self.starter.device = device
            held = self.starter.hold(starting.inputs_of(manifest), self.held)
            with self.guard:
                if self.held is not held:
                    self.answers = None
                self.held, self.stopped_looks, self.ending = held, 0, False
            self.device = asking.device_of(held.started.pid)
            return held

    def _placed(self) -> str | None:
        return "cpu" if self.device == "" else self.device

    def adopt(self, instance: str) -> bool:
        """Take a worker that another daemon left; False: it is gone."""
        for found in processes.instances(self.key[1], self.key[0]):
            if found.instance != instance or found.leader is None:
                continue
            pid = found.leader.pid
            with contextlib.suppress(OSError):
                # a container's worker is its client here: who answers is looked at later
                self.held = Held(
                    started=Started(
                        pid=pid,
                        instance=instance,
                        spawn_to_ready_s=None,
                        load_s=None,
                        adopted=True,
                    ),
                    inputs="",
                    pidfd=os.pidfd_open(pid),
                    container_cli=self.starter.container_cli(),
                )
                self.starter.instance = instance
                self.device = asking.device_of(pid)
                return True
        return False

    def stopped(self) -> bool:
        """Say whether the worker was found in state T, at two looks one after the other."""
        pid = self.pid
        if pid is not None and self.answers is None:
            self.answers = asking.peer(self.socket)
        pids = () if pid is None else (pid, self.answers)
        is_stopped = any(asking.state_of(one) == "T" for one in pids if one)
        self.stopped_looks = self.stopped_looks + 1 if is_stopped else 0
        return self.stopped_looks >= 2

    def has_ended(self) -> bool:
        """Say whether the worker that was held has ended."""
        with self.guard:
            held = self.held
            return held is not None and held.wait_end(0)

    def end(self, grace_s: float = END_GRACE_S) -> None:
        """End the worker and whatever it started."""
        with self.turn:
            with self.guard:
                held, self.held, self.answers = self.held, None, None
            if held is not None:
                held.end(grace_s)
                held.wait_end(ENDED_WAIT_S)

    def give_up_start(self) -> str | None:
        """Have a start fail that nobody wants any more; give its instance, None: none."""
        self.starter.stops += 1
        return None if self.held is not None else self.starter.instance

    def end_start(self, instance: str) -> None:
        """End what a start that was given up has come to."""
        cli = None
        with contextlib.suppress(ProviderError):
            cli = self.starter.container_cli()
        processes.end_all(instance, grace_s=END_GRACE_S, container_cli=cli)

    def how_it_ended(self) -> str:
        """Say how the worker ended, in words."""
        held = self.held
        if held is None:
            return "its worker was ended"
        pid = held.started.pid
        if not held.wait_end(ENDED_WAIT_S):
            return f"its worker {pid} closed the stream and runs on"
        return f"its worker {pid} ended: {exit_hint(held.returncode())}"


def pool_of(manifest: "ProviderManifest") -> str:
    """Say which memory a provider's jobs wait for: device or host."""
    return "host" if manifest.gpu_policy == "none" else "device"


def stderr_of(job: Job) -> list[str]:
    """Give the lines that a job itself wrote, of those still in its worker's log."""
    if job.log is None:
        return []
    path, tag = Path(job.log), f"[{job.job_id}] "
    try:
        with path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            # a log that was cut short holds nothing of before
            start = job.log_start if job.log_start <= end else 0
            log.seek(max(start, end - _MOST_BYTES))
            text = log.read().decode(errors="backslashreplace")
    except OSError:
        return []
    lines = text.split("\n")
    return [line.removeprefix(tag) for line in lines if line.startswith(tag)]


def tail_of(job: Job) -> str:
    """Give the last lines that a job wrote, as the end of an error; empty: none."""
    return "".join(f"\n    {line}" for line in stderr_of(job)[-_TAIL_LINES:])


def log_size(path: Path) -> int:
    """Give a log's length in bytes."""
    return spawn.Log(path).size()
