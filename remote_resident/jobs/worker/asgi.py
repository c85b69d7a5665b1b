"""What the parts that speak ASGI by themselves share: its types, and a short answer."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


async def refuse(
    send: Send, status: int, reason: str, error: str, *headers: tuple[bytes, bytes]
) -> None:
    """Send a failure without having asked for the request's body."""
    body = json.dumps({"ok": False, "reason": reason, "error": error}).encode()
    length = str(len(body)).encode()
    sent = [(b"content-type", b"application/json"), (b"content-length", length)]
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [*sent, *headers],
        }
    )
    await send({"type": "http.response.body", "body": body})
