"""The socket or port of a worker: stale, live, of another, or taken."""

import concurrent.futures
import fcntl
import os
import socket
import stat
import subprocess
from pathlib import Path

import pytest
from small_job_worker import (
    DEADLINE_S,
    JOBS,
    TOKEN,
    Start,
    command,
    ready_at,
    refused,
    start,
    until,
)

from remote_resident.jobs.worker import binding

__all__ = ["start"]


def test_the_socket_is_the_users_alone_and_gone_at_the_end(start: Start) -> None:
    worker = start()
    path = ready_at(worker)
    mode = path.stat().st_mode
    worker.process.terminate()

    assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)
    assert worker.wait() == 0
    assert not path.exists()


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "w.sock"
    # as of a worker that was killed
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
        stale.listen()
    assert path.exists()
    assert not accepts(path)

    child = subprocess.Popen(command("returns:Job", "--socket", str(path)), cwd=JOBS)
    try:
        until(lambda: accepts(path), "a stale socket is replaced")
    finally:
        child.kill()
        child.wait()


def accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        return sock.connect_ex(str(path)) == 0


def test_a_live_socket_is_not_stolen(start: Start) -> None:
    worker = start()
    path = ready_at(worker)
    status, lines, _ = refused(command("returns:Job", "--socket", str(path)))

    assert status == 1
    assert lines == [
        f"job worker: socket_path: {path}: a socket that accepts found, "
        "nothing or a stale socket wanted"
    ]
    assert worker.get("/health")["ok"]


def test_who_looks_for_a_stale_socket_waits_for_who_looks_already(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s"
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        second = pool.submit(binding.on_path, path)
        with pytest.raises(concurrent.futures.TimeoutError):
            second.result(0.2)
        with socket.socket(socket.AF_UNIX) as first:
            first.bind(str(path))
            first.listen()
            os.close(folder)
            with pytest.raises(binding.Unusable, match="a socket that accepts"):
                second.result(DEADLINE_S)


def test_a_file_that_is_no_socket_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    status, lines, _ = refused(command("returns:Job", "--socket", str(path)))

    assert status == 1
    assert lines == [
        f"job worker: socket_path: {path}: something that is no socket found, "
        "nothing or a socket wanted"
    ]
    assert path.read_text() == "data"


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        words = command("returns:Job", "--host", "127.0.0.1", "--port", str(port))
        status, lines, _ = refused(words, {"TU_JOB_TOKEN": TOKEN})

    assert status == 1
    assert lines == [f"job worker: 127.0.0.1:{port}: Address already in use"]
