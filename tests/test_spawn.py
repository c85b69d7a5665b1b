"""A child is seen before its room is given on; its log is kept short, and loses nothing."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from remote_resident.spawn import LOG_LIMIT_BYTES, Child, Log, Pipes, spawn

LONG = LOG_LIMIT_BYTES + 1


@pytest.mark.parametrize("number", range(4))
def test_a_log_that_many_find_too_long_at_once_is_moved_aside_once(
    tmp_path: Path, number: int
) -> None:
    log, older = Log(tmp_path / "a.log"), tmp_path / "a.log.1"
    with log.open() as file:
        os.truncate(file.fileno(), LONG)
    together = Barrier(8)

    def rotate(_: int) -> None:
        together.wait()
        log.rotate()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(rotate, range(8)))

    assert (log.size(), older.stat().st_size) == (0, LONG)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.log", "a.log.1"]
    assert older.stat().st_mode & 0o777 == 0o600


def test_of_logs_that_were_moved_aside_the_last_are_kept(tmp_path: Path) -> None:
    log = Log(tmp_path / "a.log")
    for number in range(5):
        log.path.write_bytes(str(number).encode() * LONG)
        log.rotate()

    kept = {p.name: p.read_bytes()[:1] for p in tmp_path.iterdir()}
    assert kept == {"a.log": b"", "a.log.1": b"4", "a.log.2": b"3"}


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
