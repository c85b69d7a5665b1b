"""What a program that asks models imports."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from small_provider import until, write

from remote_resident import backend, manifest, places, processes
from remote_resident.errors import UsageError
from remote_resident.supervisor import ResidentWorker


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "a tree"
    path.mkdir()
    monkeypatch.setenv("TU_REMOTE_TREE", str(path))
    yield path
    backend.stop_all(1)


def unadmitted(path: Path) -> ResidentWorker:
    """Give the process's worker of a provider, without asking this machine for room."""
    worker = backend.worker_for(path)
    worker.admit = None
    return worker


def test_importing_starts_nothing() -> None:
    program = (
        "import os, threading; from remote_resident import backend;"
        "print(threading.active_count(), len(os.listdir('/proc/self/task')))"
    )

    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert said.stdout.split() == ["1", "1"]


def test_a_process_has_one_worker_a_provider(tree: Path) -> None:
    path = write(tree, "echo")

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: backend.worker_for(path), range(8)))

    assert len(found) == 1
    assert backend.worker_for_provider_dir(path.parent) in found
    assert backend.connect("tiny") in found
    assert backend.connect(str(path.parent)) in found


def test_an_edited_manifest_gives_a_worker_of_the_new_content(tree: Path) -> None:
    first = unadmitted(write(tree, "echo"))
    before = first.ensure_started()
    second = unadmitted(write(tree, "echo", runtime={"max_queue": 3}))

    assert second is not first
    assert second.manifest.runtime_max_queue == 3
    assert second.ensure_started().pid != before.pid
    assert processes.members(before.instance) == []


def test_a_name_that_is_no_provider_is_named_with_what_is_near(tree: Path) -> None:
    write(tree, "echo")

    with pytest.raises(UsageError, match="tiny"):
        backend.connect("tinny")


def test_a_connected_worker_answers_every_thread(tree: Path) -> None:
    unadmitted(write(tree, "echo"))

    with ThreadPoolExecutor(8) as pool:
        asked = pool.map(lambda x: backend.connect("tiny").request({"x": x}), range(40))
        answers = [reply["echo"] for reply in asked]

    assert answers == list(range(40))


def test_what_runs_is_listed_with_its_budget_until_all_is_stopped(tree: Path) -> None:
    worker = unadmitted(write(tree, "echo"))
    idle = backend.running()
    pid = worker.ensure_started().pid
    held = backend.running()

    ended = backend.stop_all()

    assert idle == {}
    assert (held["tiny"].vram_gb, held["tiny"].ram_gb) == (0.0, 0.1)
    assert ended == [pid]
    assert (backend.running(), backend.stop_all()) == ({}, [])


def test_stopping_all_leaves_another_process_s_worker_alone(tree: Path) -> None:
    path = write(tree, "echo")
    other = ResidentWorker(manifest.load(path), admit=None, owned=False)
    pid = other.ensure_started().pid
    worker = unadmitted(path)
    adopted = worker.ensure_started()

    ended = backend.stop_all()

    assert (adopted.pid, adopted.adopted) == (pid, True)
    assert ended == []
    assert other.is_running()
    other.stop()


def test_the_log_is_where_the_operator_wants_it(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLUNIVERSE_REMOTE_LOG_DIR", str(tmp_path / "logs"))
    worker = unadmitted(write(tree, "prints_to_stdout"))
    worker.ensure_started()

    path = backend.log_path_for("tiny")

    assert path == tmp_path / "logs" / f"tiny-{places.tree_id(tree)}.log"
    assert "in build" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("value", ["", "0", "true", "11", " 1"])
def test_only_a_one_asks_for_a_load_ahead(
    tree: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    path = write(tree, "echo")
    monkeypatch.setenv("TOOLUNIVERSE_REMOTE_WARM_MODEL", value)

    assert backend.warm_if_requested(path.parent) is None
    assert backend.worker_for(path).status()["warm"] is None


def test_a_load_ahead_is_told_in_the_status(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    path = write(tree, "slow_load", runtime={"worker_args": [str(go)]})
    worker = unadmitted(path)
    monkeypatch.setenv("TOOLUNIVERSE_REMOTE_WARM_MODEL", "1")

    slug = backend.warm_if_requested(path.parent)
    loading = worker.status()
    go.touch()
    until(lambda: worker.status()["warm"] == "loaded", "loaded")

    assert slug == "tiny"
    assert (loading["warm"], loading["state"] == "ready") == ("loading", False)
    assert worker.status()["state"] == "ready"


def test_a_load_ahead_that_fails_is_logged_and_fails_nothing_else(
    tree: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "gives_up.py").write_text("raise SystemExit('no kit')")
    path = write(tree, "echo", runtime={"launch": "gives_up:build"})
    worker = unadmitted(path)
    monkeypatch.setenv("TOOLUNIVERSE_REMOTE_WARM_MODEL", "1")

    backend.warm_if_requested(path.parent)
    until(lambda: str(worker.status()["warm"]).startswith("failed"), "failed")
    until(lambda: "tiny: loading ahead: failed: no kit" in caplog.text, "logged")

    assert worker.status()["warm"] == "failed: no kit"


def test_what_fails_before_the_load_is_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLUNIVERSE_REMOTE_WARM_MODEL", "1")

    assert backend.warm_if_requested(tmp_path / "nothing") is None


def test_a_program_s_own_directory_is_the_one_to_load(tree: Path) -> None:
    path = write(tree, "echo")
    program = path.with_name("server.py")
    program.write_text(
        "import json, os; from remote_resident import backend\n"
        "backend.worker_for_provider_dir(os.path.dirname(os.path.abspath(__file__)))"
        ".admit = None\n"
        "slug = backend.warm_if_requested()\n"
        "started = backend.connect('tiny').ensure_started()\n"
        "print(json.dumps([slug, started.instance]))\n"
    )

    said = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "TOOLUNIVERSE_REMOTE_WARM_MODEL": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    slug, instance = json.loads(said.stdout)

    assert slug == "tiny"
    # and a clean exit gave the card back
    assert processes.members(instance) == []
