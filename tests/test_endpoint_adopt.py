"""What a daemon leaves is taken over by the next one, and by its own bytes alone."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_endpoint import (
    PROGRAM,
    STOP,
    Daemon,
    end_noted,
    endpoint,
    get,
    phases,
    registered,
    start_script,
    wait_for,
)
from small_provider import DEADLINE_S

from remote_resident import processes, room
from remote_resident.daemon.client import connect
from remote_resident.endpoints import listener, notes
from remote_resident.endpoints.service import Service
from remote_resident.endpoints.store import Store
from remote_resident.endpoints.swap import Failure, Phase, State
from remote_resident.errors import ProviderError

Started = Callable[..., Daemon]


@pytest.fixture
def daemon() -> Iterator[Started]:
    """Give what starts a daemon; it and its services end with the test."""
    made: list[Daemon] = []

    def make(*words: str) -> Daemon:
        made.append(Daemon(*words))
        return made[-1]

    yield make
    for one in made:
        if one.process.poll() is None:
            one.end()
    end_noted(Store())


def wait_noted(store: Store, name: str, state: str) -> None:
    wait_for(lambda: (store.note(name) or {}).get("state") == state)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_service_that_is_ready_is_adopted(daemon: Started, how: int) -> None:
    one = endpoint()
    store = registered(one)
    first = daemon()
    first.run("a")
    wait_noted(store, one.name, "ready")
    pid = get(one.port)
    since = first.row()["since"]
    first.end(how)
    second = daemon()

    assert second.row()["state"] == "ready"
    assert second.row()["since"] == since
    assert phases(second.run("a")) == ["ready"]
    assert get(one.port) == pid
    second.client.call("POST", "/v1/endpoints/a-service/stop")
    assert not listener.is_open(one.port or 0)


def test_the_daemon_is_told_to_end_its_services_too(daemon: Started) -> None:
    one = endpoint()
    registered(one)
    first = daemon("--stop-services")
    first.run("a")
    first.end(signal.SIGTERM)

    assert not listener.is_open(one.port or 0)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_daemon_left_is_ended_without_another_one_to_wait_for(
    daemon: Started, how: int
) -> None:
    store = registered(one := endpoint())
    first = daemon()
    first.run("a")
    wait_noted(store, one.name, "ready")
    first.end(how)
    words = ["-m", "remote_resident", "remote", "daemon", "--stop-services"]
    done = subprocess.run([sys.executable, *words], timeout=DEADLINE_S, check=False)

    assert done.returncode == 0
    assert not listener.is_open(one.port or 0)
    with pytest.raises(ProviderError, match="no daemon found"):
        connect(start=False)


def test_a_start_goes_on_under_the_next_daemon(daemon: Started, tmp_path: Path) -> None:
    script = f"echo x >> '{tmp_path}/starts'\n{start_script(after=tmp_path / 'go')}"
    store = registered(one := endpoint(start=script))
    first = daemon()
    first.call("a").until("waiting for /ready")
    wait_for(lambda: listener.is_open(one.port or 0))
    first.end()
    assert (store.note(one.name) or {})["state"] == "starting"
    second = daemon()
    (tmp_path / "go").touch()

    assert second.run("a")[-1]["exit_code"] == 0
    assert (tmp_path / "starts").read_text() == "x\n"


def test_a_stop_is_finished_by_the_next_daemon(daemon: Started, tmp_path: Path) -> None:
    stop = f"until [ -e '{tmp_path}/go' ]; do sleep 0.02; done\n{STOP}"
    store = registered(one := endpoint(stop=stop))
    first = daemon()
    first.run("a")
    try:
        first.client.call("POST", "/v1/endpoints/a-service/stop", {}, timeout_s=0.5)
    except ProviderError as exc:
        assert exc.reason == "request_timeout"
    wait_noted(store, one.name, "stopping")
    first.end()
    (tmp_path / "go").touch()
    second = daemon()
    second.until("stopped")

    assert not listener.is_open(one.port or 0)


def test_a_service_that_died_meanwhile_is_started_again(daemon: Started) -> None:
    store = registered(one := endpoint())
    first = daemon()
    first.run("a")
    wait_noted(store, one.name, "ready")
    pid = get(one.port)
    first.end()
    os.kill(int(pid), 9)
    second = daemon()

    assert second.run("a")[-1]["exit_code"] == 0
    assert get(one.port) != pid


def test_a_disconnect_keeps_the_one_row_whose_stop_fails(daemon: Started) -> None:
    store = registered(
        endpoint("a", stop="true", stop_timeout_s=1.0),
        endpoint("b", stop="exit 1"),
    )
    first = daemon()
    first.run("a")

    done = first.client.call("POST", "/v1/endpoints/disconnect")

    assert (done["ok"], done["removed"]) == (False, ["b-service"])
    ((name, reason),) = [(row["name"], row["reason"]) for row in done["kept"]]
    assert (name, reason) == ("a-service", "stop_failed")
    assert done["kept"][0]["next"] == f"kill {get(first.row('a')['port'])}"
    assert first.row("a")["state"] == "failed"
    assert list(store.registrations().endpoints) == ["a-service"]
    assert store.settings().mode is None


def test_a_failure_is_sticky_also_for_the_next_daemon(
    daemon: Started, tmp_path: Path
) -> None:
    script = f"echo x >> '{tmp_path}/starts'; exit 3"
    store = registered(one := endpoint(start=script, stop="true"))
    first = daemon()
    with pytest.raises(ProviderError, match="start returned 3"):
        first.run("a")
    wait_noted(store, one.name, "failed")
    first.end()
    second = daemon()

    with pytest.raises(ProviderError, match="start returned 3"):
        second.run("a")
    assert (tmp_path / "starts").read_text() == "x\n"
    second.client.call("POST", "/v1/endpoints/a-service/stop")
    assert second.row()["state"] == "stopped"


LEFT = Failure(reason="stop_failed", text="a: port still bound", next="kill 1")
WHY = Failure(reason="start_failed", text="a: start returned 3, 0 wanted")
FAILED = Phase(state=State.FAILED, failure=WHY)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Phase(state=State.READY), Phase()),
        (Phase(state=State.STOPPING), Phase()),
        (Phase(state=State.STOPPING, failure=WHY), FAILED),
        (Phase(state=State.FAILED, failure=LEFT, left=True), Phase()),
        (Phase(state=State.FAILED, failure=LEFT, left=True, start=WHY), FAILED),
        (FAILED, FAILED),
    ],
)
def test_of_an_earlier_boot_nothing_is_left(
    before: Phase, after: Phase, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = registered(one := endpoint())
    notes.write(store, one.name, before, Service(endpoint=one, instance="1"), 1.0)
    assert notes.adopted(store, one)[0] == before
    monkeypatch.setattr(room, "boot_id", lambda: "another")

    assert notes.adopted(store, one) == (after, None)


def test_what_other_bytes_started_is_stopped_by_their_own_stop_and_never_used(
    daemon: Started, tmp_path: Path
) -> None:
    old = endpoint(stop=f"touch '{tmp_path}/old'\n{STOP}")
    store = registered(old)
    first = daemon()
    first.run("a")
    wait_noted(store, old.name, "ready")
    pid = get(old.port)
    first.end()
    registered(endpoint(url=old.url, stop=f"touch '{tmp_path}/new'\n{STOP}"))
    second = daemon()
    second.run("a")

    assert get(old.port) != pid
    assert (tmp_path / "old").exists()
    assert not (tmp_path / "new").exists()


def test_a_stranger_where_the_service_was_is_not_adopted(daemon: Started) -> None:
    store = registered(one := endpoint())
    first = daemon()
    first.run("a")
    wait_noted(store, one.name, "ready")
    pid = int(get(one.port))
    first.end()
    os.kill(pid, 9)
    wait_for(lambda: not listener.is_open(one.port or 0))
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", one.port))
        sock.listen()
        second = daemon()
        wait_for(lambda: second.row()["state"] in ("failed", "stopped"))
        with pytest.raises(ProviderError):
            second.run("a")


def test_one_that_only_looks_like_the_service_is_not_adopted(daemon: Started) -> None:
    store = registered(one := endpoint())
    first = daemon()
    first.run("a")
    wait_noted(store, one.name, "ready")
    note = store.note(one.name) or {}
    first.end()
    os.kill(int(get(one.port)), 9)
    wait_for(lambda: not listener.is_open(one.port or 0))
    env = {
        "SERVICE_DIR": one.service_dir or "",
        processes.INSTANCE_VARIABLE: note["instance"],
    }
    argv = [sys.executable, "-I", "-S", str(PROGRAM), str(one.port)]
    with subprocess.Popen(argv, env=env, start_new_session=True) as twin:
        try:
            wait_for(lambda: listener.is_open(one.port or 0))
            second = daemon()
            # it is of that start by its marks, and is ended with what is left of it
            assert second.run("a")[-1]["exit_code"] == 0
            assert get(one.port) != str(twin.pid)
        finally:
            twin.kill()


def test_a_cell_ends_with_its_daemon_also_where_that_was_killed(
    daemon: Started, tmp_path: Path
) -> None:
    registered(endpoint())
    first = daemon()
    code = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(__import__('os').getpid()))"
    first.call("a", f"{code}\nimport time\nprint('cell', flush=True)\ntime.sleep(1000)").until("cell")  # fmt: skip
    pid = int((tmp_path / "pid").read_text())
    first.end()

    wait_for(lambda: _is_gone(pid), "the cell's end")


def _is_gone(pid: int) -> bool:
    row = processes.process_table().get(pid)
    return row is None or row.state == "Z"


def test_a_service_is_the_daemons_own_orphan_and_leaves_no_zombie(
    daemon: Started,
) -> None:
    registered(one := endpoint())
    first = daemon()
    first.run("a")
    pid = int(get(one.port))
    wait_for(lambda: processes.process_table()[pid].ppid == first.process.pid)
    os.kill(pid, 9)

    wait_for(lambda: pid not in processes.process_table())
    first.until("stopped")


def test_a_note_that_is_damaged_starts_nothing_and_says_so(daemon: Started) -> None:
    store = registered(one := endpoint())
    path = store.root / "notes" / f"{one.name}.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    first = daemon()

    assert first.row()["state"] == "failed"
    with pytest.raises(ProviderError, match="what this host wrote there wanted"):
        first.run("a")
    path.unlink()


def test_a_damaged_note_is_put_aside_by_the_stop_that_its_refusal_names(
    daemon: Started,
) -> None:
    store = registered(one := endpoint())
    path = store.root / "notes" / f"{one.name}.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    first = daemon()
    with pytest.raises(ProviderError) as caught:
        first.run("a")

    assert caught.value.next == f"tu remote endpoint stop {one.name}"
    first.client.call("POST", f"/v1/endpoints/{one.name}/stop")
    assert first.run("a")[-1]["exit_code"] == 0
    assert path.with_name(f"{path.name}.damaged").read_text() == "{"


def test_a_damaged_registration_is_looked_at_again_once_it_was_put_right(
    daemon: Started,
) -> None:
    store = registered(one := endpoint())
    path = store.root / "registrations" / f"{one.name}.json"
    whole = path.read_bytes()
    path.write_bytes(b"{")
    first = daemon()
    assert first.row()["state"] == "failed"

    path.write_bytes(whole)
    assert first.run("a")[-1]["exit_code"] == 0


def test_a_damaged_registration_that_was_moved_aside_is_no_endpoint(
    daemon: Started,
) -> None:
    store = registered(one := endpoint())
    path = store.root / "registrations" / f"{one.name}.json"
    path.write_bytes(b"{")
    first = daemon()
    assert first.row()["state"] == "failed"

    path.rename(f"{path}.damaged")
    assert first.client.call("GET", "/v1/endpoints")["endpoints"] == []
    with pytest.raises(ProviderError, match="no such endpoint found"):
        first.run("a")


def killed_at_random(daemon: Started, rounds: int) -> None:
    a, b = endpoint("a"), endpoint("b")
    registered(a, b)
    for _ in range(rounds):
        one = daemon()
        calls = [one.call(name) for name in "ab"]
        time.sleep(random.uniform(0.0, 0.7))  # the moment of the kill, not a hope
        one.end()
        for call in calls:
            call.end()
    last = daemon()
    for name in "ab":
        assert last.run(name)[-1]["exit_code"] == 0
    open_ports = [p for p in (a.port, b.port) if listener.is_open(p or 0)]
    assert len(open_ports) == 1


def test_a_daemon_killed_at_any_moment_is_followed_by_one_that_serves(
    daemon: Started,
) -> None:
    killed_at_random(daemon, 2)


@pytest.mark.long
def test_a_daemon_killed_at_very_many_moments(daemon: Started) -> None:
    killed_at_random(daemon, 100)


def test_nothing_of_a_credential_is_in_a_note(daemon: Started) -> None:
    store = registered(one := endpoint())
    daemon().run("a")
    wait_noted(store, one.name, "ready")

    assert "canary" not in json.dumps(store.note(one.name))
