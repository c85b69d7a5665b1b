"""What a model's interpreter and its site-packages show to whoever only looks.

Nothing is started where the files say enough.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from remote_resident import interpreters, places
from remote_resident.errors import Problem
from remote_resident.readings import Listing, listed
from tasks import pins as locked
from tasks.distributions import normalised

if TYPE_CHECKING:
    from remote_resident.interpreters import Layout
    from remote_resident.manifest import ProviderManifest
    from remote_resident.readings import Readings
    from tasks.lock import Lock
    from tasks.pins import Pinned, Pins

STEP = "environment"
PROBE_LIMIT_S = 15.0
"""An external probe that has not answered by then is a named problem."""
HALF = " half installed"
"""Follows the version of what an installer was cut off in."""


class Site(NamedTuple):
    """What an environment's site-packages shows."""

    layout: "Layout | None"
    """None: there is no interpreter."""
    versions: Mapping[str, list[str]]
    """By normalised name."""
    plain: bool
    """Whether all in it is in the usual layout."""


NOTHING = Site(None, {}, False)


def lock_path(provider: "ProviderManifest") -> Path:
    """Name the lock file of a provider that declares one; it need not be there."""
    path = provider.lock_path()
    assert path is not None
    return path


def read_lock(
    provider: "ProviderManifest", step: str = STEP
) -> tuple["Lock | None", list[Problem]]:
    """Give the provider's lock whole, or None and why it cannot be used."""
    from tasks import lock

    path = lock_path(provider)
    found = of_step(step, lock.problems(path))
    return (None, found) if found else (lock.parse(path), [])


def read_pins(
    provider: "ProviderManifest", step: str = STEP
) -> tuple["Pins | None", list[Problem]]:
    """Do what `read_lock` does, for whoever only looks."""
    file = provider.lock_file()
    assert file is not None
    pins, found = locked.read(file, provider.readings)
    return pins, of_step(step, found)


def of_step(step: str, found: list[Problem]) -> list[Problem]:
    """Give problems as those of a step."""
    if not found:
        return found
    from dataclasses import replace

    return [replace(problem, step=step) for problem in found]


# -- the interpreter ------------------------------------------------------------------


def interpreter(
    provider: "ProviderManifest", step: str, layout: "Layout | None" = None
) -> tuple[Path | None, list[Problem]]:
    """Give the declared interpreter, and why it is not to be used.

    `python_unset` and `python_missing` come with None; `python_is_ours`, where a lock
    is declared, with the interpreter. `layout`: as seen already.
    """
    python, found = interpreter_file(provider, step, layout)
    return None if python is None else Path(python), found


def interpreter_file(
    provider: "ProviderManifest", step: str, layout: "Layout | None" = None
) -> tuple[str | None, list[Problem]]:
    """Give the same with its path as text, for whoever asks it of many providers."""
    python = provider.python_file()
    if python is None:
        made = _made_at(provider)
        absent = f"not set and no environment at {made}" if made else "not set"
        text = f"{absent} found, an interpreter wanted"
        return None, [_python_problem(provider, step, "python_unset", text, None)]
    if not (os.path.isfile(python) and os.access(python, os.X_OK)):  # noqa: PTH113
        there = "a file that cannot be run" if Path(python).exists() else "no file"
        text = f"{python}: {there} found, an interpreter wanted"
        return None, [_python_problem(provider, step, "python_missing", text, python)]
    if provider.env_lock is not None and is_ours(python, provider.readings, layout):
        text = (
            f"{python}: the interpreter that this tool runs in found, "
            "one of the model's own wanted"
        )
        return python, [_python_problem(provider, step, "python_is_ours", text, python)]
    return python, []


def _python_problem(
    provider: "ProviderManifest",
    step: str,
    reason: str,
    text: str,
    python: str | None,
) -> Problem:
    variable = provider.python_variable()
    by_hand = f"export {variable}=/path/to/its/python" if variable else None
    return Problem(
        step=step,
        reason=reason,
        text=f"{provider.slug}: [env] python = {provider.env_python!r}: {text}",
        path=python,
        name=provider.env_python,
        next=f"doit env:{provider.slug}" if provider.env_lock else by_hand,
    )


def _made_at(provider: "ProviderManifest") -> Path | None:
    """Name where `doit env:` makes the environment; None without a readable lock."""
    path = provider.lock_path()
    if path is None:
        return None
    with suppress(OSError):
        return places.env_dir(path.stem, provider.readings.digest(str(path)))
    return None


def is_ours(
    python: str | Path, kept: "Readings | None" = None, layout: "Layout | None" = None
) -> bool:
    """Say whether an interpreter installs where this tool is installed."""
    layout = layout or interpreters.look(python, kept)
    return interpreters.is_same(layout.prefix, sys.prefix)


# -- what is installed ----------------------------------------------------------------


def see(python: "str | Path", kept: "Readings | None" = None) -> Site:
    """Look at an environment's site-packages."""
    layout = interpreters.look(python, kept)
    found = read_site(layout.site, kept) if layout.site else ({}, False)
    return Site(layout, *found)


def compare(pins: "Pins", python: Path, slug: str) -> list[Problem]:
    """Name every pin that is missing or at another version.

    A venv's site-packages is read without starting its python. Where it may not be all
    that the interpreter sees (no venv, system packages, eggs), and a pin is not found
    there, the interpreter is asked.
    """
    return differing(pins, python, slug, see(python))


def differing(pins: "Pins", python: str | Path, slug: str, site: Site) -> list[Problem]:
    path = site.layout.site if site.layout else None
    wanted = [pin for pin in pins.pins if not pin[2] or _applies(pin, path)]
    where = path or str(python)
    found = list(_differences(wanted, site.versions, slug, where))
    if not found or (site.plain and _is_alone(Path(python))):
        return found
    asked = _ask_installed(Path(python))
    if isinstance(asked, str):
        return [probe_problem(STEP, str(python), asked, "python_missing")]
    return list(_differences(wanted, {**site.versions, **asked}, slug, where))


def _is_alone(python: Path) -> bool:
    shared = interpreters.settings(python).get("include-system-site-packages", "true")
    return shared.lower() == "false"


def read_site(
    site: str | Path, kept: "Readings | None" = None
) -> tuple[dict[str, list[str]], bool]:
    """Give the versions by normalised name, and whether all is in the usual layout.

    An unreadable directory has nothing, and is not the usual layout. `kept`: what it
    listed before.
    """
    try:
        if kept is None:
            said = _said(listed(f"{site}")[0])
        else:
            said = kept.of_listing(f"{site}", "distributions", _said)
    except OSError:
        return {}, False
    versions, folders, plain = said
    # asked each time: an installer that was cut off leaves this behind within
    whole = [os.access(f"{site}/{folder}/INSTALLER", os.F_OK) for folder in folders]
    return (versions if all(whole) else _torn(folders, whole)), plain


_Said = tuple[dict[str, list[str]], tuple[str, ...], bool]
"""Versions by normalised name, the folders that say so, and whether these are all."""


def _said(listing: Listing) -> _Said:
    """Say what the names in a site-packages mean."""
    folders, plain = [], True
    for entry, _ in listing:
        kind = entry.rpartition(".")[2]
        if kind == "dist-info" and not entry.startswith("~"):
            folders.append(entry)
        elif kind in ("egg-info", "egg-link", "egg"):
            plain = False
    return _torn(folders, [True] * len(folders)), tuple(folders), plain


def _torn(folders: Iterable[str], whole: Iterable[bool]) -> dict[str, list[str]]:
    """Give the versions that folders name; INSTALLER is among an installer's last files."""
    found: dict[str, list[str]] = {}
    for folder, complete in zip(folders, whole, strict=True):
        name, _, version = folder.removesuffix(".dist-info").rpartition("-")
        found.setdefault(normalised(name), []).append(
            version if complete else version + HALF
        )
    return found


def _differences(
    wanted: Iterable["Pinned"],
    installed: Mapping[str, list[str]],
    slug: str,
    where: str,
) -> Iterator[Problem]:
    for name, version, _ in wanted:
        versions = installed.get(name, [])
        if versions == [version]:
            continue
        if len(versions) == 1 and same_version(version, versions[0]):
            continue
        found = " and ".join(sorted(versions)) or None
        yield Problem(
            step=STEP,
            reason="lock_unsatisfied",
            text=f"{where}: {name}: {found or 'nothing'} found, {version} wanted",
            path=where,
            name=name,
            wanted=version,
            found=found,
            next=f"doit setup:{slug}",
        )


def same_version(wanted: str, found: str) -> bool:
    """Compare as `==` of PEP 440: a local version is accepted where none is wanted."""
    if wanted == found or found.startswith(f"{wanted}+"):
        return True
    from packaging.version import InvalidVersion, Version

    try:
        pin, there = Version(wanted), Version(found)
    except InvalidVersion:
        return False
    return pin == there or (pin.local is None and pin == Version(there.public))


def _applies(pin: "Pinned", site: str | None) -> bool:
    *_, marker = pin
    import re

    from packaging.markers import InvalidMarker, Marker

    known = re.search(r"python(\d+\.\d+)/site-packages$", str(site))
    environment = {"extra": ""}
    if known:
        environment |= {"python_version": known[1], "python_full_version": known[1]}
    try:
        return Marker(marker).evaluate(environment)
    except InvalidMarker:
        return True


_LIST_INSTALLED = """\
import importlib.metadata as m
for d in m.distributions():
    print("%s==%s" % (d.metadata["Name"], d.version))
"""


def _ask_installed(python: Path) -> dict[str, list[str]] | str:
    """Ask an interpreter for its distributions; a str says why there is no answer."""
    answer = ask([str(python), "-I", "-c", _LIST_INSTALLED])
    if isinstance(answer, str):
        return answer
    installed: dict[str, list[str]] = {}
    for line in answer:
        name, _, version = line.strip().partition("==")
        # the first on the path is the one that is imported
        installed.setdefault(normalised(name), [version])
    return installed


# -- probes ---------------------------------------------------------------------------


def ask(argv: list[str], *, limit_s: float = PROBE_LIMIT_S) -> list[str] | str:
    """Give the lines that a program prints; a str says why there are none.

    It is ended with everything it started when it has not answered in time.
    """
    from tasks import child

    lines, ended = child.collected(child.run(argv, env=os.environ, timeout_s=limit_s))
    if ended.timed_out:
        return f"no answer in {limit_s:g} s"
    if ended.returncode != 0:
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f"exit {ended.returncode}" + (f" ({last.strip()})" if last else "")
    return lines


def probe_problem(step: str, what: str, found: str, reason: str) -> Problem:
    """Build the problem of a probe of which `ask` said `found`.

    `reason` is for one that ended by itself; no answer in time is `probe_timeout`.
    """
    late = found.startswith("no answer")
    return Problem(
        step=step,
        reason="probe_timeout" if late else reason,
        text=f"{what}: {found} found, an answer wanted",
        path=what,
    )
