"""How the page writes numbers, and words that somebody else wrote."""

from html import escape

from remote_resident.printable import escaped

_LONGEST = 600
"""Of one text, in characters: what is longer was never meant to be read."""


def text(value: object) -> str:
    """Give anything as text of an HTML page: escaped, with nothing hidden in it."""
    return escape(visible(value), quote=True)


def visible(value: object, longest: int = _LONGEST) -> str:
    """Give anything as text in which nothing is hidden, cut where it is too long.

    Cut within: names that start alike mostly differ at their ends.
    """
    said = str(value)
    if len(said) > 2 * longest:
        said = said[:longest] + said[-longest:]
    said = escaped(said.replace("\n", " ").replace("\t", " "))
    tail = (longest - 1) // 3
    head = longest - 1 - tail
    return f"{said[:head]}…{said[-tail:]}" if len(said) > longest else said


def short(value: float) -> str:
    """Give a number in three significant digits, without an exponent where it can be."""
    if value and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.2e}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    shown = f"{value:.3g}"
    return f"{value:.6f}".rstrip("0") if "e" in shown else shown


def seconds(value: float | None) -> str:
    """Give seconds, the short ones in thousandths; None: a dash."""
    if value is None:
        return "-"
    if 0 < value < 1:
        return f"{short(value * 1000)} ms"
    return f"{short(value)} s"


def gib(value: float) -> str:
    """Give GiB, a little of it in MiB."""
    return mib(value * 1024) if 0 < value < 0.01 else f"{short(value)} GiB"


def mib(value: float) -> str:
    """Give MiB."""
    return f"{short(value)} MiB"


def times(value: float) -> str:
    """Give how many times faster."""
    return f"{short(value)}\N{MULTIPLICATION SIGN}"


def arrows(said: str) -> str:
    """Give what changed with an arrow that is one."""
    return said.replace(" -> ", " \N{RIGHTWARDS ARROW} ")
