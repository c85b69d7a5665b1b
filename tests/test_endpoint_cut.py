"""remote_resident.endpoints.cut: a wait that a word, or the end of a process, ends."""

import os
import subprocess
import threading
from pathlib import Path

import pytest

from remote_resident.endpoints.cut import Cut

DEADLINE_S = 60.0
FDS = Path("/proc/self/fd")


def test_who_waits_wakes_when_it_is_set() -> None:
    cut = Cut()
    said: list[bool] = []
    waiting = threading.Thread(target=lambda: said.append(cut.wait(DEADLINE_S)))
    waiting.start()

    cut.set()
    waiting.join(DEADLINE_S / 2)

    assert said == [True]
    assert cut.wait(DEADLINE_S)


def test_the_end_of_a_process_ends_the_wait_and_sets_nothing() -> None:
    cut = Cut()
    with subprocess.Popen(["sleep", f"{DEADLINE_S}"]) as child:
        killer = threading.Timer(0.05, child.kill)
        killer.start()

        # a wait to its end would be cut by the deadline of the test
        assert not cut.wait(1e6, [child.pid])
        assert child.wait() < 0


def test_a_process_that_has_ended_is_not_waited_for() -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait()

    assert not Cut().wait(1e6, [child.pid])


@pytest.mark.parametrize("pids", [(), (os.getpid(),)])
def test_no_descriptor_is_left(pids: tuple[int, ...]) -> None:
    before = len(list(FDS.iterdir()))

    assert not Cut().wait(0.0, pids)

    assert len(list(FDS.iterdir())) == before
