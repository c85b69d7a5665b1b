"""The process of a worker: where it is started, what it carries, and its stacks."""

import functools
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import stacks
from small_job_worker import (
    JOBS,
    JobWorker,
    Start,
    command,
    job_workers,
    start,
    terminal,
    until,
)

__all__ = ["start"]


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobWorker]:
    marks = (
        "--resident-slug",
        "s",
        "--resident-tree",
        "/t",
        "--resident-instance",
        "i",
    )
    with job_workers(tmp_path_factory.mktemp("marked")) as start:
        yield start("chooses:Chooses", *marks)


def test_a_module_that_hangs_while_it_is_imported_tells_its_stacks(
    tmp_path: Path,
) -> None:
    (tmp_path / "hangs.py").write_text(
        "import pathlib, time\n"
        "pathlib.Path('here').touch()\n"
        "while True:\n    time.sleep(0.01)\n"
    )
    log = tmp_path / "log"
    with log.open("wb") as out:
        words = command("hangs:Job", "--socket", str(tmp_path / "s"))
        child = subprocess.Popen(words, cwd=tmp_path, stderr=out)
    try:
        until((tmp_path / "here").exists, "the module is imported")
        child.send_signal(signal.SIGUSR1)
        until(lambda: 'hangs.py", line' in log.read_text(), "its stacks")
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_stacks_of_threads_that_run_end_no_worker(start: Start) -> None:
    worker = start("runs_on:RunsOn")
    with worker.run("on", "any"):
        for times in range(1, 21):
            worker.process.send_signal(signal.SIGUSR1)
            told = functools.partial(has_told, worker, times)
            until(told, "the stacks")

        assert worker.get("/health")["ok"]


def has_told(worker: JobWorker, times: int) -> bool:
    assert "Fatal Python error" not in worker.log
    return worker.log.count("Current thread") >= times


def test_stacks_are_written_on_sigusr1(marked: JobWorker) -> None:
    marked.process.send_signal(signal.SIGUSR1)

    until(lambda: stacks.are_told(marked.log), "the stacks")
    assert marked.get("/health")["ok"]


def test_the_folder_it_is_started_in_is_importable_and_its_own_is_not(
    marked: JobWorker,
) -> None:
    events = marked.events("x", "says_environment", names=[])
    places = events[1]["payload"]

    assert places[0] == str(JOBS)
    assert not [place for place in places if place.endswith("/jobs/worker")]
    assert not [place for place in places if place.endswith("/worker_side")]


def test_it_starts_as_a_module_too(start: Start) -> None:
    def as_module(words: list[str]) -> list[str]:
        return [words[0], "-m", "remote_resident.jobs.worker", *words[2:]]

    worker = start(argv=as_module)

    assert terminal(worker.events("x", "returns"))["status"] == "completed"


def test_the_state_is_below_the_folder_it_was_started_in(
    start: Start, tmp_path: Path
) -> None:
    def without_state_root(words: list[str]) -> list[str]:
        at = words.index("--state-root")
        return [*words[:at], *words[at + 2 :]]

    (tmp_path / "returns.py").write_text((JOBS / "returns.py").read_text())
    worker = start("returns:Job", argv=without_state_root, cwd=tmp_path)
    worker.events("x", "any")

    assert (tmp_path / ".plugin-state/plugin/x").is_dir()


def test_what_a_job_starts_carries_the_instance(marked: JobWorker) -> None:
    names = ["TU_RESIDENT_INSTANCE"]
    events = marked.events("x", "says_environment", names=names)

    assert events[0]["payload"] == {"TU_RESIDENT_INSTANCE": "i"}
