"""Who may ask: whoever sends the token, before anything else is looked at."""

from __future__ import annotations

import hmac

from .asgi import App, Receive, Scope, Send, refuse

MISSING = "authorization: no valid token found, Bearer <token> wanted"
CHALLENGE = (b"www-authenticate", b"Bearer")


def guarded(app: App, token: str | None) -> App:
    """Put the token before every route, unknown ones too; None: no token is needed."""
    if token is None:
        return app
    wanted = b"Bearer " + token.encode("ascii")

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        found = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(found) == 1 and hmac.compare_digest(found[0], wanted):
            await app(scope, receive, send)
        else:
            await refuse(send, 401, "unauthorized", MISSING, CHALLENGE)

    return guard
