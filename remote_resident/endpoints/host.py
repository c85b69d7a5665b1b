"""What a program imports: `from remote_resident.endpoints import host`."""

import os
from pathlib import Path
from typing import Any

from remote_resident.endpoints import client, credentials
from remote_resident.endpoints.client import (
    CellResult,
    compute_provider,
    list_compute,
)
from remote_resident.endpoints.record import CREDENTIALS, LONGEST_SCRIPT


class ModelEndpoints:
    """Managed endpoints of this host."""

    def connect(
        self,
        mode: str,
        *,
        host: str | None = None,
        credential_file: str | os.PathLike[str] | None = None,
    ) -> dict[str, Any]:
        """Enable endpoints, `mode` local or url; see `client.connect`.

        `credential_file` holds the family's credential; None: it is kept already.
        """
        found = credential_file
        value = None if found is None else credentials.from_file(os.fspath(found))
        return client.connect(mode, host=host, credential=value)

    def disconnect(self) -> dict[str, Any]:
        """Stop every local service and remove every registration."""
        return client.disconnect()

    def free_port(self) -> int:
        """Give a port from 20000 to 29999: free, and reserved for ten minutes."""
        return client.free_port()

    def register(
        self, *, name: str, url: str, approve: str | None = None, **fields: Any
    ) -> dict[str, Any]:
        """Register an endpoint and give its row; `fields` as in `record.Endpoint`.

        `start` and `stop` are the scripts' text, or a Path to it. What was not approved
        before is shown and asked for at a terminal; without one `approve`, the digest
        of the card, is wanted: ProviderError (`not_approved`), the card in its problem.
        """
        for script in ("start", "stop"):
            if isinstance(fields.get(script), Path):
                fields[script] = script_text(fields[script])
        fields = {"credential": CREDENTIALS[0], **fields}
        return client.register({"name": name, "url": url, **fields}, approve=approve)

    def list(self) -> list[dict[str, Any]]:
        """Give the row of every endpoint."""
        return client.rows()

    def show(self, name: str) -> dict[str, Any]:
        """Give an endpoint's row."""
        return client.show(name)

    def stop(self, name: str, *, now: bool = False) -> dict[str, Any]:
        """Stop an endpoint's service; `now` ends the cell in hand."""
        return client.stop(name, now=now)

    def remove(self, name: str) -> dict[str, Any]:
        """Stop an endpoint's service and forget its registration."""
        return client.remove(name)


def script_text(path: Path) -> str:
    """Read a script as it is, line ends too. Raises UsageError (`bad_request`)."""
    from remote_resident.errors import UsageError

    try:
        with path.open("rb") as file:
            # a device may have no end
            found = file.read(LONGEST_SCRIPT + 1)
        if len(found) <= LONGEST_SCRIPT:
            return found.decode("utf-8")
        said = f"more than {LONGEST_SCRIPT} bytes"
    except OSError as exc:
        said = exc.strerror or str(exc)
    except UnicodeDecodeError as exc:
        said = f"byte {exc.object[exc.start]:#04x} at {exc.start}, which is no UTF-8,"
    raise UsageError(f"{path}: {said} found, a script wanted", reason="bad_request")


model_endpoints = ModelEndpoints()

connect = model_endpoints.connect
disconnect = model_endpoints.disconnect

__all__ = [
    "CellResult",
    "compute_provider",
    "connect",
    "disconnect",
    "list_compute",
    "model_endpoints",
]
