"""Turns of several endpoints: who is stopped for whom, who waits, and for how long."""

import time
from pathlib import Path
from typing import Any

from small_endpoint import (
    DEADLINE_S,
    HOLDS,
    STOP,
    Call,
    endpoint,
    host,
    phases,
    wait_for,
)

from remote_resident import processes
from remote_resident.endpoints import listener, panel

__all__ = ["host"]


def test_a_swap_stops_the_one_by_its_own_stop_before_it_starts_the_other(
    host: Any,
) -> None:
    a, b = endpoint("a"), endpoint("b")
    here = host(a, b)
    here.run("a")
    first = here.service("a")
    said = phases(here.run("b"))

    assert said[:2] == ["stopping a-service", "starting b-service"]
    assert (here.state("a"), here.state("b")) == ("stopped", "ready")
    assert not listener.is_open(a.port or 0)
    assert processes.members(first.instance) == []
    wait_for(lambda: "stop of a-service" in "\n".join(panel.shown("a-service")))


def test_nothing_is_stopped_under_a_cell(host: Any, tmp_path: Path) -> None:
    go = tmp_path / "go"
    here = host(endpoint("a"), endpoint("b"))
    held = here.call("a", "print('cell', flush=True)\n" + HOLDS.format(str(go)))
    held.until("cell")
    other = here.call("b").until("waiting for a-service (1 request)")

    assert here.state("a") == "ready"
    assert other.alive
    go.touch()
    assert held.end().lines[-1]["exit_code"] == 0
    assert other.end().lines[-1]["exit_code"] == 0
    limit_s = other.lines[0]["limit_s"]
    assert 0 < limit_s <= DEADLINE_S + 30.0


def test_a_caller_that_left_is_not_loaded_for(host: Any, tmp_path: Path) -> None:
    go = tmp_path / "go"
    here = host(endpoint("a"), endpoint("b"))
    held = here.call("a", "print('cell', flush=True)\n" + HOLDS.format(str(go)))
    held.until("cell")
    lines = here.lines("b")
    assert next(lines)["text"] == "waiting for a-service (1 request)"
    lines.close()
    go.touch()
    held.end()

    assert (here.state("a"), here.state("b")) == ("ready", "stopped")


def test_two_asked_at_once_both_get_their_turn(host: Any) -> None:
    here = host(endpoint("a"), endpoint("b"))
    calls = [here.call(name) for name in "ab"]

    assert [call.end().lines[-1]["exit_code"] for call in calls] == [0, 0]


def test_a_request_during_a_stop_waits_for_it_and_starts_anew(
    host: Any, tmp_path: Path
) -> None:
    stop = f"until [ -e '{tmp_path}/go' ]; do sleep 0.02; done\n{STOP}"
    here = host(endpoint(stop=stop))
    here.run("a")
    first = here.service().instance
    with here.owner.lock:
        here.owner.carry(here.owner.schedule.ask_stop("a-service", time.monotonic()))
    here.until("stopping")
    again = here.call("a").until("stopping a-service")
    (tmp_path / "go").touch()
    again.end()

    assert again.phases()[:2] == ["stopping a-service", "starting a-service"]
    assert here.service().instance != first


def test_an_endpoint_that_nobody_asks_for_is_stopped_after_its_time(host: Any) -> None:
    here = host(endpoint(ttl_s=0.3))
    here.run("a")

    here.until("stopped")


def test_a_caller_for_another_is_served_although_work_for_the_resident_keeps_coming(
    host: Any,
) -> None:
    here = host(endpoint("a"), endpoint("b"), overtake_s=0.2)
    here.run("a")
    busy = here.call("a", argv=["sleep", "0.2"]).until("ready")
    other = here.call("b").until("waiting for a-service")
    calls: list[Call] = []
    while other.alive and "starting b-service" not in other.phases():
        if sum(call.alive for call in calls) < 3:
            calls.append(here.call("a", argv=["sleep", "0.2"]))
        time.sleep(0.05)

    assert other.end().lines[-1]["exit_code"] == 0
    assert busy.end().lines[-1]["exit_code"] == 0
    assert [call.end().lines[-1]["exit_code"] for call in calls] == [0] * len(calls)
