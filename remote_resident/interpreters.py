"""What can be told of an interpreter from its layout, without starting it."""

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from remote_resident.readings import Readings

Settings = dict[str, str]


class Layout(NamedTuple):
    """Where an interpreter installs, as its place and its venv's file say."""

    prefix: str
    """The venv of its path, never what its symlink leads to; else its installation."""
    settings: Settings
    """What the pyvenv.cfg says; nothing: it is in no venv."""
    site: str | None
    """Its site-packages; None: not where they usually are."""


def look(python: str | Path, kept: "Readings | None" = None) -> Layout:
    """Look at an interpreter's place.

    Where there are several site-packages, it is the one of the version that the venv
    states.
    """
    python = os.fspath(python)
    venv, settings = _venv(python, kept)
    prefix = venv or os.path.dirname(os.path.dirname(python))  # noqa: PTH120
    stated = version(settings)
    if venv is not None and stated.startswith("3."):
        # the usual venv, without listing it: several would come to the same
        site = f"{prefix}/lib/python{stated}/site-packages"
        if os.access(site, os.F_OK):
            return Layout(prefix, settings, site)
    found = _sites(prefix)
    if venv is None:
        real = os.path.dirname(os.path.dirname(os.path.realpath(python)))  # noqa: PTH120
        found, prefix = found or _sites(real), real
    if len(found) > 1:
        name = f"/python{stated}/site-packages"
        found = [path for path in found if path.endswith(name)]
    return Layout(prefix, settings, found[0] if len(found) == 1 else None)


def settings(python: Path) -> Settings:
    """Read the pyvenv.cfg of a venv's python; nothing in it where it is none."""
    return _venv(os.fspath(python), None)[1]


def site_packages(python: Path, kept: "Readings | None" = None) -> Path | None:
    """Name the site-packages of an interpreter by its layout; None: not this layout."""
    found = look(python, kept).site
    return None if found is None else Path(found)


def _sites(prefix: str) -> list[str]:
    try:
        # listdir: one that is asked for each of a thousand providers
        names = os.listdir(f"{prefix}/lib")  # noqa: PTH208
    except OSError:
        return []
    paths = (
        f"{prefix}/lib/{n}/site-packages" for n in names if n.startswith("python3")
    )
    return [path for path in paths if os.access(path, os.F_OK)]


def version(found: Settings) -> str:
    """Give the version that a venv states, as in `3.11`; empty: it does not."""
    stated = found.get("version") or found.get("version_info") or ""
    return ".".join(stated.split(".")[:2])


def is_same(directory: str, other: str) -> bool:
    """Say whether two paths are one directory."""
    try:
        found = os.stat(directory)  # noqa: PTH116 - asked for each of many providers
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == _place(other)


@lru_cache(maxsize=4)
def _place(directory: str) -> tuple[int, int] | None:
    try:
        found = os.stat(directory)  # noqa: PTH116
    except OSError:
        return None
    return (found.st_dev, found.st_ino)


def _venv(python: str, kept: "Readings | None") -> tuple[str | None, Settings]:
    """Name the venv that an interpreter's path lies in, and what its file says."""
    beside = os.path.dirname(python)  # noqa: PTH120
    for folder in (beside, os.path.dirname(beside)):  # noqa: PTH120
        path = f"{folder}/pyvenv.cfg"
        known = None if kept is None else kept.recall(path, "venv")
        if known is not None:
            return folder, known
        if not os.access(path, os.F_OK):
            continue
        try:
            found = _read(path) if kept is None else kept.of(path, "venv", _parsed)
        except (OSError, ValueError):
            if os.path.isfile(path):  # noqa: PTH113
                return folder, {}
            continue
        return folder, found
    return None, {}


def _read(path: str) -> Settings:
    from remote_resident import readings

    return _parsed(readings.content(path)[0])


def _parsed(data: bytes) -> Settings:
    lines = data.decode("utf-8", "replace").splitlines()
    pairs = (line.partition("=") for line in lines)
    return {key.strip().lower(): value.strip() for key, _, value in pairs}
