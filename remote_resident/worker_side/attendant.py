"""The attendant: everything but the model, in a thread of its own."""

# pathlib and contextlib would cost each start of a worker half the interpreter's own

from __future__ import annotations

import _thread
import os
import select
import sys
import time
from time import monotonic

from . import (
    answers,
    bell,
    callers,
    calls,
    door,
    left_behind,
    memory,
    overtime,
    owners,
    protocol,
    stacks,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    import signal
    from collections.abc import Callable, Iterator
    from typing import Any
else:
    import _signal as signal

BROKEN = 70
"""Exit status where the model closed our descriptors, or for a bug of our own."""
LAST_CALL_S = 10.0
"""How long who connected as the door shut may take to send a request."""
AGAIN_S = 1.0
"""How long to look away from the door when descriptors have run out."""

READS_PER_TURN = 16


class Attendant:
    """Who is connected, what waits, and when to leave.

    What the main thread touches too is touched under `lock` only; methods without an
    underscore that say "lock held" are for it.
    """

    def __init__(self, options: Any) -> None:
        self.options = options
        self.pid = os.getpid()
        self.lock = _thread.allocate_lock()
        self.callers = callers.Callers()
        self.memory = memory.Memory()
        self.door = door.Door(options.socket_path)
        self.queue: list[Any] = []
        self.running: Any = None
        self.busy_since: float | None = None
        self.begun = 0.0
        """When the request that runs began."""
        self.requests = 0
        self.ready: dict[str, object] = {}
        self.operations: tuple[str, ...] = ("predict",)
        self.began = monotonic()
        self.active = monotonic()
        """When the last request was over."""
        self.orphaned: float | None = None
        self.retiring = False
        self.stopping = False
        self.status: int | None = None
        """The exit status, once it is decided to leave."""
        self.gone = False
        self.wake_at = float("inf")
        self._is_told_to_stop = False
        self._accept_at: float | None = None
        self._is_shut = False
        self.overtime = overtime.Overtime(self)
        self._owners = owners.Owners(options.lifeline_fd)
        self.log_fd = os.dup(2)
        self.bell = bell.Bell(self.log_fd)
        self.turn, self._turn_w = bell.pipe()
        self.callers.poll.register(self.turn, select.POLLIN)
        self.callers.epoll.register(self.bell.fd, select.EPOLLIN)
        self.say: Callable[[str], object] | None = None

    # --- for the main thread

    def start(self) -> None:
        """Start the thread; before the model is built, for the owner may end then."""
        # here, not in the thread: by the time that runs, a parent may be gone unseen
        self._owners.find(self.callers.epoll)
        _thread.start_new_thread(self._run, ())

    def open(self) -> None:
        """Let callers in; raises ProtocolError `socket_path`."""
        with self.lock:
            listener = self.door.open()
            self.active = monotonic()
            self.callers.epoll.register(listener.fileno(), select.EPOLLIN)
        self.ring()

    def ring(self) -> None:
        """Wake the thread, so that it counts its time anew."""
        self.bell.ring()

    def begin(self, call: Any) -> Any:
        """Make a request the one that runs. Lock held."""
        if call.peer is not self.callers.kept:
            self.callers.unwatch(call.peer)
        call.peer.call = call
        self.running = call
        self.begun = monotonic()
        self.busy_since = time.time()
        self.requests += 1
        if call.due is not None and call.due < self.wake_at:
            self.ring()
        return call

    def finish(self, call: Any, sent: bool) -> None:
        """Let go of a request that is over. Lock held."""
        call.peer.call = None
        self.running = None
        self.busy_since = None
        self.active = monotonic()
        staying = sent and not self.retiring and not self.stopping
        if staying and call.peer in self.callers:
            self.callers.keep(call.peer)
            if call.peer.lines.size:
                self._go_on(call.peer)
        else:
            self.close(call.peer)
        if self.stopping and self.status is None:
            self.status = 0
        if self.orphaned is not None or self.retiring:
            self.ring()

    def dismiss(self) -> None:
        """Shut the door, and refuse whoever still asks."""
        with self.lock:
            for sock in self._shut_door():
                self._admit(sock)
            self.gone = True
            self.stopping = True
            self._refuse_queue()
            for peer in list(self.callers.peers.values()):
                if peer.call is None:
                    self.read(peer)
                self.close(peer)
        self.ring()

    def read(self, peer: Any) -> Any:
        """Read what has arrived, answer what can be, give the request that cannot.

        None where there is none. Lock held.
        """
        for _ in range(READS_PER_TURN):
            try:
                chunk = peer.sock.recv(protocol.CHUNK_BYTES)
            except BlockingIOError:
                return None
            except OSError:
                chunk = b""
            if not chunk:
                self._ended(peer)
                return None
            line = peer.lines.feed(chunk)
            call = self._next_call(peer) if line is None else self._call(peer, line)
            if call is not None or peer not in self.callers:
                return call
            if len(chunk) < protocol.CHUNK_BYTES:
                return None
        return None

    def enqueue(self, call: Any) -> None:
        """Let a request wait for its turn, or refuse it. Lock held."""
        self._enqueue(call)
        self._go_on(call.peer)

    def _go_on(self, peer: Any) -> None:
        """Take up what an idle caller had sent ahead."""
        while peer.call is None and peer in self.callers:
            call = self._next_call(peer)
            if call is None:
                return
            self._enqueue(call)

    def _enqueue(self, call: Any) -> None:
        ahead = len(self.queue) + (self.running is not None)
        if ahead > self.options.max_queue:
            error = f"{len(self.queue)} waiting found, at most {self.options.max_queue}"
            self._refuse(call.peer, f"{error} wanted", "queue_full", call.payload)
            return
        if call.events and not self._write(
            call.peer, call.event("queued", position=ahead)
        ):
            return
        call.peer.call = call
        self.queue.append(call)
        self.callers.watch(call.peer, 0)
        if self.running is None:
            bell.ring(self._turn_w)

    def close(self, peer: Any) -> None:
        """Close a connection. Lock held."""
        self.callers.close(peer)
        if not self.callers.peers:
            self.ring()

    def line(
        self,
        reply: dict[str, object],
        payload: dict[str, object],
        queued_s: float = 0.0,
        predict_s: float = 0.0,
    ) -> bytes:
        """Encode a reply with its meter; one that cannot be becomes the reason why."""
        meter = (
            f'{{"queued_s":{queued_s:.6f},"predict_s":{predict_s:.6f},'
            f"{self.memory.text(predict_s)}"
        )
        limit = self.options.max_line_bytes
        line: bytes = calls.reply_line(reply, payload, meter, limit)
        return line

    def log(self, text: str) -> None:
        """Write one line to the log: stderr, unless `serve` was given another."""
        if self.say is not None:
            self.say(text)
            return
        line = f"{time.strftime('%H:%M:%S')} worker {self.options.slug}: {text}\n"
        # the model may have closed one of them, or both
        for fd in (self.log_fd, 2):
            try:
                os.write(fd, line.encode(errors="backslashreplace"))
                return
            except OSError:
                continue

    def log_traceback(self, exc: BaseException) -> None:
        """Write an exception to stderr as the interpreter would."""
        try:
            sys.__excepthook__(type(exc), exc, exc.__traceback__)
            sys.stderr.flush()
        except Exception:  # the model may have closed stderr
            self.log(calls.text_of(exc))

    # --- the thread

    def _run(self) -> None:
        try:
            while not self.gone:
                self.wake_at = self._next_time()
                wait = max(0.0, self.wake_at - monotonic())
                self.overtime.wind(wait)
                events = self.callers.epoll.poll(wait if wait < 1e9 else None)
                with self.lock:
                    for fd, _ in events:
                        if not self.gone:
                            self._on_event(fd)
                    if not self.gone:
                        self._on_time(monotonic())
        except BaseException as exc:  # nobody would be let in any more: end all of it
            if not self.gone:
                self.log_traceback(exc)
                self.leave_at_once(BROKEN)

    def _on_event(self, fd: int) -> None:
        peer = self.callers.peers.get(fd)
        listener = self.door.listener
        if peer is not None:
            self._on_peer(peer)
        elif fd == self.bell.fd:
            for number in self.bell.heard():
                self._on_signal(number)
        elif fd in self._owners:
            self._on_owner(fd)
        elif listener is not None and fd == listener.fileno():
            self._accept()

    # --- the owner, and signals

    def _on_owner(self, fd: int) -> None:
        ended = self._owners.ended(fd, self.callers.epoll)
        if ended is not None and self.orphaned is None:
            self.orphaned = monotonic()
            self.log(
                f"the owner is gone: {ended}; leaving "
                f"{self.options.orphan_grace_s} s after the last request"
            )

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGUSR1:
            stacks.write(self.log_fd)
            return
        if self._is_told_to_stop:
            self.log("told to stop by a second signal: leaving at once")
            self.leave_at_once(128 + signal.SIGTERM)
        self._is_told_to_stop = True
        self.log("told to stop by a signal: finishing what is in hand")
        self._stop()

    # --- the door

    def _accept(self) -> bool:
        """Let in who waits; False where nobody did."""
        anybody = False
        try:
            for sock in self.door.accepted():
                self._admit(sock)
                anybody = True
        except OSError as exc:
            # the door would wake the thread at once, again and again
            self.log(f"accepting: {exc.strerror}; again in {AGAIN_S} s")
            self._listen_for(0)
            self._accept_at = monotonic() + AGAIN_S
        return anybody

    def _listen_for(self, events: int) -> None:
        if self.door.listener is not None and not self._is_shut:
            self.callers.epoll.modify(self.door.listener.fileno(), events)

    def _accept_again(self) -> None:
        self._accept_at = None
        self._listen_for(select.EPOLLIN)

    def _shut_door(self) -> Iterator[_socket.socket]:
        """Let nobody in any more, and yield all who already were."""
        self._accept_at = None
        if self.door.listener is not None and not self._is_shut:
            self._is_shut = True
            try:  # noqa: SIM105
                # shut, it would wake the thread at once, again and again
                self.callers.epoll.unregister(self.door.listener.fileno())
            except OSError:
                pass  # the model closed descriptors of its worker
        try:
            yield from self.door.shut()
        except OSError as exc:
            self.log(f"accepting: {exc.strerror}; who waits is not let in")

    def _admit(self, sock: _socket.socket) -> Any:
        uid = door.peer_uid(sock)
        peer = callers.Peer(sock, self.options.max_line_bytes)
        self.callers.add(peer)
        if uid == os.geteuid():
            return peer
        self.log(f"a caller of uid {uid} was refused")
        error = f"uid {uid} found, uid {os.geteuid()} wanted"
        self._refuse(peer, error, "unauthorized")
        self.close(peer)
        return None

    # --- requests

    def _on_peer(self, peer: Any) -> None:
        if peer.call is None:
            call = self.read(peer)
            if call is not None:
                self.enqueue(call)
        elif peer.call in self.queue:
            # only its hang-up is watched for
            self.queue.remove(peer.call)
            self.close(peer)

    def _ended(self, peer: Any) -> None:
        size = peer.lines.size
        if size:
            error = f"message: its end after {size} bytes found, a newline wanted"
            self._refuse(peer, error, "protocol_error")
        self.close(peer)

    def _next_call(self, peer: Any) -> Any:
        while peer in self.callers:
            try:
                line = peer.lines.take()
            except protocol.ProtocolError as exc:
                self._refuse(peer, str(exc), exc.reason)
                continue
            if line is None:
                return None
            call = self._call(peer, line)
            if call is not None:
                return call
        return None

    def _call(self, peer: Any, line: bytes) -> Any:
        """Give the request in a line; None where it was answered here."""
        try:
            payload = protocol.decode_line(line)
        except protocol.ProtocolError as exc:
            self._refuse(peer, str(exc), exc.reason)
            self.close(peer)
            return None
        if (
            self.stopping
            or payload.get("op") not in self.operations
            or "deadline" in payload
            or "output_dir" in payload
        ) and self._answered_here(peer, payload):
            return None
        return calls.Call(peer, payload)

    def _answered_here(self, peer: Any, payload: dict[str, object]) -> bool:
        op = payload.get("op")
        if isinstance(op, str) and op in protocol.RESERVED:
            self._answer_reserved(peer, op, payload)
            return True
        fault = calls.fault_of(payload, self.operations)
        if fault is not None:
            self._refuse(peer, fault, "bad_request", payload)
        elif self.stopping:
            self._refuse(peer, "the worker is leaving", "stopping", payload)
        else:
            return False
        return True

    def _answer_reserved(self, peer: Any, op: str, payload: dict[str, object]) -> None:
        self._write(peer, self.line(answers.reserved(self, op), payload))
        if op == "stop":
            self.log("asked to stop: finishing what is in hand")
            self._stop()

    def _refuse(
        self,
        peer: Any,
        error: str,
        reason: str,
        payload: dict[str, object] | None = None,
    ) -> None:
        waited = monotonic() - peer.call.received if peer.call else 0.0
        reply = calls.refusal(error, reason)
        self._write(peer, self.line(reply, payload or {}, waited))

    def _write(self, peer: Any, line: bytes) -> bool:
        if peer.send_now(line):
            return True
        self.close(peer)
        return False

    # --- time and leaving

    def _next_time(self) -> float:
        """Give when something is due if nothing happens until then."""
        with self.lock:
            waiting = [*self.queue, *([self.running] if self.running else [])]
            times = [c.due for c in waiting if c.due is not None and not c.answered]
            times += [p.last_call for p in self.callers.peers.values() if p.last_call]
            others = (self._leave_time(), self._accept_at, self.overtime.due())
            times += [t for t in others if t is not None]
        limit_s = self.overtime.limit_s()
        if limit_s:
            # what begins while we sleep does not wake us
            times.append(monotonic() + limit_s / 4)
        return min(times, default=float("inf"))

    def _leave_time(self) -> float | None:
        """Give when the worker is to leave if nobody asks; None: not by itself."""
        if self.running or self.queue or self.retiring or self.stopping:
            return None
        times = []
        if self.orphaned is not None and self.options.once:
            # nobody is left to read the answer
            times.append(self.orphaned)
        elif self.orphaned is not None:
            times.append(max(self.orphaned, self.active) + self.options.orphan_grace_s)
        # an open connection keeps the worker, whoever holds it
        if (
            self.options.idle_timeout_s > 0
            and not self.callers.peers
            and self.is_open()
        ):
            times.append(self.active + self.options.idle_timeout_s)
        return min(times) if times else None

    def is_open(self) -> bool:
        """Say whether callers are let in."""
        return self.door.listener is not None

    def leave_at_once(self, status: int) -> None:
        """End the process and all that its model has started, whatever they do."""
        self.door.remove_path()
        if os.getpid() == self.pid:
            left_behind.end(self.options.instance)
        os._exit(status)

    def _on_time(self, now: float) -> None:
        for call in [c for c in self.queue if c.due is not None and c.due <= now]:
            self.queue.remove(call)
            self._time_out(call)
            call.peer.call = None
            if call.peer in self.callers:
                self.callers.watch(call.peer, select.EPOLLIN)
                self._go_on(call.peer)
        running = self.running
        due = None if running is None or running.answered else running.due
        if due is not None and due <= now:
            running.answered = True
            self._time_out(running)
        stuck = self.overtime.due()
        if stuck is not None and stuck <= now:
            self.overtime.end()
        if self._accept_at is not None and self._accept_at <= now:
            self._accept_again()
        leave = self._leave_time()
        if leave is not None and leave <= now:
            self._retire()
        if self.retiring:
            self._see_off(now)

    def _time_out(self, call: Any) -> None:
        late = call.late()
        self._refuse(call.peer, late["error"], late["reason"], call.payload)

    def _retire(self) -> None:
        """Leave for want of requests, unless one is at the door."""
        if not self.is_open():
            what = "answer" if self.options.once else "load for"
            self.log(f"nobody is left to {what}; leaving")
            self.leave_at_once(128 + signal.SIGTERM)
        if self._accept():
            return
        self.log("nobody asks; leaving")
        self.retiring = True
        last_call = monotonic() + LAST_CALL_S
        for sock in self._shut_door():
            peer = self._admit(sock)
            if peer is not None:
                peer.last_call = last_call

    def _see_off(self, now: float) -> None:
        """Leave once all are answered who came in as the door shut."""
        for peer in list(self.callers.peers.values()):
            if peer.call is None and peer.last_call and peer.last_call <= now:
                self.close(peer)
        left = self.callers.peers.values()
        if not any(p.call or p.last_call for p in left) and self.status is None:
            self.status = 0
            bell.ring(self._turn_w)

    def _stop(self) -> None:
        """Finish what is in hand, refuse what waits."""
        if self.stopping:
            return
        self.stopping = True
        for sock in self._shut_door():
            self._admit(sock)
        self._refuse_queue()
        if self.running is None:
            self.status = 0
            bell.ring(self._turn_w)

    def _refuse_queue(self) -> None:
        for call in self.queue:
            self._refuse(call.peer, "the worker is leaving", "stopping", call.payload)
            self.close(call.peer)
        self.queue.clear()
