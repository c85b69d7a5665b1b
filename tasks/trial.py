"""Run a provider for real, in a corner of its own, and bring back what was seen.

The work is done in a thread, as its calls block; whoever waits is the generator in front
of it, which keeps the deadline. Past the deadline the worker's stacks are taken first,
then everything of its instance is ended, whatever it did to stay.
"""

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from remote_resident import places, processes, spawn, supervisor
from remote_resident.caller_side import stacks
from remote_resident.cli.signals import Cut
from remote_resident.errors import ProviderError, WorkerStartError
from remote_resident.exec_env import container_program
from tasks.answer import Answer, read_files
from tasks.peak import Meter
from tasks.step import Progress

if TYPE_CHECKING:
    from remote_resident.caller_side.start_command import Admit, Candidate
    from remote_resident.manifest import ProviderManifest
    from remote_resident.supervisor import ResidentWorker, Started

TAIL_LINES = 20
CUTS = (GeneratorExit, KeyboardInterrupt, Cut)
"""What ends a smoke that is no verdict on the provider."""

_LOOK_S = 0.25
_STACKS_S = 0.25
_LATER_S = 1.0
"""How much later its worker is ended by others, who write its stacks as well."""
_CUT_GRACE_S = 0.5
_SPAWN_S = 1.0
"""How long after its admission a process may still come to be."""
_STOP_GRACE_S = 10.0
_JOIN_S = 0.2
_CUT_JOIN_S = 5.0
_SOCKET_BYTES = 107
_PREFIX = "s-"
_TRIAL_LETTERS = 8
"""How many letters mkdtemp adds to a prefix."""
_KEPT = ".kept"
"""Lies in what a trial that was no success left for its reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corner:
    """The places of one trial, which nobody else uses."""

    directory: Path
    """Output directories and the log; kept when the trial was no success."""
    socket_dir: Path

    @property
    def log(self) -> Path:
        """Name the log of all that the trial starts."""
        return self.directory / "worker.log"

    @property
    def socket(self) -> Path:
        """Name the worker's socket."""
        return self.socket_dir / "s"

    def tail(self, lines: int = TAIL_LINES) -> list[str]:
        """Read the last lines of the log."""
        return spawn.Log(self.log).tail(lines=lines)


def make_corner(provider: "ProviderManifest") -> Corner:
    """Make the places of a trial; raises ProviderError where they cannot be made."""
    places.ensure(places.runtime_dir())
    socket_dir = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_socket_base()))
    name = _name(provider, socket_dir.name.removeprefix(_PREFIX))
    directory = (_corners(provider) or socket_dir) / name
    try:
        places.ensure(directory)
    except ProviderError:
        socket_dir.rmdir()
        raise
    return Corner(directory=directory, socket_dir=socket_dir)


def _corners(provider: "ProviderManifest") -> Path | None:
    """Name the directory of this provider's corners; None: each trial's socket's."""
    if provider.runtime_work_root is not None:
        return provider.resolve(provider.runtime_work_root)
    if provider.env_kind != "venv":
        # the one directory that a container sees and can write
        return None
    return places.cache_dir() / "smoke"


def _name(provider: "ProviderManifest", trial: str) -> str:
    """Name a corner by whose it is: what a killed trial has left is found by that."""
    return f"{provider.slug}-{places.tree_id(provider.tree)}-{trial}"


def _socket_base() -> Path:
    runtime = places.runtime_dir()
    # the longest name that mkdtemp gives, and the socket in it
    longest = runtime / (_PREFIX + "x" * _TRIAL_LETTERS) / "s"
    fits = len(os.fsencode(longest)) <= _SOCKET_BYTES
    return runtime if fits else Path(tempfile.gettempdir())


def end_left(provider: "ProviderManifest") -> Iterator[list[int]]:
    """End each worker that a trial of this provider left, and give the pids that ended.

    The places of a trial that was killed are removed, those that were kept stay. Only
    for who holds the provider's turn: a trial that still runs would be ended.
    """
    cli = None
    for left in processes.instances(provider.slug, str(provider.tree)):
        socket = Path(left.marks.get("socket", ""))
        if not _is_private(socket):
            continue
        if provider.env_kind == "docker":
            cli = container_program(os.environ, provider.slug)
        yield supervisor.end_all(left.instance, grace_s=_CUT_GRACE_S, container_cli=cli)
        shutil.rmtree(socket.parent, ignore_errors=True)
    _clear_left(provider)


def _clear_left(provider: "ProviderManifest") -> None:
    base, name = _corners(provider), _name(provider, "?" * _TRIAL_LETTERS)
    sockets = _socket_base()
    for left in sockets.glob(f"{_PREFIX}*/{name}") if base is None else base.glob(name):
        if (left / _KEPT).exists():
            continue
        trial = left.name.rpartition("-")[2]
        shutil.rmtree(left, ignore_errors=True)
        shutil.rmtree(sockets / f"{_PREFIX}{trial}", ignore_errors=True)


def _is_private(socket: Path) -> bool:
    room = socket.parent
    named = socket.name == "s" and room.name.startswith(_PREFIX)
    return named and room.parent == _socket_base()


def clear_corner(corner: Corner, *, keep: bool) -> None:
    """Remove the places of a trial; `keep`: all but the outputs and the log."""
    inside = corner.directory.is_relative_to(corner.socket_dir)
    if not keep:
        shutil.rmtree(corner.directory, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            (corner.directory / _KEPT).touch()
    if not (keep and inside):
        shutil.rmtree(corner.socket_dir, ignore_errors=True)


@dataclass(slots=True, kw_only=True)
class Trial:
    """What was seen while a provider ran."""

    provider: "ProviderManifest"
    corner: Corner
    admit: "Admit | None"
    limit_s: float | None = None
    """The deadline of all of it; None: the smoke's."""
    meter: Meter = field(default_factory=Meter)
    answers: list[tuple[str, Answer]] = field(default_factory=list)
    """The first and the identical ones of one held worker, in order, by name."""
    fresh: Answer | None = None
    """Of a process of its own; None: not come to that."""
    again: Answer | None = None
    """Of a second fresh process, where no held worker's answer can be compared."""
    started: "Started | None" = None
    timed_out: bool = False
    tail: list[str] = field(default_factory=list)
    """The last lines of the log, without the stacks that are asked for at a deadline."""
    stacks: list[str] = field(default_factory=list)
    seconds: float = 0.0
    error: BaseException | None = None
    at: str = "start"
    """What was asked for last, in words."""
    instance: str | None = None
    """Of what runs now; None: nothing was started."""
    admitted_at: float | None = None
    over: bool = False
    worker: "ResidentWorker | None" = None
    said: "SimpleQueue[str | None]" = field(default_factory=SimpleQueue)

    # --- in front

    def run(self) -> Generator[str | Progress, None, None]:
        """Do it all under the deadline; lines and the seconds of it come out.

        What went wrong is in `error`, what was too slow in `timed_out`. Nothing of the
        trial runs afterwards, however this ends.
        """
        began, go = time.monotonic(), threading.Event()

        def work() -> None:
            # a cut inside of start() is seen by nobody below: then it never goes
            go.wait()
            self._work()

        thread = threading.Thread(target=work, name="smoke", daemon=True)
        thread.start()
        grace_s, join_s = _CUT_GRACE_S, _CUT_JOIN_S
        try:
            go.set()
            yield from self._said(began)
            self.tail = self.corner.tail()
            if self.timed_out:
                self.meter.stop()
                self._capture_stacks()
                grace_s, join_s = 0.0, _JOIN_S
        finally:
            self.over = True
            self.meter.stop()
            if thread.is_alive():
                self._end(grace_s)
                thread.join(join_s)
            self.seconds = time.monotonic() - began

    def _said(self, began: float) -> Iterator[str | Progress]:
        limit_s = self._deadline_s()
        while True:
            now = time.monotonic() - began
            if now >= limit_s:
                self.timed_out = True
                return
            yield Progress(self.at, now, limit_s, "s")
            try:
                line = self.said.get(timeout=min(_LOOK_S, limit_s - now))
            except Empty:
                continue
            if line is None:
                return
            yield line

    def _deadline_s(self) -> float:
        return self.limit_s or self.provider.smoke_timeout_s

    def resident(self) -> "ResidentWorker":
        """Give the held worker of this trial; nothing is started by that.

        It keeps the deadline too, a little later: a trial that is killed ends nothing
        any more.
        """
        return supervisor.ResidentWorker(
            self.provider.limited(self._deadline_s() + _LATER_S),
            socket_path=self.corner.socket,
            log_path=self.corner.log,
            admit=self._admitted,
        )

    def _capture_stacks(self) -> None:
        """Take the worker's stacks, in a fraction of a second or not at all."""
        if self.provider.env_kind == "venv":
            self.stacks = self._signalled_stacks()
        elif self.worker is not None:
            # the process that is seen from here is its container's client
            self.stacks = self._asked_stacks(self.worker)

    def _signalled_stacks(self) -> list[str]:
        pid = self._leader()
        if pid is None:
            return []
        return stacks.signalled(pid, spawn.Log(self.corner.log), _STACKS_S)[-200:]

    @staticmethod
    def _asked_stacks(worker: "ResidentWorker") -> list[str]:
        found: list[str] = []

        def ask() -> None:
            with contextlib.suppress(ProviderError, OSError):
                found.extend(worker.stacks().splitlines())

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(_STACKS_S)
        return list(found)

    def _leader(self) -> int | None:
        """Find the worker among the processes that are known already."""
        for pid in sorted(self.meter.known):
            if processes.marks(pid).get("resident-instance") == self.instance:
                return pid
        return None

    def _end(self, grace_s: float) -> None:
        """End all of it, twice where it may just have been spawned meanwhile."""
        if self.instance is None:
            return
        cli = None
        if self.provider.env_kind == "docker":
            cli = container_program(os.environ, self.provider.slug)
        began = time.monotonic()
        supervisor.end_all(self.instance, grace_s=grace_s, container_cli=cli)
        if self.admitted_at is not None and began - self.admitted_at < _SPAWN_S:
            supervisor.end_all(self.instance, grace_s=0.0, container_cli=cli)

    # --- behind

    def _work(self) -> None:
        try:
            if self.provider.runtime_mode == "resident":
                self._held()
                self.fresh = self._fresh("fresh")
                return
            self.fresh = self._fresh("first")
            if self.provider.smoke_deterministic:
                self.again = self._fresh("second")
        except BaseException as exc:  # told by whoever waits
            self.error = exc
        finally:
            self.said.put(None)

    def _held(self) -> None:
        provider = self.provider
        worker = self.worker = self.resident()
        try:
            self.at = "start"
            self.started = worker.ensure_started()
            self.said.put(_started(self.started))
            for number in range(provider.smoke_repeat + 1):
                name = "first" if number == 0 else f"held-{number}"
                self.answers.append((name, self._asked(name, worker.request)))
            self._say_answers()
            self.meter.read()
            self.meter.read_devices(provider)
            self.at = "stop"
        finally:
            if not self.over:
                worker.stop(_STOP_GRACE_S)
            self.worker = None

    def _fresh(self, name: str) -> Answer:
        def ask(payload: Mapping[str, Any]) -> dict[str, Any]:
            reply, _ = supervisor.run_once(
                self.provider,
                payload,
                # the deadline is kept in front, by a quicker hand
                timeout_s=self._deadline_s() + _LATER_S,
                log_path=self.corner.log,
                admit=self._admitted,
            )
            return reply

        answer = self._asked(name, ask)
        self.said.put(f"fresh process {answer.seconds:.3f} s")
        return answer

    def _asked(
        self, name: str, ask: Callable[[Mapping[str, Any]], dict[str, Any]]
    ) -> Answer:
        if self.over:
            raise _cut(self.provider.slug)
        self.at = f"{name} request"
        directory = self.corner.directory / name
        directory.mkdir()
        payload = dict(self.provider.smoke_request or {})
        if self.provider.env_kind == "venv" or self.provider.outputs:
            payload["output_dir"] = str(directory)
        began = time.monotonic()
        reply = ask(payload)
        seconds = time.monotonic() - began
        if name != "fresh":
            # the budget is the held worker's
            self.meter.told(reply.get("_meter"))
        return Answer(
            reply=reply,
            output_dir=directory,
            files=read_files(directory),
            seconds=seconds,
        )

    def _admitted(self, candidate: "Candidate") -> object:
        """Ask for room, and note what is to be ended if it comes to that."""
        if self.over:
            raise _cut(self.provider.slug)
        held = None if self.admit is None else self.admit(candidate)
        self.instance, self.admitted_at = candidate.instance, time.monotonic()
        self.meter.watch(candidate.instance, weigh=not self._is_comparison())
        return held

    def _is_comparison(self) -> bool:
        return self.provider.runtime_mode == "resident" and bool(self.answers)

    def _say_answers(self) -> None:
        first, *held = [answer.seconds or 0.0 for _, answer in self.answers]
        self.said.put(f"first request {first:.3f} s")
        if held:
            self.said.put("held " + ", ".join(f"{s:.3f}" for s in held) + " s")


def _started(started: "Started") -> str:
    took, load = started.spawn_to_ready_s, started.load_s
    ready = "ready" if took is None else f"ready after {took:.3f} s"
    return ready if load is None else f"{ready}, load {load:.3f} s"


def _cut(slug: str) -> WorkerStartError:
    return WorkerStartError(f"{slug}: the smoke is over", reason="stopping")
