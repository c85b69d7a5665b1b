"""Other bytes for an endpoint that runs, the same again, and its removal."""

from pathlib import Path
from typing import Any

import pytest
from small_endpoint import SOON, STOP, endpoint, host

from remote_resident.endpoints import listener
from remote_resident.errors import ProviderError, UsageError

__all__ = ["host"]


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
