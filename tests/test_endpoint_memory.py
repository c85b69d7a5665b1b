"""The memory of services: what is held, what fits, and who leaves for it."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from small_endpoint import (
    DEADLINE_S,
    endpoint,
    get,
    host,
    phases,
    refused,
    start_script,
    wait_for,
)
from small_provider import provider

from remote_resident import processes, room
from remote_resident.admission import Holder, Memory, Readings
from remote_resident.endpoints import memory
from remote_resident.supervisor import ResidentWorker

__all__ = ["host"]


def test_a_service_with_budgets_is_held_while_it_is_resident(host: Any) -> None:
    one = endpoint(vram_budget_gb=0.0, ram_budget_gb=0.25)
    here = host(one, host=memory.Host(readings=ten_gb, holders=room.recorded))
    here.run("a")
    (holder,) = wait_for(lambda: [h for h in room.recorded() if not h.loading])

    assert (holder.slug, holder.budget.vram_gb, holder.budget.ram_gb) == (
        "a-service",
        0.0,
        0.25,
    )
    assert int(get(one.port)) in holder.pids
    here.changes.stop("a-service")
    assert room.recorded() == []


ME = [os.getpid(), processes.started_at(os.getpid())]


@pytest.mark.parametrize(
    ("what", "counted"),
    [
        ({"contained": True}, 1),
        ({"contained": False}, 0),
        ({"contained": False, "daemon": ME}, 1),
        ({"contained": False, "daemon": [ME[0], 1]}, 0),
        # its engine may have started the container anew
        ({"pids": ME[:1], "began": [1], "contained": True}, 1),
        ({"pids": ME[:1], "began": [1], "contained": False}, 0),
        ({"pids": ME[:1], "began": ME[1:], "contained": True}, 1),
        ({"pids": ME[:1], "began": None}, 1),
        ({"pids": "x", "contained": False}, 1),
        ({"instance": None, "contained": False}, 1),
    ],
)
def test_what_a_record_does_not_tell_is_taken_to_live(
    what: dict[str, Any], counted: int, home: Path
) -> None:
    folder = home / "state/held"
    folder.mkdir(parents=True)
    known = {"instance": "0" * 16, "pids": [], "began": [], "daemon": [ME[0], 1]}
    record = {**known, "vram_gb": 0.0, "ram_gb": 1.0, **what}
    (folder / "a-service.json").write_text(json.dumps(record))

    assert len(room.recorded()) == counted


def test_what_nobody_runs_any_more_is_not_counted_before_the_next_daemon_comes(
    host: Any, home: Path
) -> None:
    one = endpoint(vram_budget_gb=0.0, ram_budget_gb=0.25)
    here = host(one, host=memory.Host(readings=ten_gb, holders=room.recorded))
    here.run("a")
    wait_for(lambda: [h for h in room.recorded() if not h.loading])
    here.owner.end(stop_services=False)
    thread = here.service().thread
    assert thread is not None
    thread.join(DEADLINE_S)
    record = home / "state/held/a-service.json"
    noted = json.loads(record.read_text())
    assert noted["daemon"] == ME
    # of a daemon that was killed
    record.write_text(json.dumps({**noted, "daemon": [ME[0], 1]}))
    assert [holder.instance for holder in room.recorded()] == [here.service().instance]

    processes.end_all(here.service().instance, grace_s=0.0)

    assert memory.held() == [one.name]
    assert room.recorded() == []


def test_a_service_is_held_from_its_start_as_one_that_still_loads(host: Any) -> None:
    one = endpoint(
        start=start_script(ready_s=1000), vram_budget_gb=0.0, ram_budget_gb=0.25
    )
    here = host(one, host=memory.Host(readings=ten_gb, holders=room.recorded))
    here.call("a").until("waiting for /ready")

    (holder,) = room.recorded()
    assert (holder.loading, holder.instance) == (True, here.service().instance)


def test_a_service_that_does_not_fit_is_refused_with_the_numbers_and_not_started(
    host: Any, tmp_path: Path
) -> None:
    script = f"touch '{tmp_path}/ran'\n{start_script()}"
    one = endpoint(start=script, vram_budget_gb=0.0, ram_budget_gb=1e6)
    here = host(one, host=memory.Host(readings=ten_gb, holders=room.recorded))
    error = refused(here)

    assert error.reason == "no_room"
    assert "1000000.0 GiB wanted" in str(error)
    assert (here.state(), room.recorded()) == ("stopped", [])
    assert not (tmp_path / "ran").exists()


def test_by_memory_as_many_are_resident_as_fit_and_the_least_used_leaves(
    host: Any,
) -> None:
    def budget(ram_gb: float) -> dict[str, float]:
        return {"vram_budget_gb": 0.0, "ram_budget_gb": ram_gb}

    here = host(
        endpoint("a", **budget(2.0)),
        endpoint("b", **budget(2.0)),
        endpoint("c", **budget(3.0)),
        by_memory=True,
        host=memory.Host(readings=ten_gb, holders=room.recorded),
    )
    here.run("a")
    here.run("b")
    assert (here.state("a"), here.state("b")) == ("ready", "ready")
    here.run("a")

    assert "stopping b-service" in phases(here.run("c"))
    assert [here.state(name) for name in "abc"] == ["ready", "stopped", "ready"]


def test_an_idle_worker_that_is_in_the_way_is_retired_and_a_busy_one_is_named(
    host: Any, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    worker = ResidentWorker(
        provider(tree, "waits", host={"ram_budget_gb": 3.0}), admit=None
    )

    def own() -> list[Holder]:
        return [h for h in room.holders() if h.tree in (None, str(tree))]

    one = endpoint(vram_budget_gb=0.0, ram_budget_gb=4.0)
    here = host(one, host=memory.Host(readings=ten_gb, holders=own))
    begun, go = tmp_path / "begun", tmp_path / "go"
    request = {"op": "predict", "begun": str(begun), "until": str(go)}
    asking = threading.Thread(target=worker.request, args=[request])
    try:
        started = worker.ensure_started()
        asking.start()
        wait_for(begun.exists)
        error = refused(here)
        assert error.reason == "no_room"
        assert f"tiny ({tree}, pid {started.pid})" in str(error)

        go.touch()
        asking.join(DEADLINE_S)
        assert here.run("a")[-1]["exit_code"] == 0
        assert not worker.is_running()
    finally:
        go.touch()
        worker.stop(grace_s=0.0)


def ten_gb() -> Readings:
    """Ten gigabytes, all free, no device; four of them stay in reserve."""
    return Readings(Memory(total_gb=10.0, free_gb=10.0, available_gb=10.0), ())


def test_by_memory_needs_budgets_of_all(host: Any) -> None:
    here = host(
        endpoint("a", vram_budget_gb=0.0, ram_budget_gb=0.05),
        endpoint("b"),
        by_memory=True,
        host=memory.Host(readings=ten_gb, holders=room.recorded),
    )
    here.run("a")
    here.run("b")

    assert (here.state("a"), here.state("b")) == ("stopped", "ready")


def test_endpoints_without_budgets_are_not_held(host: Any) -> None:
    here = host(endpoint())
    here.run("a")

    assert memory.held() == []
