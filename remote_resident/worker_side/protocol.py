"""The worker's protocol: one JSON object per line, UTF-8, over a Unix socket.

Both sides use this file; the worker's side loads it by path, under Python 3.8 or later,
which is why it imports nothing of ours and as little as it can of the library.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable
    from typing import Any

VERSION = 1
"""What `ping` answers; a change that an older side would misread raises it."""

RESERVED = ("ping", "stop", "stacks")
"""Operations that every worker answers, also while a prediction runs."""

REASONS = (
    "bad_request",
    "protocol_error",
    "queue_full",
    "request_failed",
    "request_timeout",
    "socket_path",
    "stopping",
    "too_large",
    "unauthorized",
    "worker_died",
)
"""Every reason that the worker's side gives of its own."""

MAX_LINE_BYTES = 64 << 20
MAX_PATH_BYTES = 107
"""What the kernel takes as the path of a Unix socket, less its closing zero."""

# a receive of 256 KiB allocates as much each time and takes 2.4 times as long
CHUNK_BYTES = 65536


class ProtocolError(RuntimeError):
    """What came, or was to be sent, is not the protocol.

    `reason` is `protocol_error`, `too_large`, `socket_path`, or `bad_request` for a
    payload that JSON cannot hold; `received` counts the bytes of the message that had
    arrived, None on the sending side.
    """

    next: str | None = None

    def __init__(
        self,
        message: str,
        *,
        reason: str = "protocol_error",
        received: int | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.received = received


def _unserialisable(value: object) -> object:
    raise TypeError(f"{type(value).__name__} is not JSON")


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


class _Reading:
    """What the library's C scanner wants to be told."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_refuse_constant)


def _codec() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Give JSON's encoder (value, level -> texts) and scanner (text, index -> pair).

    The library's own accelerator, without the package around it: that costs as much
    at start as the interpreter itself. Where it is shaped otherwise, the package.
    """
    try:
        import _json

        encode: Callable[..., Any] = _json.make_encoder(
            None,
            _unserialisable,
            _json.encode_basestring_ascii,  # type: ignore[attr-defined, unused-ignore]
            None,
            ":",
            ",",
            False,
            False,
            False,
        )
        scan: Callable[..., Any] = _json.make_scanner(_Reading())  # type: ignore[arg-type, unused-ignore]
        if "".join(encode({"a": 1}, 0)) == '{"a":1}' and scan("[1]", 0) == ([1], 3):
            return encode, scan
    except (ImportError, AttributeError, TypeError):
        pass
    return _slow_codec()


def _slow_codec() -> tuple[Callable[..., Any], Callable[..., Any]]:
    import json

    encoder = json.JSONEncoder(
        allow_nan=False, separators=(",", ":"), default=_unserialisable
    )
    decoder = json.JSONDecoder(parse_constant=_refuse_constant)
    # set by its __init__: the text and an index in, the value and its end out
    scan = vars(decoder)["scan_once"]
    return (lambda value, _level: [encoder.encode(value)]), scan


_encode, _scan = _codec()

AT_ONCE = b'{"event":"queued","id":null,"position":0}\n{"event":"started","id":null}\n'
"""What a worker tells of a request without an id that it begins at once."""

_FREQUENT: dict[bytes, dict[str, object]] = {
    AT_ONCE[:42]: {"event": "queued", "id": None, "position": 0},
    AT_ONCE[:41]: {"event": "queued", "id": None, "position": 0},
    AT_ONCE[42:]: {"event": "started", "id": None},
    AT_ONCE[42:-1]: {"event": "started", "id": None},
}
"""Lines that come with nearly every reply, with and without their newline."""


def encode_line(payload: dict[str, object], limit: int = MAX_LINE_BYTES) -> bytes:
    """Give the message's bytes, its newline included.

    Raises ProtocolError: `bad_request` naming the key whose value JSON cannot hold
    (NaN and infinities too), `too_large` over the limit.
    """
    return bytes_of(text_of(payload) + "\n", limit)


def text_of(payload: dict[str, object]) -> str:
    """Give a message's JSON, in ASCII; raises ProtocolError `bad_request`."""
    try:
        return "".join(_encode(payload, 0))
    except (TypeError, ValueError, RecursionError) as exc:
        raise ProtocolError(
            _first_unserialisable(payload) or f"message: {exc}", reason="bad_request"
        ) from None


def bytes_of(text: str, limit: int = MAX_LINE_BYTES) -> bytes:
    """Give the bytes of a line; raises ProtocolError `too_large` over the limit."""
    # escapes stand for all else: a path that is no UTF-8 comes through as well
    line = text.encode("ascii")
    if len(line) - 1 > limit:
        raise ProtocolError(
            f"message: {len(line) - 1} bytes found, at most {limit} wanted; "
            f"send large data as paths",
            reason="too_large",
        )
    return line


def decode_line(line: bytes) -> dict[str, object]:
    """Read one message from its bytes, with or without its newline.

    Raises ProtocolError with the count of bytes.
    """
    # a long line is not to be hashed for it
    frequent = _FREQUENT.get(line) if len(line) < len(AT_ONCE) else None
    if frequent is not None:
        return frequent.copy()
    try:
        text = line.decode()
        if text[:1] != "{":
            text = text.lstrip(" \t\r\n")
        value, end = _scan(text, 0)
    except UnicodeDecodeError as exc:
        raise _not_one(line, f"byte 0x{line[exc.start]:02x} at {exc.start}") from None
    except StopIteration as exc:
        raise _not_one(line, f"no value at {exc.value}") from None
    except (ValueError, RecursionError) as exc:
        raise _not_one(line, str(exc)) from None
    if end < len(text) and text[end:].strip(" \t\r\n"):
        raise _not_one(line, f"more after its end at {end}")
    if not isinstance(value, dict):
        raise _not_one(line, f"a {type(value).__name__}")
    return value


def send_line(
    sock: _socket.socket, payload: dict[str, object], limit: int = MAX_LINE_BYTES
) -> None:
    """Send one message on a blocking socket; raises as `encode_line` before any byte."""
    sock.sendall(encode_line(payload, limit))


def recv_line(
    sock: _socket.socket, buf: bytearray, limit: int = MAX_LINE_BYTES
) -> dict[str, object] | None:
    """Receive one message; None where the peer ended between messages.

    `buf` keeps what was read past the newline and belongs to the connection. Raises
    ProtocolError: `too_large` before the line is all in memory, `protocol_error` for
    an end inside a line or a line that is not one JSON object; the connection is then
    of no further use.
    """
    parts: list[bytes] = []
    size = 0
    if buf:
        cut = buf.find(b"\n")
        head = bytes(buf) if cut < 0 else bytes(buf[:cut])
        size = len(head)
        if cut >= 0:
            del buf[: cut + 1]
            _refuse_longer(size, limit)
            return decode_line(head)
        buf.clear()
        parts.append(head)
    while True:
        _refuse_longer(size, limit)
        chunk = sock.recv(CHUNK_BYTES)
        cut = chunk.find(b"\n")
        if cut >= 0:
            break
        if not chunk:
            if not size:
                return None
            raise _ended_inside(size)
        parts.append(chunk)
        size += len(chunk)
    _refuse_longer(size + cut, limit)
    if cut + 1 < len(chunk):
        buf += chunk[cut + 1 :]
        chunk = chunk[: cut + 1]
    if not parts:
        return decode_line(chunk)
    parts.append(chunk)
    return decode_line(b"".join(parts))


class Lines:
    """Cut what arrives on one non-blocking connection into lines."""

    __slots__ = ("_limit", "_parts", "_rest", "_size", "_skipping")

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._rest = b""
        self._skipping = False

    @property
    def size(self) -> int:
        """Count the bytes of the line that has not ended yet."""
        return self._size + len(self._rest)

    def feed(self, chunk: bytes) -> bytes | None:
        """Add what was received; gives the line at once where it is exactly one."""
        if (
            not self._size
            and not self._rest
            and not self._skipping
            and chunk.find(b"\n") == len(chunk) - 1 < self._limit
        ):
            return chunk
        self._rest += chunk
        return None

    def take(self) -> bytes | None:
        """Give the next whole line with its newline, None where more must arrive.

        Raises ProtocolError `too_large` once for a line over the limit; the rest of
        that line is dropped as it arrives, and the next line is read as ever.
        """
        while self._rest:
            line, newline, rest = self._rest.partition(b"\n")
            self._rest = rest
            if self._skipping:
                self._skipping = not newline
                continue
            self._size += len(line)
            if self._size > self._limit:
                self._skipping = not newline
                self._refuse()
            self._parts.append(line)
            if newline:
                self._parts.append(newline)
                return self._joined()
        return None

    def _joined(self) -> bytes:
        line = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        return line

    def _refuse(self) -> None:
        size = self._size
        self._parts.clear()
        self._size = 0
        _refuse_longer(size, self._limit)


def socket_path(
    slug: str,
    tree: str | os.PathLike[str],
    runtime_dir: str | os.PathLike[str] | None = None,
) -> str:
    """Name the socket of a provider's worker: `<slug>-<8 hex of the tree's path>.sock`.

    `runtime_dir` None: the usual one of this user, which is not looked at. A name that
    would not fit into 107 bytes has its slug cut and a hash of it appended. Raises
    ProtocolError `socket_path` where the directory alone leaves no room.
    """
    if runtime_dir is None:
        runtime_dir = _runtime_dir()
    directory = os.fsencode(runtime_dir).rstrip(b"/") + b"/"
    end = f"-{_digest(os.path.realpath(os.fsencode(tree)), 8)}.sock"
    room = MAX_PATH_BYTES - len(directory) - len(end)
    name = os.fsencode(slug)
    if len(name) > room:
        mark = _digest(name, 12).encode()
        if room < len(mark):
            raise ProtocolError(
                f"{os.fspath(runtime_dir)}: {len(directory)} bytes found, at most "
                f"{len(directory) + room - len(mark)} wanted, for a socket's path "
                f"has {MAX_PATH_BYTES}",
                reason="socket_path",
            )
        kept = name[: max(0, room - len(mark) - 1)]
        name = kept + b"-" + mark if kept else mark
    return os.fsdecode(directory + name + end.encode())


def _runtime_dir() -> str:
    """Name the directory of sockets by the rule of `places`, which is not to be had here."""
    home = os.environ.get("TU_REMOTE_HOME")
    if home:
        return home.rstrip("/") + "/run"
    names = {"XDG_RUNTIME_DIR": "tu-remote"}
    names.update(dict.fromkeys(("TMPDIR", "TEMP", "TMP"), f"tu-remote-{os.geteuid()}"))
    for name, folder in names.items():
        above = os.environ.get(name, "")
        if above[:1] == "/":
            return above.rstrip("/") + "/" + folder
    return f"/tmp/tu-remote-{os.geteuid()}"


def _digest(value: bytes, digits: int) -> str:
    import hashlib

    return hashlib.sha256(value).hexdigest()[:digits]


def _refuse_longer(size: int, limit: int) -> None:
    if size > limit:
        raise ProtocolError(
            f"message: over {limit} bytes found ({size} had arrived), at most {limit} "
            f"wanted; send large data as paths",
            reason="too_large",
            received=size,
        )


def _ended_inside(size: int) -> ProtocolError:
    return ProtocolError(
        f"message: its end after {size} bytes found, a newline wanted", received=size
    )


def _not_one(line: bytes, found: str) -> ProtocolError:
    return ProtocolError(
        f"message of {len(line)} bytes: {found} found, one JSON object wanted",
        received=len(line),
    )


def _first_unserialisable(payload: object) -> str | None:
    """Say where in a payload the first value is that JSON cannot hold."""
    waiting: list[tuple[str, object, tuple[int, ...]]] = [("", payload, ())]
    while waiting:
        path, value, above = waiting.pop()
        fault = "a value that contains itself" if id(value) in above else _fault(value)
        if fault:
            return f"{path or 'message'}: {fault} found, a JSON value wanted"
        within = (*above, id(value))
        waiting.extend((name, child, within) for name, child in _children(path, value))
    return None


def _children(path: str, value: object) -> list[tuple[str, object]]:
    """Name what a container holds, the first last."""
    if isinstance(value, dict):
        dot = f"{path}." if path else ""
        return [(f"{dot}{key}", child) for key, child in value.items()][::-1]
    if isinstance(value, (list, tuple)):
        return [(f"{path}[{i}]", child) for i, child in enumerate(value)][::-1]
    return []


def _fault(value: object) -> str:
    if isinstance(value, float):
        if value != value:
            return "NaN"
        infinite = value in (float("inf"), float("-inf"))
        return "" if not infinite else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        keys = (key for key in value if not isinstance(key, (str, int, float)))
        wrong = next((key for key in keys if key is not None), None)
        return "" if wrong is None else f"a key that is a {type(wrong).__name__}"
    sound = value is None or isinstance(value, (str, int, list, tuple))
    return "" if sound else f"a {type(value).__name__}"
