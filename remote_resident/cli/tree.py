"""The one way from the runtime to the tree: where it is, and the code that reads it."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from remote_resident import places
from remote_resident.cli.answer import Answer, Asked
from remote_resident.errors import REASONS, Problem, UsageError, refusal
from remote_resident.printable import escaped


def data(asked: Asked) -> Path:
    """Find the tree whose manifests, locks and kits are meant. Raises UsageError."""
    return places.find_tree(asked.tree)


def code(module: str) -> Any:
    """Import a module of `tasks` as it came with this installation.

    Never from the tree that supplies the data, and never from where the caller stands:
    no directory is added to the import path.
    """
    root = places.packaged_tree()
    if "tasks" not in sys.modules:
        spec = PathFinder.find_spec("tasks", [str(root)])
        if spec is None or spec.loader is None:
            raise UsageError(f"{root}: no tasks/ in it, the installation's wanted")
        # what importlib.util does, without importing it: it costs more than all this
        package = ModuleType("tasks")
        package.__spec__, package.__file__ = spec, spec.origin
        package.__path__ = spec.submodule_search_locations or []
        sys.modules["tasks"] = package
        spec.loader.exec_module(package)
    return import_module(f"tasks.{module}")


def existing(tree: Path, names: list[str]) -> list[str]:
    """Give the names, each a provider's slug or directory; their manifests stay unread.

    Raises UsageError, with near matches, for the first that is none.
    """
    for name in names:
        folder = Path(name) if "/" in name else tree / "manifests" / name
        if not name or not (folder / "provider.toml").is_file():
            from remote_resident import manifest

            manifest.find(tree, name)
    return names


def graph(
    asked: Asked, root: Path, names: list[tuple[str, str]], *, alone: bool = False
) -> Any:
    """Run the graph for (command, name) pairs, shown as it goes; give its results."""
    reporting = code("reporter")
    lines, rows = reporting.streams()
    screen = code("screen").Screen(lines, quiet=asked.quiet, color=asked.color)
    reporter = reporting.Reporter(screen, reporting.Rows(rows))
    reporter.typed = code("verdicts").typed_paths(name for _, name in names)
    reporter.tree = asked.tree
    selection = code("selection").Selection(names=tuple(dict.fromkeys(names)))
    return code("graph").run(root, selection, reporter, alone=alone)


def screen(asked: Asked) -> Any:
    """Give what shows results to people: on stdout, where no document goes there."""
    return code("screen").Screen(quiet=asked.quiet, color=asked.color)


def judged(asked: Asked, step: str, checks: list[Any]) -> Answer:
    """Show what a look at each provider came to, and give the answer."""
    verdicts, shown = code("verdicts"), screen(asked)
    shown.slug_width = max((len(found.slug) for found in checks), default=0)
    results = verdicts.judged(step, checks)
    typed = verdicts.typed_paths(asked.slugs)
    with shown.together():
        for slug, result in results:
            shown.finished(slug, verdicts.as_tu(result, typed, asked.tree))
    document = {
        "ok": all(found.ok for found in checks),
        "providers": [found.as_dict() for found in checks],
    }
    exit_code = code("step").exit_code([result for _, result in results])
    return Answer(document=document, code=exit_code)


def one(results: Any, document: dict[str, object]) -> Answer:
    """Give the answer of a command with one result, which was shown as it came."""
    result = results.rows[-1][1] if results.rows else None
    if result is not None and result.ok and not results.exit_code():
        return Answer(document=document)
    # a cut before or after it is no row of its own
    reason, error = ("interrupted" if results.cut else "internal"), "nothing came of it"
    if result is not None and not result.ok:
        reason, error = result.reason, result.detail
    document = refusal(
        reason,
        error,
        next=_next(result.lines if result else []),
        problems=_problems(result.step, result.lines) if result else [],
    )
    return Answer(document=document, code=results.exit_code())


def _problems(step: str, lines: list[str]) -> list[dict[str, str | int | float | None]]:
    """Read the problems back from a result's lines, which have their texts in full."""
    found = (line.partition(": ") for line in lines)
    return [
        Problem(step=step, reason=reason, text=text).as_dict()
        for reason, _, text in found
        if reason in REASONS
    ]


def _next(lines: list[str]) -> str | None:
    found = (line.removeprefix("next: ") for line in lines if line.startswith("next: "))
    return next(found, None)


def columns(lines: Sequence[tuple[str, ...]]) -> str:
    """Lay lines out so that their cells stand under one another, each on one line."""
    lines = [tuple(escaped(cell, kept="\t") for cell in line) for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    )
