"""Who listens is told by the kernel: this start's process, a stranger, nobody."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from small_endpoint import PROGRAM, free_port, wait_for

from remote_resident import processes
from remote_resident.endpoints import listener, sockets

FORKING = """
import os, socket, sys, signal
s = socket.socket(); s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen()
if os.fork():
    signal.pause()
{more}
signal.pause()
"""


@pytest.fixture
def instance() -> Iterator[str]:
    name = os.urandom(8).hex()
    yield name
    processes.end_all(name, grace_s=0.0)


@contextmanager
def serving(port: int, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-I", "-S", str(PROGRAM), str(port)]
    with started(argv, env) as process:
        wait_for(lambda: listener.inodes(port))
        yield process


@contextmanager
def started(argv: list[str], env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(argv, env=env, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_port_that_nobody_has_is_closed() -> None:
    port = free_port()

    assert listener.inodes(port) == frozenset()
    assert not listener.is_open(port)


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1"])
def test_a_listener_on_every_address_that_takes_the_port_is_found(address: str) -> None:
    port = free_port()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as sock:
        try:
            sock.bind((address, port))
        except OSError as exc:
            pytest.skip(f"{address}: {exc}")
        sock.listen()
        inode = str(os.fstat(sock.fileno()).st_ino)

        assert listener.inodes(port) == {inode}
        for ask in (sockets._asked, sockets._read):
            assert next(f for f in ask(family) if f[0] == port)[2] == int(inode)
        assert listener.owners([inode]) == {os.getpid()}
        assert listener.is_open(port)


def test_a_socket_that_is_bound_and_does_not_listen_is_nobody() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", free_port()))
        port = sock.getsockname()[1]

        assert not listener.is_open(port)


def test_a_full_queue_is_somebody() -> None:
    with socket.socket() as sock, socket.socket() as first, socket.socket() as more:
        sock.bind(("127.0.0.1", free_port()))
        sock.listen(0)
        for one in (first, more):
            one.setblocking(False)
            one.connect_ex(sock.getsockname())

        assert listener.is_open(sock.getsockname()[1])


def test_the_listener_of_this_start_is_the_one_with_its_instance_and_directory(
    instance: str, tmp_path: Path
) -> None:
    port, here = free_port(), str(tmp_path)
    with serving(port, SERVICE_DIR=here, TU_RESIDENT_INSTANCE=instance) as process:
        found = listener.of_start(port, instance, here)

        assert found is not None
        assert [owner.pid for owner in found.owners] == [process.pid]
        assert listener.still_there(found, port)
        assert listener.of_start(port, instance, f"{here}/other") is None
        assert listener.of_start(port, os.urandom(8).hex(), here) is None
    assert not listener.still_there(found, port)


def test_a_stranger_is_named_and_is_not_this_start(
    instance: str, tmp_path: Path
) -> None:
    port = free_port()
    with serving(port) as process:
        assert listener.stranger(port).startswith(f"pid {process.pid} (")
        assert listener.of_start(port, instance, str(tmp_path)) is None


def test_a_port_that_is_taken_without_a_listener_is_looked_for_in_the_firewall() -> (
    None
):
    port = free_port()

    assert listener.stranger(port) == "a rule of the firewall that passes it on"
    assert "iptables-save" in listener.search(port)
    assert f"{port}" in listener.search(port)


@pytest.mark.parametrize("more", ["", "os.execve(sys.executable, [sys.executable, '-c', 'import time; time.sleep(1000)'], {})"])  # fmt: skip
def test_a_forked_worker_that_has_the_socket_is_of_this_start_too(
    instance: str, tmp_path: Path, more: str
) -> None:
    port, env = free_port(), {"SERVICE_DIR": str(tmp_path)}
    env["TU_RESIDENT_INSTANCE"] = instance
    argv = [sys.executable, "-c", FORKING.format(more=more), str(port)]
    with started(argv, env) as process:
        wait_for(lambda: listener.inodes(port))
        found = wait_for(lambda: listener.of_start(port, instance, str(tmp_path)))

        assert process.pid in {owner.pid for owner in found.owners}


def test_a_stranger_beside_this_start_on_one_port_is_not_accepted(
    instance: str, tmp_path: Path
) -> None:
    port = free_port()
    code = """
import signal, socket, sys
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(); signal.pause()
"""
    argv = [sys.executable, "-c", code, str(port)]
    env = {"SERVICE_DIR": str(tmp_path), "TU_RESIDENT_INSTANCE": instance}
    with started(argv, env):
        wait_for(lambda: len(listener.inodes(port)) == 1)
        assert listener.of_start(port, instance, str(tmp_path)) is not None
        with started(argv, {}):
            wait_for(lambda: len(listener.inodes(port)) == 2)

            assert listener.of_start(port, instance, str(tmp_path)) is None
