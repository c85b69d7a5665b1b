"""Streams: a reader that leaves, attaches again, is slow, and many at once."""

import concurrent.futures
import contextlib
import http.client
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_job_worker import (
    JobWorker,
    Start,
    Stream,
    job_workers,
    terminal,
    until,
)

MB = 1_000_000


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    with job_workers(tmp_path_factory.mktemp("streams")) as start:
        yield start


@pytest.fixture(scope="module", params=["unix", "tcp"])
def worker(start: Start, request: pytest.FixtureRequest) -> JobWorker:
    return start(transport=request.param)


@pytest.fixture(
    scope="module", params=["unix", pytest.param("tcp", marks=pytest.mark.long)]
)
def laden(start: Start, request: pytest.FixtureRequest) -> JobWorker:
    """Give a worker for what takes long; the transport has little part in it."""
    return start(transport=request.param)


def left(worker: JobWorker, job_id: str) -> None:
    """Wait until a job has no reader any more."""
    until(lambda: worker.get(f"/jobs/{job_id}")["readers"] == 0, f"{job_id} is left")


def test_a_reader_that_leaves_is_noticed_and_the_job_runs_on(worker: JobWorker) -> None:
    with worker.run("left", "waits") as stream:
        stream.until("log")
        assert worker.get("/jobs/left")["readers"] == 1
    left(worker, "left")

    assert worker.get("/jobs/left")["state"] == "running"
    assert worker.get("/busy") == {"active_jobs": 1}
    with worker.run("left", "returns") as second:
        assert second.status == 409
    assert worker.cancel("left").json == {"cancelling": True, "job_id": "left"}
    with worker.attach("left") as again:
        events = list(again)
    assert [event.get("message") for event in events] == ["waiting", "heard", None]
    assert terminal(events)["status"] == "cancelled"


def test_a_reader_that_comes_back_misses_nothing(
    worker: JobWorker, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    job = {"job": "counts_on", "first": 300, "last": 600, "until": str(go)}
    with worker.run("back", **job) as stream:
        had = [next(stream) for _ in range(100)]
    left(worker, "back")
    with worker.attach("back", after=had[-1]["seq"]) as stream:
        had += [next(stream) for _ in range(200)]
        go.touch()
        had += list(stream)

    assert [event.get("value") for event in had] == [*range(600), None]
    assert [event["seq"] for event in had] == list(range(1, 602))
    assert terminal(had)["status"] == "completed"


def test_two_readers_each_get_everything(worker: JobWorker, tmp_path: Path) -> None:
    go = tmp_path / "go"
    job = {"job": "counts_on", "first": 10, "last": 500, "until": str(go)}
    with worker.run("two", **job) as one, worker.attach("two") as two:
        go.touch()
        first, second = list(one), list(two)

    assert first == second
    assert len(first) == 501


def test_an_ended_job_can_be_read_again_from_any_number(worker: JobWorker) -> None:
    events = worker.events("ended", "counts", to=50)
    for after in (0, 1, 49, 50, 51, 10**6):
        with worker.attach("ended", after) as stream:
            assert (stream.status, list(stream)) == (200, events[after:])


def test_none_is_lost_while_the_host_reads(worker: JobWorker) -> None:
    events = worker.events("many", "counts", to=20_000)

    assert [event.get("value") for event in events] == [*range(20_000), None]


def test_a_slow_reader_slows_no_job_and_is_told_what_it_missed(
    laden: JobWorker,
) -> None:
    worker = laden
    worker.events("warm", "chatters", lines=2000)
    before = worker.resident()
    with worker.run("slow", "chatters", lines=100_000, width=200) as stream:
        until(
            lambda: worker.get("/jobs/slow")["state"] == "completed",
            "a job whose reader does not read ends",
        )
        grown = worker.resident() - before
        events = list(stream)
    told = sum(event.get("dropped", 0) for event in events)

    assert grown < 30 * MB
    assert told > 0
    assert told + len(events) == 150_002
    assert terminal(events)["status"] == "completed"


def test_an_abandoned_chatty_job_keeps_within_its_bound(laden: JobWorker) -> None:
    worker = laden
    worker.events("warm", "chatters", lines=2000)
    before = worker.resident()
    worker.run("alone", "chatters", lines=100_000, width=200).close()
    until(lambda: worker.get("/jobs/alone")["state"] == "completed", "it ends")
    grown = worker.resident() - before
    status = worker.get("/jobs/alone")
    with worker.attach("alone") as stream:
        events = list(stream)

    assert grown < 30 * MB
    assert status["dropped"] > 0
    assert status["buffered_bytes"] <= 8 << 20
    assert terminal(events)["status"] == "completed"
    # the oldest progress goes first: of what is left, log lines are the older ones
    assert [event["event"] for event in events[:2]] == ["log", "log"]


def test_the_ended_are_told_of_up_to_256(laden: JobWorker) -> None:
    worker = laden
    for number in range(258):
        worker.events(f"past-{number}", "returns")

    assert worker.ask("GET", "/jobs/past-0").status == 404
    assert worker.ask("GET", "/jobs/past-1").status == 404
    assert worker.get("/jobs/past-2")["state"] == "completed"


def test_two_hundred_live_jobs_deliver_and_every_route_answers(start: Start) -> None:
    worker = start()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        streams: list[Stream] = list(
            pool.map(lambda n: worker.run(f"live-{n}", "waits"), range(200))
        )
    for stream in streams:
        assert stream.until("log")["message"] == "waiting"
    busy = worker.get("/busy")
    healthy = worker.get("/health")["ok"]
    reclaimed = worker.ask("POST", "/reclaim").status
    computed = worker.get("/compute?a=1")
    one = worker.cancel("live-7").json
    ended = terminal(list(streams[7]))["status"]
    rest = worker.ask("POST", "/jobs/cancel-all").json["cancelling"]
    ends = [
        terminal(list(stream))["status"] for n, stream in enumerate(streams) if n != 7
    ]
    for stream in streams:
        stream.close()

    assert (busy, healthy, reclaimed) == ({"active_jobs": 200}, True, 200)
    assert computed == {"given": {"a": "1"}}
    assert (one["cancelling"], ended) == (True, "cancelled")
    assert sorted(rest) == sorted(f"live-{n}" for n in range(200) if n != 7)
    assert ends == ["cancelled"] * 199


def test_no_stream_has_a_thread_of_its_own(start: Start, tmp_path: Path) -> None:
    worker = start()
    go = tmp_path / "go"
    job = {"job": "counts_on", "first": 1, "last": 1, "until": str(go)}

    def threads() -> int:
        return len(list(Path(f"/proc/{worker.process.pid}/task").iterdir()))

    with worker.run("one", **job) as stream:
        stream.until("metric")
        before = threads()
        readers = [worker.attach("one") for _ in range(50)]
        for reader in readers:
            reader.until("metric")
        assert threads() == before
        go.touch()
        for reader in readers:
            assert reader.until("done")
            reader.close()


def test_a_forked_child_of_a_job_keeps_no_stream_open(start: Start) -> None:
    worker = start()
    with worker.run("forks", "forks") as stream:
        child = stream.until("custom")["payload"]
        try:
            worker.process.kill()
            worker.wait()
            # the end of the connection, though the child lives on
            with contextlib.suppress(http.client.IncompleteRead):
                assert list(stream) == []
        finally:
            os.kill(child, signal.SIGKILL)


def test_the_first_event_does_not_wait_for_more(worker: JobWorker) -> None:
    with worker.run("first", "waits") as stream:
        assert stream.until("log")["message"] == "waiting"
        worker.cancel("first")
        assert stream.until("done")
