"""What this host remembers of its endpoints: settings, registrations, approvals.

Written by the host daemon alone, whole files at a time, each durable before its name
stands; read by anybody of this user. A damaged file is an error that names it: it is
neither taken for an empty one nor overwritten.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shlex import quote
from threading import RLock
from typing import Any, Literal

from remote_resident import places, whole_file
from remote_resident.endpoints.record import Endpoint, name_fault
from remote_resident.errors import ProviderError

Mode = Literal["local", "url"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How endpoints are connected."""

    mode: Mode | None = None
    """None: not connected."""
    host: str | None = None
    """The host, with its port, that remote endpoints lie on; None in mode local."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registrations:
    """What is registered, as read just now."""

    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    """By name, in the names' order."""
    damaged: dict[str, ProviderError] = field(default_factory=dict)
    """By name: registrations whose file cannot be believed, and why."""


class Store:
    """The files below `<state>/endpoints/`; safe between the threads of one process."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = places.state_dir() / "endpoints" if root is None else root
        self._lock = RLock()

    def settings(self) -> Settings:
        """Read the settings. Raises ProviderError (`unreadable`) for a damaged file."""
        path = self.root / "settings.json"
        found = _read(path)
        if found is None:
            return Settings()
        try:
            settings = Settings(**found)
        except TypeError as exc:
            raise _damaged(path, str(exc)) from None
        if settings.mode not in (None, "local", "url"):
            raise _damaged(path, f"mode {settings.mode!r}")
        return settings

    def connect(self, settings: Settings) -> None:
        """Keep how endpoints are connected."""
        _write(self.root / "settings.json", asdict(settings))

    def disconnect(self) -> None:
        """Forget how endpoints were connected; approvals are kept."""
        whole_file.remove(self.root / "settings.json")

    def registrations(self) -> Registrations:
        """Read every registration, damaged ones by themselves."""
        endpoints: dict[str, Endpoint] = {}
        damaged: dict[str, ProviderError] = {}
        for path in sorted((self.root / "registrations").glob("*.json")):
            name = path.name.removesuffix(".json")
            try:
                endpoint = self._registration(path, name)
            except ProviderError as exc:
                damaged[name] = exc
            else:
                if endpoint is not None:
                    endpoints[name] = endpoint
        return Registrations(endpoints=endpoints, damaged=damaged)

    def registration(self, name: str) -> Endpoint | None:
        """Read one registration; None: there is none.

        Raises ProviderError (`unreadable`) for a damaged one.
        """
        return self._registration(self.root / "registrations" / f"{name}.json", name)

    def register(self, endpoint: Endpoint) -> None:
        """Keep a registration, in the place of what the name had.

        Its bytes must have been approved: what was not is not believed when it is read.
        """
        path = self._file("registrations", endpoint.name)
        try:
            self._registration(path, endpoint.name)
        except ProviderError:
            _set_aside(path)
        _write(path, {"record": endpoint.as_dict(), "digest": endpoint.digest})

    def remove(self, name: str) -> None:
        """Forget a registration, a damaged one too; its approvals are kept."""
        whole_file.remove(self._file("registrations", name))
        whole_file.remove(self._file("notes", name))

    def approved(self, name: str, digest: str) -> bool:
        """Say whether these bytes were ever approved under this name."""
        return digest in self._approvals(name)

    def approve(self, name: str, digest: str) -> None:
        """Keep, for good, that these bytes were approved under this name."""
        with self._lock:
            known = self._approvals(name)
            if digest not in known:
                document = {"approved": {**known, digest: time.time()}}
                _write(self._file("approvals", name), document)

    def note(self, name: str) -> dict[str, Any] | None:
        """Read what the daemon noted of a name (what runs, why it failed); None: nothing.

        Raises ProviderError (`unreadable`) for a damaged file.
        """
        return _read(self._file("notes", name))

    def set_note(self, name: str, note: Mapping[str, object] | None) -> None:
        """Keep a note of the daemon's own, a JSON object; None forgets it."""
        path = self._file("notes", name)
        try:
            _read(path)
        except ProviderError:
            _set_aside(path)
        if note is None:
            whole_file.remove(path)
        else:
            _write(path, note)

    def _file(self, kind: str, name: str) -> Path:
        # a name is part of a path: whatever it is, it must not lead elsewhere
        if "/" in name or name.startswith(".") or "\0" in name or not name:
            raise ValueError(f"{name!r}: {name_fault(name)}")
        return self.root / kind / f"{name}.json"

    def _registration(self, path: Path, name: str) -> Endpoint | None:
        found = _read(path)
        if found is None:
            return None
        try:
            endpoint = Endpoint.from_dict(found["record"])
        except (KeyError, TypeError, AttributeError) as exc:
            raise _damaged(path, f"no registration ({exc})") from None
        except ProviderError as exc:
            raise _damaged(path, str(exc)) from None
        if endpoint.name != name:
            raise _damaged(path, f"the registration of {endpoint.name}")
        if not self.approved(name, endpoint.digest):
            raise _damaged(path, f"bytes that nobody approved ({endpoint.digest})")
        return endpoint

    def _approvals(self, name: str) -> dict[str, float]:
        path = self._file("approvals", name)
        found = _read(path)
        if found is None:
            return {}
        approved = found.get("approved")
        if not isinstance(approved, dict):
            raise _damaged(path, "no approvals")
        return approved


def _read(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None: no such file."""
    try:
        if path.exists() and not path.is_file():
            # a fifo would be waited for, a device read without end
            raise _damaged(path, "no plain file")
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise _damaged(path, exc.strerror or str(exc)) from None
    except (ValueError, RecursionError) as exc:
        raise _damaged(path, f"no JSON ({exc})") from None
    if not isinstance(found, dict):
        raise _damaged(path, f"a JSON {type(found).__name__}")
    return found


def _set_aside(path: Path) -> None:
    """Keep a damaged file: it is the evidence of what damaged it."""
    if not path.is_file():
        return
    try:
        path.replace(f"{path}.damaged")
    except OSError as exc:
        raise places.unwritable(path, exc) from exc


def _damaged(path: Path, found: str) -> ProviderError:
    name = quote(str(path))
    return ProviderError(
        f"{path}: {found} found, what this host wrote there wanted",
        reason="unreadable",
        next=f"mv {name} {name}.damaged",
    )


def _write(path: Path, document: Mapping[str, object]) -> None:
    """Put a JSON object in a file's place: all of it, durably, or nothing."""
    whole_file.write(path, json.dumps(document, indent=1, sort_keys=True).encode())
