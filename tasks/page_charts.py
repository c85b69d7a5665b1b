"""The charts of the page, each with the table of its numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tasks import page_plots
from tasks.figures import change, number
from tasks.page_svg import (
    FIRST,
    FRESH,
    HELD,
    INK,
    OVER,
    TRACK,
    WIDTH,
    Chart,
    drawable,
    figure,
)
from tasks.page_text import gib, mib, seconds, short, visible
from tasks.reported import Entry

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GIB = 2**30
_NAME = 30
"""Of a machine in a chart, in characters."""
_BAR = 44
"""Height of a bar with its words above it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    label: str
    shown: str
    """Its number, as it is read."""
    length: float
    track: float | None = None
    """How long the pale bar behind it is: what was declared."""
    color: str = HELD
    marks: Sequence[float] = field(default_factory=tuple)
    """Single measurements, shown as a span from the least to the most."""


def of_entry(name: str, entry: Entry) -> list[list[Chart]]:
    """Draw all there is to see of one provider on one machine, what is stacked together."""
    bars = _requests(name, entry), _peaks(name, entry), _growth(name, entry)
    plots = page_plots.ladder(name, entry), page_plots.timeline(name, entry)
    drawn_bars = [chart for chart in bars if chart is not None]
    drawn_plots = [chart for chart in plots if chart is not None]
    # a plot is as high as several charts of bars
    beside = [drawn_bars[:1], drawn_bars[1:]], [drawn_bars]
    stacks = beside[len(drawn_plots) - 1] if drawn_plots else [[c] for c in drawn_bars]
    return [stack for stack in stacks if stack] + [[plot] for plot in drawn_plots]


def of_machines(name: str, entries: Sequence[Entry]) -> list[list[Chart]]:
    """Draw one provider on several machines, side by side."""
    held = [
        (entry, drawable(number(entry.report.timing, "held_median_s")))
        for entry in entries
        if entry.report
    ]
    bars = [
        _Bar(label=visible(entry.machine, _NAME), shown=seconds(value), length=value)
        for entry, value in held
        if value is not None
    ]
    if len(bars) < 2:
        return []
    title = "Held request, by machine"
    chart = _bars(f"{name}-machines", title, bars, ("machine", "held request"))
    return [[chart]]


# -- bars


def _requests(name: str, entry: Entry) -> Chart | None:
    """Draw what a request takes: in a process of its own, as the first, and held."""
    timing: Mapping[str, Any] = entry.report.timing if entry.report else {}
    each = timing.get("held_s")
    marks = [
        value
        for one in (each if isinstance(each, list) else [])
        if (value := drawable(number({"s": one}, "s"))) is not None
    ]
    median = f", median of {len(marks)}" if len(marks) > 1 else ""
    wanted: tuple[tuple[str, str, str, list[float]], ...] = (
        ("in a fresh process", "fresh_s", FRESH, []),
        ("first after loading", "first_s", FIRST, []),
        (f"held{median}", "held_median_s", HELD, marks),
    )
    bars = [
        _Bar(label=label, shown=seconds(value), length=value, color=color, marks=each)
        for label, key, color, each in wanted
        if (value := drawable(number(timing, key))) is not None
    ]
    if not bars:
        return None
    return _bars(f"{name}-requests", "One request", bars, ("request", "time"))


def _peaks(name: str, entry: Entry) -> Chart | None:
    """Draw each peak as a part of what was declared for it."""
    memory: Mapping[str, Any] = entry.report.memory if entry.report else {}
    bars = []
    for pool, peak_key, key in (
        ("RAM", "rss_peak_bytes", "ram_budget_gb"),
        ("device memory", "device_peak_bytes", "vram_budget_gb"),
    ):
        peak = drawable(number(memory, peak_key))
        budget = drawable(number(memory, key))
        if peak is None:
            continue
        took = peak / _GIB
        of_it = f" of {short(budget)} GiB" if budget else ", no budget declared"
        bars.append(
            _Bar(
                label=pool,
                shown=f"{gib(took)}{of_it}",
                length=took / budget if budget else 1,
                track=1 if budget else None,
                color=OVER if budget and took > budget else HELD,
            )
        )
    if not bars:
        return None
    title = "Peak against budget"
    return _bars(f"{name}-peaks", title, bars, ("memory", "peak"))


def _growth(name: str, entry: Entry) -> Chart | None:
    """Draw what stays behind after each held request, as a part of what may."""
    memory: Mapping[str, Any] = entry.report.memory if entry.report else {}
    limit = entry.provider.smoke_max_growth_mib if entry.provider else None
    bars = []
    for pool, key in (("RAM", "growth_mib"), ("device memory", "device_growth_mib")):
        value = change(memory, key)
        # what was given back has no length
        length = None if value is None else drawable(max(0.0, value))
        if value is None or length is None:
            continue
        of_it = f" of {short(limit)} MiB" if limit else ""
        over = limit is not None and value > limit
        bars.append(
            _Bar(
                label=pool,
                shown=f"{mib(value)}{of_it}",
                length=length / limit if limit else length,
                track=1 if limit else None,
                color=OVER if over else HELD,
            )
        )
    if not bars:
        return None
    title = "Growth per held request"
    return _bars(f"{name}-growth", title, bars, ("memory", "growth"))


def _bars(name: str, title: str, bars: Sequence[_Bar], head: tuple[str, str]) -> Chart:
    reach = max(max(bar.length, bar.track or 0, *bar.marks, 0) for bar in bars) or 1
    height = _BAR * len(bars)

    def draw(canvas: "Figure") -> None:
        axes = canvas.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, WIDTH)
        axes.set_ylim(height, 0)
        for place, bar in enumerate(bars):
            _one_bar(axes, bar, place * _BAR, WIDTH / reach)

    said = "; ".join(f"{bar.label}: {bar.shown}" for bar in bars)
    return Chart(
        title=title,
        svg=figure(name, title, f"{said}.", height, draw),
        head=head,
        rows=tuple((bar.label, bar.shown) for bar in bars),
    )


def _ends(marks: Sequence[float]) -> tuple[float, float]:
    return min(marks), max(marks)


def _one_bar(axes: "Axes", bar: _Bar, top: float, scale: float) -> None:
    axes.text(0, top + 14, bar.label, va="baseline", color=INK)
    axes.text(
        WIDTH, top + 14, bar.shown, va="baseline", ha="right", color=INK, weight="bold"
    )
    middle, thick = top + 27, 12
    track = WIDTH if bar.track is None else bar.track * scale
    axes.barh(middle, track, thick, color=TRACK)
    # what took no time worth a pixel took some
    length = max(bar.length * scale, 2 if bar.length else 0)
    axes.barh(middle, length, thick, color=bar.color)
    if len(bar.marks) > 1:
        ends = [min(max(end * scale, 0.75), WIDTH - 0.75) for end in _ends(bar.marks)]
        axes.plot(ends, [middle, middle], color=INK, lw=1.2)
        for end in ends:
            axes.plot([end, end], [middle - 4, middle + 4], color=INK, lw=1.2)
    if bar.track is not None and bar.length > bar.track:
        axes.plot([track, track], [middle - 9, middle + 9], color=INK, lw=2)
