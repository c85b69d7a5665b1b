"""The environment step: the model's interpreter has what its lock pins."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from remote_resident import interpreters, places
from remote_resident.errors import ExecEnvironmentError, Problem
from tasks import pins as locked
from tasks.step import Making, StepResult, failed, refused

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


def problems(
    provider: "ProviderManifest", *, site: Site | None = None
) -> list[Problem]:
    """Compare what is installed with the lock, or look for the declared image.

    A provider without a lock has no problem here: its interpreter is used as it is.
    `site`: what was seen of it already.
    """
    if provider.env_kind != "venv":
        return _image_problems(provider)
    if provider.env_lock is None:
        return []
    pins, found = read_pins(provider)
    if pins is None:
        return found
    python, found = interpreter(provider, STEP, site.layout if site else None)
    if python is None or found:
        return found
    site = see(python, provider.readings) if site is None else site
    return _compare(pins, python, provider.slug, site)


def make(provider: "ProviderManifest") -> Making:
    """Install the lock into the declared interpreter, then run `[env] verify`."""
    if provider.env_kind == "venv" and provider.env_lock is None:
        detail = "no lock declared: the interpreter is used as it is"
        return StepResult(STEP, "skipped", detail=detail)
    found = problems(provider)
    if not found:
        return StepResult(STEP, "present", detail=_detail(provider))
    python = provider.python_executable()
    if python is None or any(p.reason != "lock_unsatisfied" for p in found):
        return refused(STEP, found)
    from tasks import env, lock

    yield from (problem.text for problem in found)
    fault = yield from env.install(provider, python, lock.parse(lock_path(provider)))
    if fault is not None:
        return fault
    found = problems(provider)
    if found:
        return failed(STEP, found)
    return StepResult(STEP, "done", detail=_detail(provider))


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
    found = [replace(problem, step=step) for problem in lock.problems(path)]
    return (None, found) if found else (lock.parse(path), [])


def read_pins(
    provider: "ProviderManifest", step: str = STEP
) -> tuple["Pins | None", list[Problem]]:
    """Do what `read_lock` does, for whoever only looks."""
    file = provider.lock_file()
    assert file is not None
    pins, found = locked.read(file, provider.readings)
    return pins, [replace(problem, step=step) for problem in found]


def _detail(provider: "ProviderManifest") -> str:
    if provider.env_kind != "venv":
        return str(provider.env_image or provider.env_sif)
    lock, _ = read_pins(provider)
    pins = lock.pins if lock else ()
    text = f"{len(pins)} distributions at their pins"
    site = provider.site_packages()
    installed = read_site(site)[0] if site else {}
    known = {name for name, _, _ in pins}
    others = [f"{n} {v[0]}" for n, v in sorted(installed.items()) if n not in known]
    return text + (f"; not in the lock: {', '.join(others)}" if others else "")


# -- the interpreter ------------------------------------------------------------------


def interpreter(
    provider: "ProviderManifest", step: str, layout: "Layout | None" = None
) -> tuple[Path | None, list[Problem]]:
    """Give the declared interpreter, and why it is not to be used.

    `python_unset` and `python_missing` come with None; `python_is_ours`, where a lock
    is declared, with the interpreter. `layout`: as seen already.
    """
    python = provider.python_executable()
    where = f"{provider.slug}: [env] python = {provider.env_python!r}"
    kept = provider.readings
    if python is None:
        made = _made_at(provider)
        absent = f"not set and no environment at {made}" if made else "not set"
        text = f"{where}: {absent} found, an interpreter wanted"
        return None, [_python_problem(provider, step, "python_unset", text, None)]
    file = str(python)
    if not (os.path.isfile(file) and os.access(file, os.X_OK)):  # noqa: PTH113
        there = "a file that cannot be run" if python.exists() else "no file"
        text = f"{where}: {python}: {there} found, an interpreter wanted"
        return None, [_python_problem(provider, step, "python_missing", text, python)]
    if provider.env_lock is not None and is_ours(python, kept, layout):
        text = (
            f"{where}: {python}: the interpreter that this tool runs in found, "
            "one of the model's own wanted"
        )
        return python, [_python_problem(provider, step, "python_is_ours", text, python)]
    return python, []


def _python_problem(
    provider: "ProviderManifest",
    step: str,
    reason: str,
    text: str,
    python: Path | None,
) -> Problem:
    variable = provider.python_variable()
    by_hand = f"export {variable}=/path/to/its/python" if variable else None
    return Problem(
        step=step,
        reason=reason,
        text=text,
        path=str(python) if python else None,
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
    python: Path, kept: "Readings | None" = None, layout: "Layout | None" = None
) -> bool:
    """Say whether an interpreter installs where this tool is installed."""
    layout = layout or interpreters.look(python, kept)
    return interpreters.is_same(layout.prefix, sys.prefix)


# -- what is installed ----------------------------------------------------------------


def see(python: Path, kept: "Readings | None" = None) -> Site:
    """Look at an environment's site-packages."""
    layout = interpreters.look(python, kept)
    found = read_site(layout.site) if layout.site else ({}, False)
    return Site(layout, *found)


def compare(pins: "Pins", python: Path, slug: str) -> list[Problem]:
    """Name every pin that is missing or at another version.

    A venv's site-packages is read without starting its python. Where it may not be all
    that the interpreter sees (no venv, system packages, eggs), and a pin is not found
    there, the interpreter is asked.
    """
    return _compare(pins, python, slug, see(python))


def _compare(pins: "Pins", python: Path, slug: str, site: Site) -> list[Problem]:
    path = site.layout.site if site.layout else None
    wanted = [pin for pin in pins.pins if not pin[2] or _applies(pin, path)]
    where = path or str(python)
    found = list(_differences(wanted, site.versions, slug, where))
    if not found or (site.plain and _is_alone(python)):
        return found
    asked = _ask_installed(python)
    if isinstance(asked, str):
        return [probe_problem(STEP, str(python), asked, "python_missing")]
    return list(_differences(wanted, {**site.versions, **asked}, slug, where))


def _is_alone(python: Path) -> bool:
    shared = interpreters.settings(python).get("include-system-site-packages", "true")
    return shared.lower() == "false"


def read_site(site: str | Path) -> tuple[dict[str, list[str]], bool]:
    """Give the versions by normalised name, and whether all is in the usual layout.

    An unreadable directory has nothing, and is not the usual layout.
    """
    installed: dict[str, list[str]] = {}
    plain = True
    try:
        # listdir, not iterdir: a Path for each entry costs more than the read
        entries = os.listdir(site)  # noqa: PTH208
    except OSError:
        return {}, False
    for entry in entries:
        stem, _, kind = entry.rpartition(".")
        if kind == "dist-info" and not entry.startswith("~"):
            name, _, version = stem.rpartition("-")
            if not _whole(f"{site}/{entry}"):
                version += HALF
            installed.setdefault(locked.normalised(name), []).append(version)
        elif kind in ("egg-info", "egg-link", "egg"):
            plain = False
    return installed, plain


def _whole(dist_info: str) -> bool:
    """Say whether an installer came to its end: INSTALLER is among its last files."""
    return os.access(f"{dist_info}/INSTALLER", os.F_OK)


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
        installed.setdefault(locked.normalised(name), [version])
    return installed


# -- probes ---------------------------------------------------------------------------


def ask(argv: list[str], *, limit_s: float = PROBE_LIMIT_S) -> list[str] | str:
    """Give the lines that a program prints; a str says why there are none.

    It is ended with everything it started when it has not answered in time.
    """
    from tasks import child

    lines: list[str] = []
    running = child.run(argv, env=os.environ, timeout_s=limit_s)
    while True:
        try:
            lines.append(next(running))
        except StopIteration as stop:
            ended: child.Ended = stop.value
            break
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


# -- containers -----------------------------------------------------------------------


def _image_problems(provider: "ProviderManifest") -> list[Problem]:
    if provider.env_kind == "apptainer":
        return _sif_problems(provider)
    from remote_resident import exec_env

    try:
        program = exec_env.container_program(os.environ, provider.slug)
    except ExecEnvironmentError as exc:
        return [
            Problem(step=STEP, reason=exc.reason, text=str(exc), next=exc.next),
        ]
    return _docker_problems(provider, program)


def _sif_problems(provider: "ProviderManifest") -> list[Problem]:
    if provider.env_sif is None or provider.resolve(provider.env_sif).is_file():
        return []
    path = provider.resolve(provider.env_sif)
    text = f"{provider.slug}: [env] sif: {path}: no file found, an image wanted"
    return [_image_problem("image_missing", text, path=str(path))]


def _docker_problems(provider: "ProviderManifest", program: str) -> list[Problem]:
    image = str(provider.env_image)
    bare, _, digest = image.partition("@")
    where = f"{provider.slug}: [env] image = {image!r}"
    inspect = [program, "image", "inspect", "--format", "{{json .RepoDigests}}"]
    answer = ask([*inspect, image])
    if not isinstance(answer, str):
        return []
    if answer.startswith(("no answer", "exit 126", "exit 127")):
        command = f"{program} image inspect"
        reason = "container_missing"
        return [probe_problem(STEP, command, answer, reason)]
    import re

    pull = f"{program} pull {image}"
    other = ask([*inspect, bare]) if digest else answer
    if isinstance(other, str):
        text = f"{where}: no such image found ({answer}), one wanted"
        return [_image_problem("image_missing", text, name=image, next=pull)]
    found = ", ".join(re.findall(r"sha256:[0-9a-f]{64}", " ".join(other))) or None
    text = f"{where}: digest {found or 'unknown'} found, {digest} wanted"
    problem = _image_problem("image_digest", text, name=image, next=pull)
    return [replace(problem, wanted=digest, found=found)]


def _image_problem(
    reason: str,
    text: str,
    *,
    path: str | None = None,
    name: str | None = None,
    next: str | None = None,
) -> Problem:
    return Problem(step=STEP, reason=reason, text=text, path=path, name=name, next=next)
