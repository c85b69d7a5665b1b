"""A worker whose owner is gone: it leaves, after the grace of its jobs."""

import os
import sys
from pathlib import Path

from small_job_worker import SHORT, Start, ready_at, start, terminal, until

__all__ = ["start"]


def test_a_worker_whose_owner_is_gone_leaves(start: Start) -> None:
    lifeline, held = os.pipe()
    worker = start("chooses:Chooses", "--lifeline-fd", str(lifeline), fds=[lifeline])
    os.close(lifeline)
    assert worker.get("/health")["ok"]
    os.close(held)

    assert worker.wait() == 0
    assert not ready_at(worker).exists()


def test_jobs_in_hand_are_given_the_grace(start: Start, tmp_path: Path) -> None:
    lifeline, held = os.pipe()
    worker = start("chooses:Chooses", "--lifeline-fd", str(lifeline), fds=[lifeline])
    os.close(lifeline)
    go = tmp_path / "go"
    with worker.run("in-hand", "ignores", until=str(go)) as stream:
        stream.until("log")
        os.close(held)
        until(lambda: "the owner is gone" in worker.log, "it is noticed")
        go.touch()

        assert terminal(list(stream))["status"] == "completed"
    assert worker.wait() == 0


def test_jobs_that_take_longer_are_cancelled(start: Start) -> None:
    lifeline, held = os.pipe()
    options = ("--lifeline-fd", str(lifeline))
    worker = start("chooses:Chooses", *options, fds=[lifeline], env=SHORT)
    os.close(lifeline)
    with worker.run("long", "waits") as stream:
        stream.until("log")
        os.close(held)

        assert terminal(list(stream))["status"] == "cancelled"
    assert worker.wait() == 0


def test_an_owner_that_is_killed_is_gone_though_a_fork_holds_the_lifeline(
    start: Start, tmp_path: Path
) -> None:
    # the pipe stays open in this process: only the parent's end can be seen
    lifeline, held = os.pipe()
    owner = "import subprocess, sys; subprocess.run(sys.argv[1:], close_fds=False)"

    def owned(words: list[str]) -> list[str]:
        return [sys.executable, "-c", owner, *words]

    worker = start(
        "chooses:Chooses", "--lifeline-fd", str(lifeline), fds=[lifeline], argv=owned
    )
    try:
        path = ready_at(worker)
        worker.process.kill()
        worker.wait()
        until(lambda: not path.exists(), "the worker leaves")
    finally:
        os.close(lifeline)
        os.close(held)
