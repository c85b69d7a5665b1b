"""One resident worker: start it, ask it, stop it.

    thread ─┐                     ┌─ lock file ──────────────── other processes
    thread ─┼─> ResidentWorker ───┤
    thread ─┘      │              └─ crash history, log
                   │ socket: one connection kept, one line out, events and a reply back
                   │ lifeline: a pipe that only this process writes to, and never does
                   v
                 worker  (a session of its own, every descendant marked with `instance`)

A worker is asked for by name and found by its socket: whoever answers there as this
provider, this tree and these inputs is the worker, whichever process started it. So a
start is a question first. It is put under a lock file beside the socket, which the kernel
releases with its holder; who waited for the lock finds the worker that the other one
made. Threads do not queue for it: one of them starts, and all who came meanwhile get its
result, a failure as well.

Nothing of an earlier start may be left when a new one begins, since two of one model do
not fit. What an instance has is told by the kernel's records (see `processes`), so that
a session left, a signal ignored or a parent gone hide nothing.

An owned worker cannot outlive this process. A clean exit stops it; after any other the
kernel closes the lifeline. One that is not owned has no lifeline and leaves when idle.
"""

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_resident import client, exec_env, places, processes, spawn, start_lock
from remote_resident.caller_side import stacks, start_command
from remote_resident.caller_side.conversation import (
    Asking,
    Conversation,
    NotBegun,
    late,
    to_logs,
)
from remote_resident.caller_side.found import Found, find
from remote_resident.caller_side.held import Held, Started, wait_pid
from remote_resident.caller_side.once import run_once
from remote_resident.caller_side.owned import remember, stop_owned
from remote_resident.caller_side.spare import KEEP_S, Spare
from remote_resident.caller_side.start_command import (
    Admit,
    default_admit,
    inputs_digest,
)
from remote_resident.caller_side.starter import END_GRACE_S, Stage, Starter
from remote_resident.client import Message, OnEvent
from remote_resident.errors import WorkerRequestError, WorkerStartError
from remote_resident.processes import end_all
from remote_resident.spawn import exit_hint
from remote_resident.worker_side import protocol

if TYPE_CHECKING:
    from remote_resident.admission import Budget
    from remote_resident.kit_launch import Builder
    from remote_resident.manifest import ProviderManifest

__all__ = [
    "ResidentWorker",
    "Started",
    "end_all",
    "exit_hint",
    "inputs_digest",
    "run_once",
    "stop_owned",
]


class ResidentWorker:
    """One provider's worker, as this process sees it; safe to share between threads.

    `manifest` says what is started. `socket_path` and `log_path`: None means this
    provider's usual ones. `admit` is asked for room before a start; None asks nobody.
    `owned`: the worker ends with this process. Making one starts nothing.
    """

    def __init__(
        self,
        manifest: "ProviderManifest",
        *,
        socket_path: Path | None = None,
        log_path: Path | None = None,
        admit: Admit | None = default_admit,
        owned: bool = True,
    ) -> None:
        self.manifest = manifest
        self.slug = manifest.slug
        self.tree = str(manifest.tree)
        self.owned = owned
        self.log_path = log_path or places.log_path(manifest.slug, manifest.tree)
        self.warm: str | None = None
        """What became of a load ahead of need: loading, loaded, `failed: why`."""
        self.socket_path = socket_path or _usual_socket(manifest)
        self._log = spawn.Log(self.log_path)
        self._starter = Starter(
            manifest=manifest,
            socket_path=self.socket_path,
            log=self._log,
            owned=owned,
            admit=admit,
        )
        self._seen = (self.socket_path.parent,)
        self._inputs: tuple[tuple[object, ...], str] | None = None
        self.renew()
        remember(self)

    @property
    def instance(self) -> str | None:
        """Give the id of the last start or adoption; None: none yet."""
        return self._starter.instance

    @property
    def admit(self) -> Admit | None:
        """Give what is asked for room before a start; None: nobody."""
        return self._starter.admit

    @admit.setter
    def admit(self, admit: Admit | None) -> None:
        self._starter.admit = admit

    @property
    def build_command(self) -> "Builder":
        """Give what `[runtime] launch` names; raises WorkerStartError for nothing."""
        return start_command.builder_of(self.manifest)

    @property
    def start_timeout_s(self) -> float:
        """Give how long a load may take."""
        return self.manifest.runtime_start_timeout_s

    @property
    def request_timeout_s(self) -> float:
        """Give how long a prediction may take before the worker is ended."""
        return self.manifest.runtime_request_timeout_s

    @property
    def idle_timeout_s(self) -> float:
        """Give the idleness after which the worker leaves; 0: it does not."""
        return self._starter.idle_timeout_s()

    @property
    def budgets(self) -> "Budget":
        """Give what it may take of each memory, as admission reckons it."""
        from remote_resident.room import budget_of

        return budget_of(self.manifest)

    @property
    def lock(self) -> Path | None:
        """Name the lock that its environment is made by; None: none is declared."""
        return self.manifest.lock_path()

    def child_env(
        self,
        extra: Mapping[str, str | None] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> dict[str, str]:
        """Build the environment of its process from the caller's, by allow-list.

        None in `extra` removes a name, whatever listed it; `environ` None: ours.
        """
        caller_s = os.environ if environ is None else environ
        return exec_env.child_env(self.manifest, caller_s, extra)

    end_all = staticmethod(end_all)

    @property
    def ping_s(self) -> float:
        """Give how long a ping may take; silence for longer is busy, not dead."""
        return self._starter.ping_s

    @ping_s.setter
    def ping_s(self, seconds: float) -> None:
        self._starter.ping_s = seconds

    def renew(self) -> None:
        """Begin with nothing held; in a fork the worker is still the parent's."""
        self._guard = threading.Lock()
        self._held: Held | None = None
        self._starting: _Shared | None = None
        self._spare = Spare()
        self._starter.known = None

    # --- start

    def ensure_started(
        self,
        *,
        make_room: bool = False,
        deadline_s: float | None = None,
        size: float | None = None,
    ) -> Started:
        """Give the worker, started if none answers as this slug, tree and inputs.

        All who come while it loads share the one start and its failure. `deadline_s`
        only ends the caller's waiting (WorkerStartError `request_timeout`); `size` is
        the input's, for a ladder. Raises
        WorkerStartError (`start_failed`, `start_timeout`, `crash_loop`, `stale_worker`,
        `stopping`, or the first bad weight's reason), AdmissionRefused,
        ExecEnvironmentError, KitUnavailable; WorkerRequestError (`socket_path`).
        """
        if self._is_fresh():
            raise WorkerStartError(
                f'{self.slug}: [runtime] mode = "subprocess" found, a resident one '
                "wanted to hold it: each request has a process of its own",
                reason="bad_request",
                next=f"tu remote call {self.manifest.named} '{{}}'",
            )
        inputs = self._inputs_now()
        with self._guard:
            held = self._held
            if held is not None and held.inputs == inputs and self._is_there(held):
                return held.started
            shared, mine = self._starting, self._starting is None
            if shared is None:
                shared = self._starting = _Shared()
                self._starter.make_room, self._starter.size = make_room, size
                self._starter.stage = Stage.LOCK
        if mine and deadline_s is None:
            self._start_for(shared, inputs)
        elif mine:
            threading.Thread(
                target=self._start_for, args=(shared, inputs), daemon=True
            ).start()
        started = shared.result(deadline_s)
        if started is None:
            raise self._starter.not_yet(deadline_s or 0.0)
        return started

    def _is_fresh(self) -> bool:
        return self.manifest.runtime_mode == "subprocess"

    def _is_there(self, held: Held) -> bool:
        return not held.wait_end(0) and self.socket_path.exists()

    def _start_for(self, shared: "_Shared", inputs: str) -> None:
        """Start, and give the result to all who wait."""
        held = None
        error: Exception = WorkerStartError(
            f"{self.slug}: interrupted during the start", reason="interrupted"
        )
        try:
            held = self._starter.hold(inputs, self._held)
        except Exception as exc:  # raised in every thread that waits
            error = exc
        finally:
            with self._guard:
                # a refused start leaves a worker that is in use where it is
                self._held = held or self._held
                self._starting = None
            shared.set(held.started if held else None, error)

    def _inputs_now(self) -> str:
        marks = start_command.inputs_marks(self.manifest)
        if self._inputs is None or self._inputs[0] != marks:
            self._inputs = (marks, inputs_digest(self.manifest))
        return self._inputs[1]

    # --- asking

    def request(
        self,
        payload: Mapping[str, Any],
        deadline_s: float | None = None,
        on_event: OnEvent | None = None,
    ) -> Message:
        """Ask for a prediction and give the reply, starting a worker if there is none.

        `payload` may name its `op` (`predict` otherwise). `deadline_s` counts from now,
        a start and the queue included, and only ends the waiting; None: the payload's
        `deadline`, else no limit but the manifest's. `on_event` gets the worker's events.
        Raises WorkerRequestError with the worker's reason, `request_timeout`,
        `worker_died`, or `bad_request` before anything starts; what `ensure_started`
        raises. Of mode subprocess each has a process of its own (`run_once`).
        """
        if deadline_s is not None:
            payload = {**payload, "deadline": deadline_s}
        if self._is_fresh():
            return run_once(
                self.manifest, payload, log_path=self.log_path, admit=self.admit
            )[0]
        start_command.refuse_bad_request(self.manifest, payload, self._seen)
        asking = Asking.of(payload, on_event)
        try:
            return self._ask_once(asking)
        except NotBegun as exc:
            if asking.left() <= 0:
                raise late(self, asking, self._held) from exc
        try:
            return self._ask_once(asking)
        except NotBegun as exc:
            raise WorkerRequestError(
                str(exc), reason=exc.reason, next=to_logs(self)
            ) from exc.__cause__

    def _ask_once(self, asking: "Asking") -> Message:
        channel, held = self._channel(asking)
        talk = Conversation(self, channel, asking, held)
        try:
            reply = talk.reply()
        except BaseException:
            channel.close()
            raise
        self._keep(channel, held, reply)
        return talk.judged(reply)

    def _channel(self, asking: "Asking") -> tuple[client.Channel, Held]:
        """Give a connection to a worker, the kept one if it is free."""
        kept = self._spare.take()
        if kept is not None:
            if kept[1] is self._held and kept[0].at_rest():
                return kept
            kept[0].close()
        limit = None if asking.deadline_s is None else asking.left()
        try:
            size = start_command.size_of(asking.message)
            self.ensure_started(deadline_s=limit, size=size)
        except WorkerStartError as exc:
            if exc.reason != "request_timeout":
                raise
            # the caller's whole limit, not what was left of it
            whole = self._starter.not_yet(asking.deadline_s or 0.0)
            raise WorkerRequestError(
                str(whole), reason=whole.reason, next=whole.next
            ) from None
        held = self._held
        if held is None:
            raise NotBegun(f"{self.slug}: stopped as the request arrived", "stopping")
        try:
            return client.connect(self.socket_path), held
        except client.Gone as exc:
            self.let_go(held)
            raise NotBegun(f"{self.slug}: {exc}", "worker_died") from None
        except client.Silent as exc:
            raise WorkerRequestError(
                f"{self.slug}: {exc}", reason="queue_full"
            ) from None

    def _keep(self, channel: client.Channel, held: Held, reply: Message) -> None:
        """Keep one connection; one whose worker still predicts for it is of no use."""
        usable = reply.get("reason") not in ("request_timeout", "stopping")
        if self._held is not held or not usable:
            channel.close()
            return
        # an open connection keeps a worker from its idleness
        idle = self._starter.idle_timeout_s()
        self._spare.keep(channel, held, min(KEEP_S, idle / 4) if idle > 0 else KEEP_S)

    def let_go(self, held: Held) -> None:
        """Forget a worker that ended."""
        with self._guard:
            if self._held is held:
                self._held = None
        self._spare.close()

    # --- looking and stopping: none of these waits for a load

    def is_running(self) -> bool:
        """Say whether a worker accepts on the socket; a busy one does."""
        try:
            client.connect(self.socket_path, self.ping_s).close()
        except client.Silent:
            return True
        except (client.Gone, WorkerRequestError):
            return False
        return True

    def ping(self) -> Message:
        """Give what the worker answers to a ping, also while it predicts.

        Raises WorkerRequestError: `not_running`, or `request_timeout` where it is busy
        and unconfirmed.
        """
        return self._reserved("ping")

    def stacks(self) -> str:
        """Give every thread's stack, which the log gets too.

        A worker that does not answer is signalled instead, and the text is what its log
        gained. Raises WorkerRequestError (`not_running`, `request_timeout`).
        """
        try:
            return str(self._reserved("stacks").get("stacks", ""))
        except WorkerRequestError as exc:
            if exc.reason not in ("request_timeout", "not_running"):
                raise
            pid = self._leader()
            told = stacks.signalled(pid, self._log, self.ping_s) if pid else []
            if not told:
                raise
            return "\n".join(told)

    def _leader(self) -> int | None:
        """Find the pid of the worker on our socket, answering or not."""
        for left in processes.instances(self.slug, self.tree):
            if left.leader is not None and self._starter.is_ours(left):
                return left.leader.pid
        return None

    def _reserved(self, op: str) -> Message:
        try:
            reply, _ = client.ask(self.socket_path, op, self.ping_s)
        except client.Gone:
            raise WorkerRequestError(
                f"{self.slug}: no worker accepts on {self.socket_path}",
                reason="not_running",
                next=f"tu remote restart {self.manifest.named}",
            ) from None
        except client.Silent as exc:
            raise WorkerRequestError(
                f"{self.slug}: busy, unconfirmed: {exc}", reason="request_timeout"
            ) from None
        except client.ProtocolError as exc:
            raise WorkerRequestError(
                f"{self.slug}: {self.socket_path}: {exc}", reason=exc.reason
            ) from None
        if reply.get("ok") is not True:
            raise WorkerRequestError(
                f"{self.slug}: {op}: {reply.get('error')}",
                reason=str(reply.get("reason") or "request_failed"),
            )
        return reply

    def status(self) -> dict[str, Any]:
        """Say what there is: `state` and, as far as known, what a ping answers.

        `state` is not_running, loading, ready, busy, `busy, unconfirmed`, leaving or
        foreign; `current` says whether it was started from today's inputs, None: not
        known.
        """
        about = {
            "slug": self.slug,
            "tree": self.tree,
            "socket": str(self.socket_path),
            "log": str(self.log_path),
            "warm": self.warm,
        }
        try:
            found = find(self.socket_path, self.ping_s)
        except WorkerRequestError as exc:
            return {**about, "state": "foreign", "error": str(exc)}
        if found is None:
            pid = self._leader()
            state = "loading" if pid or self._starting else "not_running"
            return {**about, "state": state, "pid": pid, "current": None}
        current = None if found.inputs is None else found.inputs == self._inputs_now()
        state = found.state() if self._answers(found) else "foreign"
        known = {"pid": found.pid, "instance": found.instance, "inputs": found.inputs}
        said = {k: v for k, v in found.reply.items() if k not in ("ok", "_meter")}
        return {**said, **about, **known, "state": state, "current": current}

    def _answers(self, found: Found) -> bool:
        return (found.slug, found.tree) == (self.slug, self.tree)

    def stop(self, grace_s: float = 30.0) -> list[int]:
        """Ask the worker to leave, wait, end what is left; the pids that ended.

        A load is ended at once; a prediction in hand has `grace_s` seconds. Works for a
        worker of any process of this user; empty where there is none. Of mode
        subprocess it is what answers a request now.
        """
        deadline = time.monotonic() + grace_s
        if self._is_fresh():
            return self._end_fresh(deadline)
        self._starter.stops += 1
        self._spare.close()
        # those of now: what starts while we wait is somebody's next worker
        there = processes.instances(self.slug, self.tree)
        # a worker that leaves takes them along before we come to it
        ours = [one for one in there if one.leader is None or self._is_to_end(one)]
        for one in ours:
            # before it ends: who waits for a load is told that it was stopped
            start_lock.note_stopped(self.socket_path, one.instance)
        names: set[str | None] = {one.instance for one in ours}
        before = {pid for one in ours for pid in processes.members(one.instance)}
        ended: set[int] = set()
        with contextlib.suppress(WorkerRequestError):
            found = find(self.socket_path, self.ping_s)
            if found is not None and self._answers(found):
                ended |= self._asked_to_leave(found, deadline)
                names.add(found.instance)
        for name in filter(None, names):
            ended |= set(self._end_rest(name))
        after = {pid for one in ours for pid in processes.members(one.instance)}
        ended |= before - after
        with self._guard:
            held = self._held
        if held is not None and held.wait_end(0):
            self.let_go(held)
        return sorted(ended)

    def _end_fresh(self, deadline: float) -> list[int]:
        """Let each answer what it was started for, which is all it does; end the rest."""
        ended: set[int] = set()
        for one in processes.instances(self.slug, self.tree):
            there = set(processes.members(one.instance))
            # one with a socket was started while another mode was declared
            if one.leader and not one.abandoned and "socket" not in one.marks:
                wait_pid(one.leader.pid, deadline - time.monotonic())
            ended |= {*self._end_rest(one.instance), *there}
            ended -= set(processes.members(one.instance))
        return sorted(ended)

    def _is_to_end(self, left: processes.Instance) -> bool:
        return left.abandoned or self._starter.is_ours(left)

    def _end_rest(self, instance: str) -> list[int]:
        cli = self._starter.container_cli()
        return end_all(instance, grace_s=END_GRACE_S, container_cli=cli)

    def _asked_to_leave(self, found: Found, deadline: float) -> set[int]:
        with contextlib.suppress(client.Gone, client.Silent, client.ProtocolError):
            client.ask(self.socket_path, "stop", self.ping_s)
        left = deadline - time.monotonic()
        return {found.pid} if found.pid and wait_pid(found.pid, left) else set()

    def forget_failures(self) -> None:
        """Let the next start be tried whatever failed before: `restart` was typed."""
        self._starter.crashes.forget()

    def owns_one(self) -> bool:
        """Say whether this process has a worker to end, or is starting one."""
        held = self._held
        mine = held is not None and held.child is not None
        return self.owned and (mine or self._starting is not None)


class _Shared:
    """The result of one start, for all threads that wait for it."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._started: Started | None = None
        self._error: Exception | None = None

    def set(self, started: Started | None, error: Exception) -> None:
        """Tell all; the error counts where nothing started."""
        self._started = started
        self._error = None if started else error
        self._done.set()

    def result(self, timeout_s: float | None) -> Started | None:
        """Wait for it; None where time is up first, raises what the start raised."""
        if not self._done.wait(None if timeout_s is None else max(0.0, timeout_s)):
            return None
        if self._error is not None:
            raise self._error
        return self._started


def _usual_socket(manifest: "ProviderManifest") -> Path:
    try:
        named = protocol.socket_path(manifest.slug, manifest.tree, places.runtime_dir())
    except protocol.ProtocolError as exc:
        raise WorkerRequestError(
            f"{manifest.slug}: {exc}",
            reason=exc.reason,
            next="export TU_REMOTE_HOME=/a/shorter/path",
        ) from None
    return Path(named)
