"""What a worker is started with: its environment, its launcher, its container."""

import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from small_worker import IDLE, Make, Run, gone, line_of, not_started

from remote_resident import places, processes
from remote_resident.supervisor import ResidentWorker

# --- the environment


def test_no_secret_of_the_caller_reaches_the_worker(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_TOKEN", "canary-secret")
    monkeypatch.setenv("PYTHONPATH", "/canary-secret")
    monkeypatch.setenv("GIVEN", "passed on")
    declared = {"pass_env": ["GIVEN"], "vars": {"DECLARED": "1"}}
    worker = make("says_environment", env=declared)

    reply = worker.request({})

    assert "canary-secret" not in repr(reply)
    assert reply["environ"]["GIVEN"] == "passed on"
    assert reply["environ"]["DECLARED"] == "1"
    assert reply["environ"]["TU_RESIDENT_INSTANCE"] == worker.instance


LAUNCH = """
import absent_from_the_launcher  # MISSING
def build(worker):
    return [worker.environment.inner_python, *worker.script], {"DECLARED": None}
"""


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    monkeypatch.syspath_prepend(str(tmp_path))

    def launcher(text: str) -> str:
        name = f"launcher_{tmp_path.name}".replace("-", "_")
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return launcher


def test_a_launcher_removes_a_name(make: Make, launcher: Callable[[str], str]) -> None:
    name = launcher("\n".join(x for x in LAUNCH.splitlines() if "MISSING" not in x))
    worker = make(
        "says_environment",
        env={"vars": {"DECLARED": "1"}},
        runtime={"launch": f"{name}:build"},
    )

    assert "DECLARED" not in worker.request({})["environ"]


def test_a_launch_that_names_nothing_is_blamed(
    make: Make, launcher: Callable[[str], str]
) -> None:
    name = launcher("")

    no_module = not_started(make("echo", runtime={"launch": "no_such.thing:build"}))
    no_function = not_started(make("echo", runtime={"launch": f"{name}:build"}))

    assert str(no_module) == (
        "tiny: [runtime] launch = 'no_such.thing:build': no module no_such, "
        "module:function wanted"
    )
    assert f"no function build in {name}" in str(no_function)


def test_a_module_missing_inside_the_launcher_is_not_blamed_on_the_launch(
    make: Make, launcher: Callable[[str], str]
) -> None:
    worker = make("echo", runtime={"launch": f"{launcher(LAUNCH)}:build"})

    with pytest.raises(ModuleNotFoundError, match="absent_from_the_launcher"):
        worker.ensure_started()


# --- a container, whose program is a stand-in that runs what it is given


DOCKER = """#!/bin/sh
echo "$1" >> "$(dirname "$0")/asked"
test "$1" = run || exit 0
while test "$1" != an-image; do shift; done
shift
exec "$@"
"""


@pytest.fixture
def contained(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ResidentWorker:
    program = tmp_path / "docker"
    program.write_text(DOCKER)
    program.chmod(0o755)
    monkeypatch.setenv("TU_CONTAINER_CLI", str(program))
    image = {"image": "an-image", "container_python": sys.executable}
    worker = make(
        "says_environment",
        env={"kind": "docker", "python": None, **image},
        runtime={"orphan_grace_s": 0.1},
    )
    places.ensure(worker.socket_path.parent)
    return worker


def test_a_contained_worker_answers_and_is_stopped_by_its_label(
    contained: ResidentWorker, tmp_path: Path
) -> None:
    reply = contained.request({})
    contained.stop()

    asked = (tmp_path / "asked").read_text().split()
    assert reply["argv"][reply["argv"].index("--lifeline-fd") + 1] == "0"
    assert "--ready-fd" not in reply["argv"]
    assert asked[:2] == ["run", "ps"]
    assert processes.members(str(contained.instance)) == []


def test_a_contained_worker_notices_its_owner_s_end_on_standard_input(
    contained: ResidentWorker, run: Run
) -> None:
    child = run("-c", IDLE, str(contained.manifest.path), "")
    instance = line_of(child)

    child.kill()

    gone(instance)


def test_a_stale_socket_does_not_say_ready_for_a_container(
    contained: ResidentWorker,
) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(contained.socket_path))

    assert contained.request({})["ok"] is True
