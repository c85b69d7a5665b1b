"""uvicorn, in a thread of its own, on a socket that is already bound."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import uvicorn

DRAIN_S = 5
"""How long streams may take to hand out their terminal event at the end."""


def server_of(app: Any) -> uvicorn.Server:
    """Configure a server for an ASGI application; it logs nothing by itself."""
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=DRAIN_S,
    )
    return uvicorn.Server(config)


def quieten() -> None:
    """Leave unsaid that streams are cut off whose readers do not read at the end."""
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)


async def serve(server: uvicorn.Server, listener: socket.socket) -> None:
    """Answer until `server.should_exit`, then until all streams have ended."""
    await server.serve(sockets=[listener])


def descriptors(server: uvicorn.Server, listener: socket.socket) -> list[int]:
    """List what the server holds open, for who forked and must not."""
    found = [listener.fileno()]
    for connection in list(server.server_state.connections):
        transport: asyncio.BaseTransport | None = getattr(connection, "transport", None)
        if transport is not None:
            found.append(transport.get_extra_info("socket").fileno())
    return [descriptor for descriptor in found if descriptor >= 0]
