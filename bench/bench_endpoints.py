"""Managed endpoints: what the hand-over adds to a service's start, and a swap to its scripts.

Both rows are times of a real daemon over real scripts and processes, the 95th percentile
against the goal. With `--quick` fewer rounds: the rows are then only an indication.
"""

import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

STOP = """#!/bin/sh
date +%s.%N > '{here}/stop-begun'
kill "$(cat "$SERVICE_DIR/pid")"
while kill -0 "$(cat "$SERVICE_DIR/pid")" 2>/dev/null; do sleep 0.005; done
date +%s.%N > '{here}/stop-ended'
"""


def main(quick: bool) -> None:
    """Print the rows of endpoints."""
    with tempfile.TemporaryDirectory() as place:
        os.environ["TU_REMOTE_HOME"] = str(Path(place) / "home")
        (Path(place) / "home").mkdir(mode=0o700)
        swaps = measured(Path(place), rounds=10 if quick else 60)
    show("service ready to the cell's start", [s.hand_over_s for s in swaps], 0.100)
    show("a swap beyond its scripts' own time", [s.beyond_s for s in swaps], 0.150)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """One swap, in seconds."""

    hand_over_s: float
    """From when the service listens to the first breath of the cell."""
    beyond_s: float
    """What is neither the stop script, nor the start script and the service's start."""


def measured(here: Path, rounds: int) -> list[Swap]:
    """Swap two endpoints back and forth."""
    from small_endpoint import Daemon, end_noted, endpoint, registered, start_script

    stop = STOP.format(here=here)
    begun = f"date +%s.%N > '{here}/start-begun'\n"
    start = f"#!/bin/sh\n{begun}{start_script(tells=here / 'ready')}"
    store = registered(*(endpoint(name, start=start, stop=stop) for name in "ab"))
    daemon = Daemon()
    try:
        daemon.run("a")
        return [swap(here, daemon, "ba"[n % 2]) for n in range(rounds)]
    finally:
        daemon.end(signal.SIGTERM)
        end_noted(store)


def swap(here: Path, daemon: object, name: str) -> Swap:
    """Ask for the one that is not resident and read what each part wrote down."""
    asked = time.time()
    lines = daemon.run(name, argv=["date", "+%s.%N"])  # type: ignore[attr-defined]
    cell = float("".join(ln["text"] for ln in lines if ln["type"] == "stdout"))

    def at(what: str) -> float:
        return float((here / what).read_text())

    between = at("start-begun") - at("stop-ended")
    hand_over = cell - at("ready")
    return Swap(
        hand_over_s=hand_over,
        beyond_s=(at("stop-begun") - asked) + between + hand_over,
    )


def show(what: str, taken: list[float], goal_s: float) -> None:
    """Print one row: the median and the 95th percentile in milliseconds, the goal."""
    p95 = quantiles(taken, n=20)[-1]
    print(
        f"{what:40} {median(taken) * 1e3:10.3f} ms p50 {p95 * 1e3:10.3f} ms p95"
        f"  goal <= {goal_s * 1e3:.0f} ms"
    )


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
