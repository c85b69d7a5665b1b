"""The main thread: one prediction after the other, and each reply."""

# pathlib would cost each start of a worker half the interpreter's own
# ruff: noqa: PTH103, PTH118

from __future__ import annotations

import os
import select
import sys
from time import monotonic

from . import attendant, calls, memory, protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LINGER_S = 200e-6
"""How long to look for the next request before sleeping; a few small ones' time."""

PROMPT_S = 100e-6
"""How soon the next request comes from a caller that is worth looking for."""
PROMPT_ROW = 16
"""So many in a row are taken for its habit, and for a processor to spare."""
BRIEF_S = 500e-6
"""A prediction after which telling that it began is not worth a message of its own."""
BRIEF_ROW = 8
"""So many in a row are taken for the habit of the model."""


class Hooks:
    """What the loop calls of the model."""

    __slots__ = ("predict", "release_cublas", "reset")

    def __init__(
        self,
        predict: Callable[[dict[str, object]], dict[str, object]],
        reset: Callable[[], object] | None = None,
        release_cublas: bool = True,
    ) -> None:
        self.predict = predict
        self.reset = reset
        self.release_cublas = release_cublas


class Worker:
    """The loop around the model, in the main thread."""

    def __init__(self, options: Any) -> None:
        self.options = options
        self.attendant = attendant.Attendant(options)
        self.callers = self.attendant.callers
        self.hooks: Hooks | None = None
        self.served = False
        self._brief = 0
        self._prompt = 0
        self._bell = self.attendant.bell
        os.register_at_fork(
            before=self._bell.hold_back,
            after_in_parent=self._bell.let_come,
            after_in_child=self._after_fork,
        )

    def serve(self, hooks: Hooks, ready: dict[str, object]) -> int:
        """Let callers in, answer until it is time to leave, give the exit status.

        Raises ProtocolError: `socket_path`, or `bad_request` for a `ready` that JSON
        cannot hold.
        """
        protocol.text_of(ready)
        self.hooks = hooks
        self.served = True
        self.attendant.ready = ready
        self.attendant.operations = self.options.known_operations()
        self.attendant.door.path = self.options.socket_path
        self.attendant.memory.look_at_device()
        self._bell.take_all()
        self.attendant.open()
        self._tell_ready()
        try:
            self._loop()
        finally:
            self.attendant.dismiss()
        return self.attendant.status or 0

    def _tell_ready(self) -> None:
        fd = self.options.ready_fd
        if fd is None:
            return
        self.options.ready_fd = None
        load_s = monotonic() - self.attendant.began
        said: dict[str, object] = {"ready": True, "load_s": load_s, "pid": os.getpid()}
        try:
            os.write(fd, protocol.encode_line(said))
            os.close(fd)
        except OSError as exc:
            self.attendant.log(f"ready pipe: {exc.strerror}")

    def _loop(self) -> None:
        call: Any = None
        sent = True
        while True:
            with self.attendant.lock:
                if call is not None:
                    self.attendant.finish(call, sent)
                    call = None
                if self.attendant.status is not None:
                    return
                if self.attendant.queue:
                    call = self.attendant.begin(self.attendant.queue.pop(0))
            call = call or self._wait()
            if call is not None:
                sent = self._answer(call)

    # --- waiting

    def _wait(self) -> Any:
        """Wait until there is something to do; give the kept caller's request."""
        for fd, what in self._linger() or self.callers.poll.poll():
            if fd == self.attendant.turn:
                self._hear_turn(what)
                continue
            with self.attendant.lock:
                peer = self.callers.kept
                call = None if peer is None else self.attendant.read(peer)
                if call is None:
                    continue
                is_prompt = call.received - self.attendant.active < PROMPT_S
                self._prompt = self._prompt + 1 if is_prompt else 0
                if not self.attendant.queue and not self.attendant.retiring:
                    return self.attendant.begin(call)
                self.attendant.enqueue(call)
        return None

    def _linger(self) -> list[tuple[int, int]]:
        """Look for the next request of a caller who asks one after the other.

        To sleep and be woken costs more than to answer a small one, where a processor
        is free; where none is, who does not sleep is made to wait.
        """
        until = self.attendant.active + LINGER_S
        while self._prompt >= PROMPT_ROW:
            ready: list[tuple[int, int]] = self.callers.poll.poll(0)
            if ready:
                return ready
            if monotonic() > until:
                break
            os.sched_yield()
        return []

    def _hear_turn(self, what: int) -> None:
        try:
            if what & select.POLLIN and os.read(self.attendant.turn, 4096):
                return
        except OSError:
            pass
        self.attendant.log("the model closed descriptors of its worker; leaving")
        self.attendant.status = attendant.BROKEN

    # --- answering

    def _answer(self, call: Any) -> bool:
        """Run a request and send its reply; False where nobody takes it."""
        started = over = monotonic()
        ahead = b""
        reply = self.refused(call, started)
        if reply is None:
            try:
                ahead = self._tell_started(call) if call.events else b""
            except ConnectionError:
                return False
            reply = self.predicted(call)
            over = monotonic()
            is_brief = over - started < BRIEF_S and reply["ok"]
            self._brief = self._brief + 1 if is_brief else 0
        queued_s = started - call.received
        line = self.attendant.line(reply, call.payload, queued_s, over - started)
        if ahead:
            line = ahead + line
        if call.due is not None:
            with self.attendant.lock:
                if call.answered:
                    return True
                call.answered = True
        sent: bool = call.peer.send(line)
        if not sent:
            self.attendant.log("a caller did not take its reply")
        # while the caller reads its reply
        self._bell.keep()
        return sent

    def _tell_started(self, call: Any) -> bytes:
        """Say that the prediction begins, or give what is to be said with the reply.

        Raises ConnectionError where nobody waits for it any more.
        """
        if call.peer is not self.callers.kept:
            line = call.event("started")
        elif "id" in call.payload:
            line = call.event("queued", position=0) + call.event("started")
        elif self._brief >= BRIEF_ROW:
            # a message costs as much as the rest of a small request; a caller that
            # loses us knows by the connection's end that its request had been read
            return protocol.AT_ONCE
        else:
            line = protocol.AT_ONCE
        if not call.peer.send(line):
            # who closed its connection while it waited has left the queue
            raise ConnectionError
        return b""

    def refused(self, call: Any, now: float) -> dict[str, object] | None:
        """Give the reply to a request whose time is over or whose place is none."""
        if call.due is not None and now >= call.due:
            late: dict[str, object] = call.late()
            return late
        if self.options.work_root is None and "output_dir" not in call.payload:
            return None
        fault = self._make_output_dir(call.payload)
        return None if fault is None else dict(calls.refusal(fault, "bad_request"))

    def _make_output_dir(self, payload: dict[str, object]) -> str | None:
        """Make the directory that a prediction writes into; say why it cannot be."""
        wanted = payload.get("output_dir")
        if wanted is None:
            if self.options.work_root is None:
                return None
            name = f"{self.options.slug}-{os.getpid()}-{os.urandom(6).hex()}"
            wanted = os.path.join(self.options.work_root, name)
            payload["output_dir"] = wanted
        try:
            os.makedirs(str(wanted), 0o700, exist_ok=True)
        except OSError as exc:
            return f"output_dir: {wanted}: {exc.strerror} found, a directory wanted"
        return None

    def predicted(self, call: Any) -> dict[str, object]:
        """Ask the model, and give the reply whatever happens."""
        hooks = self.hooks
        assert hooks is not None
        try:
            if hooks.reset is not None:
                hooks.reset()
            reply: dict[str, object] = calls.checked(hooks.predict(dict(call.payload)))
            if "output_dir" in call.payload:
                reply["output_dir"] = call.payload["output_dir"]
        except Exception as exc:  # the model's errors are the caller's answer
            self.attendant.log_traceback(exc)
            reply = calls.failure(exc)
        except BaseException as exc:  # answered, then it ends the worker as it wants to
            self._end_fork(calls.exit_status(exc))
            self.attendant.log_traceback(exc)
            reply = calls.failure(exc)
            self.attendant.status = calls.exit_status(exc)
        self._end_fork(0)
        if "torch" in sys.modules:
            if hooks.release_cublas:
                memory.release_cublas_workspaces()
            self.attendant.memory.look_at_device()
        return reply

    # --- forks

    def _after_fork(self) -> None:
        """Let a forked child of the model have nothing of ours."""
        self._bell.forget()
        if self.attendant.door.listener is not None:
            self.attendant.door.listener.close()
        for peer in self.callers.peers.values():
            peer.sock.close()
        self._bell.let_come()

    def _end_fork(self, status: int) -> None:
        """End a forked child that comes back from `predict`: the worker is its parent."""
        if os.getpid() != self.attendant.pid:
            os._exit(status)
