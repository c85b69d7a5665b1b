"""Who owns a worker, and what is left when the owner is gone."""

import fcntl
import gc
import os
import signal
from pathlib import Path

import pytest
from small_provider import DEADLINE_S, provider, until, write
from small_worker import (
    ASKING,
    IDLE,
    LOADING,
    OWNER,
    SUBREAPER,
    Make,
    Run,
    gone,
    in_thread,
    line_of,
    told_to,
)

from remote_resident import manifest, places, processes
from remote_resident.caller_side.starter import Stage
from remote_resident.supervisor import ResidentWorker


@pytest.mark.parametrize("when", ["idle", "loading", "mid-request"])
@pytest.mark.parametrize("reaper", [False, True], ids=["plain", "sub-reaper"])
def test_no_worker_outlives_an_owner_that_was_killed(
    tree: Path, run: Run, tmp_path: Path, when: str, reaper: bool
) -> None:
    begun, go, done = (tmp_path / name for name in ("begun", "go", "done"))
    asked = f'{{"begun": "{begun}", "until": "{go}", "done": "{done}"}}'
    script = "slow_load" if when == "loading" else "finishes"
    program = {"idle": IDLE, "loading": LOADING, "mid-request": ASKING}[when]
    path = write(tree, script, runtime=told_to(str(go), orphan_grace_s=0.1))
    args = (program, str(path), "", asked)
    child = run("-c", SUBREAPER, *args) if reaper else run("-c", *args)
    pid = int(line_of(child)) if reaper else child.pid
    instance = line_of(child)
    if when == "mid-request":
        until(begun.exists, "begun")

    os.kill(pid, signal.SIGKILL)
    if when == "mid-request":
        log = places.log_path("tiny", tree)
        until(lambda: "the owner is gone" in log.read_text(), "noticed")
        go.touch()

    gone(instance)
    assert done.exists() == (when == "mid-request")


def test_a_clean_exit_gives_the_card_back_at_once(tree: Path, run: Run) -> None:
    path = write(tree, "echo", runtime={"orphan_grace_s": 600})
    child = run("-c", IDLE, str(path), "")
    instance = line_of(child)

    child.communicate(timeout=DEADLINE_S)

    assert child.returncode == 0
    assert processes.members(instance) == []


def test_a_worker_that_nobody_owns_outlives_its_starter_and_leaves_when_idle(
    tree: Path, run: Run, make: Make
) -> None:
    path = write(tree, "echo")
    child = run("-c", IDLE, str(path), "u")
    instance = line_of(child)
    child.communicate(timeout=DEADLINE_S)
    other = ResidentWorker(manifest.load(path), admit=None)

    options = processes.marks(processes.members(instance)[0])

    assert options["idle-timeout"] == "900.0"
    assert "lifeline-fd" not in options
    assert other.ensure_started().adopted
    assert other.stop() != []
    assert processes.members(instance) == []


def test_a_load_goes_on_for_who_asks_next_where_its_starter_is_gone(
    tree: Path, run: Run, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    path = write(tree, "slow_load", runtime=told_to(str(go)))
    child = run("-c", LOADING, str(path), "u")
    instance = line_of(child)
    until(Path(f"{go}.begun").exists, "begun")
    child.kill()
    child.wait()
    other = ResidentWorker(manifest.load(path), admit=None)

    thread, came = in_thread(other.ensure_started)
    until(lambda: not free(other.socket_path.with_name("x")), "asked next")
    go.touch()
    thread.join(DEADLINE_S)

    assert (came[0].instance, came[0].adopted) == (instance, True)
    assert other.stop() != []


def test_who_joined_a_load_is_told_that_it_was_stopped(
    tree: Path, run: Run, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    path = write(tree, "slow_load", runtime=told_to(str(go)))
    child = run("-c", LOADING, str(path), "u")
    line_of(child)
    until(Path(f"{go}.begun").exists, "begun")
    child.kill()
    child.wait()
    joined, third = (ResidentWorker(manifest.load(path), admit=None) for _ in range(2))
    thread, came = in_thread(joined.ensure_started)
    until(lambda: joined._starter.stage is Stage.LOAD, "joined")

    third.stop()
    thread.join(DEADLINE_S)

    assert came[0].reason == "stopping"


def free(beside: Path) -> bool:
    """Say whether nobody is in the turn of a start."""
    (lock,) = beside.parent.glob("*.sock.lock")
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_an_owned_worker_that_nobody_refers_to_leaves(make: Make, tree: Path) -> None:
    worker = ResidentWorker(
        provider(tree, "echo", runtime={"orphan_grace_s": 0.1}), admit=None
    )
    instance = worker.ensure_started().instance

    del worker
    gc.collect()

    gone(instance)


def test_a_fork_of_the_owner_neither_keeps_nor_stops_its_worker(
    make: Make, run: Run, tree: Path
) -> None:
    path = write(tree, "echo", runtime={"orphan_grace_s": 0.1})
    program = OWNER + (
        "import os; print(worker.ensure_started().instance, flush=True)\n"
        "pid = os.fork()\n"
        "if pid == 0: sys.exit(0)\n"
        "os.waitpid(pid, 0)\n"
        "print(worker.request({})['ok'], flush=True)\n"
        "pid = os.fork()\n"
        "if pid == 0: sys.stdin.read()\n"
        "print(pid, flush=True)\n"
        "sys.stdin.read()"
    )
    child = run("-c", program, str(path), "")
    instance, answered, fork = (line_of(child) for _ in range(3))
    before = processes.members(instance)

    os.kill(child.pid, signal.SIGKILL)
    gone(instance)
    os.kill(int(fork), signal.SIGKILL)

    assert answered == "True"
    assert len(before) == 1
