"""Model environments: made by the lock's recipe, and filled with what the lock pins."""

import fcntl
import os
import re
import shutil
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TextIO

from remote_resident import interpreters, places
from remote_resident.errors import Problem, ProviderError
from tasks import child, installed, lock
from tasks import pins as locked
from tasks.step import Making, StepResult, failed, refused

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest
    from tasks.lock import Lock

STEP = "env"

_INSTALL_LIMIT_S = 4 * 3600.0
_VENV_LIMIT_S = 600.0
_VERIFY_LIMIT_S = 1800.0
_MINORS = range(15, 7, -1)
_MISMATCH = re.compile(
    r"^ +(?P<named>\S+).*\n(?: +Expected .*\n)+ +Got +(?P<got>[0-9a-f]{64})", re.M
)

_FULL_BYTES = 16 * 2**20
"""Less than pip alone takes: what failed with no more than this failed for it."""
_BUILD_NAMES = frozenset(
    "CC CXX CFLAGS CXXFLAGS CPPFLAGS LDFLAGS MAKEFLAGS SOURCE_DATE_EPOCH".split()
)

_BACKENDS = frozenset(
    "flit-core hatchling maturin meson-python pdm-backend poetry-core "
    "scikit-build-core setuptools".split()
)
_BUILD_TOOLS = _BACKENDS | frozenset(
    "cmake cython hatch-vcs meson ninja numpy packaging pathspec pluggy pybind11 "
    "pyproject-metadata setuptools-scm trove-classifiers wheel".split()
)


def python_path(pins: "Lock") -> Path:
    """Name the interpreter of the environment of a lock, which need not be there."""
    return places.env_dir(pins.name, pins.digest) / "bin" / "python"


def _free(place: Path) -> int:
    return shutil.disk_usage(place).free


def make(
    provider: "ProviderManifest", free_bytes: Callable[[Path], int] = _free
) -> Making:
    """Create the environment of a provider's lock and fill it.

    It is at its final place from the start, for a venv cannot be moved; it counts as
    done when everything is installed, and one that was cut off is gone on with. Two at
    once: the second waits, and finds it present. Refused (`disk_full`) where less is
    free than the lock's installed bytes.
    """
    if provider.env_kind != "venv":
        detail = (
            f"kind {provider.env_kind}: the image is pulled or built, not made here"
        )
        return StepResult(STEP, "skipped", detail=detail)
    pins, found = _wanted(provider)
    if pins is None:
        return refused(STEP, found)
    python = python_path(pins)
    if _complete(pins, python, provider.slug):
        return StepResult(STEP, "present", detail=str(python))
    directory = python.parent.parent
    guard = directory.parent / f".{directory.name}.lock"
    try:
        places.ensure(directory.parent)
        lock = places.open_lock(guard)
    except ProviderError as exc:
        return refused(STEP, [exc.as_problem(installed.STEP)])
    # inherited: pip goes on when this process is killed, and is then waited for
    with os.fdopen(lock, "r+") as file, child.inheriting(lock):
        try:
            yield from _hold(file)
        except OSError as exc:
            error = places.unusable_lock(guard, exc)
            return refused(STEP, [error.as_problem(installed.STEP)])
        if _complete(pins, python, provider.slug):
            return StepResult(STEP, "present", detail=str(python))
        if short := _no_room(provider.slug, pins, directory.parent, free_bytes):
            return refused(STEP, [short])
        return (yield from _made(provider, pins, python, free_bytes))


def install(
    provider: "ProviderManifest",
    python: Path,
    pins: "Lock",
    free_bytes: Callable[[Path], int] = _free,
) -> Generator[str, None, StepResult | None]:
    """Install a lock into an interpreter and run `[env] verify`; None: all went well.

    Only what the lock pins by digest is installed, and nothing is resolved. Source
    distributions are built against the lock's own build tools: where it pins a build
    backend, backends and their helpers are installed first and the rest without build
    isolation. Where it pins none, nothing is built: pip's isolation would fetch tools
    that no lock pins.
    """
    with TemporaryDirectory(prefix="tu-install-") as work:
        for options in _pip_runs(python, pins, Path(work)):
            fault = yield from _pip(provider, python, pins, options, free_bytes)
            if fault is not None:
                return fault
    return (yield from _verify(provider, python))


def _wanted(provider: "ProviderManifest") -> tuple["Lock | None", list[Problem]]:
    if provider.env_lock is None:
        text = f"{provider.slug}: [env] lock: none declared found, one wanted"
        return None, [_problem("lock_missing", text)]
    return installed.read_lock(provider, STEP)


def _complete(pins: "Lock", python: Path, slug: str) -> bool:
    return python.is_file() and not installed.compare(locked.of(pins), python, slug)


def _hold(file: TextIO) -> Iterator[str]:
    """Take the lock that one maker of an environment holds at a time."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        yield f"waiting for process {file.read().strip() or 'unknown'}: it makes this"
        fcntl.flock(file, fcntl.LOCK_EX)
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()


def _no_room(
    slug: str, pins: "Lock", place: Path, free_bytes: Callable[[Path], int]
) -> Problem | None:
    wanted, free = pins.installed_bytes, free_bytes(place)
    if wanted is None or wanted <= free:
        return None
    text = (
        f"{slug}: {place}: {free} bytes free found, {wanted} wanted for the environment"
    )
    problem = _problem("disk_full", text)
    return replace(problem, path=str(place), found=free, wanted=wanted)


def _if_full(
    problem: Problem, place: Path, free_bytes: Callable[[Path], int]
) -> Problem:
    """Put a failure down to the disk where next to nothing is free after it."""
    free = free_bytes(place)
    if free >= _FULL_BYTES:
        return problem
    text = f"{problem.text}; {place}: {free} bytes free found, more wanted"
    return replace(problem, reason="disk_full", text=text, path=str(place), found=free)


def _made(
    provider: "ProviderManifest",
    pins: "Lock",
    python: Path,
    free_bytes: Callable[[Path], int],
) -> Making:
    requires = str(pins.requires_python)
    base = find_python(requires)
    if base is None:
        text = (
            f"{provider.slug}: no interpreter for requires-python {requires} on PATH "
            f"({_own_version()} is this tool's own) found, one wanted"
        )
        return refused(STEP, [_problem("python_version", text)])
    target = str(python.parent.parent)
    yield f"{base} -m venv {target}"
    argv = [base, "-I", "-m", "venv", target]
    env = pip_environment(os.environ)
    ended = yield from child.run(argv, env=env, timeout_s=_VENV_LIMIT_S)
    if ended.returncode != 0:
        text = f"{base} -m venv: {ended.how} found, exit 0 wanted"
        problem = _problem("install_failed", text)
        problem = _if_full(problem, python.parent.parent.parent, free_bytes)
        return failed(STEP, [problem], lines=ended.tail)
    fault = yield from install(provider, python, pins, free_bytes)
    if fault is not None:
        return replace(fault, step=STEP)
    found = installed.compare(locked.of(pins), python, provider.slug)
    if found:
        return failed(STEP, found)
    return StepResult(STEP, "done", detail=str(python))


# -- the interpreter to make it with --------------------------------------------------


def find_python(
    requires: str, which: Callable[[str], str | None] = shutil.which
) -> str | None:
    """Find an interpreter for a lock: this tool's own base, else one on PATH."""
    from packaging.specifiers import SpecifierSet

    wanted = SpecifierSet(requires)
    # in a venv sys.executable is the venv's: made from it, the new one would hang on it
    own = getattr(sys, "_base_executable", None) or sys.executable
    if wanted.contains(_own_version()) and Path(own).is_file():
        return str(own)
    for minor in _MINORS:
        found = which(f"python3.{minor}")
        if found and wanted.contains(_asked_version(found) or "0"):
            return found
    return None


def _own_version() -> str:
    return ".".join(map(str, sys.version_info[:3]))


def _asked_version(python: str) -> str | None:
    code = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
    answer = installed.ask([python, "-I", "-c", code])
    return None if isinstance(answer, str) or not answer else answer[-1].strip()


# -- pip ------------------------------------------------------------------------------


def pip_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Choose from the caller's environment what pip is to see, by allow-list.

    Where pip finds its files (indexes, proxies, certificates) and how a compiler is
    called stay the caller's; what would lead pip elsewhere is left out.
    """
    from remote_resident import exec_env

    elsewhere = {
        *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON", "PIP_DRY_RUN"),
        *("PIP_REQUIREMENT", "PIP_UPGRADE", "PIP_REQUIRE_VIRTUALENV", "PIP_NO_BINARY"),
        *("PIP_ONLY_BINARY", "PIP_EDITABLE"),
    }
    kept = {
        name: value
        for name, value in environ.items()
        if exec_env.allowed(name)
        or name in _BUILD_NAMES
        or (name.startswith("PIP_") and name not in elsewhere)
    }
    return {**kept, **child.way_out(environ), "PIP_USER": "0"}


def _pip_runs(python: Path, pins: "Lock", work: Path) -> list[list[str]]:
    """Give the options of each run of pip, in order."""
    site = interpreters.site_packages(python)
    there = installed.read_site(site)[0] if site else {}
    torn = any(
        version.endswith(installed.HALF)
        for pin in pins.pins
        for version in there.get(pin.name, [])
    )
    # pip takes what was torn for installed
    options = ["--ignore-installed"] if torn else []
    if not any(pin.name in _BACKENDS for pin in pins.pins):
        return [[*options, "--only-binary", ":all:", "-r", str(pins.path)]]
    tools = work / "build-tools.lock"
    tools.write_text(
        lock.formatted(pin for pin in pins.pins if pin.name in _BUILD_TOOLS)
    )
    binary = [*options, "--only-binary", ":all:", "-r", str(tools)]
    return [binary, [*options, "--no-build-isolation", "-r", str(pins.path)]]


def _pip(
    provider: "ProviderManifest",
    python: Path,
    pins: "Lock",
    options: list[str],
    free_bytes: Callable[[Path], int],
) -> Generator[str, None, StepResult | None]:
    argv = [
        *(str(python), "-I", "-m", "pip", "install", "--no-deps", "--require-hashes"),
        *("--no-input", "--disable-pip-version-check", "--progress-bar", "off"),
        *options,
    ]
    env = pip_environment(os.environ)
    ended = yield from child.run(argv, env=env, timeout_s=_INSTALL_LIMIT_S)
    if ended.returncode == 0:
        return None
    problem = _pip_problem(provider.slug, python, pins, ended)
    if not _MISMATCH.search("\n".join(ended.tail)):
        problem = _if_full(problem, python.parent, free_bytes)
    return failed(installed.STEP, [problem], lines=ended.tail)


def _pip_problem(slug: str, python: Path, pins: "Lock", ended: child.Ended) -> Problem:
    output = "\n".join(ended.tail)
    where = f"{pins.path.parent.name}/{pins.path.name}"
    if "No space left on device" in output:
        text = (
            f"{slug}: {python}: no space left on device found, room for {where} wanted"
        )
        return _problem("disk_full", text)
    if "No module named pip" in output:
        text = f"{slug}: {python}: no pip found, one wanted"
        return _problem("install_failed", text, f"{python} -m ensurepip")
    if mismatch := _MISMATCH.search(output):
        named, got = mismatch["named"], mismatch["got"]
        text = (
            f"{where}: {named}: SHA-256 {got} found, one of the lock's wanted: "
            "another build than the locked one was offered"
        )
        return _problem("install_failed", text)
    text = f"{slug}: pip install -r {where}: {ended.how} found, exit 0 wanted"
    return _problem("install_failed", text)


def _verify(
    provider: "ProviderManifest", python: Path
) -> Generator[str, None, StepResult | None]:
    if not provider.env_verify:
        return None
    from remote_resident import exec_env

    argv = [str(python), *provider.env_verify]
    env = exec_env.child_env(provider, os.environ)
    ended = yield from child.run(
        argv, env=env, cwd=provider.directory, timeout_s=_VERIFY_LIMIT_S
    )
    if ended.returncode == 0:
        return None
    shown = " ".join(provider.env_verify)
    text = f"{provider.slug}: [env] verify: {shown}: {ended.how} found, exit 0 wanted"
    return failed(installed.STEP, [_problem("verify_failed", text)], lines=ended.tail)


def _problem(reason: str, text: str, next: str | None = None) -> Problem:
    return Problem(step=installed.STEP, reason=reason, text=text, next=next)
