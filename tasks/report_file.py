"""The file of a measured report: where it is, what it reads as, how it is put in place."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from remote_resident import places, readings
from remote_resident.errors import ProviderError

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest
    from remote_resident.readings import Readings

SCHEMA = 1
"""Of the report; a report with any other is refused."""

ACCEPTED = ".accept.toml"
"""How the file of an acceptance suite ends, beside a report."""
TABLES = ("machine", "inputs", "timing", "memory", "answer", "certified")


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
            next=places.elsewhere(),
        ) from None


def read(path: str | Path, kept: "Readings | None" = None) -> Report | None:
    """Read a report; None where there is none. `kept`: what it read as before.

    One whose path is given as text does not carry it.

    Raises ProviderError (`stale`) for what is not a report of this schema.
    """
    kept = readings.Readings() if kept is None else kept
    try:
        tables = kept.of(str(path), "report", _tables)
        # of a number that has more digits than Python writes out: ValueError
        slug = str(tables.get("slug"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        raise _unreadable(Path(path), str(exc)) from None
    return Report(
        slug=slug,
        path=path if isinstance(path, Path) else None,
        **{n: tables[n] for n in TABLES},
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


def _unreadable(path: Path, found: str) -> ProviderError:
    return ProviderError(
        f"{path}: {found}, a measured report of schema {SCHEMA} wanted",
        reason="stale",
        next=f"doit setup:{path.stem}",
    )
