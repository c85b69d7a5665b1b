"""Credentials taken out of what is written; imports little, for it starts often."""

from collections.abc import Iterable
from urllib.parse import quote as percent

HIDDEN = "[credential]"
"""What stands where a credential's value was."""


class Redaction:
    """Takes the values of credentials out of what is written, also across pieces."""

    def __init__(self, values: Iterable[str | None]) -> None:
        known = {value for value in values if value}
        spelled = known | {percent(value, safe="") for value in known}
        # as Python and JSON spell it between quotes
        doubled = {value.replace("\\", r"\\") for value in known}
        spelled |= doubled | {value.replace('"', r"\"") for value in doubled}
        # the longest first: one may be part of another
        self._secrets = sorted((s.encode() for s in spelled), key=len, reverse=True)
        self._held = b""

    def text(self, text: str) -> str:
        """Give a text without them."""
        for secret in self._secrets:
            text = text.replace(secret.decode(), HIDDEN)
        return text

    def feed(self, piece: bytes) -> bytes:
        """Give what can be written so far; what may be a credential's begin waits."""
        ready = self._without(self._held + piece)
        keep = self._begun(ready)
        self._held = ready[len(ready) - keep :]
        return ready[: len(ready) - keep]

    def end(self) -> bytes:
        """Give what still waits."""
        held, self._held = self._held, b""
        return held

    def _without(self, data: bytes) -> bytes:
        for secret in self._secrets:
            data = data.replace(secret, HIDDEN.encode())
        return data

    def _begun(self, data: bytes) -> int:
        longest = max(map(len, self._secrets), default=1) - 1
        for length in range(min(longest, len(data)), 0, -1):
            tail = data[len(data) - length :]
            if any(secret.startswith(tail) for secret in self._secrets):
                return length
        return 0
