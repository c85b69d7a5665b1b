"""HTTP to a Unix socket, the asking half: one connection, one request, one answer."""

import contextlib
import json
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

ANSWER_LIMIT_BYTES = 64 * 2**20


class Cut(Exception):
    """An answer stopped before its end."""


class NoAnswer(Exception):
    """Nobody answers as asked: refused, cut, not in time, or no HTTP."""


class UnixConnection(HTTPConnection):
    """A connection to a socket by its path."""

    def __init__(self, path: Path, timeout_s: float | None = None) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect; raises OSError where nobody accepts."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(self.timeout)
            self.sock.connect(str(self._path))
        except BaseException:
            self.sock.close()
            self.sock = None
            raise

    def peer(self) -> int | None:
        """Give the pid of who accepts, by the kernel's word; None: not visible here."""
        raw = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid, uid, _ = struct.unpack("3i", raw)
        if uid != os.geteuid():
            raise PermissionError(f"answered by uid {uid}")
        return pid or None


@contextlib.contextmanager
def asked(
    connection: UnixConnection,
    method: str,
    route: str,
    body: Mapping[str, Any] | None = None,
) -> Iterator[HTTPResponse]:
    """Send a request and hold its answer until the block ends, then close all.

    Raises OSError and HTTPException.
    """
    content = None if body is None else json.dumps(body).encode()
    headers = {} if content is None else {"Content-Type": "application/json"}
    try:
        # an answer may stand there although not all was taken: a refusal
        with contextlib.suppress(BrokenPipeError):
            connection.request(method, route, content, headers)
        with connection.getresponse() as answer:
            yield answer
    finally:
        connection.close()


def lines(answer: HTTPResponse) -> Iterator[bytes]:
    """Yield each line of a chunked answer as it comes, without its end.

    Read by hand: the library takes a cut stream for one that ended. Raises Cut.
    """
    rest = b""
    while True:
        head = answer.fp.readline(64)
        if not head.endswith(b"\r\n"):
            raise Cut
        try:
            size = int(head, 16)
        except ValueError:
            raise Cut from None
        chunk = answer.fp.read(size + 2)
        if len(chunk) < size + 2:
            raise Cut
        if size == 0:
            return
        *whole, rest = (rest + chunk[:-2]).split(b"\n")
        yield from whole


def ask(
    path: Path,
    method: str,
    route: str,
    *,
    body: Mapping[str, Any] | None = None,
    timeout_s: float,
) -> tuple[int, Any]:
    """Ask once; give the status and the decoded JSON. Raises NoAnswer."""
    connection = UnixConnection(path, timeout_s)
    try:
        with asked(connection, method, route, body) as answer:
            return answer.status, json.loads(answer.read(ANSWER_LIMIT_BYTES))
    except (OSError, HTTPException, ValueError) as exc:
        raise NoAnswer(f"{path}: {str(exc) or type(exc).__name__}") from None
