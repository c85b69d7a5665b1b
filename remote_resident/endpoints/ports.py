"""Ports for endpoints of this host: free now, and nobody else's for a while."""

import fcntl
import os
import random
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from remote_resident import places
from remote_resident.endpoints import listener
from remote_resident.endpoints.record import FIRST_PORT, LAST_PORT
from remote_resident.errors import ProviderError

RESERVED_S = 600.0
"""How long a port that was given is not given again."""


def free_port(
    taken: Collection[int] = (),
    *,
    root: Path | None = None,
    within: range | None = None,
) -> int:
    """Give a port that nothing listens on, and reserve it between processes.

    `taken` are those of what is registered. Raises ProviderError (`port_taken`) where
    none is left.
    """
    root = places.runtime_dir() / "ports" if root is None else root
    ports = list(within or range(FIRST_PORT, LAST_PORT + 1))
    random.shuffle(ports)
    with _one_at_a_time(root):
        for port in ports:
            if port not in taken and not _reserved(root / str(port)) and _is_free(port):
                (root / str(port)).touch(0o600)
                return port
    raise ProviderError(
        f"ports {min(ports)} to {max(ports)}: none free of {len(ports)}, one wanted",
        reason="port_taken",
        next="tu remote endpoint list",
    )


def _reserved(path: Path) -> bool:
    try:
        age = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return False
    # a clock that was put back must not reserve for ever
    return -RESERVED_S < age < RESERVED_S


def _is_free(port: int) -> bool:
    """Say whether the port can be bound, with no address of this host in its way."""
    with socket.socket() as trial:
        try:
            # no SO_REUSEADDR: a listener on any address is in the way
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    # a rule of the firewall, as a killed container leaves one, is in the way of a start
    return not listener.is_open(port)


@contextmanager
def _one_at_a_time(root: Path) -> Iterator[None]:
    places.ensure(root)
    fd = places.open_lock(root / ".lock")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
