"""The listening socket, on a path or on an address."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Callable
from pathlib import Path

from .beside import door, protocol


class Unusable(Exception):
    """Nothing can be bound there; the text says why."""


class Binding:
    """A listening socket, and what is left of it on disk."""

    def __init__(
        self, listener: socket.socket, where: str, remove: Callable[[], object]
    ) -> None:
        self.listener = listener
        self.where = where
        self.remove = remove
        """Take the path away, if what lies there is still ours."""

    @property
    def port(self) -> int | None:
        """The port; None on a Unix socket."""
        if self.listener.family == socket.AF_UNIX:
            return None
        return int(self.listener.getsockname()[1])


def on_path(path: Path) -> Binding:
    """Listen on a Unix socket that is this user's alone; raises Unusable."""
    place = door.Door(str(path))
    try:
        place.refuse_unusable()
        # who looked and found a stale socket takes the path before the next one looks
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            place.open()
        finally:
            os.close(folder)
    except protocol.ProtocolError as exc:
        raise Unusable(f"socket_path: {exc}") from None
    except OSError as exc:
        raise Unusable(f"socket_path: {path}: {exc.strerror}") from None
    assert place.listener is not None
    listener = socket.socket(fileno=place.listener.detach())
    return Binding(listener, str(path), place.remove_path)


def on_address(host: str, port: int) -> Binding:
    """Listen on an address; raises Unusable."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(found[0], socket.SOCK_STREAM)
        with contextlib.ExitStack() as undo:
            undo.callback(listener.close)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(found[4])
            listener.listen(1024)
            undo.pop_all()
    except OSError as exc:
        raise Unusable(f"{host}:{port}: {exc.strerror or exc}") from None
    address = listener.getsockname()
    return Binding(listener, f"{host}:{address[1]}", lambda: None)
