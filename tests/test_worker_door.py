"""The path that a worker is found on, and who is let in."""

import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from small_base import NOBODY, Start, until


def test_the_socket_is_its_owners_alone_whatever_the_umask(start: Start) -> None:
    before = os.umask(0)
    try:
        held = start("echo")
    finally:
        os.umask(before)

    assert held.path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in held.path.parent.glob(".*")] == []


STRANGER = """
import os, socket, sys
sock = socket.socket(socket.AF_UNIX)
os.setuid(int(sys.argv[2]))
sock.connect(sys.argv[1])
try:
    sock.sendall(b'{"op": "ping"}\\n')
except OSError:
    pass  # it is told and shown the door before it has spoken
os.write(1, sock.recv(65536))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_peer_of_another_uid_is_refused(start: Start) -> None:
    # where another user can come near, and the socket's own mode does not stop him
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        Path(place).chmod(0o711)
        held = start("echo", path=Path(place) / "s")
        held.path.chmod(0o666)
        ran = subprocess.run(
            [sys.executable, "-c", STRANGER, str(held.path), str(NOBODY)],
            capture_output=True,
            check=True,
        )

    reply = json.loads(ran.stdout)
    assert (reply["reason"], reply["error"]) == (
        "unauthorized",
        f"uid {NOBODY} found, uid 0 wanted",
    )


def test_a_stale_socket_is_replaced(start: Start, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "s"))

    assert start("echo", path=tmp_path / "s").ask(x=1)["echo"] == 1


def test_a_path_that_is_taken_is_refused_and_left(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    alive = start("echo")

    for path, found in (
        (file, "something that is no socket found, nothing or a socket wanted"),
        (alive.path, "a socket that accepts found, nothing or a stale socket wanted"),
        (tmp_path / "no" / "s", "no directory for it found, one wanted"),
        (tmp_path / ("n" * 107), f"{len(str(tmp_path)) + 108} bytes found, at most "),
    ):
        held = start("echo", path=path, loaded=False)
        assert held.wait_ready() is None
        assert held.ended() == 1
        assert f"socket_path: {path}: {found}" in held.said()

    assert file.read_text() == "mine"
    assert alive.ask(x=1)["echo"] == 1


def test_a_path_of_exactly_107_bytes_is_taken(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path = tmp_path / ("n" * (107 - len(str(path)) + 1))

    assert len(str(path)) == 107
    assert start("echo", path=path).ask(x=1)["echo"] == 1


def test_a_path_that_another_has_taken_over_is_left(start: Start) -> None:
    first = start("echo")
    first.path.unlink()
    second = start("echo", path=first.path)

    first.child.terminate()

    assert first.ended() == 0
    assert second.ask(x=1)["echo"] == 1


def test_a_worker_out_of_descriptors_leaves_as_it_was_told(start: Start) -> None:
    held = start("hangs")
    caller = held.connect()
    caller.send(op="predict")
    until(lambda: held.ask("ping")["busy_since"], "it is busy")
    used = max(int(path.name) for path in Path(f"/proc/{held.child.pid}/fd").iterdir())
    resource.prlimit(held.child.pid, resource.RLIMIT_NOFILE, (used + 1, used + 1))
    for _ in range(20):
        held.connect()
    until(
        lambda: "accepting: Too many open files" in held.said(), "there are none left"
    )

    held.child.terminate()
    until(lambda: "finishing what is in hand" in held.said(), "it was heard")
    until(lambda: not held.path.exists(), "the door is shut")
    held.child.terminate()

    assert held.ended() == 143
    assert "Traceback" not in held.said()
