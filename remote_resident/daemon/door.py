"""HTTP on the daemon's socket: one thread per connection, nothing but the library."""

import contextlib
import json
import os
import select
import socket
import struct
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from socketserver import BaseServer, ThreadingMixIn
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from remote_resident.daemon import failures
from remote_resident.daemon.routes import Table, Unanswerable
from remote_resident.daemon.tenant import Answered, Lines, Reply, Request
from remote_resident.errors import ProviderError

BODY_LIMIT_BYTES = 10 * 2**20
_DRAIN_LIMIT_BYTES = 64 * 2**20
READ_S = 30.0
"""How long a client may take over the next part of its request."""
WRITE_S = 3600.0
"""How long a reader may leave a stream unread, suspended for instance."""
_NO_FD_S = 0.05


def tell(where: str, exc: BaseException | None = None) -> None:
    """Write to the log, a traceback too; a log that takes no more stops nothing."""
    told = "" if exc is None else "".join(traceback.format_exception(exc))
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{stamp} {where}\n{told}")
        sys.stderr.flush()


class Door(ThreadingMixIn, BaseServer):
    """Accepts, refuses other users, and gives each connection a thread."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, table: Table, log: str) -> None:
        super().__init__("daemon", Conversation)
        self.socket = listener
        self.table = table
        self.log = log

    def fileno(self) -> int:
        """Give the descriptor that is waited on."""
        return self.socket.fileno()

    def get_request(self) -> tuple[socket.socket, str]:
        """Accept one connection."""
        try:
            return self.socket.accept()[0], "a client"
        except OSError:
            # no descriptor is free: the connection waits in the kernel's queue
            time.sleep(_NO_FD_S)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Let in who has our uid, by the kernel's word."""
        raw = request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid, uid, _ = struct.unpack("3i", raw)
        if uid == os.geteuid():
            return True
        tell(f"refused uid {uid} (pid {pid}): uid {os.geteuid()} wanted")
        return False

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_WR)
        request.close()

    def server_close(self) -> None:
        """Close the listener."""
        super().server_close()
        self.socket.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Note what broke a connection; the others go on."""
        exc = sys.exception()
        if not isinstance(exc, OSError):
            tell("a connection broke", exc)


class Conversation(BaseHTTPRequestHandler):
    """One connection: requests one after the other until it is closed."""

    protocol_version = "HTTP/1.1"
    timeout = READ_S
    server: Door

    def setup(self) -> None:
        """Prepare the connection's files."""
        # the library asks for an address that a Unix socket has not
        self.client_address = ("local", 0)
        super().setup()

    def log_message(self, format: str, *args: Any) -> None:
        """Write no line for each request."""

    def send_error(
        self, code: int, message: str | None = None, explain: str | None = None
    ) -> None:
        """Refuse what is no request, in the shape of every other failure."""
        self.close_connection = True
        # to what is no request the library would answer without a status
        self.request_version = self.protocol_version
        self._send(code, _refusal("bad_request", message or f"status {code}"))

    def do_GET(self) -> None:
        """Answer."""
        self._answer()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - the library asks

    def _answer(self) -> None:
        url = urlsplit(self.path)
        try:
            body = self._body()
            handler, names = self.server.table.find(self.command, url.path)
            request = Request(
                method=self.command,
                path=url.path,
                names=names,
                query=dict(parse_qsl(url.query, keep_blank_values=True)),
                body=body,
            )
            self._deliver(handler(request))
        except Unanswerable as exc:
            self.close_connection |= exc.closes
            self._send(exc.status, _refusal(exc.reason, str(exc)))
        except ProviderError as exc:
            self._send(failures.status_of(exc), failures.document_of(exc))
        except _Left:
            self.close_connection = True
        except Exception as exc:  # a bug of ours ends one answer, not the daemon
            tell(f"{self.command} {url.path}", exc)
            self._send(failures.INTERNAL, failures.internal(exc, self.server.log))

    def _body(self) -> dict[str, Any]:
        """Read the body. Raises Unanswerable."""
        said = self.headers.get("Content-Length", "0").strip()
        if "Transfer-Encoding" in self.headers or not said.isdecimal():
            raise _no_request("a body without a length found, one with it wanted")
        length = int(said)
        if length > BODY_LIMIT_BYTES:
            self._drain(length)
            text = f"a body of {length} bytes found, at most {BODY_LIMIT_BYTES} wanted"
            raise Unanswerable(413, "too_large", text, closes=True)
        raw = self.rfile.read(length)
        if len(raw) < length:
            raise _no_request(f"{len(raw)} bytes found, {length} wanted")
        try:
            body = json.loads(raw) if raw.strip() else {}
        except (ValueError, RecursionError) as exc:
            raise _no_request(
                f"body: no JSON found ({exc}), an object wanted"
            ) from None
        if not isinstance(body, dict):
            kind = type(body).__name__
            raise _no_request(f"body: a JSON {kind} found, an object wanted")
        return body

    def _drain(self, length: int) -> None:
        """Read on and forget, so that who still sends can read the refusal."""
        left = min(length, _DRAIN_LIMIT_BYTES)
        with contextlib.suppress(OSError):
            while left > 0 and (got := self.rfile.read(min(left, 2**20))):
                left -= len(got)

    def _deliver(self, answered: Answered) -> None:
        if isinstance(answered, Lines):
            self._stream(answered.iterator)
        elif isinstance(answered, Reply):
            self._send(answered.status, answered.body)
        else:
            self._send(200, answered)

    def _send(self, status: int, document: Mapping[str, Any]) -> None:
        content = _encoded(document)
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)
            return
        self.close_connection = True

    def _stream(self, iterator: Iterator[Mapping[str, Any] | bytes | None]) -> None:
        """Send what comes, until the end of it or of the reader."""
        # one stream a connection: what follows in it would only be seen at its end
        self.close_connection = True
        close = getattr(iterator, "close", None)
        try:
            # before the status is sent: what is raised now still decides it
            first = next(iterator, _END)
            self.connection.settimeout(WRITE_S)
            self._headers()
            self._lines(first, iterator)
        finally:
            if close is not None:
                close()

    def _headers(self) -> None:
        try:
            self.send_response(200)
            self.send_header("Content-Type", "application/x-ndjson")
            self.send_header("Transfer-Encoding", "chunked")
            self.send_header("Connection", "close")
            self.end_headers()
        except OSError:
            raise _Left from None

    def _lines(self, first: Any, iterator: Iterator[Any]) -> None:
        item = first
        try:
            while item is not _END:
                if item is not None:
                    self._chunk(item if isinstance(item, bytes) else _encoded(item))
                elif self._has_left():
                    raise _Left
                item = next(iterator, _END)
        except _Left:
            raise
        except ProviderError as exc:
            self._failed(failures.status_of(exc), failures.document_of(exc))
        except Exception as exc:  # a bug of ours ends one stream, not the daemon
            tell(f"{self.command} {self.path}", exc)
            shape = failures.internal(exc, self.server.log)
            self._failed(failures.INTERNAL, shape)
        self._chunk(b"")

    def _failed(self, status: int, document: Mapping[str, Any]) -> None:
        self._chunk(_encoded({"failure": {"status": status, **document}}))

    def _chunk(self, content: bytes) -> None:
        try:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))
        except OSError:
            raise _Left from None

    def _has_left(self) -> bool:
        poll = select.poll()
        poll.register(self.connection, select.POLLRDHUP)
        found = poll.poll(0)
        return bool(found and found[0][1] & (select.POLLHUP | select.POLLERR))


_END: Any = object()


class _Left(Exception):
    """The reader is gone."""


def _no_request(text: str) -> Unanswerable:
    return Unanswerable(400, "bad_request", text, closes=True)


def _refusal(reason: str, text: str) -> dict[str, Any]:
    return failures.document_of(ProviderError(text, reason=reason))


def _encoded(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, default=str).encode() + b"\n"
