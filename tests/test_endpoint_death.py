"""The death of a service: noticed, told to its cell, and cleared before the next start."""

import os
from typing import Any

from small_endpoint import DEADLINE_S, SOON, endpoint, get, host, start_script, wait_for

from remote_resident import processes
from remote_resident.endpoints.service import Patience

__all__ = ["host"]


def test_a_service_that_dies_is_noticed_and_the_next_call_starts_it_again(
    host: Any,
) -> None:
    here = host(endpoint(), patience=Patience(dying_s=DEADLINE_S))
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
