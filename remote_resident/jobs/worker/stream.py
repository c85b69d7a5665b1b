"""A job's events as the body of one response; a coroutine, never a thread."""

from __future__ import annotations

import asyncio
import contextlib

from .asgi import Receive, Scope, Send
from .events import Events


class EventStream:
    """An ASGI response that gives what waits, then what comes, to the terminal event."""

    def __init__(
        self, events: Events, *, status: int, after: int, keepalive_s: float | None
    ) -> None:
        self._events = events
        self._status = status
        self._keepalive_s = keepalive_s
        self._bell = asyncio.Event()
        self._reader = events.attach(after, self._bell.set)
        self._gone = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watching = asyncio.ensure_future(self._watch(receive))
        headers = [(b"content-type", b"application/x-ndjson")]
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": self._status,
                    "headers": [*headers, (b"cache-control", b"no-store")],
                }
            )
            await self._send_events(send)
        finally:
            self._events.detach(self._reader)
            watching.cancel()

    async def _send_events(self, send: Send) -> None:
        while not self._gone:
            # before looking: what comes in between rings again
            self._bell.clear()
            chunk, last = self._events.take(self._reader)
            if not chunk and not last:
                chunk = await self._wait()
            if chunk or last:
                body = {"type": "http.response.body", "body": chunk}
                await send(body | {"more_body": not last})
            if last:
                return

    async def _wait(self) -> bytes:
        """Wait for more; after a while without any, give a ping."""
        if self._keepalive_s is None:
            await self._bell.wait()
            return b""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._bell.wait(), self._keepalive_s)
            return b""
        return self._events.ping(self._reader)

    async def _watch(self, receive: Receive) -> None:
        """Notice at once that the reader has left."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._events.detach(self._reader)
        self._bell.set()
