"""Commands for whoever changes this project: format, lint, test, measure."""

import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path

from remote_resident.errors import Problem
from tasks import child
from tasks.step import Making, Progress, StepResult, failed


def _commands(step: str, modules: Sequence[str], root: Path) -> Making:
    """Run Python modules one after the other, up to the first that fails."""
    for module in modules:
        argv = [sys.executable, "-m", *module.split()]
        ended = yield from child.run(argv, env=os.environ, cwd=root)
        if ended.returncode != 0:
            return failed(step, [_unwell(module, ended.returncode)])
    return StepResult(step, "done", ", ".join(modules))


def _benchmarks(root: Path) -> Making:
    """Run every benchmark, one at a time, and keep what they print as the table."""
    lines: list[str] = []
    missed: list[Problem] = []
    for script in sorted((root / "bench").glob("bench_*.py")):
        argv = [sys.executable, str(script)]
        lines += ["", script.stem]
        making = child.run(argv, env=os.environ, cwd=root)
        ended = yield from _kept(script.stem, making, lines)
        if ended.returncode != 0:
            missed.append(_unwell(f"bench/{script.name}", ended.returncode))
    if missed:
        return failed("bench", missed, lines=lines)
    return StepResult("bench", "done", lines=lines)


def _kept(
    name: str, running: Generator[str, None, child.Ended], lines: list[str]
) -> Generator[Progress, None, child.Ended]:
    """Show a program's lines as they pass, and keep them."""
    ended: child.Ended | None = None
    while ended is None:
        try:
            line = next(running)
        except StopIteration as end:
            ended = end.value
            assert isinstance(ended, child.Ended)
        else:
            lines.append(line)
            yield Progress(f"{name}: {line}")
    return ended


def _unwell(what: str, returncode: int) -> Problem:
    return Problem(
        step="runtime",
        reason="verify_failed",
        text=f"{what}: exit status {returncode} found, 0 wanted",
    )


COMMANDS: Mapping[str, tuple[str, Callable[[Path], Making]]] = {
    "fmt": (
        "Format the code (for changing this project)",
        partial(_commands, "fmt", ("ruff check --fix-only -q .", "ruff format .")),
    ),
    "lint": (
        "Check style and types (for changing this project)",
        partial(_commands, "lint", ("ruff check .", "ruff format --check .", "mypy")),
    ),
    "test": (
        "Run the tests (for changing this project)",
        partial(_commands, "test", ("pytest -q",)),
    ),
    "bench": (
        "Run every bench/bench_*.py (for changing this project)",
        _benchmarks,
    ),
}
"""By name: the line that `doit list` prints, and what does it, given the checkout."""
