"""What is registered, and approved, of one endpoint: its fields and their digest."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from remote_resident import places
from remote_resident.errors import Problem, UsageError, summary
from remote_resident.manifest_rules import LONGEST_S, quoted, show

FIRST_PORT, LAST_PORT = 20000, 29999
CREDENTIALS = ("NVIDIA_API_KEY",)
"""The names of the families' credentials; a registration may name no other."""
START_TIMEOUT_S, STOP_TIMEOUT_S, TTL_S = 1800.0, 120.0, 0.0
LONGEST_SCRIPT = 256 * 1024
"""Characters; a person is asked to read it."""

_SUFFIX = "-service"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,54}-service")
_BARE = re.compile(r"[a-z0-9][a-z0-9_-]{0,54}")
_LOCAL = re.compile(r"http://127\.0\.0\.1:([0-9]{1,5})")
_REMOTE = re.compile(r"https://([^/?#@\\]+)(/[^#\\]*)?")
_AUTHORITY = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?")
_ROUTE = re.compile(r"/[!-~]*")
_SKILL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@:-]{0,127}")

Location = Literal["local", "remote"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One registration; every field is part of the digest that was approved."""

    name: str
    url: str
    credential: str
    skill: str | None = None
    """The runbook that wrote the scripts; None: not said."""
    start: str | None = None
    """The start script's text; None for a remote endpoint alone, as `stop`, `live`."""
    stop: str | None = None
    live: str | None = None
    """The readiness route, a path."""
    start_timeout_s: float = START_TIMEOUT_S
    stop_timeout_s: float = STOP_TIMEOUT_S
    ttl_s: float = TTL_S
    """How long it stays resident with nobody asking; 0: it stays."""
    vram_budget_gb: float | None = None
    """GiB; None: not declared, 0: takes none."""
    ram_budget_gb: float | None = None
    service_dir: str | None = None
    """The scripts' directory, absolute; None for a remote endpoint."""

    @classmethod
    def from_dict(cls, found: Mapping[str, object]) -> "Endpoint":
        """Read a registration; `service_dir` is the name's own where it is not given.

        Raises UsageError (`bad_request`) that lists every fault.
        """
        faults = list(_faults(found))
        if faults:
            raise _refusal(found.get("name"), faults)
        values = {key: value for key, value in found.items() if value is not None}
        for key in _SECONDS + _BUDGETS:
            if key in values:
                # 1800 and 1800.0 are one registration
                values[key] = float(values[key])  # type: ignore[arg-type]  # judged
        if str(values["url"]).startswith("http://"):
            values.setdefault("service_dir", str(service_dir(str(values["name"]))))
        return cls(**values)  # type: ignore[arg-type]  # judged above

    def as_dict(self) -> dict[str, Any]:
        """Give every field; `from_dict` gives the same endpoint back."""
        return asdict(self)

    @property
    def digest(self) -> str:
        """Give the SHA-256 of the exact bytes of all fields, 64 hex digits."""
        canonical = json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode("ascii")).hexdigest()

    @property
    def location(self) -> Location:
        """Say where it runs: local (this host, in mode local) or remote (mode url)."""
        return "local" if self.url.startswith("http://") else "remote"

    @property
    def port(self) -> int | None:
        """Give the port of a local endpoint; None for a remote one."""
        return urlsplit(self.url).port if self.location == "local" else None

    @property
    def authority(self) -> str:
        """Give the host of the URL, with its port where that is written."""
        return urlsplit(self.url).netloc


_SECONDS = ("start_timeout_s", "stop_timeout_s", "ttl_s")
_BUDGETS = ("vram_budget_gb", "ram_budget_gb")
_FIELDS = tuple(field.name for field in fields(Endpoint))
_TEXTS = tuple(name for name in _FIELDS if name not in _SECONDS + _BUDGETS)


def service_dir(name: str) -> Path:
    """Name the directory that the scripts of an endpoint have for themselves."""
    return places.cache_dir() / "services" / name


def name_fault(name: str) -> str | None:
    """Say what is wrong with an endpoint's name; None: nothing."""
    if _NAME.fullmatch(name):
        return None
    if _BARE.fullmatch(name) and not name.endswith(_SUFFIX):
        return f"{quoted(name)} found, {quoted(name + _SUFFIX)} wanted"
    return (
        f"{quoted(name)} found, <model>{_SUFFIX} wanted "
        "(lower-case letters, digits, - and _, at most 63 characters)"
    )


def host_fault(host: str) -> str | None:
    """Say what is wrong with the host that remote endpoints lie on; None: nothing."""
    if _AUTHORITY.fullmatch(host) and _port_of(host) is not None:
        return None
    return (
        f"{quoted(host)} found, a host's name in lower case wanted, with :PORT where "
        "it is not 443, and nothing else"
    )


def _port_of(authority: str) -> int | None:
    port = int(authority.partition(":")[2] or 443)
    return port if 0 < port < 65536 else None


def _faults(found: Mapping[str, object]) -> list[tuple[str, str]]:
    """Give each wrong field with what is wrong with it."""
    faults = [(key, "no such field") for key in found if key not in _FIELDS]
    faults += [fault for key in _TEXTS for fault in _text_faults(key, found.get(key))]
    faults += [fault for key in _SECONDS for fault in _seconds(key, found.get(key))]
    faults += [fault for key in _BUDGETS for fault in _budget(key, found.get(key))]
    wrong = {key for key, _ in faults}
    for key in ("name", "url", "credential"):
        if found.get(key) is None:
            faults.append((key, "missing"))
        elif key not in wrong:
            faults += [(key, text) for text in _JUDGES[key](str(found[key]))]
    url = found.get("url")
    if isinstance(url, str):
        faults += _by_location(found, local=not url.startswith("https:"))
    return faults


def _text_faults(key: str, value: object) -> list[tuple[str, str]]:
    if value is None:
        return []
    if not isinstance(value, str):
        return [(key, f"{show(value)} found, a string wanted")]
    if "\0" in value:
        return [(key, "a NUL character found, none wanted")]
    if len(value) > LONGEST_SCRIPT:
        found = f"{len(value)} characters found"
        return [(key, f"{found}, at most {LONGEST_SCRIPT} wanted")]
    if key == "skill" and not _SKILL.fullmatch(value):
        return [(key, f"{quoted(value)} found, a skill's name wanted")]
    if key == "live" and not _ROUTE.fullmatch(value):
        return [(key, f"{quoted(value)} found, a path that begins with / wanted")]
    if key == "service_dir" and not value.startswith("/"):
        return [(key, f"{quoted(value)} found, an absolute path wanted")]
    return []


def _number(value: object) -> float | None:
    # bool is an int; a very large int is no float
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _seconds(key: str, value: object) -> list[tuple[str, str]]:
    if value is None:
        return []
    number = _number(value)
    if key == "ttl_s":
        right, least = number is not None and number >= 0, "0 or more seconds"
    else:
        right, least = number is not None and number > 0, "seconds above 0"
    if right and number is not None and number <= LONGEST_S:
        return []
    wanted = f"{least} and at most {LONGEST_S} wanted"
    return [(key, f"{show(value)} found, {wanted}")]


def _budget(key: str, value: object) -> list[tuple[str, str]]:
    if value is None:
        return []
    number = _number(value)
    if number is not None and number >= 0:
        return []
    return [(key, f"{show(value)} found, 0 or more GiB wanted")]


def _name(name: str) -> list[str]:
    fault = name_fault(name)
    return [fault] if fault else []


def _credential(name: str) -> list[str]:
    if name in CREDENTIALS:
        return []
    return [f"{quoted(name)} found, {' or '.join(CREDENTIALS)} wanted"]


def _url(url: str) -> list[str]:
    if url.startswith("https:"):
        return _remote_url(url)
    wanted = f"http://127.0.0.1:PORT with a port from {FIRST_PORT} to {LAST_PORT}"
    local = _LOCAL.fullmatch(url)
    if local and FIRST_PORT <= int(local[1]) <= LAST_PORT:
        return []
    return [f"{quoted(url)} found, {wanted}, or https:// on the configured host wanted"]


def _remote_url(url: str) -> list[str]:
    remote = _REMOTE.fullmatch(url)
    printable = url.isascii() and url.isprintable() and " " not in url
    if remote and printable and host_fault(remote[1]) is None:
        return []
    return [f"{quoted(url)} found, https://HOST/PATH on the configured host wanted"]


_JUDGES = {"name": _name, "url": _url, "credential": _credential}


def _by_location(found: Mapping[str, object], *, local: bool) -> list[tuple[str, str]]:
    given = [key for key in ("start", "stop", "live") if found.get(key) is not None]
    if local:
        return [
            (key, "missing, wanted for an endpoint of this host")
            for key in ("start", "stop", "live")
            if key not in given
        ]
    return [
        (key, "found, none wanted for a remote endpoint")
        for key in (*given, *(k for k in ("service_dir",) if found.get(k)))
    ]


def _refusal(name: object, faults: list[tuple[str, str]]) -> UsageError:
    who = name if isinstance(name, str) and not name_fault(name) else "endpoint"
    problems = [
        Problem(
            step="runtime",
            reason="bad_request",
            text=f"{who}: {quoted(key)[1:-1]}: {text}",
            name=key,
        )
        for key, text in faults
    ]
    return UsageError(summary(problems), reason="bad_request", problems=problems)
