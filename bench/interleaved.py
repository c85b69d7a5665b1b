"""What is timed against something else: round after round in shuffled order, as medians."""

import random
import statistics
import time
from collections.abc import Callable, Mapping

HEAD = f"{'what':52} {'base':>10} {'ours':>10} {'ratio':>8} {'goal':>8}"


def medians(
    cases: Mapping[str, Callable[[], object]],
    rounds: int,
    calls: int = 1,
    spent: list[float] | None = None,
) -> dict[str, float]:
    """Take every case in shuffled order, round after round; seconds of one call.

    A case that appends to `spent` ends there: what it cleans up after is not counted.
    """
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name in random.sample(sorted(cases), len(cases)):
            ends = [] if spent is None else spent
            ends.clear()
            begun = time.perf_counter()
            for _ in range(calls):
                cases[name]()
            end = ends[0] if ends else time.perf_counter()
            taken[name].append((end - begun) / calls)
    return {name: statistics.median(times) for name, times in taken.items()}


def show(what: str, taken: float, base: float, goal: str) -> None:
    """Print one row: both medians in milliseconds, their ratio, the goal."""
    print(
        f"{what:40} {taken * 1e3:10.3f} ms {base * 1e3:10.3f} ms "
        f"{taken / base:8.2f}  goal {goal}"
    )


def met(what: str, base: float, ours: float, goal: float) -> bool:
    """Print one row below HEAD; say whether its goal is met."""
    ratio = ours / base
    print(
        f"{what:52} {base * 1e3:7.2f} ms {ours * 1e3:7.2f} ms "
        f"{ratio:8.4f} {goal:8.4f}{'' if ratio <= goal else '  above'}"
    )
    return ratio <= goal
