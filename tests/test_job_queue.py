"""Whose job is next, what a reader of its events gets, and what is remembered."""

import json
import shlex
import threading
from itertools import islice
from pathlib import Path

import pytest
import small_jobs

from remote_resident import machine
from remote_resident.admission import Gpu
from remote_resident.errors import ProviderError
from remote_resident.jobs import feed
from remote_resident.jobs import records as jobs_records
from remote_resident.jobs.devices import device_named
from remote_resident.jobs.feed import Feed
from remote_resident.jobs.job import Job
from remote_resident.jobs.queue import Key, Queue
from remote_resident.jobs.records import Records
from remote_resident.manifest import load

A, B, C = ("/t", "a"), ("/t", "b"), ("/t", "c")


def filled(*jobs: tuple[Key, str]) -> Queue:
    queue = Queue()
    for key, job in jobs:
        queue.add(key, job)
    return queue


def taken(queue: Queue, **limits: object) -> list[str]:
    """Take all that may begin, one after the other."""
    found = []
    options = {"busy": (), "blocked": (), **limits}
    while key := queue.next(lambda _: "device", **options):  # type: ignore[arg-type]
        found.append(queue.take(key)[0])
    return found


def test_turns_go_round_the_providers_and_each_keeps_its_order() -> None:
    queue = filled((A, "a1"), (A, "a2"), (A, "a3"), (B, "b1"), (B, "b2"), (C, "c1"))

    foretold = [job for _, job in queue.order()]

    assert foretold == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert taken(queue) == foretold


def test_who_comes_late_is_served_before_who_was_served_last() -> None:
    queue = filled((A, "a1"), (A, "a2"))
    queue.take(A)
    queue.add(B, "b1")

    assert taken(queue) == ["b1", "a2"]


def test_a_busy_provider_holds_nobody_else_back() -> None:
    queue = filled((A, "a1"), (B, "b1"))

    assert queue.next(lambda _: "device", {A}, ()) == B


def test_who_waits_for_room_holds_back_its_pool_and_no_other() -> None:
    queue = filled((A, "a1"), (B, "b1"), (C, "c1"))
    pools = {A: "device", B: "device", C: "host"}

    assert queue.next(pools.__getitem__, (), {A}) == C
    assert queue.next(pools.__getitem__, {C}, {A}) is None


def test_who_was_served_longer_ago_passes_one_that_waits_for_room() -> None:
    queue = filled((A, "a1"), (B, "b1"), (A, "a2"))
    queue.take(A)

    # b is next in turn; a, which waits for room, comes behind it
    assert queue.next(lambda _: "device", (), {A}) == B


def test_a_job_put_back_keeps_its_turn() -> None:
    queue = filled((A, "a1"), (A, "a2"), (B, "b1"))
    job, served = queue.take(A)
    queue.put_back(A, job, served)

    assert taken(queue) == ["a1", "b1", "a2"]


def test_who_leaves_the_line_is_ahead_of_nobody() -> None:
    queue = filled((A, "a1"), (A, "a2"), (B, "b1"))

    assert queue.order() == [(A, "a1"), (B, "b1"), (A, "a2")]
    queue.remove(A, "a1")
    assert [job for _, job in queue.order()] == ["a2", "b1"]


def test_a_reader_gets_what_was_before_it_and_what_comes_to_the_end() -> None:
    events = Feed([{"event": "log", "n": 0}])
    events.add({"event": "log", "n": 1})
    reader = events.events(look_s=0.01)

    assert [next(reader), next(reader)] == [
        {"event": "log", "n": 0},
        {"event": "log", "n": 1},
    ]
    assert next(reader) is None
    threading.Timer(0.05, events.end, [{"event": "done"}]).start()
    assert [event for event in reader if event] == [{"event": "done"}]


def test_a_slow_reader_is_told_how_many_it_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed, "MOST_BYTES", 20_000)
    events = Feed()
    reader = events.events()
    for number in range(500):
        name = "progress" if number % 2 else "result"
        events.add({"event": name, "n": number})
    events.end({"event": "done"})

    got = [event for event in reader if event is not None]
    missed = sum(event.get("dropped", 0) for event in got)

    assert got[-1]["event"] == "done"
    assert missed + len(got) == 501
    # progress is given up before what somebody waits for
    assert sum(event["event"] == "result" for event in got) > len(got) / 2


def test_the_tail_has_a_bound_in_bytes_too() -> None:
    events = Feed({"event": "log", "m": "x" * 10_000} for _ in range(100))

    tail = events.tail()

    assert 10 <= len(tail) <= 30
    assert len(json.dumps(tail)) < 2 * feed.TAIL_BYTES


def test_many_events_are_read_in_order() -> None:
    events = Feed()
    reader = events.events()
    for number in range(2000):
        events.add({"event": "log", "n": number})

    assert [e["n"] for e in islice(reader, 2000) if e] == list(range(2000))


def job(name: str, **more: object) -> Job:
    known = {"slug": "t", "tree": "/t", "provider": "/t/p", "lock_tree": "/t"}
    known |= {"env_kind": "venv", "gpu_policy": "none"}
    return Job(job_id=name, params={}, created=1.0, **known, **more)  # type: ignore[arg-type]


def test_what_the_file_did_not_take_is_known_and_saved_later(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    records = Records(path)
    records.add(job("a"))
    records.add(job("b"))
    (pages,) = records._db.execute("PRAGMA page_count").fetchone()
    records._db.execute(f"PRAGMA max_page_count = {pages}")
    ended = job("a", state="completed", started=1.0, ended=3.0)
    tail = [{"event": "log", "message": "x" * 100_000}, {"event": "done"}]

    saved = records.save(ended, tail, ["a line"])

    assert not saved
    assert records.get("a") == ended
    assert (records.tail("a"), records.stderr("a")) == (tail, ["a line"])
    assert [one.state for one in records.all()[0]] == ["queued", "completed"]
    records._db.execute("PRAGMA max_page_count = 100000")
    assert records.save(job("b"), [])
    records.close()
    again = Records(path)
    assert (again.get("a"), again.tail("a")) == (ended, tail)
    assert again.usual_s("/t", "t") == 2.0
    assert [one.job_id for one in again.live()] == ["b"]
    again.close()


def test_the_file_is_looked_at_where_it_lies_in_a_path_with_a_space(
    tmp_path: Path,
) -> None:
    path = tmp_path / "my state" / "jobs.sqlite"
    path.mkdir(parents=True)

    with pytest.raises(ProviderError) as refusal:
        Records(path)

    assert refusal.value.next is not None
    assert shlex.split(refusal.value.next) == ["ls", "-ld", str(path)]


def test_the_last_ended_jobs_are_remembered_and_all_that_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_records, "KEPT", 3)
    records = Records(tmp_path / "jobs.sqlite")
    for number in range(8):
        records.add(job(f"j{number}"))
        if number != 1:
            records.save(job(f"j{number}", state="completed"), [])

    found, left_out = records.all()
    records.close()

    assert [one.job_id for one in found] == ["j7", "j6", "j5", "j1"]
    assert left_out == 0


@pytest.mark.parametrize("damage", ["{broken", "[]", '{"job_id": "b"}'])
def test_a_record_that_cannot_be_read_keeps_nobody_from_the_others(
    tmp_path: Path, damage: str
) -> None:
    records = Records(tmp_path / "jobs.sqlite")
    for name in "abc":
        records.add(job(name))
    records._db.execute(
        "UPDATE jobs SET job = ?, tail = ? WHERE id = 'b'", [damage] * 2
    )

    found, left_out = records.all()

    assert ([one.job_id for one in found], left_out) == (["c", "a"], 0)
    assert [one.job_id for one in records.live()] == ["a", "c"]
    assert (records.get("b"), records.tail("b")) == (None, [])
    records.add(job("b"))
    assert records.get("b") == job("b")
    records.close()


def test_a_history_with_damaged_pages_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    records = Records(path)
    for number in range(100):
        records.add(job(f"j{number}", message="x" * 1000))
    records.close()
    whole = path.read_bytes()
    damaged = whole[:8192] + b"\xff" * (len(whole) - 8192)
    path.write_bytes(damaged)

    records = Records(path)
    records.add(job("after"))
    found, _ = records.all()
    records.close()

    assert [one.job_id for one in found] == ["after"]
    (aside,) = tmp_path.glob("jobs.sqlite.damaged-*")
    assert aside.read_bytes() == damaged


def test_a_place_that_can_hold_no_history_is_named(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    path.mkdir()

    with pytest.raises(ProviderError) as caught:
        Records(path)

    assert caught.value.reason == "unreadable"
    assert str(caught.value).startswith(f"{path}: Is a directory, a database")


def test_the_last_two_hundred_events_are_kept_for_ever() -> None:
    events = Feed({"event": "log", "n": number} for number in range(300))

    assert [event["n"] for event in events.tail()] == list(range(100, 300))


def gpu(index: int, uuid: str | None) -> Gpu:
    return Gpu(index=index, uuid=uuid, name="a card", total_gb=80.0, free_gb=80.0)


@pytest.mark.parametrize(
    ("policy", "asked", "named"),
    [
        ("none", "cpu", "auto"),
        ("optional", "cpu", "cpu"),
        ("required", "auto", "auto"),
        ("required", "1", "GPU-b"),
        ("optional", "GPU-a", "GPU-a"),
    ],
)
def test_a_device_is_named_by_its_index_or_its_uuid(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    asked: str,
    named: str,
) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: [gpu(0, "GPU-a"), gpu(1, "GPU-b")])
    budget = {} if policy == "none" else {"vram_budget_gb": 1.0}
    path = small_jobs.write(tmp_path, gpu={"policy": policy, **budget})

    assert device_named(load(path), asked) == named
