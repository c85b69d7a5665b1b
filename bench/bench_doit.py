"""doit itself where nothing has changed: `doit check`, and `doit setup:<slug>`.

The trees are those of bench_check. What is held against an empty dodo.py is the start of
doit twice: over a third of either command is importing doit.

Usage: python bench/bench_doit.py [--rounds N]
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import bench_check
from interleaved import HEAD, medians, met

ROOT = Path(__file__).resolve().parents[1]
FEW, MANY = 40, 1000
DODO = f"""\
import sys
sys.path.insert(0, {str(ROOT)!r})
from tasks import graph
DOIT_CONFIG, task_graph = graph.for_doit(__file__)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of doit, and the tree that it is typed in."""

    tree: Path
    words: tuple[str, ...]
    home: Path

    def run(self) -> None:
        """Run it; it must succeed."""
        env = {**bench_check.compiled(), "TU_REMOTE_HOME": str(self.home)}
        argv = [sys.executable, "-m", "doit", *self.words]
        subprocess.run(
            argv, check=True, stdout=subprocess.DEVNULL, env=env, cwd=self.tree
        )


def planted(work: Path, count: int) -> tuple[Path, Path]:
    """Make a tree of providers that are set up, with a dodo.py; gives it and its home."""
    home = work / f"home{count}"
    os.environ["TU_REMOTE_HOME"] = str(home)
    tree = bench_check.make(work / str(count), count)
    (tree / "dodo.py").write_text(DODO)
    return tree, home


def commands(work: Path) -> dict[str, Command]:
    """Make the trees, and give what is measured by name."""
    empty = work / "empty"
    empty.mkdir()
    (empty / "dodo.py").write_text(
        "def task_nothing():\n    return {'actions': None}\n"
    )
    few, few_home = planted(work, FEW)
    many, many_home = planted(work, MANY)
    one = ("setup:p0001",)
    return {
        "empty": Command(tree=empty, words=("list",), home=few_home),
        "check": Command(tree=few, words=("check",), home=few_home),
        "few": Command(tree=few, words=one, home=few_home),
        "many": Command(tree=many, words=one, home=many_home),
    }


def measure(measured: Mapping[str, Command], rounds: int) -> dict[str, float]:
    """Give the median seconds of each, taken interleaved and in shuffled order."""
    for command in measured.values():
        # the second look, after the clock's grain, is the one that is kept
        for _ in range(2):
            time.sleep(2.1)
            command.run()
    return medians({name: one.run for name, one in measured.items()}, rounds)


def main() -> int:
    """Measure and print; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=11)
    asked = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="bench-doit-"))
    try:
        found = measure(commands(work), asked.rounds)
    finally:
        shutil.rmtree(work)
    print(HEAD)
    well = True
    for what, base, ours, goal in (
        (f"doit check, {FEW} providers / doit list, none", "empty", "check", 1.5),
        (f"doit setup:<slug>, {FEW} providers / doit list, none", "empty", "few", 1.5),
        (f"doit setup:<slug>, {MANY} providers / {FEW}", "few", "many", 1.2),
    ):
        well &= met(what, found[base], found[ours], goal)
    return not well


if __name__ == "__main__":
    sys.exit(main())
