"""The measured report: what this machine really did with a provider, and whether it
still would.

Reading is fast: small files are hashed, a weight's digest comes from the memo, and no
process is started unless a device is present.
"""

import dataclasses
import functools
import hashlib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from remote_resident import interpreters, kits, machine, places
from remote_resident.errors import Problem, ProviderError
from tasks import environment

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest

SCHEMA = 1
"""Of the report; a report with any other is refused."""

TABLES = ("machine", "inputs", "timing", "memory", "answer", "certified")
GIB = 2**30

_WORKER_SIDE = Path(places.__file__).parent / "worker_side"
_HEX64 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A measured report; what is not known is not in its tables."""

    slug: str
    machine: Mapping[str, object]
    inputs: Mapping[str, object]
    timing: Mapping[str, object]
    """Seconds."""
    memory: Mapping[str, object]
    """Bytes, MiB and GiB, as the names say."""
    answer: Mapping[str, object]
    certified: Mapping[str, object]
    path: Path | None = field(default=None, compare=False)

    def as_dict(self) -> dict[str, object]:
        """Give the tables as they stand in the file."""
        tables = {name: getattr(self, name) for name in TABLES}
        return {"schema": SCHEMA, "slug": self.slug, **tables}


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a report says of one GPU; None: the driver does not say."""

    name: str | None
    driver: str | None
    memory_gb: float | str | None
    """GiB, or "unified" where it is the host's."""
    compute_capability: str | None


def report_path(provider: "ProviderManifest") -> Path:
    """Name the report of a provider on this machine."""
    return places.measured_path(provider.slug, provider.tree)


def there(path: Path) -> bool:
    """Say whether there is a report.

    Raises ProviderError (`unreadable`) where the path cannot be looked at.
    """
    try:
        return path.exists()
    except OSError as exc:
        raise ProviderError(
            f"{path}: {exc.strerror}, a path that can be looked at wanted",
            reason="unreadable",
            next='export TU_REMOTE_HOME="$HOME/.tu-remote"',
        ) from None


def read(path: Path) -> Report | None:
    """Read a report; None where there is none.

    Raises ProviderError (`stale`) for what is not a report of this schema.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as exc:
        raise _unreadable(path, str(exc)) from exc
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise _unreadable(path, f"no TOML found ({exc})") from None
    if tables.get("schema") != SCHEMA:
        raise _unreadable(path, f"schema {tables.get('schema')!r} found")
    missing = [name for name in TABLES if not isinstance(tables.get(name), dict)]
    if missing:
        raise _unreadable(path, f"no table {', '.join(missing)} found")
    return Report(
        slug=str(tables.get("slug")), path=path, **{n: tables[n] for n in TABLES}
    )


def write(path: Path, report: Report) -> None:
    """Write a report whole: under another name, to the disk, then renamed."""
    import tempfile

    import tomli_w

    text = tomli_w.dumps(_known(report.as_dict()))
    places.ensure(path.parent)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


@functools.cache
def devices() -> tuple[Device, ...]:
    """Describe the GPUs of this machine, asked once per process."""
    if not machine.device_count():
        return ()
    return tuple(
        Device(
            name=gpu.name,
            driver=gpu.driver,
            memory_gb="unified" if gpu.unified else gpu.total_gb,
            compute_capability=gpu.compute_capability,
        )
        for gpu in machine.gpus()
    )


def machine_table(gpus: Sequence[Device]) -> dict[str, object]:
    """Describe this machine and its devices for a report."""
    return {**machine.facts(), "gpus": [dataclasses.asdict(gpu) for gpu in gpus]}


def inputs(
    provider: "ProviderManifest", weights: Mapping[str, str | None]
) -> dict[str, object]:
    """Give what a report rests on, as it is now.

    `weights` maps each declared file to its digest, None where it is not known. A value
    of None stands for what is not there or cannot be read.
    """
    from remote_resident.manifest import effective_digest

    distributions = installed(provider.site_packages())
    lock = provider.lock_path()
    named = None if distributions is None else _digest_of_json(distributions)
    return {
        "manifest": effective_digest(provider),
        "lock": None if lock is None else _digest(lock),
        "worker": _digest_all(_worker_files(provider)),
        "smoke": _digest_all(_smoke_files(provider)),
        "worker_side": _digest_all(sorted(_WORKER_SIDE.glob("*.py"))),
        "kit_commit": _kit_commit(provider),
        "interpreter": interpreter_version(provider.python_executable()),
        "distributions": named,
        "distributions_count": None if distributions is None else len(distributions),
        "installed": distributions or {},
        "weights": dict(weights),
    }


def installed(site_packages: Path | None) -> dict[str, str] | None:
    """Give name and version of every installed distribution; None: not known."""
    if site_packages is None:
        return None
    found, readable = environment.read_site(site_packages)
    if not found and not readable:
        return None
    return {name: " and ".join(sorted(found[name])) for name in sorted(found)}


def interpreter_version(python: Path | None) -> str | None:
    """Give an interpreter's version as its environment states it; None: not known."""
    if python is None:
        return None
    settings = interpreters.settings(python)
    stated = settings.get("version") or settings.get("version_info")
    if stated:
        return stated
    named = re.search(r"(\d+\.\d+)$", str(python.resolve()))
    return named.group(1) if named else None


def weight_digests(provider: "ProviderManifest") -> dict[str, str | None]:
    """Give each weight's digest now, from the memo where it has it; None: not known."""
    known = provider.check_weights().digests if provider.weights_files else {}
    return {weight.name: known.get(weight.name) for weight in provider.weights_files}


def inputs_now(provider: "ProviderManifest") -> dict[str, object]:
    """Give what a report would rest on now, digests from the memo where it has them."""
    return inputs(provider, weight_digests(provider))


def changes(was: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Say what inputs changed; empty: none."""
    return list(_inputs_differ(was, now))


def compose(
    provider: "ProviderManifest",
    *,
    inputs: Mapping[str, object],
    timing: Mapping[str, object],
    memory: Mapping[str, object],
    answer: Mapping[str, object],
) -> Report:
    """Put a report together: what was seen, on which machine, when and by what."""
    from datetime import UTC, datetime

    from remote_resident import __version__

    at = datetime.now(UTC).isoformat(timespec="seconds")
    return Report(
        slug=provider.slug,
        machine=machine_table(devices()),
        inputs=inputs,
        timing=timing,
        memory=memory,
        answer=answer,
        certified={"at": at, "by": f"remote-resident {__version__}"},
    )


def differs(
    provider: "ProviderManifest",
    report: Report,
    gpus: Callable[[], Sequence[Device]] = devices,
) -> list[str]:
    """Say what a report rests on and is not so any more; empty: it is current."""
    return [
        *changes(report.inputs, inputs_now(provider)),
        *_devices_differ(report.machine.get("gpus", []), gpus()),
    ]


def contradictions(provider: "ProviderManifest", report: Report) -> list[Problem]:
    """List the claims of a manifest that a report contradicts."""
    found = [
        *_over(provider, report, "host.ram_budget_gb", "rss_peak_bytes"),
        *_over(provider, report, "gpu.vram_budget_gb", "device_peak_bytes"),
        *_grows(provider, report),
        *_slow(provider, report),
    ]
    if provider.status == "broken":
        at = report.certified.get("at")
        text = f'status: "broken" declared, a smoke that passed at {at} measured here'
        found.append(_contradiction(provider, "answer_wrong", "status", text))
    return found


def over_budget(
    slug: str, key: str, budget_gb: float | None, peak_bytes: int | None
) -> str | None:
    """Say that a measured peak is above a declared budget; None: it is not, or unknown."""
    if budget_gb is None or peak_bytes is None or peak_bytes <= budget_gb * GIB:
        return None
    return (
        f"{slug}: {key}: {budget_gb} GiB declared, "
        f"{peak_bytes / GIB} GiB ({peak_bytes} bytes) measured"
    )


def _over(
    provider: "ProviderManifest", report: Report, key: str, measured: str
) -> Iterator[Problem]:
    budget = getattr(provider, key.replace(".", "_"))
    peak = report.memory.get(measured)
    text = over_budget(
        provider.slug, key, budget, peak if isinstance(peak, int) else None
    )
    if text is not None:
        yield _contradiction(provider, "over_budget", key, text)


def _grows(provider: "ProviderManifest", report: Report) -> Iterator[Problem]:
    growth = report.memory.get("growth_mib")
    limit = provider.smoke_max_growth_mib
    if isinstance(growth, int | float) and growth > limit:
        key = "smoke.max_growth_mib"
        text = f"{provider.slug}: {key}: {limit} declared, {growth} measured"
        yield _contradiction(provider, "grows", key, text)


def _slow(provider: "ProviderManifest", report: Report) -> Iterator[Problem]:
    start = report.timing.get("spawn_to_ready_s")
    limit = provider.runtime_start_timeout_s
    if isinstance(start, int | float) and start > limit:
        key = "runtime.start_timeout_s"
        text = f"{provider.slug}: {key}: {limit} s declared, {start} s measured"
        yield _contradiction(provider, "start_timeout", key, text)


def _contradiction(
    provider: "ProviderManifest", reason: str, name: str, text: str
) -> Problem:
    return Problem(
        step="measured",
        reason=reason,
        text=text,
        path=str(provider.path),
        name=name,
        next=f"tu remote report {provider.slug}",
    )


def _unreadable(path: Path, found: str) -> ProviderError:
    return ProviderError(
        f"{path}: {found}, a measured report of schema {SCHEMA} wanted",
        reason="stale",
        next=f"doit setup:{path.stem}",
    )


def _known(value: object) -> dict[str, object]:
    """Leave out what is not known: TOML has no null, and 0 would be a claim."""
    known = _without_none(value)
    assert isinstance(known, dict)
    return known


def _without_none(value: object) -> object:
    if isinstance(value, Mapping):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_without_none(item) for item in value if item is not None]
    return value


def _inputs_differ(
    was: Mapping[str, object], now: Mapping[str, object]
) -> Iterator[str]:
    for key, value in now.items():
        if key == "installed" or key.startswith("distributions"):
            continue
        before = was.get(key)
        if isinstance(value, dict):
            before = before if isinstance(before, dict) else {}
            for name in dict.fromkeys([*before, *value]):
                yield from _changed(f"{key}.{name}", before.get(name), value.get(name))
        else:
            yield from _changed(key, before, value)
    yield from _installed_differ(was, now)


def _installed_differ(
    was: Mapping[str, object], now: Mapping[str, object]
) -> Iterator[str]:
    """Name the packages where both lists are known, and the digests otherwise."""
    key = "distributions"
    if was.get(key) == now.get(key):
        return
    before, after = was.get("installed"), now.get("installed")
    if not isinstance(before, dict) or not isinstance(after, dict) or not after:
        yield from _changed(key, was.get(key), now.get(key))
        return
    for name in sorted({*before, *after}):
        yield from _changed(name, before.get(name), after.get(name))


def _devices_differ(was: object, now: Sequence[Device]) -> Iterator[str]:
    before = was if isinstance(was, list) else []
    for index in range(max(len(before), len(now))):
        old = before[index] if index < len(before) else {}
        new = dataclasses.asdict(now[index]) if index < len(now) else {}
        where = "" if len(before) < 2 and len(now) < 2 else f" {index}"
        yield from _changed(f"gpu{where}", old.get("name"), new.get("name"))
        if old and new:
            yield from _changed(f"driver{where}", old.get("driver"), new.get("driver"))


def _changed(name: str, was: object, now: object) -> Iterator[str]:
    if was != now:
        yield f"{name} {_short(was)} -> {_short(now)}"


def _short(value: object) -> str:
    if value is None:
        return "none"
    text = str(value)
    return text[:12] if _HEX64.fullmatch(text) else text


def _worker_files(provider: "ProviderManifest") -> list[Path]:
    """List the worker and the modules beside it, which it may import."""
    beside = set(provider.directory.rglob("*.py"))
    smoke = (
        {provider.resolve(provider.smoke_script)} if provider.smoke_script else set()
    )
    worker = (
        {provider.resolve(provider.runtime_worker)}
        if provider.runtime_worker
        else set()
    )
    return sorted((beside - smoke) | worker)


def _smoke_files(provider: "ProviderManifest") -> list[Path]:
    """List the script, and the provider's files that a request names."""
    if provider.smoke_script:
        return [provider.resolve(provider.smoke_script)]
    named = (provider.directory / text for text in _texts(provider.smoke_request))
    return sorted({path for path in named if _is_file(path)})


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        # a text of a request is any text: too long for a name, or with a NUL
        return False


def _kit_commit(provider: "ProviderManifest") -> str | None:
    kit = kits.declared(provider.kit_file())
    return None if kit is None else kit.commit


def _digest(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _digest_all(paths: Sequence[Path]) -> str | None:
    """Give one digest for several files by name and content; None for no file."""
    if not paths:
        return None
    return _digest_of_json([[path.name, _digest(path)] for path in paths])


def _digest_of_json(value: object) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
