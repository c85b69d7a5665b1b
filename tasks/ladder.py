"""What an acceptance suite measured by input size: `<slug>.accept.toml`, read strictly.

It lies beside the measured report, and says nothing of what it was measured with.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote_resident.errors import ProviderError
from remote_resident.readings import content
from tasks.figures import number
from tasks.report_file import ACCEPTED

POOLS = ("host", "device")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One size of input and what it took; None: not known."""

    size: float
    pool: str
    """host or device."""
    peak_gb: float | None
    seconds: float | None
    peak_source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One part of the suite."""

    name: str
    ok: bool
    reason: str
    text: str
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """What an acceptance suite came to."""

    slug: str
    at: str
    machine: str
    ok: bool
    phases: tuple[Phase, ...]
    rungs: tuple[Rung, ...]
    """In order of size."""


def beside(report: Path) -> Path:
    """Name the file that belongs to the report at a path."""
    return report.with_name(f"{report.name.removesuffix('.toml')}{ACCEPTED}")


def read(path: Path) -> Acceptance | None:
    """Read what a suite came to; None where none ran.

    Raises ProviderError (`stale`) for what is not such a file.
    """
    import tomllib

    try:
        tables = tomllib.loads(content(str(path))[0].decode())
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as exc:
        raise _damaged(path, str(exc)) from exc
    except (ValueError, RecursionError) as exc:
        raise _damaged(path, f"no TOML found ({exc})") from None
    try:
        return _acceptance(path, tables)
    except ValueError as exc:
        # of a number that has more digits than Python writes out
        raise _damaged(path, str(exc)) from None


def _acceptance(path: Path, tables: Mapping[str, Any]) -> Acceptance:
    said = tables.get("accept")
    if not isinstance(said, dict) or not isinstance(said.get("ok"), bool):
        raise _damaged(path, "no [accept] with ok found")
    rungs = list(_rungs(path, tables.get("ladder", [])))
    return Acceptance(
        slug=str(said.get("slug", "")),
        at=str(said.get("at", "")),
        machine=_hostname(said.get("machine")),
        ok=said["ok"],
        phases=tuple(_phases(path, tables.get("phase", []))),
        rungs=tuple(sorted(rungs, key=lambda rung: (rung.pool, rung.size))),
    )


def found(report: Path) -> tuple[Acceptance | None, list[str]]:
    """Read what lies beside the report at a path, and say what is damaged about it."""
    try:
        return read(beside(report)), []
    except ProviderError as exc:
        return None, [str(exc)]


def _rungs(path: Path, found: object) -> Iterator[Rung]:
    for table in _tables(path, "ladder", found):
        size, pool = number(table, "size"), table.get("pool")
        if size is None or pool not in POOLS:
            raise _damaged(path, f"a [[ladder]] of size {size}, pool {pool!r} found")
        yield Rung(
            size=size,
            pool=str(pool),
            peak_gb=number(table, "peak_gb"),
            seconds=number(table, "seconds"),
            peak_source=str(table.get("peak_source", "")),
        )


def _phases(path: Path, found: object) -> Iterator[Phase]:
    for table in _tables(path, "phase", found):
        yield Phase(
            name=str(table.get("name", "")),
            ok=table.get("ok") is True,
            reason=str(table.get("reason", "")),
            text=str(table.get("text", "")),
            seconds=number(table, "seconds"),
        )


def _tables(path: Path, name: str, found: object) -> list[Mapping[str, Any]]:
    if isinstance(found, list) and all(isinstance(one, dict) for one in found):
        return found
    raise _damaged(path, f"{name} that is no list of tables found")


def _hostname(machine: object) -> str:
    if isinstance(machine, Mapping):
        machine = machine.get("hostname")
    return "" if machine is None else str(machine)


def _damaged(path: Path, found: str) -> ProviderError:
    slug = path.name.removesuffix(".accept.toml")
    return ProviderError(
        f"{path}: {found}, what an acceptance suite writes wanted",
        reason="stale",
        next=f"doit accept:{slug}",
    )
