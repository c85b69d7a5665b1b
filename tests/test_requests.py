"""What is asked of a resident worker, and what comes back."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from seconds import within
from small_provider import DEADLINE_S, until
from small_worker import Make, gone, in_thread, open_descriptors, refused, told_to

from remote_resident import processes
from remote_resident.admission import Budget, Holder
from remote_resident.room import ask_idle_s

# --- asking


def test_a_reply_is_what_the_model_answered(make: Make) -> None:
    events: list[Any] = []
    worker = make("echo")

    reply = worker.request({"x": 5}, on_event=events.append)

    assert (reply["ok"], reply["echo"]) == (True, 5)
    assert [event["event"] for event in events] == ["queued", "started"]


def test_the_worker_s_own_refusals_pass_with_their_reasons(make: Make) -> None:
    worker = make("raises")
    asked = [
        ({"op": "fly"}, "bad_request"),
        ({"output_dir": "here"}, "bad_request"),
        ({"raise": "no"}, "request_failed"),
        ({"raise": "no", "reason": "too_long"}, "too_long"),
        ({"x": float("nan")}, "bad_request"),
    ]

    for payload, reason in asked:
        assert refused(lambda payload=payload: worker.request(payload)).reason == reason


def test_two_hundred_failures_cost_neither_the_worker_nor_a_descriptor(
    make: Make, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    many = 500 if request.config.getoption("--long") else 200
    worker = make("counts", runtime=told_to(str(tmp_path / "loads")))
    # the first of each kind opens what stays open
    refused(lambda: worker.request({"fail": True}))
    before = worker.request({})
    ours = open_descriptors()

    for _ in range(many):
        assert (
            refused(lambda: worker.request({"fail": True})).reason == "request_failed"
        )
    after = worker.request({})

    assert (after["pid"], after["fds"]) == (before["pid"], before["fds"])
    # fewer: what an earlier test left may be collected meanwhile
    assert open_descriptors() <= ours
    grown = after["_meter"]["rss_bytes"] - before["_meter"]["rss_bytes"]
    assert grown < 8 * 2**20


@pytest.mark.long
def test_ten_thousand_requests_leave_no_trace(make: Make) -> None:
    worker = make("counts", runtime=told_to("/dev/null"))
    for _ in range(100):
        worker.request({})
    before, ours = worker.request({}), open_descriptors()

    for _ in range(10_000):
        worker.request({})
    after = worker.request({})

    assert (after["pid"], after["fds"]) == (before["pid"], before["fds"])
    assert open_descriptors() <= ours
    assert after["_meter"]["rss_bytes"] - before["_meter"]["rss_bytes"] < 2**20


DEATHS = [
    ("SIGKILL", "exit status -9: SIGKILL, often the out-of-memory killer"),
    ("SIGSEGV", "exit status -11: SIGSEGV, a crash in compiled code"),
    ("SIGABRT", "exit status -6: SIGABRT, a library gave up"),
    ("exit", "exit status 3: the kit refused"),
    ("system_exit", "exit status 5"),
]


@pytest.mark.parametrize(("how", "hint"), DEATHS)
def test_a_death_in_a_prediction_is_named_and_the_next_request_works(
    make: Make, how: str, hint: str
) -> None:
    worker = make("dies")
    first = worker.ensure_started().pid

    error = refused(lambda: worker.request({"how": how}))

    assert error.reason == "worker_died"
    assert f"worker {first}: {hint}; log {worker.log_path}" in str(error)
    assert worker.request({"how": "SIGCONT"})["ok"] is True
    assert worker.ensure_started().pid != first


GARBLED = [
    ("half", "worker_died", "exit status 9"),
    ("garbage", "protocol_error", "byte 0xff at 0 found, one JSON object wanted"),
    ("flood", "too_large", "at most 67108864 wanted"),
]


@pytest.mark.parametrize(("how", "reason", "text"), GARBLED)
def test_what_is_no_reply_is_named_and_the_next_request_works(
    make: Make, how: str, reason: str, text: str
) -> None:
    worker = make("garbles")

    error = refused(lambda: worker.request({"how": how}))

    assert error.reason == reason
    assert text in str(error)
    assert worker.request({})["fine"] is True


def test_a_request_that_had_begun_is_not_sent_again(make: Make, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    worker = make("finishes")
    pid = worker.ensure_started().pid
    asked = {"begun": str(begun), "until": str(tmp_path / "never")}
    thread, results = in_thread(lambda: worker.request(asked))
    until(begun.exists, "begun")
    begun.unlink()

    os.kill(pid, signal.SIGKILL)
    thread.join(DEADLINE_S)

    assert results[0].reason == "worker_died"
    assert not begun.exists()
    assert worker.status()["state"] == "not_running"


def test_a_lost_request_of_a_quick_model_is_not_sent_again(
    make: Make, tmp_path: Path
) -> None:
    """A model that answers at once has its begin told with the reply, or not at all."""
    begun = tmp_path / "begun"
    worker = make("does")
    told: list[list[str]] = []
    for _ in range(20):
        events: list[Any] = []
        worker.request({}, on_event=events.append)
        told.append([event["event"] for event in events])

    error = refused(lambda: worker.request({"begun": str(begun), "dies": True}))

    assert told == [["queued", "started"]] * 20
    assert error.reason == "worker_died"
    assert len(begun.read_text().splitlines()) == 1


def test_a_request_that_had_not_begun_goes_to_the_next_worker(
    make: Make, tmp_path: Path
) -> None:
    begun, never = tmp_path / "begun", tmp_path / "never"
    worker = make("finishes")
    pid = worker.ensure_started().pid
    asked = {"begun": str(begun), "until": str(never)}
    first, lost = in_thread(lambda: worker.request(asked))
    until(begun.exists, "begun")
    second, kept = in_thread(lambda: worker.request({"name": "b"}))
    until(lambda: worker.ping()["queue"] == 1, "queued")

    os.kill(pid, signal.SIGKILL)
    first.join(DEADLINE_S)
    second.join(DEADLINE_S)

    assert lost[0].reason == "worker_died"
    assert kept[0]["order"] == ["b"]
    assert kept[0]["pid"] != pid


def test_a_request_in_the_instant_of_retirement_is_answered(
    make: Make, request: pytest.FixtureRequest
) -> None:
    rounds = 1000 if request.config.getoption("--long") else 20
    idle_s = 0.03
    worker = make("finishes", runtime={"idle_timeout_s": idle_s})
    pids = set()

    for number in range(rounds):
        pids.add(worker.request({})["pid"])
        # not to wait for something: to meet the retirement at every moment of it
        time.sleep(idle_s * (0.9 + 0.3 * (number % 20) / 20))

    assert len(pids) > 1


def test_a_kept_connection_does_not_keep_an_idle_worker(make: Make) -> None:
    worker = make("echo", runtime={"idle_timeout_s": 0.1})
    worker.request({})

    gone(str(worker.instance))


# --- deadlines


def test_a_caller_s_deadline_only_ends_its_waiting(make: Make, tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    worker = make("finishes")
    pid = worker.ensure_started().pid
    asked = {"begun": str(begun), "until": str(go), "name": "a"}
    began = time.monotonic()

    error = refused(lambda: worker.request(asked, deadline_s=0.2))
    waited = time.monotonic() - began
    go.touch()

    assert error.reason == "request_timeout"
    assert str(error).endswith(
        "at most 0.2 s wanted by the caller; its prediction runs on"
    )
    assert waited >= 0.2
    within(1.0, waited)
    assert worker.request({"name": "b"})["order"] == ["a", "b"]
    assert worker.ensure_started().pid == pid


def test_a_deadline_ends_the_waiting_for_a_load_and_not_the_load(
    make: Make, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    worker = make("slow_load", runtime=told_to(str(go)))

    error = refused(lambda: worker.request({}, deadline_s=0.2))
    state = worker.status()["state"]
    go.touch()

    assert error.reason == "request_timeout"
    assert state == "loading"
    assert worker.request({})["ok"] is True


def test_a_deadline_that_passes_in_the_queue_never_reaches_the_model(
    make: Make, tmp_path: Path
) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    worker = make("finishes")
    asked = {"begun": str(begun), "until": str(go), "name": "a"}
    thread, _ = in_thread(lambda: worker.request(asked))
    until(begun.exists, "begun")

    late = refused(lambda: worker.request({"name": "late"}, deadline_s=0.05))
    go.touch()
    thread.join(DEADLINE_S)

    assert late.reason == "request_timeout"
    assert str(late).endswith(
        "at most 0.05 s wanted by the caller; "
        "it waited for its turn, and is not begun any more"
    )
    assert worker.request({"name": "b"})["order"] == ["a", "b"]


def test_a_worker_that_is_stopped_is_named_to_who_waits_for_it(make: Make) -> None:
    worker = make("finishes")
    pid = worker.ensure_started().pid
    os.kill(pid, signal.SIGSTOP)
    until(lambda: processes.stopped(str(worker.instance)), "stopped")

    error = refused(lambda: worker.request({"name": "a"}, deadline_s=0.2))
    os.kill(pid, signal.SIGCONT)

    assert error.reason == "request_timeout"
    assert str(error).endswith(
        "at most 0.2 s wanted by the caller; "
        f"worker {pid} is stopped (state T) and runs on once it is continued"
    )
    assert error.next == f"kill -CONT {pid}"


def test_a_full_queue_says_so_and_who_waits_is_answered_in_order(
    make: Make, tmp_path: Path
) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    worker = make("finishes", runtime={"max_queue": 2})
    asked = {"begun": str(begun), "until": str(go), "name": "a"}
    waiting = [in_thread(lambda: worker.request(asked))]
    until(begun.exists, "begun")
    for number, name in enumerate("bc"):
        call = {"name": name}
        waiting.append(in_thread(lambda call=call: worker.request(call)))
        until(lambda n=number: worker.ping()["queue"] == n + 1, "queued")

    error = refused(lambda: worker.request({"name": "d"}))
    go.touch()
    for thread, _ in waiting:
        thread.join(DEADLINE_S)

    assert error.reason == "queue_full"
    assert waiting[2][1][0]["order"] == ["a", "b", "c"]


def test_a_stuck_worker_is_ended_with_its_stacks_in_the_log(
    make: Make, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    worker = make("finishes", runtime={"request_timeout_s": 1})
    pid = worker.ensure_started().pid
    asked = {"begun": str(begun), "until": str(tmp_path / "never")}
    first, lost = in_thread(lambda: worker.request(asked))
    until(begun.exists, "begun")
    second, kept = in_thread(lambda: worker.request({"name": "b"}))

    first.join(DEADLINE_S)
    second.join(DEADLINE_S)

    assert lost[0].reason == "request_timeout"
    assert f"worker {pid} was ended" in str(lost[0])
    assert "worker.py" in worker.log_path.read_text()
    assert "in predict" in worker.log_path.read_text()
    assert kept[0]["order"] == ["b"]


def test_a_ping_tells_how_long_nobody_asked(make: Make, tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    worker = make("finishes")
    asked = {"begun": str(begun), "until": str(go)}
    thread, _ = in_thread(lambda: worker.request(asked))
    until(begun.exists, "begun")
    holder = Holder(
        slug="tiny",
        tree=worker.tree,
        instance=worker.instance,
        pids=(),
        uid=os.geteuid(),
        device=None,
        budget=Budget(None, None, "declared"),
        loading=False,
        resident_gb=None,
        socket=str(worker.socket_path),
    )
    busy = (worker.ping()["idle_s"], ask_idle_s(holder))

    go.touch()
    thread.join(DEADLINE_S)
    worker.request({})
    # the reply comes a little before the worker is free
    until(lambda: ask_idle_s(holder) is not None, "free")
    first = ask_idle_s(holder)
    # a look is no use: it goes on counting
    second = ask_idle_s(holder)
    up = worker.ping()["uptime_s"]

    assert busy == (None, None)
    assert first is not None
    assert second is not None
    assert 0 <= first < second < up


def test_a_queue_of_requests_within_their_time_is_not_a_stuck_worker(
    make: Make, tmp_path: Path
) -> None:
    worker = make("finishes", runtime={"request_timeout_s": 2.0})
    pid = worker.ensure_started().pid
    goes = [tmp_path / f"go{n}" for n in range(5)]
    waiting = []
    for number, go in enumerate(goes):
        call = {"until": str(go), "begun": f"{go}.begun"}
        waiting.append(in_thread(lambda call=call: worker.request(call)))
        until(
            lambda n=number: (
                worker.ping()["queue"] == n and worker.ping()["busy_since"]
            ),
            "in line",
        )
    for go in goes:
        until(Path(f"{go}.begun").exists, "its turn")
        time.sleep(0.55)  # a part of what one may take; the last waits for longer
        go.touch()
    for thread, _ in waiting:
        thread.join(DEADLINE_S)

    assert [result[0]["pid"] for _, result in waiting] == [pid] * 5
