"""The measured report: what this machine really did with a provider, and whether it
still would.

Reading is fast: small files are hashed, a weight's digest comes from the memo, and no
process is started unless a device is present.
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from remote_resident import places, readings
from remote_resident.driver import device_count
from remote_resident.errors import ProviderError
from tasks.inputs import changed
from tasks.inputs import changes as changes
from tasks.inputs import inputs as inputs

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest
    from remote_resident.readings import Readings
    from tasks.environment import Site

SCHEMA = 1
"""Of the report; a report with any other is refused."""

TABLES = ("machine", "inputs", "timing", "memory", "answer", "certified")
GIB = 2**30


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


def read(path: Path, kept: "Readings | None" = None) -> Report | None:
    """Read a report; None where there is none. `kept`: what it read as before.

    Raises ProviderError (`stale`) for what is not a report of this schema.
    """
    kept = readings.Readings() if kept is None else kept
    try:
        tables = kept.of(str(path), "report", _tables)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        raise _unreadable(path, str(exc)) from None
    return Report(
        slug=str(tables.get("slug")), path=path, **{n: tables[n] for n in TABLES}
    )


def _tables(data: bytes) -> dict[str, object]:
    """Read a report's text. Raises ValueError, which says what was found."""
    import tomllib

    text = data.decode()
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as exc:
        raise ValueError(f"no TOML found ({exc})") from None
    if tables.get("schema") != SCHEMA:
        raise ValueError(f"schema {tables.get('schema')!r} found")
    missing = [name for name in TABLES if not isinstance(tables.get(name), dict)]
    if missing:
        raise ValueError(f"no table {', '.join(missing)} found")
    return tables


def write(path: Path, report: Report) -> None:
    """Write a report whole, and keep it in the provider's history.

    Raises ProviderError (`disk_full`, else `unreadable`); the last report then stands.
    """
    import tomli_w

    from tasks import history

    text = tomli_w.dumps(_known(report.as_dict()))
    # first: what could not be kept is not certified either
    history.keep(path, report, text)
    write_whole(path, text)


def write_whole(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Put a text in a file's place: under another name, to the disk, then renamed.

    `mode` is what the umask leaves of it. Raises as `write` does.
    """
    from secrets import token_hex

    places.ensure(path.parent)
    new = path.with_name(f".{path.name[:200]}.{token_hex(4)}.new")
    try:
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(handle, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        _to_disk(path.parent)
    except OSError as exc:
        raise _unwritable(path, exc) from exc
    finally:
        # gone already where all went well
        with contextlib.suppress(OSError):
            new.unlink()


def _to_disk(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unwritable(path: Path, exc: OSError) -> ProviderError:
    import errno
    import shlex

    folder = shlex.quote(str(path.parent))
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return ProviderError(
            f"{path}: {exc.strerror}, space for the file wanted",
            reason="disk_full",
            next=f"df -h {folder}",
        )
    return ProviderError(
        f"{path}: {exc.strerror}, a file that uid {os.geteuid()} can write wanted",
        reason="unreadable",
        next=f"ls -ld {folder}",
    )


@functools.cache
def devices() -> tuple[Device, ...]:
    """Describe the GPUs of this machine, asked once per process."""
    if not device_count():
        return ()
    from remote_resident import machine

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
    from remote_resident import machine

    return {**machine.facts(), "gpus": [dataclasses.asdict(gpu) for gpu in gpus]}


def weight_digests(provider: "ProviderManifest") -> dict[str, str | None]:
    """Give each weight's digest now, from the memo where it has it; None: not known."""
    known = provider.check_weights().digests if provider.weights_files else {}
    return {weight.name: known.get(weight.name) for weight in provider.weights_files}


def inputs_now(
    provider: "ProviderManifest",
    weights: Mapping[str, str] | None = None,
    site: "Site | None" = None,
) -> dict[str, object]:
    """Give what a report would rest on now, digests from the memo where it has them.

    `weights`: digests by name, `site`: the environment, as seen already; None: they
    are looked for.
    """
    if weights is None:
        known = weight_digests(provider)
    else:
        known = {w.name: weights.get(w.name) for w in provider.weights_files}
    return inputs(provider, known, provider.readings, site)


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
    weights: Mapping[str, str] | None = None,
    site: "Site | None" = None,
) -> list[str]:
    """Say what a report rests on and is not so any more; empty: it is current.

    `weights` and `site` as for `inputs_now`.
    """
    return [
        *changes(report.inputs, inputs_now(provider, weights, site)),
        *_devices_differ(report.machine.get("gpus", []), gpus()),
    ]


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


def _devices_differ(was: object, now: Sequence[Device]) -> Iterator[str]:
    listed = was if isinstance(was, list) else []
    before = [one if isinstance(one, Mapping) else {} for one in listed]
    for index in range(max(len(before), len(now))):
        old = before[index] if index < len(before) else {}
        new = dataclasses.asdict(now[index]) if index < len(now) else {}
        where = "" if len(before) < 2 and len(now) < 2 else f" {index}"
        yield from changed(f"gpu{where}", old.get("name"), new.get("name"))
        if old and new:
            yield from changed(f"driver{where}", old.get("driver"), new.get("driver"))
