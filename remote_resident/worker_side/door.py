"""The listening socket and its path: who can come in, and how the door is shut."""

# pathlib and contextlib would cost each start of a worker half the interpreter's own
# ruff: noqa: PTH101, PTH104, PTH108, PTH112, PTH118, PTH120

from __future__ import annotations

import _socket
import errno
import os
import sys

from . import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class Door:
    """The listening socket and its path: who can come in."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.listener: _socket.socket | None = None
        self._identity: tuple[int, int] | None = None

    def refuse_unusable(self) -> None:
        """Raise ProtocolError `socket_path` where nothing can be bound at the path."""
        size = len(os.fsencode(self.path))
        if size > protocol.MAX_PATH_BYTES:
            raise self._refusal(f"{size} bytes", f"at most {protocol.MAX_PATH_BYTES}")
        if not os.path.isdir(os.path.dirname(self.path)):
            raise self._refusal("no directory for it", "one")
        try:
            mode = os.lstat(self.path).st_mode >> 12
        except OSError:
            return
        if mode != 0o14:
            raise self._refusal("something that is no socket", "nothing or a socket")
        if self._somebody_listens():
            raise self._refusal("a socket that accepts", "nothing or a stale socket")

    def open(self) -> _socket.socket:
        """Listen, then take the path: a path that exists accepts."""
        self.refuse_unusable()
        listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        listener.setblocking(False)
        hidden = self._bind_hidden(listener)
        try:
            # nobody connects before it listens, whatever the umask let through
            os.chmod(hidden, 0o600)
            found = os.lstat(hidden)
            self._identity = (found.st_dev, found.st_ino)
            listener.listen(1024)
            os.rename(hidden, self.path)
        except OSError:
            os.unlink(hidden)
            raise
        self.listener = listener
        return listener

    def shut(self) -> Iterator[_socket.socket]:
        """Let nobody in any more, and yield all who already were."""
        self.remove_path()
        if self.listener is None:
            return
        try:
            self.listener.shutdown(_socket.SHUT_RD)
        except OSError:
            return
        yield from self.accepted()

    def accepted(self) -> Iterator[_socket.socket]:
        """Yield who waits to be let in; raises OSError where descriptors run out."""
        while self.listener is not None:
            try:
                fd, _ = self.listener._accept()  # type: ignore[attr-defined, unused-ignore]
            except OSError as exc:
                if exc.errno in (errno.EMFILE, errno.ENFILE):
                    raise
                return
            sock = _socket.socket(fileno=fd)
            sock.setblocking(False)
            yield sock

    def remove_path(self) -> None:
        """Unlink the path if what lies there is still our socket."""
        try:
            found = os.lstat(self.path)
            if (found.st_dev, found.st_ino) == self._identity:
                os.unlink(self.path)
        except OSError:
            pass

    def _bind_hidden(self, listener: _socket.socket) -> str:
        """Bind beside the path under a name that is no longer than its own."""
        directory, name = os.path.split(self.path)
        room = protocol.MAX_PATH_BYTES - len(os.fsencode(self.path)) + len(name)
        for _ in range(100):
            hidden = os.path.join(directory, ("." + os.urandom(4).hex())[:room])
            if room < 2:
                hidden = os.path.join(directory, os.urandom(1).hex()[:1])
            try:
                listener.bind(hidden)
                return hidden
            except OSError as exc:
                if exc.errno != errno.EADDRINUSE:
                    raise self._refusal(str(exc.strerror), "a place to bind") from None
        raise self._refusal("no free name beside it", "one")

    def _somebody_listens(self) -> bool:
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            sock.connect(self.path)
        except OSError as exc:
            return exc.errno == errno.EAGAIN
        finally:
            sock.close()
        return True

    def _refusal(self, found: str, wanted: str) -> RuntimeError:
        text = f"{self.path}: {found} found, {wanted} wanted"
        error: RuntimeError = protocol.ProtocolError(text, reason="socket_path")
        return error


def peer_uid(sock: _socket.socket) -> int:
    credentials = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], sys.byteorder)
