"""What a job was asked for: its params, for whom, and which paths stand for others."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

MOST_BYTES = 10 << 20
"""Length of the longest body that is read."""

_ALIASED = re.compile(r"<([A-Za-z0-9_.-]+)>(?=/|\Z)")
_TOKEN = re.compile(r"<?([A-Za-z0-9_.-]+)>?")


class Identity(dict[str, Any]):
    """Who asked, as far as the host said: keys, which can be read as attributes too.

    An attribute that the host did not say is None.
    """

    NAMES = ("user_id", "org_id", "project_id")

    def __getattr__(self, name: str) -> Any:
        if name not in self.NAMES:
            raise AttributeError(name)
        return self.get(name)


@dataclass(frozen=True)
class Request:
    """One job's body, taken apart."""

    params: dict[str, Any]
    identity: Identity = field(default_factory=Identity)
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Path by alias, for this job alone."""

    def resolve(self, url: str) -> str:
        """Put the path in the place of the alias that a text begins with.

        A text without one, and an alias that was not given, stay as they are.
        """
        found = _ALIASED.match(url)
        path = self.aliases.get(found[1]) if found else None
        if found is None or path is None:
            return url
        rest = url[found.end() :]
        return (path.rstrip("/") if rest else path) + rest


def request_of(body: bytes) -> Request:
    """Read a body; raises ValueError for one that is not a JSON object."""
    params = _object_of(body) if body else {}
    identity = params.pop("_identity", None)
    overrides = params.pop("_alias_overrides", None)
    return Request(params, _identity(identity), _aliases(overrides))


def _object_of(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as exc:
        raise ValueError(f"byte {exc.start} is not UTF-8, JSON wanted") from None
    except RecursionError:
        raise ValueError("too deeply nested") from None
    except ValueError as exc:
        raise ValueError(f"{exc}, a JSON object wanted") from None
    if not isinstance(value, dict):
        raise ValueError(f"{type(value).__name__} found, a JSON object wanted")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} found")


def _identity(said: object) -> Identity:
    if not isinstance(said, dict):
        return Identity()
    return Identity({name: said[name] for name in Identity.NAMES if name in said})


def _aliases(said: object) -> dict[str, str]:
    """Read the overrides; an entry that is malformed applies nothing."""
    if not isinstance(said, dict) or said.get("enabled") is not True:
        return {}
    entries = said.get("overrides")
    pairs = map(_alias, entries if isinstance(entries, list) else ())
    return dict(pair for pair in pairs if pair is not None)


def _alias(entry: object) -> tuple[str, str] | None:
    if not isinstance(entry, dict):
        return None
    token, path = entry.get("token"), entry.get("path")
    if not (isinstance(token, str) and isinstance(path, str)):
        return None
    name = _TOKEN.fullmatch(token)
    return (name[1], path) if name and path and "\0" not in path else None
