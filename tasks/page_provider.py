"""One provider's part of the page: what it took, drawn and written."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tasks import page_charts
from tasks.figures import number
from tasks.page_svg import Chart
from tasks.page_text import arrows, gib, seconds, short, text, times
from tasks.report import speed_up
from tasks.reported import Entry

_GIB = 2**30
_WHY = 2
"""How many differences the overview names; the provider's own part names all."""
_NONE = '<span class="none" aria-hidden="true">&ndash;</span><span class="hidden">unknown</span>'


def verdict(entry: Entry) -> str:
    """Show a verdict and, in few words, why."""
    shown = "not set up" if entry.state == "missing" else entry.state
    badge = f'<span class="badge {entry.state}">{shown}</span>'
    told = list(entry.differs)
    if len(told) > _WHY:
        told = [*told[:_WHY], f"and {len(told) - _WHY} more"]
    if entry.state == "missing" and entry.provider is not None:
        told = []
    if entry.claims.problems:
        count = len(entry.claims.problems)
        noun = "contradiction" if count == 1 else "contradictions"
        badge += f' <span class="badge contradicted">{count} {noun}</span>'
    at = entry.report.certified.get("at") if entry.report else None
    when = f'<span class="sub">{moment(at)}</span>' if at else ""
    why = f'<span class="why">{text(arrows("; ".join(told)))}</span>' if told else ""
    return badge + when + why


def number_cell(label: str, value: float | None, shown: str, of_it: str = "") -> str:
    """Give the cell of a number; None: it is not known, which is no zero."""
    if value is None:
        return f'<td role="cell" class="number empty" data-label="{label}">{_NONE}</td>'
    sub = f'<span class="sub">{text(of_it)}</span>' if of_it else ""
    return (
        f'<td role="cell" class="number" data-label="{label}"><span>'
        f'<data value="{value!r}">{text(shown)}</data>{sub}</span></td>'
    )


def moment(at: object) -> str:
    """Show when something was certified, as short as it can be told."""
    said = str(at)
    shown = said[:16].replace("T", " ")
    utc = " UTC" if said.endswith(("+00:00", "Z")) else ""
    return f'<time datetime="{text(said)}">{text(shown)}{utc}</time>'


def section(name: str, entries: Sequence[Entry], *, named: bool = False) -> str:
    """Give the part of a provider on one machine, or on several.

    `named`: the page is of several machines, and one that stands alone is named too.
    """
    first = entries[0]
    one = first.provider
    described = (
        f'<p class="muted">{text(one.description)}</p>'
        if one and one.description
        else ""
    )
    several = named or len(entries) > 1
    badge = "" if several else _badge(first)
    body = _several(name, entries) if several else "".join(_body(name, first))
    return (
        f'<section class="provider card" aria-labelledby="{name}">\n'
        f'<div class="title"><h2 id="{name}">{text(first.slug)}</h2>{badge}</div>'
        f"{described}\n{body}</section>\n"
    )


def _badge(entry: Entry) -> str:
    return f'<span class="badge {entry.state}">{entry.state}</span>'


def _body(name: str, entry: Entry) -> Iterator[str]:
    yield _meta(entry)
    yield _told(entry)
    if entry.report is None:
        return
    yield _keys(entry)
    charts = page_charts.of_entry(name, entry)
    yield _charts(charts)
    yield '<div class="more">'
    for chart in (chart for stack in charts for chart in stack if _is_wide(chart)):
        yield _numbers(chart)
    yield from _suite(entry)
    yield from _answer(entry)
    yield _rests_on(entry)
    yield "</div>\n"


def _meta(entry: Entry) -> str:
    parts = []
    if entry.report:
        certified = entry.report.certified
        by = certified.get("by")
        parts += [f"certified {moment(certified.get('at', 'unknown'))}"]
        parts += [f"by {text(by)}"] if by else []
    if entry.provider:
        where = entry.provider.verified_on
        on = f" ({text(where)})" if where else ""
        parts.append(f"{text(entry.provider.status)} by its author{on}")
    return f'<p class="meta">{" · ".join(parts)}</p>\n'


def _told(entry: Entry) -> str:
    """Name what is wrong, what changed, and what is worth knowing."""
    of_it = f"{entry.slug}: "
    items = [
        f'<li class="bad"><strong>Contradicted</strong> {text(p.text.removeprefix(of_it))}</li>'
        for p in entry.claims.problems
    ]
    if entry.differs:
        changed = "; ".join(entry.differs[:12])
        more = len(entry.differs) - 12
        rest = f"; and {more} more" if more > 0 else ""
        items.append(
            f'<li class="warn"><strong>Stale</strong> {text(arrows(changed))}{rest}</li>'
        )
    items += [
        f"<li>{text(note.removeprefix(of_it))}</li>" for note in entry.claims.notes
    ]
    return f'<ul class="notes">{"".join(items)}</ul>\n' if items else ""


def _keys(entry: Entry) -> str:
    assert entry.report is not None
    timing, memory = entry.report.timing, entry.report.memory
    faster = speed_up(timing)
    peak, budget = number(memory, "rss_peak_bytes"), number(memory, "ram_budget_gb")
    each = timing.get("held_s")
    several = isinstance(each, list) and len(each) > 1
    shown = (
        (
            "Held request",
            number(timing, "held_median_s"),
            seconds,
            f"median of {len(each)}" if isinstance(each, list) and several else "",
        ),
        ("Speed-up", faster, times, "held over fresh"),
        ("Load", number(timing, "load_s"), seconds, "once, before the first"),
        (
            "Peak RAM",
            peak,
            lambda v: gib(v / _GIB),
            f"of {short(budget)} GiB declared" if budget else "no budget declared",
        ),
    )
    tiles = "".join(
        f"<div><dt>{name}</dt><dd>"
        + (
            _NONE
            if value is None
            else f'<data value="{value!r}">{show(value)}</data>'
            f'<span class="sub">{sub}</span>'
        )
        + "</dd></div>"
        for name, value, show, sub in shown
    )
    return f'<dl class="keys">{tiles}</dl>\n'


def _charts(stacks: Sequence[Sequence[Chart]]) -> str:
    drawn = (f"<div>{''.join(map(_figure, stack))}</div>" for stack in stacks)
    return f'<div class="charts">{"".join(drawn)}</div>\n'


def _figure(chart: Chart) -> str:
    numbers = "" if _is_wide(chart) else _numbers(chart)
    return (
        f"<figure><figcaption>{text(chart.title)}</figcaption>\n{chart.svg}\n"
        f"{numbers}</figure>\n"
    )


def _is_wide(chart: Chart) -> bool:
    """Say whether the numbers of a chart need more room than it."""
    return len(chart.head) > 2


def _numbers(chart: Chart) -> str:
    return _details(f"Numbers: {chart.title.lower()}", chart.head, chart.rows)


def _details(summary: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    heads = "".join(f'<th scope="col">{text(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{text(first)}</th>'
        f"{''.join(f'<td>{text(cell)}</td>' for cell in cells)}</tr>"
        for first, *cells in rows
    )
    rows_of_it = f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    name = text(summary)
    table = f"<table>{rows_of_it}"
    if len(head) > 2:
        # no landmark: a page has as many as it has charts
        table = (
            f'<div class="scroll" tabindex="0" role="group" aria-label="{name}">'
            f'<table class="many">{rows_of_it}</div>'
        )
    return f"<details><summary>{name}</summary>{table}</details>"


# -- what else was measured


def _suite(entry: Entry) -> Iterator[str]:
    accepted = entry.acceptance
    if accepted is None:
        return
    came = "passed" if accepted.ok else "failed"
    at = f", {accepted.at[:16].replace('T', ' ')}" if accepted.at else ""
    rows = [
        (
            phase.name,
            "ok" if phase.ok else phase.reason or "failed",
            phase.text,
            seconds(phase.seconds),
        )
        for phase in accepted.phases
    ]
    head = ("phase", "came to", "what", "time")
    yield _details(f"Acceptance suite: {came}{at}", head, rows)


def _answer(entry: Entry) -> Iterator[str]:
    """Show what the model answered, where its author looked."""
    answer: Mapping[str, Any] = entry.report.answer if entry.report else {}
    values, files = answer.get("values"), answer.get("files")
    rows = [
        (str(key), json.dumps(value, default=str, ensure_ascii=False))
        for key, value in (values.items() if isinstance(values, Mapping) else ())
    ]
    for name, file in files.items() if isinstance(files, Mapping) else ():
        told = file if isinstance(file, Mapping) else {}
        rows.append(
            (str(name), f"{told.get('size')} bytes, {str(told.get('sha256'))[:12]}")
        )
    if "identical" in answer:
        same = "yes" if answer["identical"] is True else "no"
        rows.append(("the same answer each time", same))
    if rows:
        yield _details("What it answered", ("looked at", "found"), rows)


def _rests_on(entry: Entry) -> str:
    assert entry.report is not None
    inputs = entry.report.inputs
    rows = [
        (key.replace("_", " "), str(value)[:12] if _is_digest(value) else str(value))
        for key, value in inputs.items()
        if not isinstance(value, Mapping)
    ]
    weights = inputs.get("weights")
    for name, digest in weights.items() if isinstance(weights, Mapping) else ():
        rows.append((str(name), str(digest)[:12]))
    return _details("What it rests on", ("input", "version or digest"), rows)


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and len(value) in (40, 64)


# -- several machines


_COMPARED: tuple[tuple[str, Callable[[Entry], tuple[float | None, str]]], ...] = (
    ("Load", lambda e: _timed(e, "load_s")),
    ("First request", lambda e: _timed(e, "first_s")),
    ("Held request", lambda e: _timed(e, "held_median_s")),
    ("In a fresh process", lambda e: _timed(e, "fresh_s")),
    ("Speed-up", lambda e: _faster(e)),
    ("Peak RAM", lambda e: _peak(e, "rss_peak_bytes", "ram_budget_gb")),
    ("Peak on the device", lambda e: _peak(e, "device_peak_bytes", "vram_budget_gb")),
)


def _beside(entries: Sequence[Entry]) -> str:
    """Give a table with a column for each machine."""
    heads = "".join(
        f'<th scope="col" class="number">{text(one.machine)}</th>' for one in entries
    )
    rows = "".join(
        f'<tr><th scope="row">{name}</th>'
        f"{''.join(_compared_cell(*of(one)) for one in entries)}</tr>"
        for name, of in _COMPARED
    )
    return (
        '<div class="scroll beside" tabindex="0" role="group" '
        f'aria-label="{text(entries[0].slug)}, by machine"><table class="wide"><thead>'
        f"<tr><td></td>{heads}</tr></thead><tbody>{rows}</tbody></table></div>\n"
    )


def _compared_cell(value: float | None, shown: str) -> str:
    if value is None:
        return f'<td class="number">{_NONE}</td>'
    return f'<td class="number"><data value="{value!r}">{text(shown)}</data></td>'


def _timed(entry: Entry, key: str) -> tuple[float | None, str]:
    value = number(entry.report.timing if entry.report else {}, key)
    return value, seconds(value)


def _faster(entry: Entry) -> tuple[float | None, str]:
    value = speed_up(entry.report.timing if entry.report else {})
    return value, "" if value is None else times(value)


def _peak(entry: Entry, key: str, budget_key: str) -> tuple[float | None, str]:
    memory = entry.report.memory if entry.report else {}
    peak, budget = number(memory, key), number(memory, budget_key)
    of_it = f" of {short(budget)} GiB" if budget else ""
    return peak, "" if peak is None else f"{gib(peak / _GIB)}{of_it}"


def _several(name: str, entries: Sequence[Entry]) -> str:
    charts = page_charts.of_machines(name, entries)
    parts = [_beside(entries)] if len(entries) > 1 else []
    parts += [_charts(charts)] if charts else []
    for count, entry in enumerate(entries, 1):
        machine = f"{name}m{count}"
        body = "".join(_body(machine, entry))
        parts.append(
            f'<div class="machine"><div class="title"><h3>{text(entry.machine)}</h3>'
            f"{_badge(entry)}</div>{body}</div>\n"
        )
    return "".join(parts)
