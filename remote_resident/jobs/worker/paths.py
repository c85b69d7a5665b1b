"""Job ids as they were typed in a path: refused here, before a route could trim them."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from .asgi import App, Receive, Scope, Send, refuse
from .ids import refused_id

_OF_A_JOB = ("run", "events", "cancel")


def refusing_ids(app: App) -> App:
    """Answer 400 where a path names a job that cannot be called that."""

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path") or scope["path"].encode()
        fault = _fault(raw.split(b"?")[0].split(b"/")[1:])
        if fault is None:
            await app(scope, receive, send)
        else:
            await refuse(send, 400, "bad_job_id", fault)

    return guard


def _fault(parts: list[bytes]) -> str | None:
    names = [unquote_to_bytes(part).decode("utf-8", "replace") for part in parts]
    if len(names) not in (2, 3) or names[0] != "jobs" or names[1:] == ["cancel-all"]:
        return None
    if len(names) == 3 and names[2] not in _OF_A_JOB:
        return None
    return refused_id(names[1])
