"""Models that misbehave, and what they cost."""

import contextlib
import functools
import itertools
import os
import signal

import pytest
import stacks
from small_base import (
    DEADLINE_S,
    Held,
    Start,
    until,
    until_refused,
)


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("exit", 3),
        ("SIGKILL", -signal.SIGKILL),
        ("SIGSEGV", -signal.SIGSEGV),
        ("SIGABRT", -signal.SIGABRT),
    ],
)
def test_a_worker_that_dies_in_a_prediction_had_said_that_it_began(
    start: Start, how: str, status: int
) -> None:
    held = start("dies")
    caller = held.connect()
    caller.send(op="predict", events=True, how=how)

    events = [caller.receive(), caller.receive()]

    assert [e and e["event"] for e in events] == ["queued", "started"]
    with contextlib.suppress(ConnectionResetError):
        assert caller.receive() is None
    assert held.ended() == status


def test_a_crash_leaves_the_stack_in_the_log(start: Start) -> None:
    held = start("dies")
    with contextlib.suppress(ConnectionError, AssertionError):
        held.ask(how="SIGSEGV")
    held.ended()

    assert "Fatal Python error: Segmentation fault" in held.said()
    assert "dies.py" in held.said()


def test_system_exit_is_answered_and_then_ends_the_worker_with_its_status(
    start: Start,
) -> None:
    held = start("dies")
    reply = held.ask(how="system_exit")

    assert (reply["ok"], reply["error"], reply["reason"]) == (
        *(False, "SystemExit: 5"),
        "worker_died",
    )
    assert held.ended() == 5
    assert not held.path.exists()


def test_what_a_model_prints_goes_to_the_log_and_breaks_nothing(start: Start) -> None:
    held = start("prints_to_stdout")

    assert held.ask()["fine"]
    held.child.terminate()
    out, _ = held.child.communicate(timeout=DEADLINE_S)
    assert out == b""
    assert held.said().splitlines()[:5] == [
        *("at import", "in build", "in predict"),
        '{"ok": true, "forged": true}',
        "from a child",
    ]


def test_a_model_may_change_into_a_directory_that_is_gone(start: Start) -> None:
    held = start("changes_directory")

    assert held.ask()["fine"]
    assert held.ask()["fine"]
    held.child.terminate()
    assert held.ended() == 0
    assert not held.path.exists()


def test_a_model_may_close_the_standard_descriptors(start: Start) -> None:
    held = start("closes_descriptors")
    caller = held.connect()

    assert caller.ask()["fine"]
    assert caller.ask()["fine"]
    held.child.terminate()
    assert held.ended() == 0


def test_a_model_that_closes_ours_ends_its_worker_instead_of_hiding_it(
    start: Start,
) -> None:
    held = start("closes_descriptors")
    caller = held.connect()
    caller.send(op="predict", all=True)

    with contextlib.suppress(ConnectionResetError):
        assert caller.receive() is None
    assert held.ended() == 70
    assert not held.path.exists()
    assert "the model closed descriptors of its worker" in held.said()


def test_a_model_that_takes_the_signals_has_them_taken_back(start: Start) -> None:
    held = start("installs_signal_handlers")
    caller = held.connect()
    caller.ask()
    caller.ask("ping")

    held.child.send_signal(signal.SIGUSR1)
    until(lambda: stacks.are_told(held.said()), "the stacks are in the log")
    held.child.terminate()
    assert held.ended() == 0


@pytest.mark.parametrize("when", ["load", "predict"])
def test_stacks_of_threads_that_run_end_no_worker(start: Start, when: str) -> None:
    held = start("runs_on", args=(when,), loaded=when != "load")
    if when == "predict":
        held.connect().send(op="predict")
    until(lambda: "runs on" in held.said(), "threads run")
    for times in range(1, 21):
        held.child.send_signal(signal.SIGUSR1)
        until(functools.partial(has_told, held, times), "the stacks")


def has_told(held: Held, times: int) -> bool:
    assert held.child.poll() is None, held.said()[-1000:]
    return held.said().count("Current thread") >= times


def test_ending_a_forked_child_of_the_model_does_not_end_the_worker(
    start: Start,
) -> None:
    held = start("forks")
    caller = held.connect()

    assert caller.ask(child="waits")["ended"] == signal.SIGTERM
    assert caller.ask(child="raises")["ended"] == 5 << 8
    assert caller.ask(child="returns")["ended"] == 0
    assert held.path.exists()
    assert held.ask("ping")["stopping"] is False


def test_a_forked_child_of_the_model_does_not_hold_the_callers(start: Start) -> None:
    held = start("forks")
    caller = held.connect()
    waiting = held.connect()
    assert waiting.ask("ping")["ok"]
    child = caller.ask(child="stays")["child"]

    held.child.kill()

    assert caller.receive() is None
    assert waiting.receive() is None
    # the child lets go as soon as it runs, which the kill does not wait for
    until_refused(held)
    os.kill(child, 0)


def test_a_peak_is_told_after_the_memory_is_given_back(start: Start) -> None:
    caller = start("grows_memory").connect()
    before = caller.ask("ping")
    reply = caller.ask(mib=64)

    meter = reply["_meter"]
    assert meter["rss_peak_bytes"] - before["rss_peak_bytes"] > 60 << 20
    assert meter["rss_bytes"] - before["rss_bytes"] < 8 << 20


def test_growth_is_seen_in_the_very_reply(start: Start) -> None:
    caller = start("grows_memory").connect()
    sizes = [caller.ask(mib=8, keep=True)["_meter"]["rss_bytes"] for _ in range(5)]

    grown = [(b - a) >> 20 for a, b in itertools.pairwise(sizes)]
    assert all(7 <= mib <= 9 for mib in grown), grown


def test_the_peak_is_the_workers_own_and_not_its_parents(start: Start) -> None:
    heavy = bytearray(256 << 20)
    heavy[::4096] = b"x" * len(heavy[::4096])

    assert start("echo").ask("ping")["rss_peak_bytes"] < 128 << 20


@pytest.mark.parametrize(
    ("env", "released", "device"),
    [
        ({}, [0, 8, 16], 1000),
        ({"TOOLUNIVERSE_RESIDENT_NO_CUBLAS_RELEASE": "1"}, [0, 0, 0], 1024),
        ({"CLEARING_FAILS": "1"}, [0, 8, 16], 1000),
    ],
    ids=["on", "off", "failing"],
)
def test_cublas_workspaces_are_released_after_each_prediction(
    start: Start, env: dict[str, str], released: list[int], device: int
) -> None:
    caller = start("fake_torch", env=env).connect()
    replies = [caller.ask() for _ in range(3)]

    assert [r["released_before"] for r in replies] == released
    assert replies[-1]["_meter"]["device_bytes"] == device
    assert replies[-1]["_meter"]["device_peak_bytes"] == 5000
    assert caller.ask("ping")["device_bytes"] == device
