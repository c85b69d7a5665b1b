"""A child is seen in the process table before its room is given on."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from remote_resident.spawn import Child, Log, Pipes, spawn

Spawn = Callable[..., Child]


@pytest.fixture
def spawned(tmp_path: Path) -> Iterator[Spawn]:
    """Start `sleep` for so many seconds; it is ended with the test."""
    children: list[Child] = []

    def start(seconds: str, shown: Callable[[int], bytes]) -> Child:
        pipes = Pipes.open(lifeline=False, ready=False, contained=False)
        words = ["sleep", seconds]
        log = Log(tmp_path / "a.log")
        child = spawn(words, os.environ, pipes, log, shown=shown)
        children.append(child)
        return child

    yield start
    for child in children:
        child.process.kill()
        child.process.wait()
        child.close()


def test_a_child_is_spawned_once_the_process_table_shows_its_argv(
    spawned: Spawn,
) -> None:
    looks = [b"", b"", b"", b"sleep\0600\0", b"never asked for"]
    asked: list[int] = []

    def shown(pid: int) -> bytes:
        asked.append(pid)
        return looks[len(asked) - 1]

    child = spawned("600", shown)

    assert asked == [child.process.pid] * 4


def test_a_child_that_ended_unseen_is_not_waited_for(spawned: Spawn) -> None:
    def shown(pid: int) -> bytes:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return b""

    assert spawned("0", shown).wait_end(0)


def test_a_child_that_is_in_no_table_any_more_is_not_waited_for(spawned: Spawn) -> None:
    def shown(pid: int) -> bytes:
        raise FileNotFoundError(pid)

    assert not spawned("600", shown).wait_end(0)
