"""What this machine measured, of every provider, as rows and as a table for a terminal."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_resident.errors import ManifestError, ProviderError

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest
    from tasks.measured import Report

Row = dict[str, Any]
"""`slug`, `machine` (host name), `state` (current, stale, missing), `differs` (why it is
not current), `status` (what the author claims) and `measured` (the report's tables);
None: not known."""

WIDTH = 80
_NARROWEST = 40
_UNKNOWN = "-"
_GIB = 2**30
_COLORS = {"current": "32", "stale": "33", "missing": "2"}
_COLUMNS = ("provider", "state", "load", "first", "held", "fresh", "speed-up", "growth")
_LEFT = 2
"""Columns that hold words; those after them hold numbers, and end at one edge."""


def rows(tree: Path, names: Sequence[str] | None = None) -> list[Row]:
    """Give a row for each provider of a tree, or for those named; read-only.

    Raises UsageError for a name that is none.
    """
    from remote_resident.manifest import catalog, find

    if names is None:
        return [_row(slug, found) for slug, found in catalog(tree).items()]
    found = []
    for name in names:
        try:
            found.append(_row(name, find(tree, name)))
        except ManifestError as exc:
            found.append(_row(Path(name).name, exc))
    return found


def table(rows: Sequence[Row], width: int | None = None, *, color: bool = False) -> str:
    """Lay rows out for a terminal: a line of figures each, and what belongs to it below.

    `width`: in characters, None: 80. What has no number shows a dash, never 0.
    """
    if not rows:
        return "no providers"
    lines = [_COLUMNS, *(tuple(_figures(row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    head, *body = [_laid_out(line, widths) for line in lines]
    shown = [_styled(head, "1", color=color)]
    for row, line in zip(rows, body, strict=True):
        shown.append(_colored(line, row["state"], color=color))
        for text in _remarks(row):
            shown += _hung(text, max(_NARROWEST, width or WIDTH))
    return "\n".join(shown)


# -- rows


def _row(slug: str, provider: "ProviderManifest | ManifestError") -> Row:
    if isinstance(provider, ManifestError):
        texts = [problem.text for problem in provider.problems] or [str(provider)]
        return _shape(slug, "missing", texts)
    from tasks import measured

    slug = provider.slug
    try:
        report = measured.read(measured.report_path(provider))
    except ProviderError as exc:
        return _shape(slug, "stale", [str(exc)], status=provider.status)
    if report is None:
        return _shape(slug, "missing", [], status=provider.status)
    differs = measured.differs(provider, report)
    state = "stale" if differs else "current"
    return _shape(slug, state, differs, status=provider.status, report=report)


def _shape(
    slug: str,
    state: str,
    differs: list[str],
    *,
    status: str | None = None,
    report: "Report | None" = None,
) -> Row:
    return {
        "slug": slug,
        "machine": report.machine.get("hostname") if report else None,
        "state": state,
        "differs": differs,
        "status": status,
        "measured": report.as_dict() if report else None,
    }


# -- the table


def _figures(row: Row) -> Iterator[str]:
    timing, memory = _part(row, "timing"), _part(row, "memory")
    held, fresh = _number(timing, "held_median_s"), _number(timing, "fresh_s")
    growth = _number(memory, "growth_mib")
    yield row["slug"]
    yield row["state"]
    yield _seconds(_number(timing, "load_s"))
    yield _seconds(_number(timing, "first_s"))
    yield _seconds(held)
    yield _seconds(fresh)
    yield f"{fresh / held:.1f} x" if held and fresh is not None else _UNKNOWN
    yield _UNKNOWN if growth is None else f"{growth:.1f} MiB"


def _remarks(row: Row) -> Iterator[str]:
    certified = _part(row, "certified")
    if certified:
        on = f" on {row['machine']}" if row["machine"] else ""
        yield f"certified {certified.get('at', _UNKNOWN)}{on}; author: {row['status']}"
    elif row["status"]:
        yield f"not set up on this machine; author: {row['status']}"
    memory = _part(row, "memory")
    pools = (
        ("RAM", "rss_peak_bytes", "ram_budget_gb"),
        ("device", "device_peak_bytes", "vram_budget_gb"),
    )
    peaks = [text for pool in pools if (text := _peak(memory, *pool))]
    if peaks:
        yield f"peak {', '.join(peaks)}"
    yield from row["differs"]


def _peak(memory: Mapping[str, Any], pool: str, peak_key: str, key: str) -> str:
    peak, budget = _number(memory, peak_key), _number(memory, key)
    if peak is None and budget is None:
        return ""
    took = "unknown" if peak is None else f"{peak / _GIB:.3g}"
    declared = "an undeclared budget" if budget is None else f"{budget:g} GiB"
    return f"{took} of {declared} {pool}"


def _part(row: Row, table: str) -> Mapping[str, Any]:
    found = (row["measured"] or {}).get(table)
    return found if isinstance(found, Mapping) else {}


def _number(table: Mapping[str, Any], key: str) -> float | None:
    value = table.get(key)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if number else None


def _seconds(value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    places = 3 if value < 1 else 1 if value < 100 else 0
    return f"{value:.{places}f} s"


def _laid_out(cells: Sequence[str], widths: Sequence[int]) -> str:
    aligned = [
        cell.ljust(width) if place < _LEFT else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(aligned).rstrip()


def _hung(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _colored(line: str, state: str, *, color: bool) -> str:
    if not color:
        return line
    # the state is the second word, and the first one may hold its letters
    before, _, after = line.partition(f"  {state}")
    return f"{before}  {_styled(state, _COLORS[state], color=True)}{after}"


def _styled(text: str, code: str, *, color: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if color else text
