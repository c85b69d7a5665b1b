"""The start of a worker: take the one that answers, else make room and spawn one."""

import contextlib
import fcntl
import os
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from remote_resident import client, crashes, places, processes, spawn, start_command
from remote_resident.errors import (
    ProviderError,
    WorkerRequestError,
    WorkerStartError,
)
from remote_resident.found import Found, find
from remote_resident.held import Held, Started, wait_pid
from remote_resident.processes import end_all
from remote_resident.spawn import exit_hint
from remote_resident.start_command import Admit

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest

PING_S = 2.0
LEAVING_S = 30.0
"""How long a worker that is leaving may take to finish what it has in hand."""
CLEARED_S = 10.0
"""How long the end of a failed start is waited for."""
END_GRACE_S = 2.0
"""How long what a worker left behind may take to heed SIGTERM."""
_NAME_BYTES = 64
"""More than the name of an instance takes."""
_LOOK_MS = 50
UNOWNED_IDLE_S = 900.0
"""Idleness after which a worker that nobody owns leaves, where none is declared."""


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
    ping_s: float = PING_S
    """How long a worker may take to answer a ping; longer is busy, not dead."""
    stops: int = 0
    """How often a stop was asked for: a start that sees it grow gives up."""
    known: Held | None = None
    """The worker that this process holds, alive or not; during `hold` only."""
    turn: int = -1
    """Descriptor of the lock, whose file names the instance that loads; as `known`."""

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
            lock = self.socket_path.with_name(f"{self.socket_path.name}.lock")
            with _locked(lock) as self.turn:
                there = self._adopted(inputs) or self._joined(inputs)
                return there or self._start(inputs)
        finally:
            self.known, self.turn = None, -1

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
                next=f"tu remote restart {self.slug}",
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
        loading = os.pread(self.turn, _NAME_BYTES, 0).decode(errors="replace")
        for seen in processes.instances(self.slug, self.tree) if loading else ():
            wanted = (loading, inputs)
            if (seen.instance, seen.marks.get("inputs")) != wanted or seen.abandoned:
                continue
            if seen.leader is not None and self.is_ours(seen):
                return self._adopted(inputs) if self._accepts(seen.leader.pid) else None
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

    def _note_loading(self, instance: str) -> None:
        """Write which instance loads where the next one in the lock's turn looks."""
        with contextlib.suppress(OSError):
            os.ftruncate(self.turn, 0)
            os.pwrite(self.turn, instance.encode(), 0)

    def _retire(self, there: Found) -> None:
        """See off an idle worker of other inputs, or one that is leaving anyway."""
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
        self.crashes.refuse(self.slug, inputs)
        self._end_earlier()
        start_command.refuse_bad_weights(self.manifest)
        instance = self.instance = start_command.new_instance()
        plan = self._plan(instance, inputs)
        began = time.monotonic()
        child: spawn.Child | None = None
        cli = plan.environment.container_cli()
        try:
            with start_command.admitted(self.admit, self) as device:
                began = time.monotonic()
                child = self._spawn(plan, device)
                self._note_loading(instance)
            if self.stops != stops:
                raise WorkerStartError(
                    f"{self.slug}: stopped during the start", reason="stopping"
                )
            outcome = child.wait_ready(
                self.manifest.runtime_start_timeout_s, self.socket_path
            )
            if outcome.kind != "ready":
                raise self._not_started(child, outcome, stops)
        except BaseException as exc:
            self._clear(instance, child, cli)
            self._note_loading("")
            if isinstance(exc, _Failed) and exc.counts:
                # history may refuse; it may not stand in the way of the reason
                with contextlib.suppress(OSError, ProviderError):
                    self.crashes.failed(inputs, exc.short)
            raise
        self._note_loading("")
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
        after = time.monotonic() - child.began
        if outcome.kind == "ended":
            said = (
                f"ended {after:.3f} s after its start, before it accepted requests: "
                f"{exit_hint(outcome.returncode)}"
            )
        else:
            said = (
                f"accepts no requests {after:.3f} s after its start, at most "
                f"{self.manifest.runtime_start_timeout_s} wanted"
            )
        tail = "".join(f"\n    {line}" for line in self.log.tail(child.log_start))
        text = f"{self.slug}: the worker {said}; log {self.log.path}" + (
            f", its last lines:{tail}" if tail else ", to which it wrote nothing"
        )
        reason = "start_failed" if outcome.kind == "ended" else "start_timeout"
        stopped = self.stops != stops
        return _Failed(
            text,
            reason="stopping" if stopped else reason,
            short=said,
            # ended from outside says nothing of the next start
            counts=not stopped and outcome.returncode != -signal.SIGTERM,
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

    def __init__(self, message: str, *, reason: str, short: str, counts: bool) -> None:
        super().__init__(message, reason=reason)
        self.short = short
        self.counts = counts


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Hold a lock that ends with its holder, in a fork and in what is executed too.

    Gives its descriptor.
    Raises WorkerStartError (`disk_full`, `locked`) where the file cannot be used.
    """
    try:
        fd = spawn.keep_private(places.open_lock(path))
    except ProviderError as error:
        raise _unusable(error) from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as exc:
            raise _unusable(places.unusable_lock(path, exc)) from None
        yield fd
    finally:
        spawn.close_private(fd)


def _unusable(error: ProviderError) -> WorkerStartError:
    return WorkerStartError(str(error), reason=error.reason, next=error.next)
