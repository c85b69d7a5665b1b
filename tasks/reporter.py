"""What doit tells of a run, as lines for people and as rows for programs."""

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TextIO

from remote_resident.cli.answer import lost
from remote_resident.cli.signals import Cut
from remote_resident.errors import OUR_ERROR, USAGE, ManifestError, UsageError
from tasks.screen import Facts, Screen
from tasks.step import STEPS, StepResult, exit_code
from tasks.verdicts import as_tu, with_next

ROWS_VARIABLE = "TU_REMOTE_ROWS"
MANIFEST = "manifest"
"""The step of a row that says that a manifest is unreadable."""

_SETUP = frozenset({*STEPS, MANIFEST})
# a fetch that was cut may leave a part of a file, which is then evidence as any other
_AGAIN = "the same command goes on from here, or names what to mend first"


@dataclass(slots=True)
class Node:
    """What one task is about, and what came of it; stands in the task's `meta`."""

    slug: str
    step: str
    results: list[tuple[str, StepResult]] = field(default_factory=list)
    """Slug and result; more than one where a task looks at several providers."""
    shown: bool = True
    """Whether the results are shown to people, and not only written as rows."""


@dataclass(slots=True)
class Results:
    """All results of one run, in the order in which they came."""

    rows: list[tuple[str, StepResult]] = field(default_factory=list)
    by_slug: dict[str, dict[str, StepResult]] = field(default_factory=dict)
    """The steps of the setup alone."""
    unreadable: list[ManifestError] = field(default_factory=list)
    """Of the providers selected, those whose manifest could not be read."""
    measured: dict[str, str] = field(default_factory=dict)
    """By slug, the path of the measured report, where there is one."""
    cut: int = 0
    """The exit code of the signal that ended the run; 0: none did."""
    broken: bool = False
    """Whether the run itself broke, apart from any step."""

    def add(self, slug: str, result: StepResult) -> None:
        """Take a result in."""
        self.rows.append((slug, result))
        if result.step in _SETUP:
            self.by_slug.setdefault(slug, {})[result.step] = result

    def exit_code(self) -> int:
        """Give the exit code: a signal's, our error's, bad usage's, a refusal's, or 0."""
        if self.cut:
            return self.cut
        results = [result for _, result in self.rows]
        code = OUR_ERROR if self.broken else exit_code(results)
        if code == OUR_ERROR:
            return code
        misused = any(
            r.reason == "unknown_name" or (r.step == MANIFEST and not r.ok)
            for r in results
        )
        return USAGE if misused else code


class Rows:
    """The same results for programs, one JSON object a line."""

    def __init__(self, stream: TextIO | None) -> None:
        self.stream = stream

    def write(self, slug: str, result: StepResult) -> None:
        """Write a row and flush it; a reader that left is no error."""
        if self.stream is None:
            return
        try:
            json.dump({"slug": slug, **result.as_dict()}, self.stream)
            self.stream.write("\n")
            self.stream.flush()
        except BrokenPipeError:
            self.stream = None


class Reporter:
    """What doit calls while it runs; it may call from several threads.

    `end_children` ends what the steps started. Where `facts` is set a table of verdicts
    is shown at the end; it gives the lines below it for a slug. `typed` has by slug the
    names that providers were asked for by, `tree` is the tree that was named. With
    `exits` the run ends by SystemExit with the code of its rows: the only way to give
    plain `doit` an exit code of ours; without, it is `tu` that runs, and the commands to
    type next are `tu`'s, which work from any directory.
    """

    desc = "one line per step"

    def __init__(
        self,
        screen: Screen,
        rows: Rows | None = None,
        *,
        end_children: Callable[[], object] | None = None,
        exits: bool = False,
    ) -> None:
        self.screen = screen
        self.results = Results()
        self._rows = rows or Rows(None)
        self.facts: Callable[[str], Facts] | None = None
        self.typed: dict[str, str] = {}
        self.tree: str | None = None
        self._end_children = end_children or _end_children
        self._exits = exits
        self._lock = threading.Lock()
        self._open: dict[str, Node] = {}

    # -- what doit calls

    def initialize(self, tasks: dict[str, Any], selected: Iterable[str]) -> None:
        """Learn how wide the names are."""
        nodes = [_node(task) for task in tasks.values()]
        self.screen.slug_width = max((len(n.slug) for n in nodes if n), default=0)

    def get_status(self, task: Any) -> None:
        """A task's turn has come; it is asked whether there is anything to do."""
        node = _node(task)
        if node is not None and node.step:
            with self._lock:
                self._open[task.name] = node
            self.screen.started(node.slug, node.step)

    def execute_task(self, task: Any) -> None:
        """A task's action starts; its line has been live since it was asked."""

    def skip_uptodate(self, task: Any) -> None:
        """A task has nothing to do."""
        self._close(task)

    def skip_ignore(self, task: Any) -> None:
        """Never called: there is no state to be told to ignore in."""

    def add_success(self, task: Any) -> None:
        """A task's action ended well."""
        self._close(task)

    def add_failure(self, task: Any, fail: Any) -> None:
        """A task failed, or what it needs did, which has its own row."""
        from doit.exceptions import TaskFailed, UnmetDependency

        known = self._close(task)
        if not known and not isinstance(fail, (TaskFailed, UnmetDependency)):
            node = _node(task) or Node(task.name, task.name)
            lines = fail.get_msg().splitlines()
            self.record(node.slug, internal(node.step or task.name, lines))

    def teardown_task(self, task: Any) -> None:
        """No task has a teardown."""

    def cleanup_error(self, exception: Any) -> None:
        """No task has a teardown that could fail."""

    def runtime_error(self, msg: str) -> None:
        """The graph itself is wrong."""
        self.results.broken = True
        self.screen.error(msg)

    def complete_run(self) -> None:
        """End what still runs, say what was cut, show the table, give the exit code.

        doit calls this in a `finally`: what ended the run, if anything did, is the
        exception in flight.
        """
        broke = sys.exc_info()[1]
        self._end_children()
        if isinstance(broke, Cut):
            self._cut(broke)
        elif broke is not None:
            self.results.broken = True
            self._traceback(broke)
        self.screen.close()
        if self.facts is not None:
            table = self.results.by_slug
            self.screen.table(table, _some(table, self.facts))
        if self._exits:
            raise SystemExit(self.results.exit_code() or lost())

    # -- what is done with it

    def record(self, slug: str, result: StepResult, *, shown: bool = True) -> None:
        """Take a result in, show it, and write its row."""
        result = with_next(slug, result)
        if not self._exits:
            result = as_tu(result, self.typed, self.tree)
        with self._lock:
            self.results.add(slug, result)
            if shown:
                self.screen.finished(slug, result)
            self._rows.write(slug, result)

    def _close(self, task: Any) -> bool:
        """Take in what came of a task; say whether anything did."""
        with self._lock:
            node = self._open.pop(task.name, None) or _node(task)
        if node is None:
            return True
        widest = max((len(slug) for slug, _ in node.results), default=0)
        self.screen.slug_width = max(self.screen.slug_width, widest)
        for slug, result in node.results:
            self.record(slug, result, shown=node.shown or not result.ok)
        self.screen.forget(node.slug, node.step)
        return bool(node.results)

    def _cut(self, cut: Cut) -> None:
        self.results.cut = cut.exit_code
        what = f"cut by {cut.name}"
        for node in list(self._open.values()):
            self.record(node.slug, interrupted(node.step, what))
        if not self._open:
            # between two steps there is no row that could say it
            self.screen.error(f"{what}; {_AGAIN}")

    def _traceback(self, broke: BaseException) -> None:
        import traceback

        self.screen.close()
        self.screen.error("".join(traceback.format_exception(broke)))


def interrupted(step: str, what: str) -> StepResult:
    """Build the result of a step that a signal cut."""
    return StepResult(step, "failed", what, "interrupted", [_AGAIN])


def internal(step: str, lines: Iterable[str]) -> StepResult:
    """Build the result of a step that broke by our own error; `lines` say where."""
    told = [line for line in lines if line.strip()]
    return StepResult(
        step,
        "failed",
        detail=told[-1].strip() if told else "no message",
        reason="internal",
        lines=[*told, *what_to_report()],
    )


def what_to_report() -> list[str]:
    """Say what to do about an error that is ours."""
    from remote_resident import __version__

    python = ".".join(map(str, sys.version_info[:3]))
    return [
        "This is an error of remote-resident, not of yours. Report the lines above with:",
        f"  remote-resident {__version__}, Python {python}, {sys.platform}",
    ]


def streams(environ: dict[str, str] | None = None) -> tuple[TextIO, TextIO | None]:
    """Say where the results for people go, and where the rows for programs go.

    Raises UsageError where TU_REMOTE_ROWS is neither an open descriptor nor `-`.
    """
    wanted = (os.environ if environ is None else environ).get(ROWS_VARIABLE)
    if not wanted:
        return sys.stdout, None
    if wanted == "-":
        return sys.stderr, sys.stdout
    try:
        return sys.stdout, os.fdopen(int(wanted), "w", closefd=False, encoding="utf-8")
    except (ValueError, OSError):
        raise UsageError(
            f"{ROWS_VARIABLE}: {wanted!r} found, a file descriptor open for writing, "
            "or -, wanted"
        ) from None


def _end_children() -> None:
    # only what was imported can have started anything
    child = sys.modules.get("tasks.child")
    if child is not None:
        child.end_children()


def _node(task: Any) -> Node | None:
    meta = task.meta
    return meta["node"] if meta else None


def _some(table: dict[str, Any], facts: Callable[[str], Facts]) -> dict[str, Facts]:
    """Give facts where few providers ran, so that the table stays a table."""
    return {slug: facts(slug) for slug in table} if len(table) <= 3 else {}
