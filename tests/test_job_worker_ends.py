"""How a job ends: whatever it does, one terminal event comes, and it comes last."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_job_worker import JobWorker, job_workers, terminal

ENDS = {
    "returns": {"event": "done", "status": "completed"},
    "is_a_coroutine": {"event": "done", "status": "completed"},
    "raises": {"event": "error", "message": "ValueError: out of amino acids"},
    "yields": {
        "event": "error",
        "message": "TypeError: run_job: a generator found, a function or coroutine wanted",
    },
    "fails": {"event": "error", "message": "exactly these words: 100 %"},
    "fails_and_goes_on": {"event": "error", "message": "the first words"},
    "exits": {"event": "error", "message": "SystemExit: 0"},
    "interrupts": {"event": "error", "message": "KeyboardInterrupt"},
    "raises_without_text": {"event": "error", "message": "Rude"},
    "says_odd_values": {"event": "done", "status": "completed"},
    "no_such_job": {
        "event": "error",
        "message": "ModuleNotFoundError: No module named 'no_such_job'",
    },
}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobWorker]:
    with job_workers(tmp_path_factory.mktemp("ends")) as start:
        yield start(env={"TU_JOB_STREAM_KEEPALIVE_S": "0.05"})


@pytest.mark.parametrize("job", ENDS)
def test_a_terminal_event_comes_last_whatever_ends_the_job(
    worker: JobWorker, job: str
) -> None:
    end = terminal(worker.events(job, job))

    assert {"event": end.pop("event"), **end} == {
        **ENDS[job],
        "job_id": job,
        "seq": end["seq"],
    }
    assert worker.get("/busy") == {"active_jobs": 0}
    assert worker.get(f"/jobs/{job}")["state"] == (
        "completed" if ENDS[job]["event"] == "done" else "failed"
    )


def test_the_worker_outlives_every_way_to_end(worker: JobWorker) -> None:
    for job in ("exits", "interrupts", "raises"):
        worker.events("outlived", job)

    assert terminal(worker.events("outlived", "returns"))["status"] == "completed"


def test_a_failed_jobs_traceback_is_in_the_log_under_its_id(worker: JobWorker) -> None:
    worker.events("traced", "raises")
    lines = [line for line in worker.log.splitlines() if line.startswith("[traced] ")]

    assert lines[0] == "[traced] Traceback (most recent call last):"
    assert lines[-1] == "[traced] ValueError: out of amino acids"


@pytest.mark.parametrize("stream", ["none", "closed"])
def test_a_job_that_replaces_the_standard_streams_is_told_of_and_its_worker_leaves(
    tmp_path: Path, stream: str
) -> None:
    with job_workers(tmp_path) as start:
        worker = start()
        end = terminal(worker.events("mute", "replaces_streams", stream=stream))
        worker.process.terminate()

        assert (end["event"], end["message"]) == ("error", "ValueError: after that")
        assert worker.wait() == 0
        assert "[mute] ValueError: after that" in worker.log
        assert "told to stop by SIGTERM" in worker.log


def test_no_value_breaks_the_stream_and_each_change_is_told(worker: JobWorker) -> None:
    events = worker.events("odd", "says_odd_values")
    sent = {e["name"]: e["payload"] for e in events if e["event"] == "custom"}
    told = [e["message"] for e in events if e["event"] == "log"]

    assert sent["set"] == "{1}"
    assert sent["nan"] is None
    assert sent["infinity"] == [1.0, None]
    assert sent["key"] == {"(1, 2)": 3}
    assert sent["rude"] == "<Rude without a repr>"
    assert sent["surrogate"] == "\ud800"
    assert "custom: payload: set sent as its repr" in told
    assert "metric: value: nan sent as null" in told
    assert "progress: percent: nan sent as null" in told
    assert told[-1] == "still here"


def test_a_reserved_name_is_refused_in_the_plugin(worker: JobWorker) -> None:
    ours = ["progress", "metric", "log", "custom", "result", "ping", "done", "error"]
    names = [*ours, "job_update"]
    events = worker.events("reserved", "emits_reserved", names=[*names, "mine"])

    assert [(e["name"], e["payload"]) for e in events[:-1]] == [
        ("mine", 1),
        ("refused", names),
    ]


def test_memory_is_given_back_before_the_end_is_told(
    worker: JobWorker, tmp_path: Path
) -> None:
    ways: tuple[dict[str, Any], ...] = (
        {},
        {"raises": True},
        {"release": "fails"},
        {"bare": True},
    )
    for number, how in enumerate(ways):
        said = tmp_path / f"said-{number}"
        with worker.run(
            f"memory-{number}", "holds_memory", file=str(said), **how
        ) as it:
            end = terminal(list(it))
            assert said.read_text() == "ran\nreleased\n"

        assert end["event"] == ("error" if "raises" in how else "done")


def test_reclaim_gives_back_what_a_framework_keeps(
    worker: JobWorker, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    worker.events("reclaimed", "holds_memory", file=str(said))

    assert worker.ask("POST", "/reclaim").json["released"] is True
    assert said.read_text() == "ran\nreleased\nreleased\n"


def test_nothing_of_an_ended_job_comes_after_its_end(
    worker: JobWorker, tmp_path: Path
) -> None:
    over = tmp_path / "over"
    events = worker.events("late", "late_event", until=str(over))
    with worker.attach("late") as stream:
        again = list(stream)
    over.touch()

    assert terminal(events)["status"] == "completed"
    assert again == [event for event in events if event["event"] != "ping"]


def test_a_ping_comes_only_when_nothing_else_does(worker: JobWorker) -> None:
    with worker.run("pinged", "waits") as stream:
        log = stream.until("log")
        ping = stream.until("ping")
        worker.cancel("pinged")
        rest = list(stream)

    assert ping == {"event": "ping", "job_id": "pinged", "seq": log["seq"]}
    assert terminal(rest)["status"] == "cancelled"
    assert "ping" not in [e["event"] for e in worker.events("quick", "says_everything")]


def test_what_a_job_prints_carries_its_id(worker: JobWorker) -> None:
    worker.events("printer-1", "prints", text="one")
    worker.events("printer-2", "prints", text="two")
    lines = worker.log.splitlines()

    for job, text in (("printer-1", "one"), ("printer-2", "two")):
        assert [line for line in lines if line.startswith(f"[{job}] ")] == [
            f"[{job}] from print {text}",
            f"[{job}] from stderr {text}",
            f"[{job}] no end {job}from logging {text}",
            f"[{job}] from bytes",
            f"[{job}] the last without an end",
        ]
    assert lines.count("from a child") == 2


def test_what_asyncio_runs_for_a_job_in_a_thread_carries_its_id_too(
    worker: JobWorker,
) -> None:
    worker.events("threaded", "prints_in_a_thread")

    assert "[threaded] from a thread" in worker.log.splitlines()


def test_the_standard_input_is_not_the_jobs(worker: JobWorker) -> None:
    assert worker.events("stdin", "reads_stdin")[0]["payload"] == ["", ""]


def test_a_state_directory_that_cannot_be_made_fails_the_job(worker: JobWorker) -> None:
    (worker.log_path.parent / "state").mkdir(exist_ok=True)
    (worker.log_path.parent / "state/taken").write_text("a file")
    end = terminal(worker.events("taken", "returns"))

    assert end["event"] == "error"
    assert end["message"].startswith("FileExistsError: ")
