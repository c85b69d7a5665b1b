"""Locks: the hashed pins of a model's own environment, and how they are resolved anew."""

import hashlib
import os
import re
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from remote_resident.errors import Problem
from tasks.distributions import normalised
from tasks.step import Making, StepResult, failed, refused

MAX_BYTES = 64 * 2**20
"""No lock is larger."""
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_PIN = re.compile(
    rf"({_NAME})\s*(?:\[[^\]]*\])?\s*==\s*([0-9A-Za-z][0-9A-Za-z.!+_-]*)"
    r"\s*(?:;\s*(\S.*))?"
)
_HASH = re.compile(r"\s--hash[=\s]\s*(\S+)")
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
_COMMENT = re.compile(r"(^|\s+)#.*$")
_CLAUSE = r"(?:~=|==|!=|<=|>=|<|>)\s*[0-9][0-9A-Za-z.*+!]*"
_SPECIFIER = re.compile(rf"{_CLAUSE}(?:\s*,\s*{_CLAUSE})*")
_REQUIRES = re.compile(r"#\s*requires-python:\s*(.*?)\s*")
_PLATFORMS = re.compile(r"#\s*platforms:\s*(.*?)\s*")
_BYTES = re.compile(r"#\s*installed-bytes:\s*(\d+)\s*")
_NO_DEPENDENCIES = "# without dependencies"
_RESOLVE_LIMIT_S = 600.0
_PIP_CONFIG_LIMIT_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One distribution at one version, with the digests of the files it may come as."""

    name: str
    """Normalised: lower case, runs of `-`, `_` and `.` as one `-`."""
    version: str
    hashes: tuple[str, ...]
    """64 hex digits each."""
    line: int
    marker: str = ""
    """When it applies, as written; empty: always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """A lock file as read; `problems` has every fault, and pins are those readable."""

    name: str
    path: Path
    pins: tuple[Pin, ...]
    requires_python: str | None
    platforms: tuple[str, ...]
    """`linux-x86_64` and so on; empty: not said."""
    installed_bytes: int | None
    """What the environment takes on disk; None: not said."""
    recipe: tuple[str, ...]
    """The commands, verbatim, without the comment signs."""
    header: str
    """All that stands above the first pin."""
    digest: str
    """SHA-256 of the file's bytes."""
    problems: tuple[Problem, ...]


def parse(path: Path) -> Lock:
    """Read a lock; faults are in its `problems`. Raises OSError where it is unreadable."""
    return parse_bytes(path, path.read_bytes())


def problems(path: Path) -> list[Problem]:
    """Name every fault of a lock file, a missing or unreadable file included."""
    try:
        return list(parse(path).problems)
    except FileNotFoundError:
        text = "no such file found, a lock wanted"
        return [_problem(path, None, "lock_missing", text)]
    except OSError as exc:
        text = f"unreadable ({exc.strerror}) found, a lock wanted"
        return [_problem(path, None, "lock_invalid", text)]


@lru_cache(maxsize=64)
def parse_bytes(path: Path, data: bytes) -> Lock:
    """Parse a lock's bytes as if they stood at `path`."""
    name = path.name.removesuffix(".lock")
    faults: list[Problem] = []
    try:
        text = data.decode()
    except UnicodeDecodeError as exc:
        text = ""
        found = f"byte {data[exc.start]:#04x} at offset {exc.start} found, UTF-8 wanted"
        faults.append(_problem(path, None, "lock_invalid", found))
    lines = text.splitlines()
    header = _header(lines)
    requires = _field(header, _REQUIRES)
    recipe = _recipe(header)
    if not faults:
        faults += _header_problems(path, requires, recipe)
    pins = tuple(_pins(path, lines, faults))
    if not faults and not pins:
        faults.append(_problem(path, None, "lock_invalid", "no pin found, one wanted"))
    return Lock(
        name=name,
        path=path,
        pins=pins,
        requires_python=requires,
        platforms=tuple((_field(header, _PLATFORMS) or "").replace(",", " ").split()),
        installed_bytes=int(_field(header, _BYTES) or 0) or None,
        recipe=recipe,
        header="".join(f"{line}\n" for line in header),
        digest=hashlib.sha256(data).hexdigest(),
        problems=tuple(faults),
    )


def _problem(path: Path, line: int | None, reason: str, text: str) -> Problem:
    name = path.name.removesuffix(".lock")
    where = f"{path.parent.name}/{path.name}" + (f":{line}" if line else "")
    return Problem(
        step="manifest",
        reason=reason,
        text=f"{where}: {text}",
        path=str(path),
        line=line,
        name=name,
        next=f"doit lock:{name}",
    )


def _header(lines: list[str]) -> list[str]:
    end = 0
    for line in lines:
        if line.strip() and not line.startswith("#"):
            break
        end += 1
    return lines[:end]


def _field(header: list[str], pattern: re.Pattern[str]) -> str | None:
    found = filter(None, map(pattern.fullmatch, header))
    return next((match[1] for match in found if match[1]), None)


def _recipe(header: list[str]) -> tuple[str, ...]:
    """Give the indented lines below `# recipe:`."""
    commands: list[str] = []
    started = False
    for line in header:
        if started and not line.startswith("#  "):
            break
        if started:
            commands.append(line[1:].strip())
        started = started or line.rstrip() == "# recipe:"
    return tuple(commands)


def _header_problems(
    path: Path, requires: str | None, recipe: tuple[str, ...]
) -> Iterator[Problem]:
    if requires is None:
        text = "header: no '# requires-python:' line found, one wanted"
        yield _problem(path, None, "lock_invalid", text)
    elif not _SPECIFIER.fullmatch(requires):
        text = f"header: requires-python {requires!r} found, a version range wanted"
        yield _problem(path, None, "lock_invalid", text)
    if not recipe:
        text = "header: no '# recipe:' with commands below it found, one wanted"
        yield _problem(path, None, "lock_invalid", text)


def _pins(path: Path, lines: list[str], faults: list[Problem]) -> Iterator[Pin]:
    """Yield what can be read as pins, and add what cannot to `faults`."""
    first_lines: dict[str, int] = {}
    for number, line in _logical_lines(lines):
        digests = _HASH.findall(line)
        match = _PIN.fullmatch(_HASH.sub("", line).strip())
        if match is None:
            text = f"{_not_a_pin(line)} found, an exact pin name==version wanted"
            faults.append(_problem(path, number, "lock_invalid", text))
            continue
        pin = Pin(
            name=normalised(match[1]),
            version=match[2],
            hashes=tuple(d[7:] for d in digests if _SHA256.fullmatch(d)),
            line=number,
            marker=(match[3] or "").strip(),
        )
        faults += _pin_problems(path, pin, digests, first_lines.get(pin.name))
        first_lines.setdefault(pin.name, number)
        yield pin


def _pin_problems(
    path: Path, pin: Pin, digests: list[str], first_line: int | None
) -> Iterator[Problem]:
    shown = f"{pin.name}=={pin.version}"
    for digest in digests:
        if digest.startswith("sha256:") and not _SHA256.fullmatch(digest):
            text = f"{shown}: --hash={digest} found, 64 hex digits wanted"
            yield _problem(path, pin.line, "lock_invalid", text)
    if not any(digest.startswith("sha256:") for digest in digests):
        text = f"{shown}: no --hash=sha256: found, at least one wanted"
        yield _problem(path, pin.line, "lock_unhashed", text)
    if first_line is not None:
        text = f"{pin.name} found again, pinned once wanted (line {first_line})"
        yield _problem(path, pin.line, "lock_invalid", text)


def _logical_lines(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Join continued lines and drop comments, as pip does; the number is the first's."""
    parts: list[str] = []
    first = 0
    for number, line in enumerate(lines, 1):
        first = first if parts else number
        comment = line.lstrip().startswith("#")
        if line.endswith("\\") and not comment:
            parts.append(line[:-1].strip())
            continue
        parts.append("" if comment else _COMMENT.sub("", line).strip())
        whole = " ".join(filter(None, parts))
        parts = []
        if whole:
            yield first, whole
    if whole := " ".join(filter(None, parts)):
        yield first, whole


def _not_a_pin(line: str) -> str:
    """Say what a line is that is no pin; an address in it is not repeated."""
    word = line.split()[0]
    if word.startswith("-"):
        return f"the option {word.partition('=')[0]}"
    if "://" in line or "@" in line:
        named = re.match(rf"{_NAME}(?=\s*@)", line)
        return f"{named[0] if named else 'a requirement'} from an address"
    return repr(_HASH.sub("", line))


def resolve(tree: Path, name: str) -> Making:
    """Resolve `locks/<name>.in` anew into `locks/<name>.lock`, keeping its header.

    Requirements below a line `# without dependencies` are pinned alone, for packages
    that declare what they do not use. A `--hash=sha256:` in the .in file is the digest of
    the one build that is wanted, which the index need not list; it takes the place of
    the index's digests, for pip prefers a build that the index lists. The lock is
    replaced whole, or left as it was. The resolver asks the index
    that pip is configured for; no address reaches the lock.
    """
    source, target = tree / "locks" / f"{name}.in", tree / "locks" / f"{name}.lock"
    uv = _uv()
    if missing := _not_ready(source, uv):
        return refused("lock", [missing])
    old = _existing(target)
    header = old.header if old and old.recipe else _new_header(name)
    requires = (old.requires_python if old else None) or _this_python()
    wanted, alone, builds = _read_in(source.read_text())
    pins: dict[str, Pin] = {}
    for lines, options in ((wanted, []), (alone, ["--no-deps"])):
        if not lines:
            continue
        resolved = yield from _compile(str(uv), lines, requires, options)
        if isinstance(resolved, StepResult):
            return resolved
        pins |= {pin.name: pin for pin in resolved}
    text = header + formatted(_of_build(pin, builds) for pin in pins.values())
    new = parse_bytes(target, text.encode())
    if new.problems:
        return failed("lock", new.problems)
    return _replace(target, text, old, new)


def _not_ready(source: Path, uv: str | None) -> Problem | None:
    shown = f"{source.parent.name}/{source.name}"
    if not source.is_file():
        known = sorted(path.stem for path in source.parent.glob("*.in"))
        return Problem(
            step="manifest",
            reason="unknown_name",
            text=f"{shown}: no such file found, one of {', '.join(known) or 'none'} "
            "wanted",
            path=str(source),
            name=source.stem,
        )
    if uv is None:
        return Problem(
            step="manifest",
            reason="file_missing",
            text="uv: no such program found, the resolver wanted",
            name="uv",
            next=f"{sys.executable} -m pip install 'remote-resident[dev]'",
        )
    return None


def _uv() -> str | None:
    import shutil

    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.is_file() else shutil.which("uv")


def _existing(target: Path) -> Lock | None:
    try:
        return parse(target)
    except FileNotFoundError:
        return None


def _this_python() -> str:
    major, minor = sys.version_info[:2]
    return f">={major}.{minor},<{major}.{minor + 1}"


def _new_header(name: str) -> str:
    python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    variable = re.sub(r"\W", "_", name).upper() + "_PYTHON"
    return (
        f"# requires-python: {_this_python()}\n"
        "# recipe:\n"
        f"#   {python} -m venv ~/envs/{name}\n"
        f"#   ~/envs/{name}/bin/pip install --no-deps --require-hashes "
        f"-r locks/{name}.lock\n"
        f"#   export {variable}=~/envs/{name}/bin/python\n"
    )


def _read_in(text: str) -> tuple[list[str], list[str], dict[str, tuple[str, ...]]]:
    """Split a .in file: with dependencies, without, and digests by name."""
    before, _, after = text.partition(_NO_DEPENDENCIES)
    extra: dict[str, tuple[str, ...]] = {}
    parts: list[list[str]] = []
    for section in (before, after.partition("\n")[2]):
        lines = []
        for _, line in _logical_lines(section.splitlines()):
            requirement = _HASH.sub("", line).strip()
            digests = tuple(d.removeprefix("sha256:") for d in _HASH.findall(line))
            if digests and (match := re.match(_NAME, requirement)):
                extra[normalised(match[0])] = digests
            lines.append(requirement)
        parts.append(lines)
    return parts[0], parts[1], extra


def _compile(
    uv: str, lines: list[str], requires: str, options: list[str]
) -> Generator[str, None, tuple[Pin, ...] | StepResult]:
    from tempfile import TemporaryDirectory

    from tasks import child

    with TemporaryDirectory(prefix="tu-lock-") as work:
        source, out = Path(work, "requirements.in"), Path(work, "requirements.lock")
        source.write_text("".join(f"{line}\n" for line in lines))
        argv = [
            *(uv, "pip", "compile", "--quiet", "--generate-hashes", "--no-header"),
            *("--no-annotate", "--no-emit-index-url", "--no-emit-find-links"),
            *("--python-platform", "linux", "--python-version", _lowest(requires)),
            *options,
            *("--output-file", str(out), str(source)),
        ]
        env = uv_environment(os.environ)
        ended = yield from child.run(
            argv, env=env, cwd=Path(work), timeout_s=_RESOLVE_LIMIT_S
        )
        if ended.timed_out or ended.returncode != 0:
            how = (
                "no answer in 600 s" if ended.timed_out else f"exit {ended.returncode}"
            )
            text = f"uv pip compile: {how} found, exit 0 wanted"
            problem = Problem(step="manifest", reason="install_failed", text=text)
            return failed("lock", [problem], lines=ended.tail)
        return parse_bytes(out, out.read_bytes()).pins


def _lowest(requires: str) -> str:
    match = re.search(r"(?:>=|==|~=)\s*(\d+\.\d+)", requires)
    return match[1] if match else f"{sys.version_info[0]}.{sys.version_info[1]}"


def uv_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Give the caller's environment with pip's index named the way uv reads it."""
    env = dict(environ)
    if not {"UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_NO_INDEX"} & set(env):
        address = env.get("PIP_INDEX_URL") or _pip_index(env)
        if address:
            env["UV_DEFAULT_INDEX"] = address
    return env


def _pip_index(env: dict[str, str]) -> str | None:
    """Ask pip for its index; the answer is not shown, it may hold a password."""
    from tasks import child

    argv = [sys.executable, "-I", "-m", "pip", "config", "list"]
    lines = list(child.run(argv, env=env, timeout_s=_PIP_CONFIG_LIMIT_S))
    found = (re.fullmatch(r"\S*\.index-url='(.*)'", line.strip()) for line in lines)
    return next((match[1] for match in found if match), None)


def formatted(pins: Iterable[Pin]) -> str:
    """Write pins as a lock's lines, in the order of their names."""
    rows = []
    for pin in sorted(pins, key=lambda pin: pin.name):
        marker = f" ; {pin.marker}" if pin.marker else ""
        parts = [f"{pin.name}=={pin.version}{marker}"]
        parts += [f"    --hash=sha256:{digest}" for digest in sorted(set(pin.hashes))]
        rows.append(" \\\n".join(parts) + "\n")
    return "".join(rows)


def _of_build(pin: Pin, builds: Mapping[str, tuple[str, ...]]) -> Pin:
    return replace(pin, hashes=builds.get(pin.name, pin.hashes))


def _replace(target: Path, text: str, old: Lock | None, new: Lock) -> StepResult:
    if old and old.digest == new.digest:
        return StepResult("lock", "present", detail=f"{len(new.pins)} pins, unchanged")
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        fresh.write_text(text)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)
    before = {pin.name: pin.version for pin in old.pins} if old else {}
    after = {pin.name: pin.version for pin in new.pins}
    changed = [
        f"{name} {before.get(name, 'absent')} -> {after.get(name, 'absent')}"
        for name in sorted(before | after)
        if before.get(name) != after.get(name)
    ]
    return StepResult("lock", "done", detail=f"{len(new.pins)} pins", lines=changed)
