"""What a person sees of a run: a line per step, a live line, the table of verdicts.

Lines of text are lists of spans; a terminal gets them styled and wrapped, everything
else gets them plain, one line each, without a control code.
"""

import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from remote_resident import printable
from remote_resident.cli.answer import silence, unwritable
from tasks.step import GOOD, STEPS, Progress, StepResult

if TYPE_CHECKING:
    from rich.live import Live

Span = tuple[str, str]
"""Text and its style: "", ok, bad, dim or key."""
Facts = Sequence[tuple[str, str]]
"""Lines below the table: a word and what it names."""

_SYMBOLS = {"present": "✓", "done": "✓", "skipped": "·", "refused": "✗", "failed": "✗"}
_ASCII = {"✓": "+", "·": "-", "✗": "x", "│": "|"}
_STYLES = {"ok": "32", "bad": "31", "dim": "2", "key": "36"}
_QUIET_PROGRESS_S = 30.0
_VERDICT_WIDTH = 9
_NARROW = 24
"""Columns that are too few for a text to hang in."""
_STEP_WIDTH = max(map(len, STEPS))


@dataclass(slots=True)
class _Working:
    """A step in hand, for the live line."""

    slug: str
    step: str
    since: float
    progress: Progress | None = None
    said: float = 0.0


class Screen:
    """The one writer of text for people; usable from several threads.

    `results` gets the verdicts, `notes` progress and messages.
    """

    def __init__(
        self,
        results: TextIO | None = None,
        notes: TextIO | None = None,
        *,
        quiet: bool = False,
        color: bool = True,
    ) -> None:
        self.results = sys.stdout if results is None else results
        self.notes = sys.stderr if notes is None else notes
        self.quiet = quiet
        self.color = color and not os.environ.get("NO_COLOR")
        self.slug_width = 0
        self._lock = threading.RLock()
        self._working: dict[tuple[str, str], _Working] = {}
        self._live: Live | None = None
        self._held: list[str] | None = None
        """Results that are written together; None: each is written as it comes."""

    # -- what happens

    def started(self, slug: str, step: str) -> None:
        """Show that a step is in hand."""
        with self._lock:
            now = time.monotonic()
            self._working[slug, step] = _Working(slug, step, now, said=now)
            self._go_live()

    def progress(self, slug: str, step: str, progress: Progress) -> None:
        """Show how far a step is; without a terminal, now and then."""
        with self._lock:
            working = self._working.get((slug, step))
            if working is None:
                return
            working.progress = progress
            now = time.monotonic()
            if self._live is None and now - working.said >= _QUIET_PROGRESS_S:
                working.said = now
                self.note(_describe(working, now))

    def output(self, text: str) -> None:
        """Show a line of what a step started."""
        self._message([("│ ", "dim"), (plain(text), "dim")], indent=4)

    def note(self, text: str) -> None:
        """Show a message that is no result."""
        self._message([(plain(text), "dim")])

    def _message(self, spans: list[Span], indent: int = 0) -> None:
        if not self.quiet:
            self._write(self.notes, [(" " * indent, ""), *spans], indent + 2)

    def finished(self, slug: str, result: StepResult) -> None:
        """Show what a step came to."""
        with self._lock:
            self._working.pop((slug, result.step), None)
            if result.ok and self.quiet:
                return
            detail, lines = _shown(result)
            head = self._head(slug, result)
            indent = sum(len(text) for text, _ in head)
            self._write(self.results, [*head, (detail, "")], indent)
            for line in lines:
                style = "key" if line.startswith("next: ") else ""
                left = _VERDICT_WIDTH + 2
                spans = [(" " * left, ""), (line, style)]
                # a command is pasted: the terminal breaks it, and no line end is in it
                pasted = line.startswith(("next: ", "  "))
                self._write(self.results, spans, None if pasted else left + 2)

    def forget(self, slug: str, step: str) -> None:
        """Take a step off the live line without a result."""
        with self._lock:
            self._working.pop((slug, step), None)

    def table(
        self,
        results: Mapping[str, Mapping[str, StepResult]],
        facts: Mapping[str, Facts],
    ) -> None:
        """Show the verdict of every step of every provider, and facts by provider."""
        if self.quiet or not results:
            return
        width = max([len("provider"), *map(len, results)])
        columns = [step.ljust(_column_width(step)) for step in STEPS]
        self.say("")
        self.say([(f"{'provider':{width}}  {'  '.join(columns)}".rstrip(), "dim")])
        for slug, steps in results.items():
            cells: list[Span] = [(f"{slug:{width}}", "")]
            if unread := [step for step in steps if step not in STEPS]:
                cells.append((f"  {_SYMBOLS['refused']} {unread[0]} unreadable", "bad"))
            for step in STEPS:
                cells += [("  ", ""), *_cell(step, steps.get(step))]
            self.say(cells)
        for slug, lines in facts.items():
            self._facts(slug, lines)

    def _facts(self, slug: str, lines: Facts) -> None:
        if not lines:
            return
        self.say("")
        width = max(len(word) for word, _ in lines)
        before = ""
        for number, (word, text) in enumerate(lines):
            name = " " * len(slug) if number else slug
            shown = "" if word == before else word
            head = [(f"{name}  ", ""), (f"{shown:{width}}  ", "dim")]
            indent = sum(len(part) for part, _ in head)
            self._write(self.results, [*head, (plain(text), "")], indent)
            before = word

    def say(self, text: str | list[Span], indent: int = 0) -> None:
        """Show a line of a result."""
        spans: list[Span] = [(text, "")] if isinstance(text, str) else text
        self._write(self.results, spans, indent)

    def show(self, text: str) -> None:
        """Show text that is laid out already, as a result."""
        self._raw(self.results, f"{text}\n")

    def width(self) -> int | None:
        """Give the columns that results have; None: as many as they want."""
        return _width() if _is_terminal(self.results) else None

    def styled(self) -> bool:
        """Say whether results may carry colours."""
        return self.color and _is_terminal(self.results)

    def error(self, text: str) -> None:
        """Show what went wrong, also when quiet."""
        for line in text.splitlines():
            self._write(self.notes, [(line, "")], 2)

    def close(self) -> None:
        """End the live line."""
        with self._lock:
            self._working.clear()
            self._end_live()

    # -- how it is shown

    def _head(self, slug: str, result: StepResult) -> list[Span]:
        style = _style(result.verdict)
        verdict = f"{_SYMBOLS[result.verdict]} {result.verdict}"
        return [
            (f"{verdict:{_VERDICT_WIDTH}}  ", style),
            (f"{slug:{self.slug_width}}  ", ""),
            (f"{result.step:{_STEP_WIDTH}}  ", ""),
            # exactly nothing: nobody took the time
            (f"{_seconds(result.seconds):>7}  " if result.seconds else "", "dim"),
        ]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write the results of the block at once, where no terminal shows them.

        For results that are all there: a write for each costs more than to find it out.
        """
        if self._held is not None or _is_terminal(self.results):
            yield
            return
        self._held = []
        try:
            yield
        finally:
            held, self._held = self._held, None
            self._raw(self.results, "".join(held))

    def _write(self, stream: TextIO, spans: list[Span], indent: int | None) -> None:
        """Write one line, on a terminal broken at its width; None: it stays whole."""
        held = self._held if stream is self.results else None
        if held is not None:
            held.append(_line(spans, stream, styled=False))
            return
        terminal = _is_terminal(stream)
        lines = [spans]
        if terminal and indent is not None:
            lines = _wrapped(spans, indent, _width())
        styled = terminal and self.color
        text = "".join(_line(line, stream, styled=styled) for line in lines)
        self._raw(stream, text)

    def _raw(self, stream: TextIO, text: str) -> None:
        with self._lock:
            try:
                self._put(stream, text)
            except BrokenPipeError:
                # the reader has seen enough (a pipe to head); the work goes on
                silence(stream)
            except OSError as exc:
                unwritable(stream, exc)

    def _put(self, stream: TextIO, text: str) -> None:
        live = self._live
        if live is not None and _is_terminal(stream):
            from rich.text import Text

            live.console.print(Text.from_ansi(text.rstrip("\n")), soft_wrap=True)
            return
        stream.write(text)
        stream.flush()

    # -- the live line

    def _go_live(self) -> None:
        stream = next(filter(_is_terminal, (self.results, self.notes)), None)
        if self._live is not None or self.quiet or stream is None:
            return
        from rich.console import Console
        from rich.live import Live

        console = Console(file=stream, no_color=not self.color, highlight=False)
        self._live = Live(
            get_renderable=self._renderable,
            console=console,
            transient=True,
            refresh_per_second=8,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def _renderable(self) -> Any:
        from rich.text import Text

        now = time.monotonic()
        style = "cyan" if self.color else ""
        # a step that is over at once is not worth a flicker
        shown = [w for w in list(self._working.values()) if now - w.since >= 0.2]
        text = Text(no_wrap=True, overflow="ellipsis", end="")
        for number, working in enumerate(shown):
            text.append("\n" if number else "")
            text.append(f"{_spinner(now)} ", style)
            text.append(_describe(working, now))
        return text

    def _end_live(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            try:
                live.stop()
            except BrokenPipeError:
                silence(self.results)


def plain(text: str) -> str:
    """Give a line without control codes, which are somebody else's to send."""
    # a progress bar rewrites its line: what counts is what it last said
    shown = printable.plain(text, kept="\t\r\n")
    last = shown.rstrip("\r\n").rpartition("\r")[2]
    return printable.escaped(last.expandtabs(4), kept="")


def _shown(result: StepResult) -> tuple[str, list[str]]:
    """Split a result into what stands on its line and what stands below."""
    # a problem may end with the last lines of somebody's output
    lines = [plain(part) for line in result.lines for part in line.split("\n")]
    detail = plain(result.detail.partition("\n")[0])
    if result.verdict in GOOD:
        return detail, lines
    # the detail of a refusal is its first problem, which the lines say in full
    said = any(detail in line for line in lines)
    return result.reason, lines if said or not detail else [detail, *lines]


def _style(verdict: str) -> str:
    if verdict == "skipped":
        return "dim"
    return "ok" if verdict in GOOD else "bad"


def _column_width(step: str) -> int:
    return max(len(step), _VERDICT_WIDTH)


def _cell(step: str, result: StepResult | None) -> list[Span]:
    width = _column_width(step)
    if result is None:
        return [(" " * width, "")]
    text = f"{_SYMBOLS[result.verdict]} {result.verdict}"
    return [(text.ljust(width), _style(result.verdict))]


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"


def _describe(working: _Working, now: float) -> str:
    parts = [f"{working.slug}  {working.step}"]
    if working.progress is not None:
        parts.append(_amount(working.progress))
    parts.append(f"{now - working.since:.0f} s")
    return "  ".join(parts)


def _amount(progress: Progress) -> str:
    text = plain(progress.text)
    done, total = progress.done, progress.total
    if done is None:
        return text
    unit = progress.unit
    if unit == "bytes":
        unit, scale = _byte_unit(total if total is not None else done)
        done, total = done / scale, None if total is None else total / scale
    digits = 0 if unit not in {"GiB", "MiB"} else 1
    if not total:
        return f"{text}  {done:.{digits}f} {unit}".strip()
    share = f"{100 * done / total:.0f} %"
    return f"{text}  {done:.{digits}f} of {total:.{digits}f} {unit}  {share}".strip()


def _byte_unit(size: float) -> tuple[str, int]:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return unit, scale
    return "bytes", 1


def _spinner(now: float) -> str:
    return "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"[int(now * 8) % 10]


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _width() -> int:
    import shutil

    return max(40, shutil.get_terminal_size().columns)


def _wrapped(spans: list[Span], indent: int, width: int) -> list[list[Span]]:
    """Break the last span of a line, so that what follows hangs below its start."""
    *head, (text, style) = spans
    left = sum(len(part) for part, _ in head)
    words = text.split(maxsplit=1)
    if left + len(text) <= width or not words:
        return [spans]
    crowded = left + len(words[0]) > width
    if crowded or width - indent < _NARROW:
        indent = min(indent, _VERDICT_WIDTH + 2)
    start = indent if crowded and left > indent else left
    import textwrap

    pieces = textwrap.wrap(
        text,
        width,
        initial_indent=" " * start,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    lines: list[list[Span]] = [[(piece, style)] for piece in pieces]
    if start < left:
        return [head, *lines] if any(part.strip() for part, _ in head) else lines
    return [[*head, (pieces[0][left:], style)], *lines[1:]]


def _line(spans: Iterable[Span], stream: TextIO, *, styled: bool) -> str:
    parts = []
    for text, style in spans:
        shown = _encodable(text, stream)
        code = _STYLES.get(style)
        parts.append(
            f"\x1b[{code}m{shown}\x1b[0m" if styled and code and shown else shown
        )
    line = "".join(parts)
    return (line if styled else line.rstrip()) + "\n"


def _encodable(text: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        for symbol, ascii_symbol in _ASCII.items():
            text = text.replace(symbol, ascii_symbol)
        return text.encode(encoding, "backslashreplace").decode(encoding)
    return text
