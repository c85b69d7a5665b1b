"""What machines measured, of every provider, as rows and as a table for a terminal."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks import reported
from tasks.figures import change, number
from tasks.page_text import visible
from tasks.reported import Row
from tasks.screen import plain as _plain

WIDTH = 80
_NARROWEST = 40
_UNKNOWN = "-"
_GIB = 2**30
_DIFFERENCES = 5
"""How many are shown: another environment has a line for every package."""
_NAME = 24
"""Of a machine at the head of its column, in characters."""
_COLORS = {"current": "32", "stale": "33", "missing": "2"}
_COLUMNS = ("provider", "state", "load", "first", "held", "fresh", "speed-up", "growth")
_LEFT = 2
"""Columns that hold words; those after them hold numbers, and end at one edge."""


def rows(tree: Path, names: Sequence[str] | None = None) -> list[Row]:
    """Give a row for each provider of a tree, or for those named; read-only.

    Raises UsageError for a name that is none.
    """
    return [entry.row() for entry in reported.of_tree(tree, names)]


def table(rows: Sequence[Row], width: int | None = None, *, color: bool = False) -> str:
    """Lay rows out for a terminal: a line of figures each, and what belongs to it below.

    Of several machines: a block for each provider, and a column for each machine.
    `width`: in characters, None: 80. What has no number shows a dash, never 0.
    """
    if not rows:
        return "no providers"
    width = max(_NARROWEST, width or WIDTH)
    if len({row["machine"] for row in rows if row["machine"]}) > 1:
        return _compared(rows, width, color=color)
    lines = [_COLUMNS, *(tuple(_figures(row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    head, *body = [_laid_out(line, widths) for line in lines]
    shown = [_styled(head, "1", color=color)]
    for row, line in zip(rows, body, strict=True):
        shown.append(_colored(line, row["state"], color=color))
        for text in _remarks(row):
            shown += _hung(text, width)
    return "\n".join(shown)


def plain(text: object) -> str:
    """Give a line of what another machine may have written: nothing hidden in it."""
    return visible(_plain(str(text)))


# -- one machine


def _figures(row: Row) -> Iterator[str]:
    yield plain(row["slug"])
    yield row["state"]
    yield from _numbers(row)


def _numbers(row: Row) -> Iterator[str]:
    timing, memory = part(row, "timing"), part(row, "memory")
    growth = change(memory, "growth_mib")
    yield seconds(number(timing, "load_s"))
    yield seconds(number(timing, "first_s"))
    yield seconds(number(timing, "held_median_s"))
    yield seconds(number(timing, "fresh_s"))
    faster = speed_up(timing)
    yield _UNKNOWN if faster is None else f"{faster:.1f} x"
    yield _UNKNOWN if growth is None else f"{growth:.1f} MiB"


def _remarks(row: Row) -> Iterator[str]:
    certified = part(row, "certified")
    if certified:
        on = f" on {row['machine']}" if row["machine"] else ""
        author = row["status"] or _UNKNOWN
        yield f"certified {certified.get('at', _UNKNOWN)}{on}; author: {author}"
    elif row["status"]:
        yield f"not set up on this machine; author: {row['status']}"
    peaks = [f"{peak} {pool}" for pool, peak in _peaks(row) if peak]
    if peaks:
        yield f"peak {', '.join(peaks)}"
    yield from _told(row)


def _told(row: Row) -> Iterator[str]:
    """Say why a report is not current, and what became of the manifest's claims."""
    yield from row["differs"][:_DIFFERENCES]
    if more := row["differs"][_DIFFERENCES:]:
        yield f"and {len(more)} more differences: --json has all"
    of_it = f"{row['slug']}: "
    for text in row.get("contradicts", ()):
        yield f"contradicts {text.removeprefix(of_it)}"
    if row["state"] != "missing":
        for text in row.get("notes", ()):
            yield f"note: {text.removeprefix(of_it)}"


def _peaks(row: Row) -> Iterator[tuple[str, str]]:
    memory = part(row, "memory")
    yield "RAM", _peak(memory, "rss_peak_bytes", "ram_budget_gb")
    yield "device", _peak(memory, "device_peak_bytes", "vram_budget_gb")


def _peak(memory: Mapping[str, Any], peak_key: str, key: str) -> str:
    peak, budget = number(memory, peak_key), number(memory, key)
    if peak is None and budget is None:
        return ""
    took = "unknown" if peak is None else f"{peak / _GIB:.3g}"
    declared = "an undeclared budget" if budget is None else f"{budget:g} GiB"
    return f"{took} of {declared}"


# -- several machines


def _compared(rows: Sequence[Row], width: int, *, color: bool) -> str:
    slugs = list(dict.fromkeys(row["slug"] for row in rows))
    blocks = [
        _block([row for row in rows if row["slug"] == slug], width, color=color)
        for slug in slugs
    ]
    return "\n\n".join(blocks)


def _block(rows: Sequence[Row], width: int, *, color: bool) -> str:
    """Lay one provider out, with as many machines side by side as there is room for."""
    columns = [_column(row) for row in rows]
    heads = [plain(rows[0]["slug"]), *(f"  {name}" for name in _LINES)]
    left = max(map(len, heads))
    wide = max(len(cell) for column in columns for cell in column) + 2
    each = max(1, (width - left) // wide)
    shown: list[str] = []
    for start in range(0, len(columns), each):
        beside = columns[start : start + each]
        lines = [
            head.ljust(left) + "".join(column[place].rjust(wide) for column in beside)
            for place, head in enumerate(heads)
        ]
        shown += [_styled(lines[0], "1", color=color), *lines[1:]]
    for row in rows:
        for text in _told(row):
            shown += _hung(f"{row['machine'] or _UNKNOWN}: {text}", width)
    return "\n".join(shown)


_LINES = ("state", "certified", *_COLUMNS[_LEFT:], "RAM", "device")


def _column(row: Row) -> list[str]:
    at = part(row, "certified").get("at")
    return [
        visible(_plain(row["machine"] or _UNKNOWN), _NAME),
        row["state"],
        _UNKNOWN if at is None else plain(str(at))[:16],
        *_numbers(row),
        *(peak or _UNKNOWN for _, peak in _peaks(row)),
    ]


# -- numbers and lines


def part(row: Row, table: str) -> Mapping[str, Any]:
    """Give one table of a row's report; empty where there is none."""
    found = (row["measured"] or {}).get(table)
    return found if isinstance(found, Mapping) else {}


def speed_up(timing: Mapping[str, Any]) -> float | None:
    """Say how much faster a held request is than a fresh process; None: not known."""
    held, fresh = number(timing, "held_median_s"), number(timing, "fresh_s")
    return fresh / held if held and fresh is not None else None


def seconds(value: float | None) -> str:
    """Show seconds in as many places as they are worth."""
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
        # what another machine wrote may hold control codes
        plain(text),
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
