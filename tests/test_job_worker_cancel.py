"""Cancel: cooperative first, then the grace, and only those who were asked."""

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_job_worker import (
    IGNORED,
    SHORT,
    JobWorker,
    Start,
    job_workers,
    start,
    terminal,
)

__all__ = ["start"]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobWorker]:
    with job_workers(tmp_path_factory.mktemp("cancel")) as start:
        yield start()


def test_a_cancelled_job_ends_as_cancelled(worker: JobWorker) -> None:
    with worker.run("heard", "waits") as stream:
        stream.until("log")
        answer = worker.cancel("heard")
        events = list(stream)

    assert (answer.status, answer.json) == (
        200,
        {"cancelling": True, "job_id": "heard"},
    )
    assert terminal(events)["status"] == "cancelled"
    assert worker.get("/jobs/heard")["state"] == "cancelled"
    assert worker.cancel("heard").status == 404


def test_what_a_cancelled_job_raises_is_told(worker: JobWorker) -> None:
    with worker.run("raises", "ends_when_cancelled_by_raising") as stream:
        stream.until("log")
        worker.cancel("raises")

        assert terminal(list(stream))["message"] == "InterruptedError: told to"


def test_a_second_cancel_is_as_good_as_the_first(
    worker: JobWorker, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    with worker.run("twice", "ignores", until=str(go)) as stream:
        stream.until("log")
        answers = [worker.cancel("twice").status for _ in range(3)]
        cancelling = worker.get("/jobs/twice")["cancelling"]
        go.touch()

        assert terminal(list(stream))["status"] == "cancelled"
    assert (answers, cancelling) == ([200] * 3, True)


def race(worker: JobWorker, rounds: int) -> None:
    for number in range(rounds):
        with worker.run("race", "returns") as first:
            canceller = threading.Thread(target=worker.cancel, args=["race"])
            canceller.start()
            end = terminal(list(first))
        canceller.join()
        with worker.run("race", "returns") as second:
            later = terminal(list(second))

        assert end["event"] == "done", number
        assert (later["event"], later["status"]) == ("done", "completed"), number


def test_a_cancel_never_hits_a_later_job_of_the_same_id(worker: JobWorker) -> None:
    race(worker, 20)


@pytest.mark.long
def test_a_cancel_never_hits_a_later_job_in_a_thousand_rounds(
    worker: JobWorker,
) -> None:
    race(worker, 1000)


def test_a_cancel_that_had_arrived_is_done_before_the_next_job(
    worker: JobWorker,
) -> None:
    body = b'{"job": "returns"}'
    for number in range(20):
        worker.events("before", "returns")
        # a kept connection is read before a new one is even accepted
        run = worker.send("GET", "/health")
        run.getresponse().read()
        worker.process.send_signal(signal.SIGSTOP)
        cancel = worker.send("POST", "/jobs/before/cancel")
        run.request("POST", "/jobs/before/run", body)
        worker.process.send_signal(signal.SIGCONT)
        answer = cancel.getresponse()
        answer.read()
        events = run.getresponse().read()
        cancel.close()
        run.close()

        assert answer.status == 404, number
        assert b'"status":"completed"' in events, number


def test_a_cancel_that_is_ignored_ends_the_worker_with_3(start: Start) -> None:
    worker = start(env=SHORT)
    with worker.run("deaf-1", "ignores") as one, worker.run("deaf-2", "ignores") as two:
        one.until("log")
        two.until("log")
        worker.cancel("deaf-1")
        worker.cancel("deaf-2")
        ends = [terminal([*stream]) for stream in (one, two)]

    assert [(end["event"], end["message"]) for end in ends] == [("error", IGNORED)] * 2
    assert worker.wait() == 3
    assert worker.socket is not None
    assert not worker.socket.exists()


def test_a_job_that_was_not_cancelled_is_never_ended_for_another(
    start: Start, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    worker = start(env={"TU_JOB_CANCEL_GRACE_S": "0.2"})
    with (
        worker.run("deaf", "ignores") as deaf,
        worker.run("spared", "ignores", until=str(go)) as spared,
    ):
        deaf.until("log")
        spared.until("log")
        worker.cancel("deaf")
        # several graces go by, and the ends of others with them
        end = time.monotonic() + 0.7
        while time.monotonic() < end:
            worker.events("probe", "returns")
        assert worker.process.poll() is None
        assert worker.get("/jobs/spared")["state"] == "running"

        # the stubborn one is reconsidered once the other has ended
        go.touch()
        assert terminal(list(spared))["status"] == "completed"
        assert (
            terminal(list(deaf))["message"] == "cancel ignored for 0.2 s; worker ended"
        )
    assert worker.wait() == 3


def test_a_stubborn_job_that_hears_at_last_ends_nothing(
    start: Start, tmp_path: Path
) -> None:
    worker = start(env={"TU_JOB_CANCEL_GRACE_S": "30"})
    go = tmp_path / "go"
    with worker.run("late", "ignores", until=str(go)) as stream:
        stream.until("log")
        worker.cancel("late")
        go.touch()
        assert terminal(list(stream))["status"] == "cancelled"

    assert terminal(worker.events("late", "returns"))["status"] == "completed"


@pytest.mark.parametrize("grace", ["0", "-1"])
def test_without_a_grace_nothing_is_ever_escalated(
    start: Start, tmp_path: Path, grace: str
) -> None:
    worker = start(env={"TU_JOB_CANCEL_GRACE_S": grace})
    go = tmp_path / "go"
    with worker.run("deaf", "ignores", until=str(go)) as stream:
        stream.until("log")
        worker.cancel("deaf")
        for _ in range(20):
            assert worker.get("/busy") == {"active_jobs": 1}
        go.touch()
        assert terminal(list(stream))["status"] == "cancelled"


def test_cancel_all_names_whom_it_asked(worker: JobWorker) -> None:
    with worker.run("all-1", "waits") as one, worker.run("all-2", "waits") as two:
        one.until("log")
        two.until("log")
        answer = worker.ask("POST", "/jobs/cancel-all")
        ends = [terminal(list(stream))["status"] for stream in (one, two)]

    assert answer.status == 200
    assert sorted(answer.json["cancelling"]) == ["all-1", "all-2"]
    assert ends == ["cancelled", "cancelled"]
    assert worker.ask("POST", "/jobs/cancel-all").json == {"cancelling": []}
