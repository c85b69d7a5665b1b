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

The end of a worker is seen on its pidfd, never guessed from silence: one call into
compiled code can hold an interpreter for minutes. Silence becomes an end only when a
prediction has run for longer than the manifest allows; then its stacks are written down
and the whole instance is ended, for nobody knows what state it is in. A caller that waits
no longer than it wants to just leaves.

Whether a lost request may be sent again is for the worker to say: it tells when a
prediction begins. One that had begun is the caller's to repeat; one that had not is put to
the next worker, once.

An owned worker cannot outlive this process. A clean exit stops it; after any other the
kernel closes the lifeline. One that is not owned has no lifeline and leaves when idle.
"""

import atexit
import contextlib
import os
import signal
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_resident import client, places, processes, spawn, start_command
from remote_resident.client import Message, OnEvent
from remote_resident.errors import WorkerRequestError, WorkerStartError
from remote_resident.found import Found, find
from remote_resident.held import Held, Started, wait_pid
from remote_resident.once import run_once
from remote_resident.processes import end_all
from remote_resident.spawn import exit_hint
from remote_resident.start_command import Admit, default_admit, inputs_digest
from remote_resident.starter import END_GRACE_S, Starter
from remote_resident.worker_side import protocol

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest

__all__ = [
    "ResidentWorker",
    "Started",
    "end_all",
    "exit_hint",
    "inputs_digest",
    "run_once",
]

LAST_REPLY_S = 10.0
"""How long the end of a worker that announced it is waited for."""
EXIT_GRACE_S = 10.0
END_S = 5.0
"""How long the end of a worker is waited for that closed its connection."""
GARBLED_END_S = 1.0
KEEP_S = 5.0
"""How long an unused connection is kept."""
_REPLY_GRACE_S = 0.25


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
        self._renew()
        _ALL.add(self)

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
    def ping_s(self) -> float:
        """Give how long a ping may take; silence for longer is busy, not dead."""
        return self._starter.ping_s

    @ping_s.setter
    def ping_s(self, seconds: float) -> None:
        self._starter.ping_s = seconds

    def _renew(self) -> None:
        """Begin with nothing held; in a fork the worker is still the parent's."""
        self._guard = threading.Lock()
        self._held: Held | None = None
        self._starting: _Shared | None = None
        self._kept: client.Channel | None = None
        self._used = 0.0
        self._closer = False
        self._starter.known = None

    # --- start

    def ensure_started(
        self, *, make_room: bool = False, deadline_s: float | None = None
    ) -> Started:
        """Give the worker, started if none answers as this slug, tree and inputs.

        All who come while it loads share the one start and its failure. `deadline_s`
        only ends the caller's waiting (WorkerStartError `request_timeout`). Raises
        WorkerStartError (`start_failed`, `start_timeout`, `crash_loop`, `stale_worker`,
        `stopping`, or the first bad weight's reason), AdmissionRefused,
        ExecEnvironmentError, KitUnavailable; WorkerRequestError (`socket_path`).
        """
        inputs = self._inputs_now()
        with self._guard:
            held = self._held
            if held is not None and held.inputs == inputs and self._is_there(held):
                return held.started
            shared, mine = self._starting, self._starting is None
            if shared is None:
                shared = self._starting = _Shared()
                self._starter.make_room = make_room
        if mine and deadline_s is None:
            self._start_for(shared, inputs)
        elif mine:
            threading.Thread(
                target=self._start_for, args=(shared, inputs), daemon=True
            ).start()
        started = shared.result(deadline_s)
        if started is None:
            raise WorkerStartError(
                f"{self.slug}: still loading after {deadline_s} s, at most so long "
                "wanted by the caller; the load goes on",
                reason="request_timeout",
            )
        return started

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
        raises.
        """
        if deadline_s is not None:
            payload = {**payload, "deadline": deadline_s}
        start_command.refuse_bad_request(self.manifest, payload, self._seen)
        asking = _Asking.of(payload, on_event)
        try:
            return self._ask_once(asking)
        except _NotBegun as exc:
            if asking.left() <= 0:
                raise self._late(asking) from exc
        try:
            return self._ask_once(asking)
        except _NotBegun as exc:
            raise WorkerRequestError(str(exc), reason=exc.reason) from exc.__cause__

    def _ask_once(self, asking: "_Asking") -> Message:
        channel, held = self._channel(asking)
        asked = client.Asked(
            due=asking.due + _REPLY_GRACE_S,
            patience_s=self.manifest.runtime_request_timeout_s,
        )
        try:
            reply = self._conversed(channel, asking, asked, held)
        except BaseException:
            channel.close()
            raise
        self._keep(channel, reply)
        return self._judged(reply, asked, held)

    def _channel(self, asking: "_Asking") -> tuple[client.Channel, Held]:
        """Give a connection to a worker, the kept one if it is free."""
        with self._guard:
            kept, self._kept = self._kept, None
            held = self._held
        if kept is not None:
            if held is not None and kept.at_rest():
                return kept, held
            kept.close()
        limit = None if asking.deadline_s is None else asking.left()
        try:
            self.ensure_started(deadline_s=limit)
        except WorkerStartError as exc:
            if exc.reason != "request_timeout":
                raise
            raise WorkerRequestError(str(exc), reason=exc.reason) from None
        held = self._held
        if held is None:
            raise _NotBegun(f"{self.slug}: stopped as the request arrived", "stopping")
        try:
            return client.connect(self.socket_path), held
        except client.Gone as exc:
            self._let_go(held)
            raise _NotBegun(f"{self.slug}: {exc}", "worker_died") from None
        except client.Silent as exc:
            raise WorkerRequestError(
                f"{self.slug}: {exc}", reason="queue_full"
            ) from None

    def _conversed(
        self,
        channel: client.Channel,
        asking: "_Asking",
        asked: client.Asked,
        held: Held,
    ) -> Message:
        try:
            self._send(channel, asking, asked)
            while True:
                try:
                    return client.listen(channel, asked, asking.on_event)
                except client.Stuck:
                    if asked.started is not None or not self._progresses(asked):
                        raise
        except TimeoutError:
            raise self._late(asking) from None
        except client.Stuck:
            raise self._stuck(held, asked) from None
        except client.Gone as exc:
            if exc.read:
                asked.note_read()
            raise self._lost(held, asked, str(exc)) from None
        except client.ProtocolError as exc:
            # whatever it is, it came after the request was taken
            asked.started = asked.started or time.monotonic()
            raise self._garbled(held, asked, exc) from None

    def _send(
        self, channel: client.Channel, asking: "_Asking", asked: client.Asked
    ) -> None:
        try:
            channel.send(asking.sent(), asked.wait_s())
            asked.sent = True
        except TimeoutError:
            raise asked.over() from None
        except client.ProtocolError as exc:
            # ours: nothing was sent
            raise WorkerRequestError(
                f"{self.slug}: request: {exc}", reason=exc.reason
            ) from None

    def _progresses(self, asked: client.Asked) -> bool:
        """Say whether what is in front of a queued request is within its own time."""
        try:
            reply, _ = client.ask(self.socket_path, "ping", self.ping_s)
        except (client.Gone, client.Silent, client.ProtocolError):
            return False
        since = reply.get("busy_since")
        ran = 0.0 if since is None else max(0.0, time.time() - since)
        # by what is left of the time of the prediction that runs now
        asked.looked = time.monotonic() - min(ran, asked.patience_s)
        return ran < asked.patience_s

    def _keep(self, channel: client.Channel, reply: Message) -> None:
        """Keep one connection; one whose worker still predicts for it is of no use."""
        with self._guard:
            usable = reply.get("reason") not in ("request_timeout", "stopping")
            if self._kept is None and self._held is not None and usable:
                self._kept = channel
                self._used = time.monotonic()
                if not self._closer:
                    self._closer = True
                    args = (weakref.ref(self), self._keep_s())
                    threading.Thread(
                        target=_close_unused, args=args, daemon=True
                    ).start()
                return
        channel.close()

    def _keep_s(self) -> float:
        # an open connection keeps a worker from its idleness
        idle = self._starter.idle_timeout_s()
        return min(KEEP_S, idle / 4) if idle > 0 else KEEP_S

    def _close_kept(self, unused_s: float = 0.0) -> float | None:
        """Close what was not used for so long; the seconds left, None: closed."""
        with self._guard:
            left = self._used + unused_s - time.monotonic()
            if self._kept is not None and left > 0:
                return left
            kept, self._kept = self._kept, None
            if unused_s:
                self._closer = False
        if kept is not None:
            kept.close()
        return None

    # --- what a reply, or its absence, means

    def _judged(self, reply: Message, asked: client.Asked, held: Held) -> Message:
        if reply.get("ok") is True:
            return reply
        reason = str(reply.get("reason") or "request_failed")
        text = f"{self.slug}: {reply.get('error', 'a reply without ok and error')}"
        if reason == "stopping" and asked.started is None:
            raise _NotBegun(text, reason)
        if reason == "worker_died":
            text = f"{text}; {self._ended(held, LAST_REPLY_S)}"
        raise WorkerRequestError(text, reason=reason)

    def _late(self, asking: "_Asking") -> WorkerRequestError:
        waited = time.monotonic() - asking.began
        return WorkerRequestError(
            f"{self.slug}: no reply after {waited:.3f} s, at most {asking.deadline_s} s "
            "wanted by the caller; what has begun runs on",
            reason="request_timeout",
        )

    def _lost(
        self, held: Held, asked: client.Asked, said: str
    ) -> "WorkerRequestError | _NotBegun":
        if asked.started is None:
            # its descriptors close a little before its end is told: without the wait
            # the next attempt would take a dying worker for a living one
            if held.wait_end(GARBLED_END_S):
                self._bury(held)
            return _NotBegun(f"{self.slug}: {said}, before it began", "worker_died")
        if not held.wait_end(END_S):
            return WorkerRequestError(
                f"{self.slug}: {said}, and worker {held.started.pid} lives on; "
                f"a reply wanted; log {self.log_path}",
                reason="protocol_error",
            )
        return WorkerRequestError(
            f"{self.slug}: died answering; {self._ended(held, 0)}",
            reason="worker_died",
        )

    def _garbled(
        self, held: Held, asked: client.Asked, exc: client.ProtocolError
    ) -> "WorkerRequestError | _NotBegun":
        if held.wait_end(GARBLED_END_S):
            return self._lost(held, asked, str(exc))
        return WorkerRequestError(
            f"{self.slug}: worker {held.started.pid}: {exc}; log {self.log_path}",
            reason=exc.reason,
        )

    def _stuck(
        self, held: Held, asked: client.Asked
    ) -> "WorkerRequestError | _NotBegun":
        """End a worker whose state nobody knows; its stacks are in the log first."""
        if not held.wait_end(0):
            with contextlib.suppress(WorkerRequestError):
                self.stacks()
        limit = self.manifest.runtime_request_timeout_s
        self._bury(held)
        text = (
            f"{self.slug}: worker {held.started.pid} was ended: no reply {limit} s after "
            f"a prediction began, [runtime] request_timeout_s = {limit}; its stacks "
            f"are in {self.log_path}"
        )
        if asked.started is None:
            # it was another's prediction that did not end
            return _NotBegun(text, "request_timeout")
        return WorkerRequestError(text, reason="request_timeout")

    def _ended(self, held: Held, wait_s: float) -> str:
        """Say how a worker ended, and clear away what it left."""
        held.wait_end(wait_s)
        hint = exit_hint(held.returncode())
        self._bury(held)
        return f"worker {held.started.pid}: {hint}; log {self.log_path}"

    def _bury(self, held: Held) -> None:
        """End whatever is left of a worker and forget it."""
        held.end(END_GRACE_S)
        held.wait_end(END_S)
        self._let_go(held)

    def _let_go(self, held: Held) -> None:
        with self._guard:
            if self._held is held:
                self._held = None
        self._close_kept()

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
        gained. Raises WorkerRequestError (`not_running`).
        """
        try:
            return str(self._reserved("stacks").get("stacks", ""))
        except WorkerRequestError as exc:
            if exc.reason not in ("request_timeout", "not_running"):
                raise
            pid = self._leader()
            if pid is None or not _catches(pid, signal.SIGUSR1):
                raise
        return self._signalled_stacks(pid)

    def _signalled_stacks(self, pid: int) -> str:
        before = self._log.size()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
        until, size = time.monotonic() + self.ping_s, before
        # written by the signal's handler: over when it has stopped growing
        while time.monotonic() < until:
            time.sleep(0.05)
            now = self._log.size()
            if now == size > before:
                break
            size = now
        return "\n".join(self._log.tail(before, lines=10_000))

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
        worker of any process of this user; empty where there is none.
        """
        deadline = time.monotonic() + grace_s
        self._starter.stops += 1
        self._close_kept()
        # those of now: what starts while we wait is somebody's next worker
        there = processes.instances(self.slug, self.tree)
        # a worker that leaves takes them along before we come to it
        ours = [one for one in there if one.leader is None or self._is_to_end(one)]
        before = {pid for one in ours for pid in processes.members(one.instance)}
        ended: set[int] = set()
        with contextlib.suppress(WorkerRequestError):
            found = find(self.socket_path, self.ping_s)
            if found is not None and self._answers(found):
                ended |= self._asked_to_leave(found, deadline)
        for left in ours:
            ended |= set(self._end_rest(left.instance))
        after = {pid for one in ours for pid in processes.members(one.instance)}
        ended |= before - after
        with self._guard:
            held = self._held
        if held is not None and held.wait_end(0):
            self._let_go(held)
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
        ended = {found.pid} if found.pid and wait_pid(found.pid, left) else set()
        if found.instance is None:
            return ended
        return ended | set(self._end_rest(found.instance))

    def forget_failures(self) -> None:
        """Let the next start be tried whatever failed before: `restart` was typed."""
        self._starter.crashes.forget()

    def owns_one(self) -> bool:
        """Say whether this process has a worker to end, or is starting one."""
        held = self._held
        mine = held is not None and held.child is not None
        return self.owned and (mine or self._starting is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asking:
    """A request and how long its caller waits."""

    message: Message
    deadline_s: float | None
    due: float
    on_event: OnEvent | None
    began: float

    @classmethod
    def of(cls, payload: Mapping[str, Any], on_event: OnEvent | None) -> "_Asking":
        """Make one of what the caller gave."""
        declared = payload.get("deadline")
        deadline_s = float(declared) if isinstance(declared, int | float) else None
        now = time.monotonic()
        return cls(
            message={"op": "predict", **payload, "events": True},
            deadline_s=deadline_s,
            due=float("inf") if deadline_s is None else now + deadline_s,
            on_event=on_event,
            began=now,
        )

    def left(self) -> float:
        """Give the seconds that the caller still waits."""
        return self.due - time.monotonic()

    def sent(self) -> Message:
        """Give what is sent now: the worker counts the deadline from its receipt."""
        if self.deadline_s is None:
            return self.message
        return {**self.message, "deadline": max(0.0, self.left())}


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


class _NotBegun(Exception):
    """The worker was lost or left before the prediction began."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


_ALL: "weakref.WeakSet[ResidentWorker]" = weakref.WeakSet()


def stop_owned(grace_s: float = EXIT_GRACE_S) -> list[int]:
    """Stop every owned worker of this process, together; the pids that ended.

    Bounded by `grace_s` and what it takes to end a process; never raises.
    """
    deadline = time.monotonic() + grace_s
    ended: list[int] = []
    owned = [worker for worker in list(_ALL) if worker.owns_one()]
    threads = [
        threading.Thread(target=_stop_quietly, args=(w, deadline, ended), daemon=True)
        for w in owned
    ]
    try:
        for thread in threads:
            thread.start()
    except RuntimeError:
        # some interpreters start no threads this late: one after the other then
        for worker in owned:
            _stop_quietly(worker, deadline, ended)
    for thread in threads:
        if thread.ident is not None:
            # what is not ended by then loses its lifeline with this process
            thread.join(max(0.0, deadline - time.monotonic()) + 2 * END_S)
    return sorted(set(ended))


def _stop_quietly(worker: ResidentWorker, deadline: float, ended: list[int]) -> None:
    # nothing may be raised at exit, and the lifeline ends what this could not
    with contextlib.suppress(Exception):
        ended.extend(worker.stop(max(0.0, deadline - time.monotonic())))


atexit.register(stop_owned)


def _renew_all() -> None:
    for worker in _ALL:
        worker._renew()


os.register_at_fork(after_in_child=_renew_all)


def _close_unused(ref: "weakref.ref[ResidentWorker]", unused_s: float) -> None:
    """Close a kept connection that nobody used for a while."""
    left: float | None = unused_s
    while left is not None:
        time.sleep(left)
        worker = ref()
        if worker is None:
            return
        left = worker._close_kept(unused_s)
        del worker


def _usual_socket(manifest: "ProviderManifest") -> Path:
    try:
        named = protocol.socket_path(manifest.slug, manifest.tree, places.runtime_dir())
    except protocol.ProtocolError as exc:
        raise WorkerRequestError(f"{manifest.slug}: {exc}", reason=exc.reason) from None
    return Path(named)


def _catches(pid: int, number: signal.Signals) -> bool:
    """Say whether a process has a handler for a signal, which would end it otherwise."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
