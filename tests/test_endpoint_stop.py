"""Stops of a service: what counts as one, and what becomes of the cell in hand."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from small_endpoint import (
    DEADLINE_S,
    HOLDS,
    SOON,
    STOP,
    endpoint,
    get,
    host,
    refused,
    start_script,
    wait_for,
)

from remote_resident import processes
from remote_resident.endpoints import listener
from remote_resident.errors import ProviderError

__all__ = ["host"]


def test_a_stop_that_lies_is_failed_holds_all_others_and_heals_by_itself(
    host: Any,
) -> None:
    a, b = endpoint("a", stop="true"), endpoint("b")
    here = host(a, b, patience=SOON)
    here.run("a")
    pid = int(get(a.port))
    error = refused(here, "b")

    assert error.reason == "stop_failed"
    assert f"a-service: stop returned 0, port still bound ({a.port}, pid {pid}" in (
        str(error)
    )
    assert "; a-service holds the device until that is gone; nothing else" in str(error)
    # another lie would not help: what holds the port is what is named
    assert error.next == here.failure("a").next == f"kill {pid}"
    assert (here.state("a"), here.state("b")) == ("failed", "stopped")
    assert here.failure("a").reason == "stop_failed"
    with pytest.raises(ProviderError, match="port still bound"), here.changes.turn("a"):
        here.changes.remove("a-service")
    os.kill(pid, 9)
    here.until("stopped", "a")
    assert here.run("b")[-1]["exit_code"] == 0


def test_a_stop_that_returns_an_error_does_not_count(host: Any) -> None:
    here = host(endpoint("a", stop=f"{STOP}\nexit 4"), endpoint("b"))
    here.run("a")
    with pytest.raises(ProviderError) as caught:
        here.changes.stop("a-service")

    assert str(caught.value) == "a-service: stop returned 4"
    assert caught.value.next == "tu remote endpoint logs a-service"
    assert here.state() == "failed"
    assert refused(here, "b").reason == "stop_failed"


def test_a_stop_past_its_time_is_ended_and_does_not_count(host: Any) -> None:
    here = host(endpoint(stop="sleep 1000", stop_timeout_s=0.5), patience=SOON)
    here.run("a")
    with pytest.raises(ProviderError, match=r"stop did not return within 0\.5 s"):
        here.changes.stop("a-service")


def test_a_process_that_outlives_its_stop_is_left_and_told(host: Any) -> None:
    start = f"setsid sleep 1000 &\n{start_script()}"
    # the service itself is gone by then, however slow the machine is
    gone = 'while grep -q . "/proc/$(cat pid)/cmdline"; do sleep 0.01; done\n'
    here = host(endpoint(start=start, stop=f"{STOP}{gone}"), patience=SOON)
    here.run("a")
    with pytest.raises(ProviderError) as caught:
        here.changes.stop("a-service")

    (left,) = processes.members(here.service().instance)
    assert str(caught.value) == (
        f"a-service: stop returned 0, processes still there ({left}); "
        "a-service holds the device until that is gone"
    )
    assert caught.value.next == f"kill {left}"


def test_a_stop_is_seen_through_although_nothing_can_be_noted(host: Any) -> None:
    here = host(endpoint())
    here.run("a")
    notes = here.store.root / "notes"
    notes.rename(here.store.root / "aside")
    notes.touch()

    here.changes.stop("a-service")

    assert here.state() == "stopped"


def test_a_stop_that_cannot_be_begun_is_failed_and_tells_what_is_left(
    host: Any,
) -> None:
    one = endpoint()
    here = host(one)
    here.run("a")
    directory = Path(one.service_dir or "")
    directory.rename(directory.with_name("aside"))
    directory.touch()

    with pytest.raises(ProviderError) as caught:
        here.changes.stop("a-service")

    assert caught.value.reason == "stop_failed"
    assert f"stop cannot be run: {directory}: " in str(caught.value)
    assert "port still bound" in str(caught.value)
    assert here.state() == "failed"


def test_stop_waits_for_the_cell_in_hand(host: Any, tmp_path: Path) -> None:
    go = tmp_path / "go"
    here = host(endpoint())
    held = here.call("a", "print('cell', flush=True)\n" + HOLDS.format(str(go)))
    held.until("cell")
    stopping = threading.Thread(target=here.changes.stop, args=["a-service"])
    stopping.start()
    wait_for(lambda: here.owner.schedule.draining)
    assert here.state() == "ready"
    go.touch()
    stopping.join(DEADLINE_S)

    assert held.end().lines[-1]["exit_code"] == 0
    assert here.state() == "stopped"


def test_stop_now_ends_the_cell_in_hand(host: Any) -> None:
    here = host(endpoint())
    held = here.call("a", "import time\nprint('cell', flush=True)\ntime.sleep(1000)")
    held.until("cell")
    here.changes.stop("a-service", now=True)

    assert here.state() == "stopped"
    assert held.end().error is not None
    assert held.error is not None
    assert held.error.reason == "stopping"


def test_a_stop_cuts_a_start_short_and_its_callers_are_told(host: Any) -> None:
    here = host(endpoint(start=start_script(ready_s=1000)))
    call = here.call("a").until("waiting for /ready")
    here.changes.stop("a-service")

    assert here.state() == "stopped"
    assert call.end().error is not None
    assert call.error is not None
    assert call.error.reason == "stopping"
    assert processes.members(here.service().instance) == []


def test_a_stop_of_what_is_stopped_does_nothing(host: Any, tmp_path: Path) -> None:
    here = host(endpoint(stop=f"touch '{tmp_path}/ran'"))
    here.changes.stop("a-service")

    assert not (tmp_path / "ran").exists()


def test_the_end_of_the_daemon_leaves_services_and_ends_cells(host: Any) -> None:
    one = endpoint()
    here = host(one)
    held = here.call("a", "import time\nprint('cell', flush=True)\ntime.sleep(1000)")
    held.until("cell")
    here.owner.end(stop_services=False)

    assert held.end().error is not None
    assert listener.is_open(one.port or 0)
    with pytest.raises(ProviderError, match="the host daemon ends"):
        here.run("a")


def test_the_end_of_the_daemon_stops_services_where_it_is_told_to(host: Any) -> None:
    one = endpoint()
    here = host(one)
    here.run("a")
    here.owner.end(stop_services=True)

    assert not listener.is_open(one.port or 0)
    assert here.store.note("a-service") is None
