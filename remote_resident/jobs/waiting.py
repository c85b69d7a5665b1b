"""Where those who wait stand, and how long they will."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from remote_resident.jobs.lane import Lane, Live
from remote_resident.jobs.queue import Key

Place = dict[str, Any]
"""`position` and `expected_wait_s`."""
NOWHERE: Place = {"position": None, "expected_wait_s": None}


def places(
    order: Sequence[tuple[Key, str]],
    lanes: Mapping[Key, Lane],
    usual_s: Callable[[str, str], float | None],
) -> Iterator[tuple[str, Place]]:
    """Yield each job that waits with its position, from 1, and its expected wait.

    `usual_s` gives the seconds of a provider's usual job. `expected_wait_s` is None where
    one that is ahead has never completed yet.
    """
    if not order:
        return
    usual = {key: usual_s(*key) for key in lanes}
    in_hand = [x.in_hand for x in lanes.values() if x.in_hand is not None]
    left = {live.lane.key: _left_s(live, usual) for live in in_hand}
    # another provider's job is in the way only where there is no room beside it
    alone = any(lane.blocked for lane in lanes.values())
    ahead: Counter[Key] = Counter()
    for position, (key, job_id) in enumerate(order, start=1):
        waits = [left[other] for other in left if alone or other == key]
        for other, number in ahead.items():
            if alone or other == key:
                each_s = usual[other]
                waits.append(None if each_s is None else each_s * number)
        known = [wait for wait in waits if wait is not None]
        expected_s = sum(known) if len(known) == len(waits) else None
        yield job_id, {"position": position, "expected_wait_s": expected_s}
        ahead[key] += 1


def _left_s(live: Live, usual: Mapping[Key, float | None]) -> float | None:
    """Say how long a job will take still, by its provider's usual time."""
    usual_s = usual[live.lane.key]
    if usual_s is None:
        return None
    return max(0.0, usual_s - (time.time() - (live.job.started or time.time())))
