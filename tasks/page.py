"""The measured reports as one HTML page: no network, and nothing that needs a script."""

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from remote_resident import __version__, places, whole_file
from remote_resident.errors import ProviderError
from tasks import page_svg
from tasks.page_provider import number_cell, section, verdict
from tasks.page_text import gib, mib, seconds, short, text, times
from tasks.reported import Entry

_GIB = 2**30
_STATES = {
    "current": "current",
    "stale": "stale",
    "missing": "not set up",
}
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""What a browser may do with the page: show it."""


def place(slug: str | None = None) -> Path:
    """Name the page of this host: of all providers, or of one."""
    return places.state_dir() / (f"report-{slug}.html" if slug else "report.html")


def write(path: Path, entries: Sequence[Entry], *, asked_for: bool = False) -> None:
    """Write the page whole. `asked_for`: somebody named the file, which others may read.

    Raises ProviderError (`disk_full`, else `unreadable`); what stood there then stands.
    """
    if asked_for:
        path = _usable(path)
    page = html(entries, datetime.now(UTC))
    whole_file.write(path, page.encode(), mode=0o666 if asked_for else 0o600)


def _usable(path: Path) -> Path:
    """Give where a page can be put; what is no file stays what it is."""
    real = path
    try:
        real = Path(os.path.realpath(path))
        found = real.stat()
        fault = None if stat.S_ISREG(found.st_mode) else "no regular file"
    except FileNotFoundError:
        fault = None if real.parent.is_dir() else "no such directory"
    except (OSError, ValueError) as exc:
        fault = getattr(exc, "strerror", None) or str(exc)
    if fault is None:
        return real
    raise ProviderError(
        f"{path}: {fault} found, the name of a file in a directory wanted",
        reason="unreadable",
        next="tu remote report --html report.html",
    )


def html(entries: Sequence[Entry], at: datetime) -> str:
    """Give the page; the same entries and time give the same bytes."""
    if any(entry.report or entry.acceptance for entry in entries):
        page_svg.load(places.cache_dir() / "matplotlib")
    machines = list(dict.fromkeys(e.machine for e in entries if e.machine))
    return "".join(_page(entries, machines, at))


def _page(
    entries: Sequence[Entry], machines: Sequence[str], at: datetime
) -> Iterator[str]:
    title = _title(machines)
    style = (Path(__file__).with_name("page.css")).read_text(encoding="utf-8")
    yield (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#reports">Skip to the reports</a>\n'
    )
    yield _head(entries, title)
    yield '<main id="reports">\n'
    if len(machines) == 1:
        yield _machine(entries)
    by_slug = [
        (slug, list(group)) for slug, group in groupby(entries, key=lambda e: e.slug)
    ]
    seen = [(f"p{n}", one) for n, (_, one) in enumerate(by_slug, 1)]
    yield _overview(seen, machines)
    for name, group in seen:
        if any(entry.report or entry.state == "stale" for entry in group):
            yield section(name, group, named=len(machines) > 1)
    yield _rest(entries)
    yield "</main>\n"
    yield _foot(at)


def _title(machines: Sequence[str]) -> str:
    if not machines:
        return "Measured reports"
    if len(machines) == 1:
        return f"Measured on {text(machines[0])}"
    return f"Measured on {len(machines)} machines"


def _head(entries: Sequence[Entry], title: str) -> str:
    counts = Counter(entry.state for entry in entries)
    claims = sum(len(entry.claims.problems) for entry in entries)
    tiles = [
        f'<li class="badge {state}">{counts[state]} {shown}</li>'
        for state, shown in _STATES.items()
        if counts[state]
    ]
    if claims:
        noun = "claim" if claims == 1 else "claims"
        tiles.append(
            f'<li class="badge contradicted">{claims} {noun} contradicted</li>'
        )
    return (
        f"<header>\n<h1>{title}</h1>\n"
        '<p class="lead">What each provider took when it was last proved to work, '
        "and whether that still holds.</p>\n"
        f'<ul class="counts">{"".join(tiles)}</ul>\n</header>\n'
    )


def _machine(entries: Iterable[Entry]) -> str:
    """Show what the machine is, as its newest report has it."""
    reports = [entry.report for entry in entries if entry.report]
    newest = max(reports, key=lambda one: str(one.certified.get("at", "")))
    said = newest.machine
    facts: dict[str, list[object]] = {
        "System": [said.get("os"), said.get("kernel")],
        "Processor": [
            said.get("cpu_model"),
            _cores(said.get("cores")),
            said.get("arch"),
        ],
        "Memory": [_bytes(said.get("memory_bytes"))],
        "Devices": list(_devices(said.get("gpus"))) or ["none"],
    }
    shown = "".join(
        f"<div><dt>{name}</dt><dd>{', '.join(text(v) for v in values if v)}</dd></div>"
        for name, values in facts.items()
        if any(values)
    )
    return (
        '<section aria-labelledby="machine">\n'
        '<h2 id="machine" class="hidden">The machine</h2>\n'
        f'<dl class="facts card">{shown}</dl>\n</section>\n'
    )


def _cores(value: object) -> str | None:
    return f"{value} cores" if isinstance(value, int) else None


def _bytes(value: object) -> str | None:
    return gib(value / _GIB) if isinstance(value, int) else None


def _devices(gpus: object) -> Iterator[str]:
    for gpu in gpus if isinstance(gpus, list) else []:
        if not isinstance(gpu, dict):
            continue
        size = gpu.get("memory_gb")
        memory = f"{short(size)} GiB" if isinstance(size, int | float) else size
        driver = gpu.get("driver")
        parts = [gpu.get("name"), memory, f"driver {driver}" if driver else None]
        yield ", ".join(str(part) for part in parts if part)


# -- the overview


Seen = Sequence[tuple[str, Sequence[Entry]]]
"""The anchor of each provider, and what is known of it on each machine."""


def _overview(seen: Seen, machines: Sequence[str]) -> str:
    table = _by_machine(seen, machines) if len(machines) > 1 else _by_figure(seen)
    return (
        '<section aria-labelledby="overview">\n<h2 id="overview">Overview</h2>\n'
        f"{table}</section>\n"
    )


_FIGURES = ("Load", "First", "Held", "Speed-up", "Peak memory", "Growth")


def _by_figure(seen: Seen) -> str:
    heads = "".join(
        f'<th role="columnheader" scope="col" class="number">{name}</th>'
        for name in _FIGURES
    )
    rows = "".join(_figures_row(name, entry) for name, group in seen for entry in group)
    return (
        '<div class="card"><table class="wide stacks" role="table" '
        'aria-labelledby="overview"><thead role="rowgroup"><tr role="row">'
        '<th role="columnheader" scope="col">Provider</th>'
        f'<th role="columnheader" scope="col">Verdict</th>{heads}</tr></thead>'
        f'<tbody role="rowgroup">{rows}</tbody></table></div>\n'
    )


def _figures_row(name: str, entry: Entry) -> str:
    cells = (
        number_cell(label, *value)
        for label, value in zip(_FIGURES, figures(entry), strict=True)
    )
    return (
        f'<tr role="row"><th role="rowheader" scope="row">{_linked(name, entry)}</th>'
        f'<td role="cell" class="words">{verdict(entry)}</td>{"".join(cells)}</tr>\n'
    )


def _linked(name: str, entry: Entry) -> str:
    if entry.report or entry.state == "stale":
        return f'<a href="#{name}">{text(entry.slug)}</a>'
    return text(entry.slug)


Figure = tuple[float | None, str, str]
"""A number, how it is read, and what it is held against."""


def figures(entry: Entry) -> Iterator[Figure]:
    """Give what the overview says of an entry, in the order of its columns."""
    from tasks.figures import change, number
    from tasks.report import speed_up

    timing = entry.report.timing if entry.report else {}
    memory = entry.report.memory if entry.report else {}
    for key in ("load_s", "first_s", "held_median_s"):
        value = number(timing, key)
        yield value, seconds(value), ""
    faster = speed_up(timing)
    yield faster, "" if faster is None else times(faster), ""
    yield _peak(entry)
    growth = change(memory, "growth_mib")
    yield growth, "" if growth is None else mib(growth), ""


def _peak(entry: Entry) -> Figure:
    """Give the peak on the device where there is one, else of the host."""
    from tasks.figures import number

    memory = entry.report.memory if entry.report else {}
    for key, budget_key, pool in (
        ("device_peak_bytes", "vram_budget_gb", "device"),
        ("rss_peak_bytes", "ram_budget_gb", "RAM"),
    ):
        peak, budget = number(memory, key), number(memory, budget_key)
        if peak is not None:
            of_it = f"of {short(budget)} GiB {pool}" if budget else pool
            return peak, gib(peak / _GIB), of_it
    return None, "", ""


def _by_machine(seen: Seen, machines: Sequence[str]) -> str:
    heads = "".join(f'<th scope="col">{text(one)}</th>' for one in machines)
    rows = "".join(_machines_row(name, group, machines) for name, group in seen)
    return (
        '<div class="card scroll" tabindex="0" role="region" '
        'aria-label="Overview by machine"><table class="wide"><thead><tr>'
        f'<th scope="col">Provider</th>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>\n"
    )


def _machines_row(name: str, group: Sequence[Entry], machines: Sequence[str]) -> str:
    by_machine = {entry.machine: entry for entry in group}
    cells = []
    for machine in machines:
        entry = by_machine.get(machine)
        if entry is None:
            cells.append('<td><span class="none">no report</span></td>')
            continue
        _, _, held, faster, peak, _ = figures(entry)
        parts = (f"held {held[1]}", f"{faster[1]} speed-up", f"peak {peak[1]}")
        told = [
            part
            for part, (value, _, _) in zip(parts, (held, faster, peak), strict=True)
            if value is not None
        ]
        cells.append(
            f'<td>{verdict(entry)}<span class="sub">{"<br>".join(told)}</span></td>'
        )
    return f'<tr><th scope="row">{_linked(name, group[0])}</th>{"".join(cells)}</tr>\n'


# -- what is not there, and the end


def _rest(entries: Sequence[Entry]) -> str:
    rest = [entry for entry in entries if entry.state == "missing"]
    if not rest:
        return ""
    items = "".join(_missing(entry) for entry in rest)
    return (
        '<section aria-labelledby="rest">\n<h2 id="rest">Not set up on this machine</h2>\n'
        f'<ul class="rest card">{items}</ul>\n</section>\n'
    )


def _missing(entry: Entry) -> str:
    one = entry.provider
    if one is None:
        told = "; ".join(entry.differs)
        return (
            f'<li><span class="slug">{text(entry.slug)}</span> '
            f'<span class="sub">its manifest cannot be read: {text(told)}</span></li>'
        )
    where = f", on {one.verified_on}" if one.verified_on else ""
    return (
        f'<li><span class="slug">{text(entry.slug)}</span> '
        f'<span class="sub">{text(one.description)}</span>'
        f'<span class="sub">{text(one.status)} by its author{text(where)}; '
        f"<code>doit setup:{text(entry.slug)}</code></span></li>"
    )


def _foot(at: datetime) -> str:
    return (
        "<footer>\n<p>A held request is answered by a process that keeps the model; a "
        "fresh one starts, loads, answers once and ends. Speed-up is the one over the "
        "other. Peaks are of all processes of the provider together; 1 GiB is "
        "2<sup>30</sup> bytes. Every number on this page stands unrounded in a "
        f'<code>measured.toml</code>.</p>\n<p>Written <time datetime="{at.isoformat()}">'
        f"{at:%Y-%m-%d %H:%M} UTC</time> by remote-resident {__version__}.</p>\n"
        "</footer>\n</body>\n</html>\n"
    )
