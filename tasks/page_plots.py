"""The plots of the page: what depends on the size of an input, and on the day."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tasks import history
from tasks.figures import number
from tasks.ladder import Acceptance, Rung
from tasks.page_svg import FIRST, FRESH, HELD, INK, MUTED, Chart, drawable, figure
from tasks.page_text import gib, seconds, short, visible
from tasks.reported import Entry

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tasks.measured import Report

_GIB = 2**30
_POOLS = {"host": ("RAM", HELD, "o"), "device": ("device", FIRST, "s")}


def ladder(name: str, entry: Entry) -> Chart | None:
    """Draw what an acceptance suite measured by input size, and what is declared."""
    accepted = entry.acceptance
    if accepted is None or not accepted.rungs:
        return None
    title = "By input size"
    steps = _declared(entry)

    def draw(canvas: "Figure") -> None:
        above = canvas.add_axes((0.14, 0.57, 0.83, 0.36))
        below = canvas.add_axes((0.14, 0.11, 0.83, 0.31), sharex=above)
        _memory_by_size(above, accepted, steps)
        _seconds_by_size(below, accepted)

    said = "; ".join(" ".join(row) for row in _ladder_rows(accepted))
    height = 270
    return Chart(
        title=title,
        svg=figure(f"{name}-ladder", title, f"{said}.", height, draw),
        head=("size", "memory", "peak", "time", "read from"),
        rows=tuple(_ladder_rows(accepted)),
    )


def _ladder_rows(accepted: Acceptance) -> Iterator[tuple[str, ...]]:
    for rung in accepted.rungs:
        peak = "unknown" if rung.peak_gb is None else gib(rung.peak_gb)
        pool, _, _ = _POOLS[rung.pool]
        took = "unknown" if rung.seconds is None else seconds(rung.seconds)
        yield short(rung.size), pool, peak, took, rung.peak_source


def _declared(entry: Entry) -> dict[str, Sequence[tuple[float, float]]]:
    """Give the declared ladders as points, by pool."""
    one = entry.provider
    if one is None:
        return {}
    return {
        "host": [(step.size, step.peak_gb) for step in one.host_ladder],
        "device": [(step.size, step.peak_gb) for step in one.gpu_ladder],
    }


def _sized(accepted: Acceptance) -> list[Rung]:
    return [rung for rung in accepted.rungs if drawable(rung.size) is not None]


def _memory_by_size(
    axes: "Axes",
    accepted: Acceptance,
    steps: Mapping[str, Sequence[tuple[float, float]]],
) -> None:
    _titled(axes, "peak GiB")
    for pool, (label, color, marker) in _POOLS.items():
        points = [
            (rung.size, peak)
            for rung in _sized(accepted)
            if rung.pool == pool and (peak := drawable(rung.peak_gb)) is not None
        ]
        if points:
            xs, ys = zip(*points, strict=True)
            axes.plot(xs, ys, color=color, marker=marker, ms=5, lw=1.8, label=label)
        if declared := steps.get(pool):
            xs, ys = zip(*declared, strict=True)
            axes.step(xs, ys, where="pre", color=color, lw=1.6, ls=":")
    if any(steps.values()):
        axes.plot([], [], color=MUTED, lw=1.6, ls=":", label="declared")
    _from_zero(axes)
    axes.tick_params(labelbottom=False)
    _scaled(axes, _sized(accepted))
    _keyed(axes)


def _seconds_by_size(axes: "Axes", accepted: Acceptance) -> None:
    _titled(axes, "seconds, against size of the input")
    timed = {
        rung.size: took
        for rung in _sized(accepted)
        if (took := drawable(rung.seconds)) is not None
    }
    xs = sorted(timed)
    axes.plot(xs, [timed[x] for x in xs], color=FRESH, marker="D", ms=4.5, lw=1.8)
    _from_zero(axes)


def _from_zero(axes: "Axes") -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_ylim(0, axes.get_ylim()[1])
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(_tick))


def _scaled(axes: "Axes", rungs: Sequence[Rung]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    sizes = sorted({rung.size for rung in rungs})
    if not sizes:
        return
    if sizes[0] > 0 and sizes[-1] / sizes[0] >= 16:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(FixedLocator(_apart(sizes, 6)))
    axes.xaxis.set_major_formatter(FuncFormatter(_tick))


def _apart(values: Sequence[float], most: int) -> list[float]:
    """Pick values to write below an axis, few enough to be read."""
    step = -(-len(values) // most)
    return list(values)[::-step][::-1] if step else []


_LINES = (
    ("fresh", "fresh_s", FRESH, "D"),
    ("first", "first_s", FIRST, "s"),
    ("held", "held_median_s", HELD, "o"),
)


def timeline(name: str, entry: Entry) -> Chart | None:
    """Draw the reports of one machine over time."""
    dated = [
        (at, report)
        for report in entry.history
        if (at := history.moment(report)) is not None
    ]
    if len(dated) < 2:
        return None
    title = "Over time"

    def draw(canvas: "Figure") -> None:
        above = canvas.add_axes((0.13, 0.44, 0.85, 0.46))
        below = canvas.add_axes((0.13, 0.1, 0.85, 0.19), sharex=above)
        _seconds_over_time(above, dated)
        _memory_over_time(below, dated)

    rows = tuple(_timeline_rows(dated))
    said = "; ".join(" ".join(filter(None, row)) for row in (rows[0], rows[-1]))
    text = f"{len(rows)} reports. The first and the last: {said}."
    return Chart(
        title=title,
        svg=figure(f"{name}-timeline", title, text, 270, draw),
        head=("certified", "fresh", "first", "held", "peak RAM", "changed"),
        rows=rows,
    )


Dated = Sequence[tuple[datetime, "Report"]]


def _seconds_over_time(axes: Any, dated: Dated) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    _titled(axes, "seconds, log")
    for label, key, color, marker in _LINES:
        points = [
            (at, value)
            for at, report in dated
            if (value := drawable(number(report.timing, key)))
        ]
        if points:
            xs, ys = zip(*points, strict=True)
            axes.plot(xs, ys, color=color, marker=marker, ms=4, lw=1.8, label=label)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    subs = (1,) if high / low > 60 else (1, 2, 5)
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=subs, numticks=7))
    axes.yaxis.set_major_formatter(FuncFormatter(_tick))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.tick_params(labelbottom=False)
    _mark_new_software(axes, dated)
    _keyed(axes)


def _memory_over_time(axes: Any, dated: Dated) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    _titled(axes, "peak RAM, GiB")
    points = [
        (at, peak / _GIB)
        for at, report in dated
        if (peak := drawable(number(report.memory, "rss_peak_bytes"))) is not None
    ]
    if points:
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, color=HELD, marker="o", ms=4, lw=1.8)
        axes.set_ylim(0, max(ys) * 1.25 or 1)
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_formatter(FuncFormatter(_tick))
    _mark_new_software(axes, dated)
    _name_new_software(axes, dated)
    first, last = dated[0][0], dated[-1][0]
    axes.set_xticks([first, last], [_minute(at) for at in (first, last)])
    for label, side in zip(axes.get_xticklabels(), ("left", "right"), strict=True):
        label.set_horizontalalignment(side)


def _minute(at: datetime) -> str:
    return at.isoformat(" ")[:16]


def _timeline_rows(dated: Dated) -> Iterator[tuple[str, ...]]:
    before: Report | None = None
    for at, report in dated:
        peak = number(report.memory, "rss_peak_bytes")
        yield (
            _minute(at),
            *(seconds(number(report.timing, key)) for _, key, _, _ in _LINES),
            "-" if peak is None else gib(peak / _GIB),
            ", ".join(changes(before, report)) if before is not None else "",
        )
        before = report


def _mark_new_software(axes: Any, dated: Dated) -> None:
    """Draw a line where the machine itself was another than at the report before."""
    for at, _ in _machines_changes(dated):
        axes.axvline(at, color=MUTED, lw=1.2, ls=(0, (2, 2)))


def _name_new_software(axes: Any, dated: Dated) -> None:
    """Say at the last of these lines what was new; the table says it of all."""
    for at, told in _machines_changes(dated)[-1:]:
        late = at > dated[0][0] + (dated[-1][0] - dated[0][0]) / 2
        side, gap = ("right", -4) if late else ("left", 4)
        axes.annotate(
            visible(told, 34),
            (at, 0.1),
            xycoords=("data", "axes fraction"),
            xytext=(gap, 0),
            textcoords="offset points",
            ha=side,
            fontsize=10.5,
            color=MUTED,
        )


def _machines_changes(dated: Dated) -> list[tuple[datetime, str]]:
    found = [
        (at, ", ".join(_machine_changes(before, after)))
        for (_, before), (at, after) in pairwise(dated)
    ]
    return [(at, told) for at, told in found if told]


def changes(before: "Report", after: "Report") -> list[str]:
    """Say what was new at a report, against the one before it, in few words."""
    found = list(_machine_changes(before, after))
    for key, name in (
        ("interpreter", "interpreter"),
        ("distributions", "packages"),
        ("manifest", "manifest"),
        ("lock", "lock"),
        ("worker", "worker"),
        ("worker_side", "runtime"),
        ("kit_commit", "kit"),
        ("weights", "weights"),
    ):
        if before.inputs.get(key) != after.inputs.get(key):
            found.append(f"new {name}")
    return found


def _machine_changes(before: "Report", after: "Report") -> Iterator[str]:
    for key in ("kernel", "os"):
        was, now = before.machine.get(key), after.machine.get(key)
        if was != now:
            yield f"{key} {now}"
    was, now = _drivers(before), _drivers(after)
    if was != now:
        yield f"driver {', '.join(now) or 'gone'}"


def _drivers(report: "Report") -> list[str]:
    gpus = report.machine.get("gpus")
    found = [
        str(gpu.get("driver"))
        for gpu in (gpus if isinstance(gpus, list) else [])
        if isinstance(gpu, Mapping)
    ]
    return list(dict.fromkeys(found))


def _tick(value: float, _: object) -> str:
    return short(value)


def _titled(axes: "Axes", text: str) -> None:
    axes.set_title(text, loc="left", fontsize=11, color=MUTED, pad=6)
    axes.margins(x=0.04, y=0.12)
    axes.tick_params(length=3)


def _keyed(axes: "Axes") -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        axes.legend(
            handles,
            labels,
            loc="lower right",
            bbox_to_anchor=(1.01, 1.0),
            ncols=len(labels),
            fontsize=10.5,
            frameon=False,
            labelcolor=INK,
            handlelength=1.4,
            columnspacing=1.0,
            handletextpad=0.4,
            borderaxespad=0.1,
        )
