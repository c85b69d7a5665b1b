"""What is left of a service that was to be stopped: in words, and what ends it."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from shlex import quote

from remote_resident import processes
from remote_resident.endpoints import containers, listener
from remote_resident.endpoints.containers import Container
from remote_resident.endpoints.record import Endpoint
from remote_resident.endpoints.swap import Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """One thing that is still there."""

    text: str
    next: str
    """The command that ends it, or shows who can."""


def find(endpoint: Endpoint, instance: str, env: Mapping[str, str]) -> list[Remains]:
    """List what is left, the port first; empty: nothing."""
    pids = processes.members(instance)
    found = list(_port(endpoint))
    if pids:
        numbers = [str(pid) for pid in pids]
        text = f"processes still there ({', '.join(numbers)})"
        found.append(Remains(text=text, next=f"kill {' '.join(numbers)}"))
    for container in containers.find(endpoint, env):
        found += _container(endpoint, container)
    return found


def _port(endpoint: Endpoint) -> Iterator[Remains]:
    port = endpoint.port
    assert port is not None
    if listener.is_open(port):
        who = listener.stranger(port)
        pid = who.split()[1] if who.startswith("pid ") else None
        yield Remains(
            text=f"port still bound ({port}, {who})",
            next=f"kill {pid}" if pid else listener.search(port),
        )


def _container(endpoint: Endpoint, found: Container) -> Iterator[Remains]:
    name, engine = endpoint.name, PurePath(found.engine).name
    if os.geteuid() != 0 and engine == "podman":
        # its containers are below the home that the scripts have
        engine = f"HOME={quote(endpoint.service_dir or '')} {engine}"
    if found.running is None:
        text = f"container not known ({found.said})"
        yield Remains(text=text, next=f"{engine} container inspect {name}")
    elif found.paused:
        again = f"tu remote endpoint stop {name}"
        yield Remains(
            text=f"container paused ({name})",
            next=f"{engine} unpause {name} && {again}",
        )
    elif found.running:
        text = f"container still running ({name})"
        yield Remains(text=text, next=f"{engine} stop {name}")


def failure(endpoint: Endpoint, said: str, rest: Sequence[Remains]) -> Failure:
    """Say why a stop does not count: what the script said, what it left, what helps.

    The last of what is left is what has the others: a container its processes and
    its port.
    """
    name = endpoint.name
    if not rest:
        return Failure(
            reason="stop_failed",
            text=f"{name}: {said}",
            next=f"tu remote endpoint logs {name}",
        )
    what = ", ".join(one.text for one in rest)
    return Failure(
        reason="stop_failed",
        text=f"{name}: {said}, {what}; {name} holds the device until that is gone",
        next=rest[-1].next,
    )
