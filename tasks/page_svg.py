"""Figures as SVG for a page: drawn by matplotlib, coloured and described by the page.

Colours are stand-ins while drawing and the page's CSS variables afterwards, so that one
figure suits a light and a dark page; text stays text, in the page's font.
"""

import contextlib
import io
import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_resident import places
from remote_resident.errors import ProviderError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED, LINE = "#010101", "#020202", "#030303"
FRESH, FIRST, HELD = "#040404", "#050505", "#060606"
TRACK, OVER, SURFACE = "#070707", "#080808", "#090909"
_VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    LINE: "line",
    FRESH: "fresh",
    FIRST: "first",
    HELD: "held",
    TRACK: "track",
    OVER: "over",
    SURFACE: "surface",
}
_LEAST, _MOST = 1e-9, 1e15
WIDTH = 300
"""Of every figure, in the units of its text: a phone shows it at its own size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A figure and the table of its numbers."""

    title: str
    svg: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The first cell of each is what its numbers are of."""


_IDS = re.compile(r'\bid="([^"]+)"')
_REFERENCES = re.compile(r'(url\(#|href="#)([^")]+)')
_FONT = re.compile(r"font: (?:(bold|[1-9]00) )?([\d.]+)px [^;\"]*")
_FAMILY = re.compile(r"font-family: [^;\"]*;? ?")
_ROOT = re.compile(r"<svg [^>]*?viewBox=\"([^\"]+)\"[^>]*>", re.DOTALL)


def figure(name: str, title: str, text: str, height: float, draw: "Draw") -> str:
    """Draw a figure and give it as an SVG element of the page.

    `name` is unique in the page and starts every id; `title` and `text` are what a
    screen reader says of it. The same name and drawing give the same bytes.
    """
    with _settings(name):
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        canvas = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
        FigureCanvasSVG(canvas)
        draw(canvas)
        file = io.StringIO()
        metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        canvas.savefig(file, format="svg", metadata=metadata, transparent=True)
    return _as_element(file.getvalue(), name, title, text)


def drawable(value: float | None) -> float | None:
    """Give a number that has a place in a figure; nobody measures what has none."""
    in_range = value is not None and (value == 0 or _LEAST <= value <= _MOST)
    return value if in_range else None


Draw = Callable[["Figure"], None]


@contextlib.contextmanager
def _settings(name: str) -> Iterator[None]:
    import matplotlib

    style: dict[str, Any] = {
        "svg.hashsalt": name,
        "svg.fonttype": "none",
        # what a machine is called is no formula
        "text.parse_math": False,
        "font.size": 12,
        "text.color": INK,
        "axes.edgecolor": LINE,
        "axes.labelcolor": MUTED,
        "axes.labelsize": 11,
        "xtick.color": LINE,
        "ytick.color": LINE,
        "xtick.labelcolor": MUTED,
        "ytick.labelcolor": MUTED,
        "xtick.labelsize": 11,
        "ytick.labelsize": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "grid.color": LINE,
        "grid.linewidth": 0.8,
        "axes.axisbelow": True,
    }
    with matplotlib.rc_context():
        # not what a matplotlibrc says where the caller stands
        matplotlib.rcdefaults()
        parameters: Any = matplotlib.rcParams
        parameters.update(style)
        yield


def _as_element(svg: str, name: str, title: str, text: str) -> str:
    """Make what matplotlib wrote a part of a page: no rule of it reaches outside."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"\s*<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"\s*<style type=\"text/css\">.*?</style>", "", body, flags=re.DOTALL)
    body = body.replace("xlink:href", "href")
    body = _IDS.sub(rf'id="{name}-\1"', body)
    body = _REFERENCES.sub(rf"\g<1>{name}-\g<2>", body)
    body = _FAMILY.sub("", _FONT.sub(_font, body))
    for stand_in, variable in _VARIABLES.items():
        body = body.replace(stand_in, f"var(--{variable})")
    head = (
        rf'<svg class="chart" viewBox="\1" role="img" aria-labelledby="{name}-title" '
        rf'aria-describedby="{name}-text">'
        f'<title id="{name}-title">{_literal(title)}</title>'
        f'<desc id="{name}-text">{_literal(text)}</desc>'
    )
    return _ROOT.sub(head, body, count=1).strip()


def _font(found: "re.Match[str]") -> str:
    weight = f"font-weight: {found[1]}; " if found[1] else ""
    return f"{weight}font-size: {found[2]}px"


def _literal(text: str) -> str:
    return escape(text).replace("\\", r"\\")


def load(cache: Path) -> None:
    """Import matplotlib, with its own files in a cache of ours, not in the user's home."""
    key = "MPLCONFIGDIR"
    before = os.environ.get(key)
    # where its cache cannot be written it says so, and draws all the same
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with contextlib.suppress(OSError, ProviderError):
        os.environ[key] = before or str(places.ensure(cache))
    try:
        import matplotlib.backends.backend_svg
        import matplotlib.figure  # noqa: F401 - what is used of it is found now
    finally:
        if before is None:
            os.environ.pop(key, None)
