"""What is on the path of a worker's socket."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from small_provider import provider, write
from small_worker import Make, refused, told_to

from remote_resident import client, places
from remote_resident.errors import (
    ProviderError,
)
from remote_resident.supervisor import ResidentWorker


def test_a_stale_socket_is_taken_over(make: Make) -> None:
    worker = make("echo")
    places.ensure(worker.socket_path.parent)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(worker.socket_path))

    assert worker.request({"x": 1})["echo"] == 1


@pytest.mark.parametrize("what", ["file", "symlink"])
def test_what_is_no_socket_is_refused_and_left_alone(make: Make, what: str) -> None:
    worker = make("echo")
    path = worker.socket_path
    places.ensure(path.parent)
    target = path.with_name("target")
    target.write_text("mine")
    path.write_text("mine") if what == "file" else path.symlink_to(target)
    uid = os.geteuid()

    error = refused(worker.ensure_started)
    found = path.read_text()
    path.unlink()

    assert error.reason == "socket_path"
    assert str(error) == (
        f"{path}: a {what} of uid {uid} found, nothing or a socket of uid {uid} wanted"
    )
    assert found == "mine"


def test_somebody_else_on_the_socket_is_refused(make: Make) -> None:
    worker = make("echo")
    worker.ensure_started()
    stranger = provider(Path(worker.tree), "echo", slug="other")
    other = ResidentWorker(stranger, socket_path=worker.socket_path, admit=None)

    error = refused(other.ensure_started)

    assert error.reason == "socket_path"
    assert f"answered by tiny of {worker.tree}, other of" in str(error)
    assert worker.is_running()


def test_a_runtime_directory_open_to_others_is_refused(home: Path, make: Make) -> None:
    (home / "run").mkdir(mode=0o777)
    (home / "run").chmod(0o777)

    with pytest.raises(ProviderError) as caught:
        make("echo")

    assert caught.value.reason == "socket_path"


def test_a_path_too_long_for_a_socket_is_shortened_or_named(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slug = "a" * 60
    worker = ResidentWorker(provider(tree, "echo", slug=slug), admit=None)
    reply = worker.request({"x": 1})
    worker.stop()
    monkeypatch.setenv("TU_REMOTE_HOME", str(tmp_path / ("d" * 100)))

    error = refused(lambda: ResidentWorker(worker.manifest))

    assert reply["echo"] == 1
    assert len(os.fsencode(worker.socket_path)) <= 107
    assert error.reason == "socket_path"


def test_a_user_with_nothing_yet_gets_private_places(
    tree: Path, tmp_path: Path
) -> None:
    """Neither a cache nor a runtime directory, as under cron or in a fresh image."""
    path = write(tree, "echo")
    bare, place = tmp_path / "nobody's home", Path(tempfile.mkdtemp())
    bare.mkdir()
    program = "import sys; from remote_resident.cli import main; sys.exit(main())"
    words = ["remote", "--json", "--tree", str(tree), "call", path.parent.name]
    try:
        called, stopped = (
            subprocess.run(
                [sys.executable, "-c", program, *more],
                env={"PATH": os.defpath, "HOME": str(bare), "TMPDIR": str(place)},
                capture_output=True,
                text=True,
                check=False,
            )
            for more in ([*words, '{"x": 7}'], [*words[:-2], "stop", path.parent.name])
        )
        assert called.returncode == 0, called.stderr
        made = next(place.iterdir())
        mode = made.stat().st_mode & 0o777
    finally:
        shutil.rmtree(place)

    assert json.loads(called.stdout)["echo"] == 7
    assert len(json.loads(stopped.stdout)["stopped"]) == 1
    assert mode == 0o700
    assert [entry.name for entry in bare.iterdir()] == [".cache"]


def test_two_sockets_of_one_provider_are_two_workers(
    make: Make, tmp_path: Path
) -> None:
    one = make("counts", runtime=told_to("/dev/null"))
    two = ResidentWorker(one.manifest, socket_path=tmp_path / "s", admit=None)

    first, second = one.request({})["pid"], two.request({})["pid"]

    assert first != second
    assert one.request({})["pid"] == first
    assert two.stop() == [second]
    assert one.is_running()


def test_a_connection_of_another_user_s_worker_is_never_used(make: Make) -> None:
    worker = make("echo")
    worker.ensure_started()

    channel = client.connect(worker.socket_path)
    peer = channel.peer
    channel.close()

    assert peer == worker.ensure_started().pid
