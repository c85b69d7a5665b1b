"""Endpoints that are real containers: cold, warm, crashed, moved, hidden, swapped."""

import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from container_image import PYTHON, Image, image
from small_endpoint import (
    Daemon,
    endpoint,
    free_port,
    get,
    host,
    phases,
    registered,
    wait_for,
)

from remote_resident.endpoints import containers, listener
from remote_resident.endpoints.compose import Composition, compose
from remote_resident.endpoints.record import Endpoint
from remote_resident.endpoints.scripts import environment
from remote_resident.endpoints.service import Patience
from remote_resident.errors import ProviderError

__all__ = ["host"]

pytestmark = pytest.mark.container

# the first process of a container ignores a SIGTERM that it has no handler for
SERVER = (
    "import signal, http.server as h; signal.signal(15, lambda *a: exit(0)); "
    'h.HTTPServer(("", 8000), h.SimpleHTTPRequestHandler).serve_forever()'
)
SERVE = (PYTHON, "-c", SERVER)


@pytest.fixture(scope="module")
def base() -> Image:
    """Give the image; as another user the scripts' own store has none."""
    if os.geteuid() != 0:
        pytest.skip("the scripts' HOME is the service's: its store has no such image")
    return image()


@pytest.fixture
def names(base: Image) -> Iterator[list[str]]:
    """Give two names that no other test run has; their containers go with the test."""
    made = [f"t{os.urandom(4).hex()}" for _ in range(2)]
    yield made
    # of several names an engine takes none where one is not there
    for service in (f"{name}-service" for name in made):
        # an engine that stops before it removes would wait for who ignores SIGTERM
        for words in (["kill"], ["rm", "--force"]):
            argv = [base.program, *words, service]
            subprocess.run(argv, capture_output=True, check=False)
        argv = [base.program, "container", "inspect", service]
        assert subprocess.run(argv, capture_output=True).returncode != 0


def contained(base: Image, name: str, **fields: Any) -> Endpoint:
    engine: Any = base.program
    scripts = compose(
        Composition(
            image=base.name, port=8000, engine=engine, stop_grace_s=20, arguments=SERVE
        )
    )
    given = {"start": scripts.start, "stop": scripts.stop, "live": "/"}
    return endpoint(name, **{**given, **fields})


def state(base: Image, one: Endpoint) -> str:
    words = [
        base.program,
        "container",
        "inspect",
        "--format",
        "{{.Id}} {{.State.Status}}",
    ]
    done = subprocess.run(
        [*words, one.name], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else "none"


def test_a_container_is_started_cold_stopped_kept_and_started_warm(
    base: Image, names: list[str], host: Any
) -> None:
    one = contained(base, names[0])
    here = host(one)
    assert here.run(names[0])[-1]["exit_code"] == 0
    first = state(base, one).split()[0]
    here.changes.stop(one.name)

    assert (here.state(names[0]), state(base, one)) == ("stopped", f"{first} exited")
    assert not listener.is_open(one.port or 0)
    assert here.run(names[0])[-1]["exit_code"] == 0
    assert state(base, one) == f"{first} running"


def test_a_container_that_runs_already_is_found_warm_and_is_no_stranger(
    base: Image, names: list[str], host: Any
) -> None:
    one = contained(base, names[0])
    here = host(one)
    here.run(names[0])
    here.owner.end(stop_services=False)
    here.store.set_note(one.name, None)
    again = host(one)

    assert again.run(names[0])[-1]["exit_code"] == 0


def test_a_container_that_crashed_is_noticed_and_the_next_call_starts_it(
    base: Image, names: list[str], host: Any
) -> None:
    one = contained(base, names[0])
    here = host(one)
    here.run(names[0])
    subprocess.run([base.program, "kill", one.name], capture_output=True, check=True)

    here.until("stopped", names[0])
    assert here.run(names[0])[-1]["exit_code"] == 0


def test_a_container_with_the_port_of_another_day_is_made_anew(
    base: Image, names: list[str], host: Any
) -> None:
    old = contained(base, names[0])
    here = host(old)
    here.run(names[0])
    new = contained(base, names[0], url=f"http://127.0.0.1:{free_port()}")
    here.register(new)

    assert not listener.is_open(old.port or 0)
    assert here.run(names[0])[-1]["exit_code"] == 0
    assert "Directory listing" in get(new.port)


def test_a_name_in_use_by_a_container_of_another_make_is_taken_over_by_the_script(
    base: Image, names: list[str], host: Any
) -> None:
    one = contained(base, names[0])
    subprocess.run(
        [base.program, "create", "--name", one.name, base.name, "true"],
        capture_output=True,
        check=True,
    )

    assert host(one).run(names[0])[-1]["exit_code"] == 0


def test_a_container_whose_port_is_not_published_is_never_ready(
    base: Image, names: list[str], host: Any
) -> None:
    start = f"{base.program} start '{names[0]}-service'"
    one = contained(base, names[0], start=start, start_timeout_s=1.0)
    # before its time begins, which is short
    ran = [base.program, "run", "-d", "--name", one.name, base.name, *SERVE]
    subprocess.run(ran, capture_output=True, check=True)
    here = host(one)
    with pytest.raises(ProviderError) as caught:
        here.run(names[0])

    assert caught.value.reason == "not_ready"
    assert "no listener found after 1.0 s" in str(caught.value)
    assert state(base, one).endswith(" exited")


def test_a_port_that_another_container_publishes_is_not_this_endpoints(
    base: Image, names: list[str], host: Any
) -> None:
    first, second = (contained(base, name) for name in names)
    here = host(first)
    here.run(names[0])
    twin = contained(base, names[1], url=first.url)

    env = environment(second, "0" * 16)
    assert containers.publishing(first, env) is not None
    assert containers.publishing(twin, env) is None


def test_two_containers_are_swapped(base: Image, names: list[str], host: Any) -> None:
    first, second = (contained(base, name) for name in names)
    here = host(first, second)
    here.run(names[0])
    said = phases(here.run(names[1]))

    assert said[:2] == [f"stopping {first.name}", f"starting {second.name}"]
    assert state(base, first).endswith(" exited")
    assert state(base, second).endswith(" running")


def test_a_stop_that_leaves_the_container_running_does_not_count(
    base: Image, names: list[str], host: Any
) -> None:
    one = contained(base, names[0], stop="true")
    here = host(one, patience=Patience(settle_s=0.2))
    here.run(names[0])
    with pytest.raises(ProviderError, match="container still running") as caught:
        here.changes.stop(one.name)

    assert here.state(names[0]) == "failed"
    engine = os.path.basename(base.program)  # noqa: PTH119 - as it is typed
    assert caught.value.next == f"{engine} stop {one.name}"
    subprocess.run(["sh", "-c", caught.value.next], capture_output=True, check=True)
    here.until("stopped", names[0])


def test_a_container_that_is_paused_is_named_so_and_how_to_end_it(
    base: Image, names: list[str], host: Any
) -> None:
    # docker's own stop ends one that is paused, podman's does not
    one = contained(base, names[0], stop="true")
    here = host(one, patience=Patience(settle_s=0.2))
    here.run(names[0])
    subprocess.run([base.program, "pause", one.name], capture_output=True, check=True)
    try:
        with pytest.raises(ProviderError) as caught:
            here.changes.stop(one.name)
    finally:
        again = [base.program, "unpause", one.name]
        subprocess.run(again, capture_output=True, check=False)

    assert f"container paused ({one.name}); {one.name} holds" in str(caught.value)
    engine = os.path.basename(base.program)  # noqa: PTH119
    assert caught.value.next == (
        f"{engine} unpause {one.name} && tu remote endpoint stop {one.name}"
    )
    assert here.state(names[0]) == "failed"
    subprocess.run([base.program, "kill", one.name], capture_output=True, check=True)
    here.until("stopped", names[0])


def test_a_removed_endpoint_leaves_its_container_stopped(
    base: Image, names: list[str], host: Any
) -> None:
    one = contained(base, names[0])
    here = host(one)
    here.run(names[0])
    with here.changes.turn(one.name):
        here.changes.remove(one.name)

    assert state(base, one).endswith(" exited")


def test_a_container_is_adopted_by_the_next_daemon(
    base: Image, names: list[str]
) -> None:
    one = contained(base, names[0])
    store = registered(one)
    first = Daemon()
    try:
        first.run(names[0])
        wait_for(lambda: (store.note(one.name) or {}).get("state") == "ready")
        before = state(base, one)
        first.end()
        first = Daemon()

        assert phases(first.run(names[0])) == ["ready"]
        assert state(base, one) == before
        first.client.call("POST", f"/v1/endpoints/{one.name}/stop")
        assert state(base, one).endswith(" exited")
    finally:
        first.end()
