"""Who is connected, and which thread watches whom."""

# contextlib would cost each start of a worker half the interpreter's own
# ruff: noqa: SIM105

from __future__ import annotations

import select

from . import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from typing import Any

STALLED_S = 10.0
"""How long a caller may leave its reply unread before its connection is closed."""


class Peer:
    """One connection."""

    __slots__ = ("call", "fd", "last_call", "lines", "sock")

    def __init__(self, sock: _socket.socket, limit: int) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.lines = protocol.Lines(limit)
        self.call: Any = None
        """The request that waits or runs; None: it is idle."""
        self.last_call: float | None = None
        """When its time to send a request is over; None: never."""

    def send(self, line: bytes) -> bool:
        """Send a line as fast as its reader takes it; False where nobody does."""
        try:
            sent = self.sock.send(line)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        return sent == len(line) or self._send_rest(memoryview(line)[sent:])

    def _send_rest(self, rest: memoryview) -> bool:
        writable = select.poll()
        writable.register(self.fd, select.POLLOUT)
        while rest:
            if not writable.poll(STALLED_S * 1000):
                return False
            try:
                rest = rest[self.sock.send(rest) :]
            except BlockingIOError:
                continue
            except OSError:
                return False
        return True

    def send_now(self, line: bytes) -> bool:
        """Send a short line without waiting; False where its reader does not take it."""
        try:
            return self.sock.send(line) == len(line)
        except OSError:
            return False


class Callers:
    """The open connections. Every method wants the worker's lock held.

    One side at a time watches a connection: `epoll` is the attendant's, `poll` the main
    thread's, which watches the one `kept` connection; none while its request runs.
    """

    def __init__(self) -> None:
        self.peers: dict[int, Peer] = {}
        self.kept: Peer | None = None
        self.epoll = select.epoll()
        self.poll = select.poll()

    def __contains__(self, peer: Peer) -> bool:
        return self.peers.get(peer.fd) is peer

    def add(self, peer: Peer) -> None:
        """Let the attendant watch a new connection."""
        self.peers[peer.fd] = peer
        self.epoll.register(peer.fd, select.EPOLLIN)

    def watch(self, peer: Peer, what: int) -> None:
        """Let the attendant watch for input, or with 0 for the hang-up only."""
        if peer is self.kept:
            self.give_back()
        try:
            self.epoll.modify(peer.fd, what)
        except FileNotFoundError:
            self.epoll.register(peer.fd, what)

    def unwatch(self, peer: Peer) -> None:
        """Let nobody watch a connection, whose request is about to run."""
        if peer is self.kept:
            # it stays kept: the main thread does not look while it works
            return
        self.give_back()
        self._forget(peer)

    def keep(self, peer: Peer) -> None:
        """Let the main thread watch the connection it has just answered."""
        if peer is not self.kept:
            self.kept = peer
            self.poll.register(peer.fd, select.POLLIN)

    def give_back(self) -> None:
        """Let the attendant watch the kept connection again."""
        peer, self.kept = self.kept, None
        if peer is not None:
            self.poll.unregister(peer.fd)
            self.epoll.register(peer.fd, select.EPOLLIN)

    def close(self, peer: Peer) -> None:
        """Close a connection."""
        if peer not in self:
            return
        if peer is self.kept:
            self.kept = None
            self.poll.unregister(peer.fd)
        else:
            self._forget(peer)
        del self.peers[peer.fd]
        try:
            peer.sock.close()
        except OSError:
            # the model closed it
            pass

    def _forget(self, peer: Peer) -> None:
        try:
            self.epoll.unregister(peer.fd)
        except OSError:
            # not watched: its request runs
            pass
