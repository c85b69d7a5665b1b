"""Ports that are given are free, and given once."""

import fcntl
import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from remote_resident.endpoints import ports
from remote_resident.errors import ProviderError

RANGE = range(29000, 29020)


def test_a_port_is_of_the_contracts_range_and_can_be_bound() -> None:
    port = ports.free_port()

    assert 20000 <= port <= 29999
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_is_listened_on_is_not_given(address: str) -> None:
    with socket.socket() as listener:
        listener.bind((address, 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(ProviderError) as caught:
            ports.free_port(within=range(port, port + 1))

    assert caught.value.reason == "port_taken"
    assert str(caught.value) == (f"ports {port} to {port}: none free of 1, one wanted")


def test_a_port_is_given_once(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; "
        "from remote_resident.endpoints import ports; "
        "print(*[ports.free_port(root=Path(sys.argv[1])) for _ in range(25)])"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "ports")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    given = [port for child in children for port in child.communicate()[0].split()]

    assert len(given) == 100
    assert len(set(given)) == 100


def test_who_asks_waits_while_another_is_given_one(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; "
        "from remote_resident.endpoints import ports; print('asks', flush=True); "
        "print(ports.free_port(root=Path(sys.argv[1])), flush=True)"
    )
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)],
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"asks\n"
        assert select.select([child.stdout], [], [], 0.5)[0] == []

    assert child.communicate(timeout=60)[0].strip().isdigit()


def test_those_of_other_endpoints_are_not_given() -> None:
    free = ports.free_port(within=RANGE)
    (ports.places.runtime_dir() / "ports" / str(free)).unlink()

    with pytest.raises(ProviderError):
        ports.free_port({free}, within=range(free, free + 1))


def test_a_reservation_ends_with_time() -> None:
    port = ports.free_port(within=RANGE)
    only = range(port, port + 1)
    with pytest.raises(ProviderError):
        ports.free_port(within=only)
    path = ports.places.runtime_dir() / "ports" / str(port)
    long_ago = path.stat().st_mtime - ports.RESERVED_S - 1
    os.utime(path, (long_ago, long_ago))

    assert ports.free_port(within=only) == port
    with pytest.raises(ProviderError):
        ports.free_port(within=only)
