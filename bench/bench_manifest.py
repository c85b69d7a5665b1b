"""A manifest read and validated, against the TOML parser alone.

Usage: python bench/bench_manifest.py [--rounds N]

Each row is the ratio of two medians, taken interleaved and in shuffled order in one run:
first over the manifests that ship, then for the smallest one.
"""

import argparse
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from interleaved import medians

from remote_resident import manifest

ROOT = Path(__file__).parents[1]
SMALLEST = ROOT / "tests/manifests/good/echo.toml"
GOAL = 1.5
ROUNDS = 300


def main() -> None:
    """Print a row for the manifests that ship, and one for the smallest."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    shipped = sorted((ROOT / "manifests").glob("*/provider.toml"))
    row(f"{len(shipped)} manifests read and validated", shipped, rounds)
    with tempfile.TemporaryDirectory() as tree:
        path = Path(tree) / "manifests" / "echo" / manifest.FILE
        path.parent.mkdir(parents=True)
        path.write_bytes(SMALLEST.read_bytes())
        row("the smallest manifest read and validated", [path], rounds)


def row(what: str, paths: Sequence[Path], rounds: int) -> None:
    """Print one row: what, base median, our median, ratio, goal."""
    texts = [path.read_text(encoding="utf-8") for path in paths]

    def parse() -> None:
        for text in texts:
            tomllib.loads(text)

    def load() -> None:
        for path in paths:
            # what is kept of a file that was read before would be another row
            manifest.load(path, afresh=True)

    taken = medians({"base": parse, "ours": load}, rounds)
    base, ours = taken["base"], taken["ours"]
    print(
        f"{what:<44} base {base * 1e6:9.1f} us   ours {ours * 1e6:9.1f} us   "
        f"ratio {ours / base:5.2f}   goal <= {GOAL}"
    )


if __name__ == "__main__":
    main()
