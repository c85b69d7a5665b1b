"""The asking half of a worker's socket: one line out, events and one reply back."""

import contextlib
import errno
import math
import os
import select
import socket
import stat
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remote_resident import errors
from remote_resident.errors import WorkerRequestError
from remote_resident.worker_side import protocol

Message = dict[str, Any]
OnEvent = Callable[[Message], None]

_LONGEST_S = 65536.0
_AT_ONCE = [protocol.decode_line(line) for line in protocol.AT_ONCE.splitlines()]


class ProtocolError(errors.ProtocolError, protocol.ProtocolError):
    """The same as the worker's side has it.

    `received` counts the bytes of the message that had arrived, None: none was awaited.
    """

    def __init__(self, found: protocol.ProtocolError) -> None:
        super().__init__(str(found), reason=found.reason)
        self.received = found.received


class Gone(Exception):
    """Nobody answers: the socket refuses, or the connection ended.

    `read`: who ended it had read all that was sent. The kernel tells the two apart: what
    is closed with something unread in it resets the connection.
    """

    def __init__(self, text: str, *, read: bool = False) -> None:
        super().__init__(text)
        self.read = read


class Silent(Exception):
    """Somebody accepted and does not answer in time; `pid` is the kernel's word."""

    def __init__(self, text: str, pid: int | None) -> None:
        super().__init__(text)
        self.pid = pid


class Stuck(Exception):
    """The worker shows no progress for longer than it may."""


@dataclass(slots=True)
class Channel:
    """One connection, which carries one request at a time.

    A time limit is the kernel's: set rarely, in place of a poll before each call.
    """

    path: Path
    sock: socket.socket
    peer: int | None
    """The worker's pid as the kernel knows it; None: not visible from here."""
    lines: protocol.Lines = field(default_factory=protocol.Lines)
    _line: bytes | None = None
    """A line that was read and not yet given."""
    _limit_s: float = 0.0
    """After how long the kernel gives a call back; 0: not yet told."""
    _poll: "select.poll" = field(default_factory=select.poll)

    def __post_init__(self) -> None:
        """Wait in the kernel."""
        self._poll.register(self.sock, select.POLLIN)
        self.sock.setblocking(True)

    def send(self, payload: Mapping[str, Any], timeout_s: float) -> None:
        """Send one request.

        Raises Gone, TimeoutError where it is not taken, ProtocolError before any byte.
        """
        try:
            line = protocol.encode_line(dict(payload))
        except protocol.ProtocolError as exc:
            raise ProtocolError(exc) from None
        until = time.monotonic() + timeout_s
        rest = memoryview(line)
        try:
            while rest:
                self._wait_at_most(until - time.monotonic())
                with contextlib.suppress(BlockingIOError):
                    rest = rest[self.sock.send(rest) :]
                if rest and time.monotonic() >= until:
                    raise TimeoutError
        except TimeoutError:
            raise
        except OSError as exc:
            raise Gone(f"{self.path}: {exc.strerror}") from exc

    def next(self, timeout_s: float) -> Message | None:
        """Give the next line, None where none has begun after `timeout_s`.

        Raises Gone, ProtocolError, and TimeoutError where a line stops half way: the
        connection is of no use then.
        """
        try:
            line, self._line = self._line, None
            if line is None and self.lines.size:
                line = self.lines.take()
            line = line or self._next_line(time.monotonic() + timeout_s)
            return None if line is None else protocol.decode_line(line)
        except protocol.ProtocolError as exc:
            raise ProtocolError(exc) from None

    def reply_at_once(self, until: float) -> Message | None:
        """Give the reply that comes with the telling that its request has begun.

        None for anything else, which `next` gives then. Raises as that does.
        """
        if self.lines.size:
            return None
        chunk = self._received(until)
        if not chunk:
            if chunk is not None:
                raise Gone(f"{self.path}: closed by the worker", read=True)
            return None
        rest = chunk[len(protocol.AT_ONCE) :]
        try:
            is_all = rest.find(b"\n") + 1 == len(rest) > 0
            if is_all and chunk.startswith(protocol.AT_ONCE):
                return protocol.decode_line(rest)
            self._line = self.lines.feed(chunk)
        except protocol.ProtocolError as exc:
            raise ProtocolError(exc) from None
        return None

    def _next_line(self, until: float) -> bytes | None:
        line: bytes | None = None
        while line is None:
            chunk = self._received(until)
            if chunk is None and self.lines.size:
                raise TimeoutError
            if chunk is None:
                return None
            if not chunk:
                self._refuse_half()
                raise Gone(f"{self.path}: closed by the worker", read=True)
            line = self.lines.feed(chunk) or self.lines.take()
        return line

    def _received(self, until: float) -> bytes | None:
        """Receive what has come; None: nothing until then, empty: the end."""
        while True:
            left = until - time.monotonic()
            if left <= 0 and not self._readable():
                return None
            self._wait_at_most(left)
            try:
                return self.sock.recv(protocol.CHUNK_BYTES)
            except BlockingIOError:
                continue
            except OSError as exc:
                self._refuse_half()
                read = exc.errno != errno.ECONNRESET
                raise Gone(f"{self.path}: {exc.strerror}", read=read) from exc

    def _refuse_half(self) -> None:
        size = self.lines.size
        if size:
            text = f"message: its end after {size} bytes found, a newline wanted"
            raise protocol.ProtocolError(text, received=size)

    def _wait_at_most(self, timeout_s: float) -> None:
        # a round number, so that a time that counts down is not told each time; who
        # comes back early looks at the clock
        if 1 <= self._limit_s <= timeout_s < 2 * self._limit_s:
            return
        wanted = 2.0 ** math.floor(math.log2(max(timeout_s, 0.001)))
        if timeout_s < 1:
            wanted = max(timeout_s, 0.001)
        wanted = min(wanted, _LONGEST_S)
        if wanted != self._limit_s:
            self._limit_s = wanted
            span = struct.pack("@ll", int(wanted), int(wanted % 1 * 1e6))
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)

    def _readable(self) -> bool:
        return bool(self._poll.poll(0))

    def at_rest(self) -> bool:
        """Say whether the connection is open with nothing in it, as between requests."""
        return (
            not (self.lines.size or self._line)
            and self.sock.fileno() >= 0
            and not self._readable()
        )

    def close(self) -> None:
        """Close the connection; a queued request leaves the queue by that."""
        self.sock.close()


def connect(path: Path, timeout_s: float = 5.0) -> Channel:
    """Connect to a worker of this user.

    Raises Gone where nobody accepts, Silent where the queue of connections is full,
    WorkerRequestError (`socket_path`) where it is somebody else's.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout_s)
    try:
        sock.connect(str(path))
        peer, uid = _peer(sock)
    except (TimeoutError, BlockingIOError) as exc:
        sock.close()
        raise Silent(f"{path}: accepts no connection in {timeout_s} s", None) from exc
    except OSError as exc:
        sock.close()
        raise Gone(f"{path}: {exc.strerror or exc}") from exc
    if uid != os.geteuid():
        sock.close()
        raise WorkerRequestError(
            f"{path}: answered by uid {uid}, a worker of uid {os.geteuid()} wanted",
            reason="socket_path",
        )
    return Channel(path, sock, peer or None)


def _peer(sock: socket.socket) -> tuple[int, int]:
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid, _ = struct.unpack("3i", raw)
    return pid, uid


def ask(path: Path, op: str, timeout_s: float) -> tuple[Message, int | None]:
    """Ask one reserved question on a connection of its own; the reply and the pid.

    Raises Gone, Silent, ProtocolError, WorkerRequestError.
    """
    deadline = time.monotonic() + timeout_s
    channel = connect(path, timeout_s)
    try:
        channel.send({"op": op}, timeout_s)
        message = channel.next(deadline - time.monotonic())
    except TimeoutError:
        message = None
    finally:
        channel.close()
    if message is None:
        raise Silent(f"{path}: no answer to {op} in {timeout_s} s", channel.peer)
    return message, channel.peer


def refuse_unsafe(path: Path) -> None:
    """Raise WorkerRequestError (`socket_path`) where the path is not a socket's to take.

    A stale socket is: the worker renames its own over it.
    """
    with contextlib.suppress(FileNotFoundError):
        found = path.lstat()
        mine = found.st_uid == os.geteuid()
        if stat.S_ISSOCK(found.st_mode) and mine:
            return
        kind = "symlink" if stat.S_ISLNK(found.st_mode) else "file"
        kind = "socket" if stat.S_ISSOCK(found.st_mode) else kind
        raise WorkerRequestError(
            f"{path}: a {kind} of uid {found.st_uid} found, "
            f"nothing or a socket of uid {os.geteuid()} wanted",
            reason="socket_path",
        )


@dataclass(slots=True)
class Asked:
    """What is known of one request while it is away."""

    due: float
    """Monotonic time at which the caller stops waiting."""
    patience_s: float
    """How long the worker may show no progress."""
    sent: bool = False
    """Whether all of it is on its way."""
    position: int | None = None
    started: float | None = None
    """Monotonic time at which its prediction began; None: not begun."""
    looked: float = field(default_factory=time.monotonic)
    """When progress was last seen."""

    def left(self) -> float:
        """Give the seconds until the caller stops waiting."""
        return self.due - time.monotonic()

    def patience_left(self) -> float:
        """Give the seconds until the worker counts as stuck."""
        return self.looked + self.patience_s - time.monotonic()

    def wait_s(self) -> float:
        """Give the seconds until either is over."""
        return min(self.left(), self.patience_left())

    def over(self) -> Exception:
        """Say whose time is over: TimeoutError for the caller's, Stuck for the worker's."""
        return Stuck() if self.left() > 0 else TimeoutError()

    def note_read(self) -> None:
        """Take in that the worker read the request before it was lost.

        What it does not queue it begins at once, and it may tell that with the reply.
        """
        if self.sent and self.position is None:
            self.started = self.started or time.monotonic()

    def note(self, event: Message) -> None:
        """Take in an event."""
        self.looked = time.monotonic()
        if event.get("event") == "queued":
            self.position = event.get("position")
        elif event.get("event") == "started":
            self.started = self.looked


def listen(channel: Channel, asked: Asked, on_event: OnEvent | None) -> Message:
    """Wait for the reply to what was sent.

    Raises TimeoutError (the caller's time is over), Stuck (the worker's is), Gone,
    ProtocolError.
    """
    try:
        reply = channel.reply_at_once(time.monotonic() + asked.wait_s())
        if reply is not None:
            for event in _AT_ONCE:
                asked.note(event)
                if on_event is not None:
                    on_event(event.copy())
            return reply
        while True:
            message = channel.next(asked.wait_s())
            if message is None:
                raise TimeoutError
            if "event" not in message:
                return message
            asked.note(message)
            if on_event is not None:
                on_event(message)
    except TimeoutError:
        raise asked.over() from None
