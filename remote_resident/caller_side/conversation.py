"""One request's conversation with a worker, and what a reply, or its absence, means.

The end of a worker is seen on its pidfd, never guessed from silence: one call into
compiled code can hold an interpreter for minutes. Silence becomes an end only when a
prediction has run for longer than the manifest allows; then its stacks are written down
and the whole instance is ended, for nobody knows what state it is in. A caller that waits
no longer than it wants to just leaves.

Whether a lost request may be sent again is for the worker to say: it tells when a
prediction begins. One that had begun is the caller's to repeat; one that had not is put to
the next worker, once.
"""

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from remote_resident import client, processes
from remote_resident.caller_side.held import Held
from remote_resident.caller_side.starter import END_GRACE_S
from remote_resident.client import Message, OnEvent
from remote_resident.errors import WorkerRequestError
from remote_resident.spawn import exit_hint

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest

LAST_REPLY_S = 10.0
"""How long the end of a worker that announced it is waited for."""
END_S = 5.0
"""How long the end of a worker is waited for that closed its connection."""
GARBLED_END_S = 1.0
REPLY_GRACE_S = 0.25
WHATEVER_BEGAN = "what has begun runs on"


class NotBegun(Exception):
    """The worker was lost or left before the prediction began."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """A request and how long its caller waits."""

    message: Message
    deadline_s: float | None
    due: float
    on_event: OnEvent | None
    began: float

    @classmethod
    def of(cls, payload: Mapping[str, Any], on_event: OnEvent | None) -> "Asking":
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


class Worker(Protocol):
    """The worker that is asked, as its process sees it."""

    manifest: "ProviderManifest"
    slug: str
    socket_path: Path
    log_path: Path

    @property
    def ping_s(self) -> float:
        """Give how long a ping may take."""

    def stacks(self) -> str:
        """Write every thread's stack to the log."""

    def let_go(self, held: Held) -> None:
        """Forget a worker that ended."""


class Conversation:
    """One request on one connection to a worker that is held."""

    def __init__(
        self, worker: Worker, channel: client.Channel, asking: Asking, held: Held
    ) -> None:
        self.worker = worker
        self.slug = worker.slug
        self.channel = channel
        self.asking = asking
        self.held = held
        self.asked = client.Asked(
            due=asking.due + REPLY_GRACE_S,
            patience_s=worker.manifest.runtime_request_timeout_s,
        )

    def reply(self) -> Message:
        """Send the request and wait for its reply.

        Raises NotBegun, and WorkerRequestError for what no reply came of.
        """
        try:
            self._send()
            while True:
                try:
                    return client.listen(self.channel, self.asked, self.asking.on_event)
                except client.Stuck:
                    if self.asked.started is not None or not self._progresses():
                        raise
        except TimeoutError:
            raise self._late() from None
        except client.Stuck:
            raise self._stuck() from None
        except client.Gone as exc:
            if exc.read:
                self.asked.note_read()
            raise self._lost(str(exc)) from None
        except client.ProtocolError as exc:
            # whatever it is, it came after the request was taken
            self.asked.started = self.asked.started or time.monotonic()
            raise self._garbled(exc) from None

    def judged(self, reply: Message) -> Message:
        """Give the reply if it is ok; raises NotBegun, WorkerRequestError if not."""
        if reply.get("ok") is True:
            return reply
        reason = str(reply.get("reason") or "request_failed")
        text = f"{self.slug}: {reply.get('error', 'a reply without ok and error')}"
        if reason == "stopping" and self.asked.started is None:
            raise NotBegun(text, reason)
        if reason == "request_timeout" and self.asking.left() <= 0:
            raise self._late()
        if reason == "worker_died":
            text = f"{text}; {self._ended(LAST_REPLY_S)}"
        raise self._error(text, reason)

    def _send(self) -> None:
        try:
            self.channel.send(self.asking.sent(), self.asked.wait_s())
            self.asked.sent = True
        except TimeoutError:
            raise self.asked.over() from None
        except client.ProtocolError as exc:
            # ours: nothing was sent
            raise WorkerRequestError(
                f"{self.slug}: request: {exc}", reason=exc.reason
            ) from None

    def _late(self) -> WorkerRequestError:
        if self.asked.started is not None:
            becomes = "its prediction runs on"
        elif self.asked.position is not None:
            becomes = "it waited for its turn, and is not begun any more"
        else:
            becomes = WHATEVER_BEGAN
        return late(self.worker, self.asking, self.held, becomes)

    def _progresses(self) -> bool:
        """Say whether what is in front of a queued request is within its own time."""
        worker, asked = self.worker, self.asked
        try:
            reply, _ = client.ask(worker.socket_path, "ping", worker.ping_s)
        except (client.Gone, client.Silent, client.ProtocolError):
            return False
        since = reply.get("busy_since")
        ran = 0.0 if since is None else max(0.0, time.time() - since)
        # by what is left of the time of the prediction that runs now
        asked.looked = time.monotonic() - min(ran, asked.patience_s)
        return ran < asked.patience_s

    def _lost(self, said: str) -> "WorkerRequestError | NotBegun":
        held = self.held
        if self.asked.started is None:
            # its descriptors close a little before its end is told: without the wait
            # the next attempt would take a dying worker for a living one
            if held.wait_end(GARBLED_END_S):
                self._bury()
            return NotBegun(f"{self.slug}: {said}, before it began", "worker_died")
        if not held.wait_end(END_S):
            return self._error(
                f"{self.slug}: {said}, and worker {held.started.pid} lives on; "
                f"a reply wanted; log {self.worker.log_path}",
                "protocol_error",
            )
        return self._error(
            f"{self.slug}: died answering; {self._ended(0)}", "worker_died"
        )

    def _garbled(self, exc: client.ProtocolError) -> "WorkerRequestError | NotBegun":
        if self.held.wait_end(GARBLED_END_S):
            return self._lost(str(exc))
        return self._error(
            f"{self.slug}: worker {self.held.started.pid}: {exc}; "
            f"log {self.worker.log_path}",
            exc.reason,
        )

    def _stuck(self) -> "WorkerRequestError | NotBegun":
        """End a worker whose state nobody knows; its stacks are in the log first."""
        if not self.held.wait_end(0):
            with contextlib.suppress(WorkerRequestError):
                self.worker.stacks()
        limit = self.worker.manifest.runtime_request_timeout_s
        self._bury()
        text = (
            f"{self.slug}: worker {self.held.started.pid} was ended: no reply {limit} s "
            f"after a prediction began, [runtime] request_timeout_s = {limit}; its "
            f"stacks are in {self.worker.log_path}"
        )
        if self.asked.started is None:
            # it was another's prediction that did not end
            return NotBegun(text, "request_timeout")
        return self._error(text, "request_timeout")

    def _error(self, text: str, reason: str) -> WorkerRequestError:
        return WorkerRequestError(text, reason=reason, next=to_logs(self.worker))

    def _ended(self, wait_s: float) -> str:
        """Say how a worker ended, and clear away what it left."""
        self.held.wait_end(wait_s)
        hint = exit_hint(self.held.returncode())
        self._bury()
        return f"worker {self.held.started.pid}: {hint}; log {self.worker.log_path}"

    def _bury(self) -> None:
        """End whatever is left of a worker and forget it."""
        self.held.end(END_GRACE_S)
        self.held.wait_end(END_S)
        self.worker.let_go(self.held)


def to_logs(worker: Worker) -> str:
    """Give the command that shows what a worker wrote."""
    return f"tu remote logs {worker.manifest.named}"


def late(
    worker: Worker, asking: Asking, held: Held | None, becomes: str = WHATEVER_BEGAN
) -> WorkerRequestError:
    """Say that the caller's time is over, and why if it is a stopped worker.

    `becomes` says what becomes of the request.
    """
    waited = time.monotonic() - asking.began
    stopped = None if held is None else processes.stopped(held.started.instance)
    rest, next_ = becomes, "tu remote ps"
    if stopped is not None:
        rest = f"worker {stopped} is stopped (state T) and runs on once it is continued"
        next_ = f"kill -CONT {stopped}"
    return WorkerRequestError(
        f"{worker.slug}: no reply after {waited:.3f} s, at most {asking.deadline_s} s "
        f"wanted by the caller; {rest}",
        reason="request_timeout",
        next=next_,
    )
