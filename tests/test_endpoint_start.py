"""Starts of a service: what is ready, what is not, and what a failed one leaves."""

import os
import socket
import time
from pathlib import Path
from typing import Any

from seconds import within
from small_endpoint import (
    DEADLINE_S,
    SOON,
    Host,
    endpoint,
    get,
    host,
    phases,
    refused,
    start_script,
    wait_for,
)

from remote_resident import processes
from remote_resident.endpoints import listener, panel
from remote_resident.endpoints.service import Patience
from remote_resident.errors import ProviderError

__all__ = ["host"]


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


def test_callers_of_one_endpoint_share_one_start(host: Any, tmp_path: Path) -> None:
    script = f"echo x >> '{tmp_path}/starts'\n" + start_script(bind_s=0.2)
    here = host(endpoint(start=script))
    calls = [here.call("a") for _ in range(8)]

    assert [call.end().lines[-1]["exit_code"] for call in calls] == [0] * 8
    assert (tmp_path / "starts").read_text() == "x\n"


def test_a_start_for_nobody_goes_on_to_ready(host: Any) -> None:
    here = host(endpoint(start=start_script(bind_s=0.3)))
    lines = here.lines("a")
    assert next(lines)["text"] == "starting a-service"
    lines.close()

    here.until("ready")


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

    assert here.run("a")[-1]["exit_code"] == 0
    # the first 200, three 503 and two 200 in a row
    assert int(get(here.service().port, "/answers")) >= 6


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
    for limit_s in (0.5, 4.0, DEADLINE_S):
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
