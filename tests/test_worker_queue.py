"""Who waits for a worker, and for how long."""

import socket
import time
from collections.abc import Callable

from small_base import Busy, Start, queued, until


def test_a_busy_worker_answers_pings_and_stacks(busy: Callable[..., Busy]) -> None:
    now = time.time()
    work = busy("--inputs", "f00d")
    queued(work.held, 1)

    pinged = work.held.ask("ping", id=[1])

    for field_, wanted in {
        "protocol": 1,
        "slug": "tiny",
        "tree": "/a/tree",
        "instance": "abc",
        "pid": work.held.child.pid,
        "inputs": "f00d",
        "requests": 1,
        "queue": 1,
        "id": [1],
    }.items():
        assert pinged[field_] == wanted
    assert now <= pinged["busy_since"] <= time.time()
    assert pinged["uptime_s"] > 0
    assert "waits.py" in work.held.ask("stacks")["stacks"]
    assert work.end()["ok"]
    assert "waits.py" in work.held.said()


def test_predictions_run_in_the_order_of_arrival(busy: Callable[..., Busy]) -> None:
    work = busy()
    waiting = [queued(work.held, n, name=n) for n in range(1, 6)]
    began = time.monotonic()
    work.held.ask("ping")
    waited = time.monotonic() - began

    work.end()

    for caller in waiting:
        assert caller.receive() == {"event": "started", "id": None}
    last = waiting[-1].receive()
    assert last is not None
    assert last["order"] == ["first", 1, 2, 3, 4, 5]
    assert last["_meter"]["queued_s"] > waited


def test_one_more_than_may_wait_is_refused(busy: Callable[..., Busy]) -> None:
    work = busy("--max-queue", "2")
    for n in (1, 2):
        queued(work.held, n)

    reply = work.held.ask(events=True)

    assert (reply["reason"], reply["error"]) == (
        "queue_full",
        "2 waiting found, at most 2 wanted",
    )


def test_a_caller_that_closes_while_queued_leaves_the_queue(
    busy: Callable[..., Busy],
) -> None:
    work = busy()
    leaving = queued(work.held, 1, name="gone")
    staying = queued(work.held, 2, name="stays")

    leaving.sock.close()
    until(lambda: work.held.ask("ping")["queue"] == 1, "it left the queue")
    work.end()

    assert staying.receive() == {"event": "started", "id": None}
    reply = staying.receive()
    assert reply is not None
    assert reply["order"] == ["first", "stays"]


def test_a_caller_that_closed_only_its_sending_half_still_waits(
    busy: Callable[..., Busy],
) -> None:
    work = busy()
    caller = queued(work.held, 1, name="half")
    caller.sock.shutdown(socket.SHUT_WR)
    work.end()

    assert caller.receive() == {"event": "started", "id": None}
    reply = caller.receive()
    assert reply is not None
    assert reply["order"] == ["first", "half"]


def test_a_caller_that_closes_does_not_stop_its_prediction(
    busy: Callable[..., Busy],
) -> None:
    work = busy()
    work.caller.sock.close()
    assert work.held.ask("ping")["busy_since"] is not None
    work.go.touch()

    assert work.held.ask(name="next")["order"] == ["first", "next"]


def test_a_deadline_that_passes_while_queued_is_answered_then_and_never_run(
    busy: Callable[..., Busy],
) -> None:
    work = busy()
    late = queued(work.held, 1, name="late", deadline=0.1)
    reply = late.receive()

    assert reply is not None
    assert reply["reason"] == "request_timeout"
    assert reply["error"].endswith("s since the request found, at most 0.1 wanted")
    assert reply["_meter"]["queued_s"] >= 0.1
    work.end()
    assert late.ask(name="again")["order"] == ["first", "again"]


def test_a_deadline_that_passes_while_it_runs_ends_the_waiting_only(
    busy: Callable[..., Busy],
) -> None:
    work = busy(deadline=0.1)
    reply = work.caller.receive()

    assert reply is not None
    assert reply["reason"] == "request_timeout"
    assert work.held.ask("ping")["busy_since"] is not None
    work.go.touch()
    assert work.caller.ask(name="again")["order"] == ["first", "again"]


def test_a_silent_ping_is_not_death(start: Start) -> None:
    held = start("hangs_in_c")
    caller = held.connect()
    caller.send(op="predict", events=True, n=10**7)
    assert caller.receive()
    assert caller.receive()

    assert held.ask("ping")["pid"] == held.child.pid
    reply = caller.receive()
    assert reply is not None
    assert reply["sum"] == (10**7 - 1) * 10**7 // 2
