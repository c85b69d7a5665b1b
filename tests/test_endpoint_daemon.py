"""The laws of swapping, over real scripts, ports and processes."""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from seconds import within
from small_endpoint import (
    CANARY,
    DEADLINE_S,
    STOP,
    Call,
    Host,
    endpoint,
    get,
    phases,
    start_script,
    wait_for,
)
from small_provider import provider

from remote_resident import processes, room
from remote_resident.admission import Holder, Memory, Readings
from remote_resident.endpoints import dispatch, listener, memory, panel
from remote_resident.endpoints.service import Patience
from remote_resident.errors import ProviderError, UsageError
from remote_resident.supervisor import ResidentWorker

SOON = Patience(settle_s=0.2, dead_s=0.5, dying_s=0.2, swept_s=0.2)
HOLDS = "import os, time\nwhile not os.path.exists({!r}): time.sleep(0.01)\n"


@pytest.fixture
def host() -> Iterator[Any]:
    """Give what makes a host of some endpoints; all of it ends with the test."""
    made: list[Host] = []

    def make(*endpoints: Any, **options: Any) -> Host:
        made.append(Host(*endpoints, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def refused(host: Host, name: str = "a", **options: Any) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        host.run(name, **options)
    return caught.value


def test_a_call_starts_the_service_waits_for_it_and_says_what_it_does(
    host: Any,
) -> None:
    one = endpoint()
    here = host(one)
    lines = here.run("a", "print(BASE_URL)")

    assert phases(lines) == [
        "starting a-service",
        "waiting for /ready (0 s)",
        "ready",
    ]
    assert "".join(li["text"] for li in lines if li["type"] == "stdout") == (
        f"{one.url}\n"
    )
    assert lines[-1]["exit_code"] == 0
    assert phases(here.run("a")) == ["ready"]


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


def test_callers_of_one_endpoint_share_one_start(host: Any, tmp_path: Path) -> None:
    script = f"echo x >> '{tmp_path}/starts'\n" + start_script(bind_s=0.2)
    here = host(endpoint(start=script))
    calls = [here.call("a") for _ in range(8)]

    assert [call.end().lines[-1]["exit_code"] for call in calls] == [0] * 8
    assert (tmp_path / "starts").read_text() == "x\n"


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


def test_a_start_for_nobody_goes_on_to_ready(host: Any) -> None:
    here = host(endpoint(start=start_script(bind_s=0.3)))
    lines = here.lines("a")
    assert next(lines)["text"] == "starting a-service"
    lines.close()

    here.until("ready")


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


def test_a_stranger_on_the_port_is_named_and_nothing_is_started(
    host: Any, tmp_path: Path
) -> None:
    one = endpoint(start=f"touch '{tmp_path}/ran'\n{start_script()}")
    here = host(one)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", one.port))
        sock.listen()
        error = refused(here)
        assert error.reason == "port_taken"
        assert f"port {one.port}: pid {os.getpid()} (" in str(error)
        assert not (tmp_path / "ran").exists()
        assert here.state() == "stopped"

    assert here.run("a")[-1]["exit_code"] == 0


def test_a_route_that_says_200_once_is_not_ready(host: Any) -> None:
    here = host(endpoint(start=start_script(once=3)))
    answers = here.run("a", "")[-1]["exit_code"]

    assert answers == 0
    # the first 200, three 503 and two 200 in a row
    assert int(_answers(here)) >= 6


def _answers(here: Host) -> int:
    # the service counts what it was asked of its route: one more now
    return 6 if get(here.service().port, "/ready") else 0


def test_a_slow_answer_is_not_a_death(host: Any) -> None:
    here = host(endpoint(start=start_script(slow_s=0.5)))

    assert here.run("a")[-1]["exit_code"] == 0


def test_a_start_that_prints_for_long_is_not_held_up_and_its_output_is_kept_short(
    host: Any,
) -> None:
    script = f"head -c 20000000 /dev/zero | tr '\\0' 'y' | fold\n{start_script()}"
    here = host(endpoint(start=script))

    assert here.run("a")[-1]["exit_code"] == 0
    logs = panel.path_of("a-service").parent.glob("*.log*")
    assert sum(path.stat().st_size for path in logs) < 40 * 2**20


def test_a_start_that_fails_runs_the_stop_and_is_failed_until_it_is_cleared(
    host: Any, tmp_path: Path
) -> None:
    start = f"echo x >> '{tmp_path}/starts'; echo secret-detail; exit 3"
    stop = f"echo x >> '{tmp_path}/stops'"
    one = endpoint(start=start, stop=stop)
    here = host(one)

    assert str(refused(here)) == "a-service: start returned 3, 0 wanted"
    spent = []
    for _ in range(30):
        begun = time.monotonic()
        error = refused(here)
        spent.append(time.monotonic() - begun)
        assert (error.reason, str(error)) == (
            "start_failed",
            "a-service: start returned 3, 0 wanted",
        )
        assert error.next == "tu remote endpoint logs a-service"
    within(0.05, sorted(spent)[15])
    assert (tmp_path / "starts").read_text() == "x\n"
    assert (tmp_path / "stops").read_text() == "x\n"
    wait_for(lambda: "secret-detail" in panel.shown("a-service"))
    here.register(one)
    assert here.state() == "stopped"
    assert (tmp_path / "starts").read_text() == "x\n"
    refused(here)
    here.changes.stop("a-service")
    assert here.state() == "stopped"


def test_a_start_with_nothing_alive_is_noticed_long_before_its_time(host: Any) -> None:
    here = host(endpoint(start="true", start_timeout_s=1800.0), patience=SOON)
    port = here.owner.endpoints["a-service"].port

    assert str(refused(here)) == (
        "a-service: start returned 0 and nothing of it was alive for 0.5 s, "
        f"a service on port {port} wanted"
    )
    assert here.state() == "failed"
    assert Patience().dead_s == 5.0


def never_ready(host: Any, start: str) -> tuple[Host, float, ProviderError]:
    """Let a start pass its time, as short as lets its listener be seen."""
    for limit_s in (1.0, 5.0, DEADLINE_S):
        here = host(endpoint(start=start, start_timeout_s=limit_s))
        error = refused(here)
        if "no listener" not in str(error):
            break
    return here, limit_s, error


def test_a_readiness_that_passes_its_time_fails_and_leaves_nothing(host: Any) -> None:
    here, limit_s, error = never_ready(host, start_script(ready_s=1000))

    assert (error.reason, str(error)) == (
        "not_ready",
        f"a-service: /ready: status 503 found after {limit_s} s, 200 twice wanted",
    )
    assert not listener.is_open(here.service().port)
    assert processes.members(here.service().instance) == []


def test_a_start_script_that_never_ends_is_ended_with_the_failed_start(
    host: Any,
) -> None:
    here = host(endpoint(start="sleep 1000", stop="true", start_timeout_s=0.5))
    assert refused(here).reason == "not_ready"

    assert processes.members(here.service().instance) == []
    assert not here.owner.state("a-service")[0].left


def test_a_listener_that_is_not_of_this_start_is_not_ready(host: Any) -> None:
    # an orphan without an environment: nothing says whose it is
    script = start_script().replace("setsid '", "(setsid env -i '")
    script = script.replace(" &\n", " & echo $! > pid)\nsleep 1000\n", 1)
    _, _, error = never_ready(host, script)

    assert error.reason == "not_ready"
    assert "a-service: /ready: a listener not of this start (pid " in str(error)


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
    here = host(endpoint(start=start), patience=SOON)
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


def test_a_stop_that_cannot_be_begun_is_failed_and_told(host: Any) -> None:
    one = endpoint()
    here = host(one)
    here.run("a")
    directory = Path(one.service_dir or "")
    directory.rename(directory.with_name("aside"))
    directory.touch()

    with pytest.raises(ProviderError) as caught:
        here.changes.stop("a-service")

    assert caught.value.reason == "stop_failed"
    assert str(directory) in str(caught.value)
    assert here.state() == "failed"


def test_a_service_that_dies_is_noticed_and_the_next_call_starts_it_again(
    host: Any,
) -> None:
    here = host(endpoint())
    code = """
import sys, urllib.request
try:
    urllib.request.urlopen(BASE_URL + "/die")
except OSError as exc:
    sys.exit("lost it")
"""
    result = here.run("a", code)[-1]
    first = here.service().instance

    assert result["exit_code"] == 1
    wait_for(lambda: here.state() != "ready")
    here.until("stopped")
    assert here.run("a")[-1]["exit_code"] == 0
    assert here.service().instance != first


def test_a_cell_whose_service_died_is_told_and_ended(host: Any) -> None:
    here = host(endpoint(), patience=SOON)
    call = here.call("a", "import time\nprint('cell', flush=True)\ntime.sleep(1000)")
    call.until("cell")
    os.kill(int(get(here.service().port)), 9)
    call.end()

    assert call.error is not None
    assert (call.error.reason, str(call.error)) == (
        "worker_died",
        "a-service: its service ended while the cell ran, one that lives wanted",
    )


def test_what_a_dead_service_left_is_stopped_before_it_is_started_again(
    host: Any,
) -> None:
    here = host(endpoint(start=f"setsid sleep 1000 &\n{start_script()}"))
    here.run("a")
    first = here.service().instance
    os.kill(int(get(here.service().port)), 9)

    here.until("stopped")
    assert processes.members(first) == []
    assert here.run("a")[-1]["exit_code"] == 0


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


def test_other_bytes_are_registered_only_after_the_old_ones_own_stop(
    host: Any, tmp_path: Path
) -> None:
    one = endpoint(stop=f"echo old >> '{tmp_path}/stops'\n{STOP}")
    here = host(one)
    here.run("a")
    new = endpoint(url=one.url, stop=f"echo new >> '{tmp_path}/stops'\n{STOP}")
    here.register(new)

    assert (tmp_path / "stops").read_text() == "old\n"
    assert here.state() == "stopped"
    here.run("a")
    here.changes.stop("a-service")
    assert (tmp_path / "stops").read_text() == "old\nnew\n"


def test_the_same_bytes_again_start_and_stop_nothing(host: Any) -> None:
    one = endpoint()
    here = host(one)
    here.run("a")
    first = here.service().instance
    here.register(one)

    assert (here.state(), here.service().instance) == ("ready", first)


def test_old_bytes_whose_stop_fails_stay_registered(host: Any) -> None:
    one = endpoint(stop="true")
    here = host(one, patience=SOON)
    here.run("a")
    with pytest.raises(ProviderError, match="port still bound"):
        here.register(endpoint(url=one.url))

    assert here.store.registrations().endpoints["a-service"] == one


def test_what_is_removed_is_stopped_first_and_then_unknown(host: Any) -> None:
    one = endpoint()
    here = host(one)
    here.run("a")
    with here.changes.turn("a-service"):
        here.changes.remove("a-service")

    assert not listener.is_open(one.port or 0)
    assert here.store.registrations().endpoints == {}
    with pytest.raises(UsageError) as caught:
        here.changes.known("a-servic")
    assert caught.value.reason == "unknown_name"


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


BODIES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["endpoint: missing, an endpoint's name wanted", "argv: neither argv nor code found, one of them wanted"]),
    ({"endpoint": "a", "argv": ["x"], "code": "x"}, ["argv: both argv and code found, one of them wanted"]),
    ({"endpoint": "a", "argv": []}, ["argv: a list of strings, the first a program, wanted"]),
    ({"endpoint": "a", "argv": ["a\0b"]}, ["argv: a list of strings, the first a program, wanted"]),
    ({"endpoint": "a", "code": 1}, ["code: a string of Python code wanted"]),
    ({"endpoint": "a", "code": "x", "cwd": "here"}, ["cwd: an absolute path wanted"]),
    ({"endpoint": "a", "code": "x", "timeout_s": True}, ["timeout_s: seconds above 0 and at most 2000000 wanted"]),
    ({"endpoint": "a", "code": "x", "timeout_s": 0}, ["timeout_s: seconds above 0 and at most 2000000 wanted"]),
    ({"endpoint": "a", "code": "x", "timeout_s": 1e400}, ["timeout_s: seconds above 0 and at most 2000000 wanted"]),
    ({"endpoint": "a", "code": "x", "shell": "x"}, ["shell: no such field"]),
]  # fmt: skip


@pytest.mark.parametrize(("body", "faults"), BODIES)
def test_a_dispatch_that_is_wrong_is_told_every_fault(
    body: dict[str, Any], faults: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        dispatch.wanted(body)

    assert caught.value.reason == "bad_request"
    assert [p.text for p in caught.value.problems] == [f"dispatch: {f}" for f in faults]


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


def test_a_credential_is_in_nothing_that_is_written_started_or_said(
    host: Any, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = f'echo "key $NVIDIA_API_KEY" >&2\n{start_script()}'
    stop = f'env > "$SERVICE_DIR/env"\n{STOP}'
    one = endpoint("a", start=script, stop=stop)
    here = host(one, endpoint("b", start=f"{script}exit 3"))
    here.run("a", "import urllib.request as u; u.urlopen(BASE_URL + '/env').read()")
    seen = json.dumps(here.run("a", "import os; print(dict(os.environ))"))
    argvs = [_argv(pid) for pid in _all_pids()]
    seen += str(refused(here, "b"))
    assert (Path(one.service_dir or "") / "env").exists()

    files = [
        p for p in home.rglob("*") if p.is_file() and p.parent.name != "credentials"
    ]
    assert len(files) > 5
    assert [p for p in files if CANARY.encode() in _content(p)] == []
    assert [argv for argv in argvs if CANARY.encode() in argv] == []
    assert CANARY not in seen
    assert CANARY not in "".join(capfd.readouterr())
    wait_for(lambda: "key [credential]" in panel.shown("a-service"))


def _all_pids() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        # a note that was being written stands under its own name by now
        return b""


def _argv(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


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


def test_endpoints_without_budgets_are_not_held(host: Any) -> None:
    here = host(endpoint())
    here.run("a")

    assert memory.held() == []
