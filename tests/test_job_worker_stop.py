"""A worker that is told to stop: its jobs, its grace, and a second signal."""

import signal
from pathlib import Path

import pytest
import stacks
from small_job_worker import IGNORED, SHORT, Start, ready_at, start, terminal, until

__all__ = ["start"]


def test_sigterm_cancels_waits_and_leaves_0(start: Start) -> None:
    worker = start()
    with worker.run("one", "waits") as one, worker.run("two", "waits") as two:
        one.until("log")
        two.until("log")
        worker.process.terminate()
        ends = [terminal([*stream]) for stream in (one, two)]

    assert [end["status"] for end in ends] == ["cancelled", "cancelled"]
    assert worker.wait() == 0


def test_sigterm_waits_no_longer_than_the_grace(start: Start) -> None:
    worker = start(env=SHORT)
    with worker.run("deaf", "ignores") as stream:
        stream.until("log")
        worker.process.terminate()
        end = terminal(list(stream))

    assert (end["event"], end["message"]) == ("error", IGNORED)
    assert worker.wait() == 0


def test_a_worker_that_is_told_to_stop_takes_no_new_job(
    start: Start, tmp_path: Path
) -> None:
    worker = start()
    go = tmp_path / "go"
    with worker.run("deaf", "ignores", until=str(go)) as stream:
        stream.until("log")
        worker.process.terminate()
        until(lambda: worker.get("/health")["state"] == "stopping", "it stops")
        refusal = worker.ask("POST", "/jobs/new/run", {"job": "returns"})
        go.touch()
        end = terminal(list(stream))

    assert (refusal.status, refusal.json["reason"]) == (503, "stopping")
    assert end["status"] == "cancelled"
    assert worker.wait() == 0


@pytest.mark.long
def test_a_reader_that_does_not_read_delays_the_end_and_no_more(start: Start) -> None:
    worker = start()
    with worker.run("unread", "chatters", lines=50_000, width=200):
        until(lambda: worker.get("/busy") == {"active_jobs": 0}, "the job's end")
        worker.process.terminate()

        assert worker.wait() == 0
    assert "Traceback" not in worker.log


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)]
)
def test_a_second_signal_leaves_now(
    start: Start, number: signal.Signals, status: int
) -> None:
    worker = start()
    with worker.run("deaf", "ignores") as stream:
        stream.until("log")
        worker.process.send_signal(number)
        until(lambda: "told to stop by" in worker.log, "the first is heard")
        worker.process.send_signal(number)

        assert worker.wait() == status
    assert not ready_at(worker).exists()


def test_a_stop_while_the_runtime_comes_up_does_not_wait_for_it(start: Start) -> None:
    worker = start("initialises:Job", env={"UP": "/nowhere/at/all"})
    worker.process.terminate()

    assert worker.wait() == 0
    assert "taken down" not in worker.log
    assert not ready_at(worker).exists()


def test_a_plugin_that_takes_the_signals_is_stopped_all_the_same(start: Start) -> None:
    worker = start("steals_signals:Job")
    until(lambda: worker.get("/health")["state"] == "ready", "it is up")
    # the main thread has taken them back before a job runs
    assert terminal(worker.events("x", "any"))["status"] == "completed"
    worker.process.send_signal(signal.SIGUSR1)
    until(lambda: stacks.are_told(worker.log), "the stacks")
    worker.process.terminate()

    assert worker.wait() == 0


def test_ending_a_forked_child_of_a_job_does_not_end_the_worker(start: Start) -> None:
    worker = start(env=SHORT)
    events = worker.events("forks", "ends_children")

    assert terminal(events)["status"] == "completed"
    ended = [event["payload"] for event in events if event["event"] == "custom"]
    assert ended == [signal.SIGTERM] * 10
    assert worker.get("/health")["state"] == "ready"
