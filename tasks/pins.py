"""What a lock says to whoever looks at an environment; `lock` reads the file itself."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from remote_resident.errors import Problem
    from remote_resident.readings import Readings
    from tasks.lock import Lock

Pinned = tuple[str, str, str]
"""Normalised name, version, and when it applies as a marker; empty: always."""


class Pins(NamedTuple):
    """A lock without fault, and without the digests that only an installer needs."""

    name: str
    digest: str
    """SHA-256 of the file's bytes."""
    pins: tuple[Pinned, ...]
    requires_python: str | None
    platforms: tuple[str, ...]
    installed_bytes: int | None
    recipe: tuple[str, ...]


def read(file: str, kept: "Readings") -> "tuple[Pins | None, list[Problem]]":
    """Give what a lock pins, from what is kept where it is known; else every fault."""
    known = kept.recall(file, "lock")
    if known is not None:
        return Pins(*known), []
    from remote_resident import readings
    from tasks import lock

    try:
        data, identity = readings.content(file, lock.MAX_BYTES)
    except (OSError, ValueError):
        return None, lock.problems(Path(file))
    whole = lock.parse_bytes(Path(file), data)
    if whole.problems:
        return None, list(whole.problems)
    found = of(whole)
    kept.note(file, identity, "lock", tuple(found))
    return found, []


def of(lock: "Lock") -> Pins:
    """Give the same of a lock that was read whole."""
    return Pins(
        name=lock.name,
        digest=lock.digest,
        pins=tuple((pin.name, pin.version, pin.marker) for pin in lock.pins),
        requires_python=lock.requires_python,
        platforms=lock.platforms,
        installed_bytes=lock.installed_bytes,
        recipe=lock.recipe,
    )
