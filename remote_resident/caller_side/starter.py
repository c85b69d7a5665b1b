"""The start of a worker: take the one that answers, else make room and spawn one."""

import contextlib
import os
import select
import shlex
import signal
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from remote_resident import client, places, processes, spawn, start_lock
from remote_resident.caller_side import crashes, stacks, start_command
from remote_resident.caller_side.found import Found, find
from remote_resident.caller_side.held import Held, Started, wait_pid
from remote_resident.caller_side.start_command import Admit
from remote_resident.errors import (
    ProviderError,
    WorkerRequestError,
    WorkerStartError,
)
from remote_resident.processes import end_all
from remote_resident.spawn import exit_hint

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest

PING_S = 2.0
LEAVING_S = 30.0
"""How long a worker that is leaving may take to finish what it has in hand."""
CLEARED_S = 10.0
"""How long the end of a failed start is waited for."""
END_GRACE_S = 2.0
"""How long what a worker left behind may take to heed SIGTERM."""
_LOOK_MS = 50
UNOWNED_IDLE_S = 900.0
"""Idleness after which a worker that nobody owns leaves, where none is declared."""


class Stage(StrEnum):
    """What a start waits for."""

    LOCK = "its turn among the starts of it, the lock {lock}"
    ANSWER = "who is on {socket} to answer"
    EARLIER = "the end of an earlier worker of it"
    WEIGHTS = "the look at its weights"
    ROOM = "the word on whether there is room"
    LOAD = "its load, which goes on"


@dataclass(slots=True, kw_only=True)
class Starter:
    """What starts one provider's worker on one socket; also what admission is asked about.

    One thread at a time calls `hold`; any may read.
    """

    manifest: "ProviderManifest"
    socket_path: Path
    log: spawn.Log
    owned: bool
    admit: Admit | None
    instance: str | None = None
    """The id of the last start or adoption; None: none yet."""
    make_room: bool = False
    """Whether admission may retire idle workers for this start."""
    size: float | None = None
    """How big the input is that it is started for; None: not said."""
    ping_s: float = PING_S
    """How long a worker may take to answer a ping; longer is busy, not dead."""
    stops: int = 0
    """How often a stop was asked for: a start that sees it grow gives up."""
    known: Held | None = None
    """The worker that this process holds, alive or not; during `hold` only."""
    turn: int = -1
    """Descriptor of the lock, whose file names the instance that loads; as `known`."""
    stage: Stage | None = None
    """What it waits for; None: nothing starts."""

    @property
    def slug(self) -> str:
        """Name the provider."""
        return self.manifest.slug

    @property
    def tree(self) -> str:
        """Name the tree that tells it from others of its slug."""
        return str(self.manifest.tree)

    @property
    def crashes(self) -> crashes.History:
        """Give the history of failed starts."""
        return crashes.History(places.crash_path(self.slug, self.manifest.tree))

    def hold(self, inputs: str, known: Held | None) -> Held:
        """Give a worker that accepts; raises as `ResidentWorker.ensure_started`.

        `known` is the one that this process holds. Under a lock that other processes
        respect: who waited for it finds the worker that the other one made.
        """
        self.known = known
        try:
            places.ensure(self.socket_path.parent)
            self.stage = Stage.LOCK
            with start_lock.taken(start_lock.path_of(self.socket_path)) as self.turn:
                self.stage = Stage.ANSWER
                there = self._adopted(inputs) or self._joined(inputs)
                return there or self._start(inputs)
        finally:
            self.known, self.turn, self.stage = None, -1, None

    def not_yet(self, waited_s: float) -> WorkerStartError:
        """Give the refusal for who waited long enough: what is really waited for."""
        stage = self.stage or Stage.ANSWER
        lock = start_lock.path_of(self.socket_path)
        waits = stage.format(lock=lock, socket=self.socket_path)
        next_ = None
        if stage is Stage.LOCK:
            next_ = f"fuser -v {shlex.quote(str(lock))}"
        if stage in (Stage.LOCK, Stage.LOAD):
            loading = start_lock.loading_on(self.socket_path)
            stopped = processes.stopped(loading) if loading else None
            if stopped is not None:
                waits = f"worker {stopped}, which loads and is stopped (state T)"
                next_ = f"kill -CONT {stopped}"
            elif loading and processes.members(loading):
                waits, next_ = Stage.LOAD.value, None
        return WorkerStartError(
            f"{self.slug}: not started after {waited_s} s, at most so long wanted by the "
            f"caller; it waits for {waits}",
            reason="request_timeout",
            next=next_ or f"tu remote logs {self.manifest.named}",
        )

    def is_ours(self, instance: processes.Instance) -> bool:
        """Say whether an instance was started for this socket."""
        return instance.marks.get("socket") == str(self.socket_path)

    # --- a worker that is already there

    def _adopted(self, inputs: str) -> Held | None:
        """Take what answers on the socket; None where nobody does any more."""
        client.refuse_unsafe(self.socket_path)
        there = self._find()
        if there is None:
            self.socket_path.unlink(missing_ok=True)
            return None
        if (there.slug, there.tree) != (self.slug, self.tree):
            who = f"{there.slug} of {there.tree}" if there.slug else there.stranger()
            raise WorkerRequestError(
                f"{self.socket_path}: answered by {who}, "
                f"{self.slug} of {self.tree} wanted",
                reason="socket_path",
            )
        if there.inputs == inputs and not there.leaving:
            return self._take(there)
        if there.busy and not there.leaving:
            raise WorkerStartError(
                f"{self.slug}: the worker {there.pid} was started from other inputs "
                f"({there.inputs}) than there are now ({inputs}) and is busy",
                reason="stale_worker",
                next=f"tu remote restart {self.manifest.named}",
            )
        self._retire(there)
        return None

    def _find(self) -> Found | None:
        """Ask who answers on the socket; None: nobody."""
        return find(self.socket_path, self.ping_s)

    def _take(self, there: Found) -> Held | None:
        pid = there.pid
        try:
            pidfd = os.pidfd_open(pid) if pid else -1
        except ProcessLookupError:
            return None
        if pid is None or there.instance is None:
            raise WorkerStartError(
                f"{self.slug}: {self.socket_path} is answered by a process that is not "
                "visible from here, one that can be watched wanted",
                reason="stale_worker",
            )
        known = self.known
        if known is not None and known.started.instance == there.instance:
            # our own: a second handle would let go of its lifeline
            os.close(pidfd)
            return known
        self.instance = there.instance
        started = Started(
            pid=pid,
            instance=there.instance,
            spawn_to_ready_s=None,
            load_s=None,
            adopted=True,
        )
        return Held(started=started, inputs=there.inputs or "", pidfd=pidfd)

    def _joined(self, inputs: str) -> Held | None:
        """Wait for a load whose starter is gone; None: there is none, or it ended."""
        loading = start_lock.loading(self.turn)
        for seen in processes.instances(self.slug, self.tree) if loading else ():
            wanted = (loading, inputs)
            if (seen.instance, seen.marks.get("inputs")) != wanted or seen.abandoned:
                continue
            if seen.leader is None or not self.is_ours(seen):
                continue
            self.stage = Stage.LOAD
            if self._accepts(seen.leader.pid):
                return self._adopted(inputs)
            if start_lock.was_stopped(self.turn, loading):
                raise self._stopped()
        return None

    def _accepts(self, pid: int) -> bool:
        """Wait until a worker that loads accepts; False: it ended, or takes too long."""
        stops = self.stops
        until = time.monotonic() + self.manifest.runtime_start_timeout_s
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        try:
            while self.stops == stops and time.monotonic() < until:
                # a path that exists accepts
                if self.socket_path.exists():
                    return True
                if poll.poll(_LOOK_MS):
                    return False
            return False
        finally:
            os.close(pidfd)

    def _retire(self, there: Found) -> None:
        """See off an idle worker of other inputs, or one that is leaving anyway."""
        self.stage = Stage.EARLIER
        if not there.leaving:
            with contextlib.suppress(client.Gone, client.Silent, client.ProtocolError):
                client.ask(self.socket_path, "stop", self.ping_s)
        wait_pid(there.pid, LEAVING_S)
        if there.instance is not None:
            end_all(there.instance, container_cli=self.container_cli())

    def _end_earlier(self) -> None:
        """End what earlier instances on this socket left behind."""
        for left in processes.instances(self.slug, self.tree):
            if left.leader is None or left.abandoned or self.is_ours(left):
                # SIGTERM lets a worker that is leaving finish what it has in hand
                grace_s = LEAVING_S if self._may_finish(left) else END_GRACE_S
                cli = self.container_cli()
                end_all(left.instance, grace_s=grace_s, container_cli=cli)

    def _may_finish(self, left: processes.Instance) -> bool:
        """Say whether the worker itself may be there, not only a fork of it."""
        held = self.known
        if held is not None and held.started.instance == left.instance:
            return not held.wait_end(0)
        return left.leader is not None and left.leader.sid == left.leader.pid

    # --- a new worker

    def _start(self, inputs: str) -> Held:
        stops = self.stops
        self.crashes.refuse(self.manifest, inputs)
        self.stage = Stage.EARLIER
        self._end_earlier()
        self.stage = Stage.WEIGHTS
        start_command.refuse_bad_weights(self.manifest)
        instance = self.instance = start_command.new_instance()
        plan = self._plan(instance, inputs)
        began = time.monotonic()
        child: spawn.Child | None = None
        cli = plan.environment.container_cli()
        try:
            self.stage = Stage.ROOM
            with start_command.admitted(self.admit, self) as device:
                began = time.monotonic()
                # before it can be seen: who ends it finds its name here
                start_lock.note(self.turn, instance)
                child = self._spawn(plan, device)
            self.stage = Stage.LOAD
            if self.stops != stops:
                raise self._stopped()
            outcome = child.wait_ready(
                self.manifest.runtime_start_timeout_s, self.socket_path
            )
            if outcome.kind != "ready":
                raise self._not_started(child, outcome, stops)
        except BaseException as exc:
            self._clear(instance, child, cli)
            start_lock.note(self.turn, "")
            if isinstance(exc, _Failed) and exc.counts:
                # history may refuse; it may not stand in the way of the reason
                with contextlib.suppress(OSError, ProviderError):
                    self.crashes.failed(inputs, exc.short)
            raise
        start_lock.note(self.turn, "")
        with contextlib.suppress(OSError):
            self.crashes.forget()
        started = Started(
            pid=child.pid,
            instance=instance,
            spawn_to_ready_s=time.monotonic() - began,
            load_s=outcome.load_s,
            adopted=False,
        )
        return Held(
            started=started,
            inputs=inputs,
            pidfd=child.pidfd,
            child=child,
            container_cli=cli,
        )

    def _plan(self, instance: str, inputs: str) -> start_command.Plan:
        return start_command.plan(
            self.manifest,
            inputs,
            instance=instance,
            writable=[self.socket_path.parent],
        )

    def _options(self) -> list[str]:
        """Give the worker's arguments that say where it listens and what limits it."""
        listen = ["--socket", str(self.socket_path)]
        # by itself too, for when nobody is left here to see to it
        limits = ["--start-timeout", f"{self.manifest.runtime_start_timeout_s}"]
        limits += ["--request-timeout", f"{self.manifest.runtime_request_timeout_s}"]
        limits += ["--idle-timeout", f"{self.idle_timeout_s()}"]
        return [*listen, *limits]

    def _folder(self) -> Path | None:
        """Name the directory that the worker is started in; None: ours."""
        return None

    def _spawn(self, plan: start_command.Plan, device: str | None) -> spawn.Child:
        contained = plan.environment.contained
        pipes = spawn.Pipes.open(lifeline=self.owned, ready=True, contained=contained)
        try:
            command = plan.command([*self._options(), *pipes.args()], device)
        except BaseException:
            pipes.close()
            raise
        try:
            return spawn.spawn(
                command.argv, command.env, pipes, self.log, cwd=self._folder()
            )
        except OSError as exc:
            raise _Failed(
                f"{self.slug}: {command.argv[0]}: {exc.strerror}, a program wanted",
                reason="start_failed",
                next=f"tu remote check {self.manifest.named}",
                short=f"{command.argv[0]}: {exc.strerror}",
                counts=True,
            ) from None

    def idle_timeout_s(self) -> float:
        """Give the idleness after which the worker leaves; 0: it does not."""
        declared = self.manifest.runtime_idle_timeout_s
        return declared if self.owned or declared else UNOWNED_IDLE_S

    def _not_started(
        self, child: spawn.Child, outcome: spawn.Outcome, stops: int
    ) -> WorkerStartError:
        if self.stops != stops or start_lock.was_stopped(self.turn, str(self.instance)):
            return self._stopped()
        after = time.monotonic() - child.began
        if outcome.kind == "ended":
            said = (
                f"ended {after:.3f} s after its start, before it accepted requests: "
                f"{exit_hint(outcome.returncode)}"
            )
        else:
            if not child.pipes.contained:
                stacks.signalled(child.pid, self.log, self.ping_s)
            said = (
                f"accepts no requests {after:.3f} s after its start, at most "
                f"{self.manifest.runtime_start_timeout_s} wanted"
            )
        said_last = self.log.last_words(child.log_start)
        text = f"{self.slug}: the worker {said}; log {self.log.path}{said_last}"
        reason = "start_failed" if outcome.kind == "ended" else "start_timeout"
        return _Failed(
            text,
            reason=reason,
            next=f"tu remote logs {self.manifest.named}",
            short=said,
            # ended from outside says nothing of the next start
            counts=outcome.returncode != -signal.SIGTERM,
        )

    def _stopped(self) -> WorkerStartError:
        return WorkerStartError(
            f"{self.slug}: a stop or a restart of it ended the load; "
            "what is asked again starts a new one",
            reason="stopping",
            next="tu remote ps",
        )

    def _clear(self, instance: str, child: spawn.Child | None, cli: str | None) -> None:
        """End what a failed start has left."""
        if child is None:
            return
        end_all(instance, container_cli=cli, session=child.pid)
        child.wait_end(CLEARED_S)
        child.close()

    def container_cli(self) -> str | None:
        """Find the program that ends its containers; None: no container here."""
        if self.manifest.env_kind != "docker":
            return None
        from remote_resident.exec_env import container_program

        return container_program(os.environ, self.slug)


class _Failed(WorkerStartError):
    """A process was started and did not come to accept: what a crash loop is made of."""

    def __init__(
        self, message: str, *, reason: str, next: str, short: str, counts: bool
    ) -> None:
        super().__init__(message, reason=reason, next=next)
        self.short = short
        self.counts = counts
