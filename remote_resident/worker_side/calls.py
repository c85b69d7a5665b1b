"""One request: what is wrong with it, when it is due, what its reply says."""

# pathlib would cost each start of a worker half the interpreter's own
# ruff: noqa: PTH117

from __future__ import annotations

import os
from time import monotonic

from . import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

OURS = frozenset(("id", "event", "_meter", "ok"))
"""What a reply has from the protocol and not from the model."""
DIED = "worker_died"
"""The reason of a reply after which its worker leaves; no model gives it."""
MOST_S = 2_000_000
"""Seconds that can be waited; over three weeks."""
TEXT_LIMIT = 20_000
"""Characters of an exception's text that a reply carries."""


class Call:
    """One request that the model is to answer."""

    __slots__ = ("answered", "due", "events", "payload", "peer", "received")

    def __init__(self, peer: Any, payload: dict[str, object]) -> None:
        self.peer = peer
        self.payload = payload
        self.received = monotonic()
        self.events = payload.get("events") is True
        self.answered = False
        self.due: float | None = None
        deadline = payload.get("deadline")
        if is_wait(deadline):
            self.due = self.received + deadline  # type: ignore[operator]

    def event(self, name: str, **fields: object) -> bytes:
        """Give the line of an event."""
        named = {"event": name, "id": self.payload.get("id"), **fields}
        line: bytes = protocol.encode_line(named)
        return line

    def late(self) -> dict[str, object]:
        """Build the reply to a request whose deadline has passed."""
        return refusal(
            f"deadline: {monotonic() - self.received} s since the request found, "
            f"at most {self.payload['deadline']} wanted",
            "request_timeout",
        )


def is_wait(value: object) -> bool:
    """Say whether a value is a number of seconds that can be waited."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 <= value <= MOST_S  # type: ignore[operator]


def fault_of(payload: dict[str, object], operations: Sequence[str]) -> str | None:
    """Say why a request is none that a worker takes; None: nothing is wrong."""
    op = payload.get("op")
    if not isinstance(op, str) or op not in operations:
        known = ", ".join((*operations, *protocol.RESERVED))
        return f"op: {op!r} found, one of {known} wanted"
    deadline = payload.get("deadline")
    if deadline is not None and not is_wait(deadline):
        shown = f"{deadline!r}"[:80]
        return f"deadline: {shown} found, seconds from 0 to {MOST_S} wanted"
    directory = payload.get("output_dir")
    if directory is None:
        return None
    if not isinstance(directory, str) or not _is_path(directory):
        return f"output_dir: {directory!r} found, an absolute path wanted"
    return None


def _is_path(text: str) -> bool:
    """Say whether a text is an absolute path that can be one of a file."""
    try:
        return os.path.isabs(text) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def refusal(error: str, reason: str) -> dict[str, object]:
    """Build a reply that says no."""
    return {"ok": False, "error": error, "reason": reason}


def failure(exc: BaseException) -> dict[str, object]:
    """Build the reply for what a prediction raised, with its own reason if it has one."""
    if not isinstance(exc, Exception):
        return refusal(text_of(exc), DIED)
    try:
        reason = getattr(exc, "reason", None)
    except Exception:  # the exception's own property
        reason = None
    if isinstance(reason, str) and _is_reason(reason) and reason != DIED:
        return refusal(text_of(exc), reason)
    return refusal(text_of(exc), "request_failed")


def text_of(exc: BaseException) -> str:
    """Name an exception in one line, whatever its own text does."""
    try:
        text = str(exc)
    except Exception:  # the exception's own __str__
        text = ""
    name = type(exc).__name__
    return (f"{name}: {text}" if text else name)[:TEXT_LIMIT]


def _is_reason(text: str) -> bool:
    """Match [a-z][a-z0-9_]* as a whole; `re` is not imported for it."""
    allowed = "abcdefghijklmnopqrstuvwxyz0123456789_"
    return "a" <= text[:1] <= "z" and all(c in allowed for c in text)


def checked(result: object) -> dict[str, object]:
    """Make a reply of what `predict` returned; raises TypeError where none can be."""
    if not isinstance(result, dict):
        found = type(result).__name__
        raise TypeError(f"predict returned a {found}, a dict wanted")
    if not OURS.isdisjoint(result):
        for key in ("id", "event", "_meter", "ok"):
            if key in result and (key != "ok" or result[key] is not True):
                raise TypeError(f"predict returned {key!r}, which is the protocol's")
    return {"ok": True, **result}


def exit_status(exc: BaseException) -> int:
    """Give the status that the interpreter would end with."""
    if isinstance(exc, SystemExit):
        code = exc.code
        if code is None or isinstance(code, int):
            return (code or 0) & 0xFF
        return 1
    return 130 if isinstance(exc, KeyboardInterrupt) else 1


def reply_line(
    reply: dict[str, object], payload: dict[str, object], meter: str, limit: int
) -> bytes:
    """Encode a reply; one that cannot be becomes the reason why."""
    end = f',"_meter":{meter}}}\n'
    if "id" in payload:
        reply["id"] = payload["id"]
    line: bytes
    try:
        line = protocol.bytes_of(protocol.text_of(reply)[:-1] + end, limit)
    except protocol.ProtocolError as exc:
        reason = "too_large" if exc.reason == "too_large" else "request_failed"
        instead = refusal(f"reply: {exc}", reason)
        if "id" in payload:
            instead["id"] = payload["id"]
        line = protocol.bytes_of(protocol.text_of(instead)[:-1] + end)
    return line
