"""One run of an endpoint's service: begun, stopped, and what is left of it looked for."""

import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from remote_resident import processes
from remote_resident.endpoints import containers, listener, remains
from remote_resident.endpoints.cut import Cut
from remote_resident.endpoints.listener import Listener, Owner
from remote_resident.endpoints.readiness import DEAD_S
from remote_resident.endpoints.record import Endpoint
from remote_resident.endpoints.remains import Remains, failure
from remote_resident.endpoints.scripts import Run, environment, finish
from remote_resident.endpoints.swap import Failure
from remote_resident.errors import ProviderError

SETTLE_S = 10.0
"""How long the port and the processes may outlast a stop script that returned, within
the time that the stop has."""
_LEAST_SETTLE_S = 1.0
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.005, 0.1
_SWEEP_GRACE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long, in seconds, what is on its way out may take."""

    settle_s: float = SETTLE_S
    dead_s: float = DEAD_S
    """How long nothing of a start may be alive."""
    dying_s: float = 2.0
    """How long a cell may take to end by itself once its service has died."""
    swept_s: float = 2.0
    """How long what was ended may still be seen."""


@dataclass(slots=True, kw_only=True)
class Service:
    """A run of an endpoint: its instance, and what this daemon knows of it."""

    endpoint: Endpoint
    """As it was when it was started: its own bytes stop it."""
    instance: str
    patience: Patience = Patience()
    begun: float = field(default_factory=time.time)
    """Seconds since the epoch."""
    asked: bool = False
    """Its script was started and its route is asked."""
    run: Run | None = None
    listener: Listener | None = None
    hide: str | None = None
    """The credential's value, to be kept out of transcripts."""
    cut: Cut = field(default_factory=Cut)
    """Its start, or the watch over it, is to end."""
    orphans: tuple[Owner, ...] = ()
    """Its processes that are this one's children, as seen when it became ready."""
    thread: threading.Thread | None = None
    """Who starts and watches it."""

    @property
    def port(self) -> int:
        """Give its port."""
        assert self.endpoint.port is not None
        return self.endpoint.port

    def env(self) -> dict[str, str]:
        """Give what its scripts have in their environment, but the credential."""
        return environment(self.endpoint, self.instance)

    def telling(self) -> list[int]:
        """List the processes whose ends tell something: who listens, the start script."""
        owners = () if self.listener is None else self.listener.owners
        found = _still(owners)
        if self.run is not None and self.run.poll() is None:
            found.append(self.run.process.pid)
        return found


def refuse_stranger(service: Service) -> None:
    """Raise ProviderError (`port_taken`) where another has the port before the start.

    The endpoint's own container that runs already is none: a start script finds it warm.
    """
    endpoint, port = service.endpoint, service.port
    if not listener.is_open(port):
        return
    if containers.publishing(endpoint, service.env()) is not None:
        return
    raise ProviderError(
        f"{endpoint.name}: port {port}: {listener.stranger(port)} found listening, "
        "nobody wanted",
        reason="port_taken",
        next=listener.search(port),
    )


def stop(service: Service, *, settle: bool = True) -> Failure | None:
    """Run the stop script and see it through; None: stopped, else why not.

    It counts only when the script returned 0, the port is closed and its processes are
    gone, soon after at the latest; without `settle` at once. Bounded by
    `stop_timeout_s` and _LEAST_SETTLE_S.
    """
    endpoint = service.endpoint
    until = time.monotonic() + endpoint.stop_timeout_s
    try:
        run = Run.begin(endpoint, "stop", service.instance, hide=service.hide)
    except (OSError, ProviderError) as exc:
        return failure(endpoint, f"stop cannot be run: {exc}", left(service))
    status = finish(run, endpoint.stop_timeout_s, _still(service.orphans))
    spare_s = min(
        service.patience.settle_s, max(_LEAST_SETTLE_S, until - time.monotonic())
    )
    rest = left(service, spare_s if settle else 0.0)
    if service.run is not None:
        service.run.poll()
    if status == 0 and not rest:
        return None
    run.settle()
    said = f"stop returned {status}"
    if run.timed_out:
        said = f"stop did not return within {endpoint.stop_timeout_s!r} s"
    return failure(endpoint, said, rest)


def orphans(service: Service) -> tuple[Owner, ...]:
    """Find those of its processes that were handed to this one, as their sub-reaper."""
    own = None if service.run is None else service.run.process.pid
    return tuple(
        Owner(pid=process.pid, started=process.started)
        for process in processes.process_table().values()
        if process.instance == service.instance
        and process.ppid == os.getpid()
        and process.pid != own
    )


def _still(owners: Iterable[Owner]) -> list[int]:
    return [owner.pid for owner in owners if listener.owner_of(owner.pid) == (owner,)]


def left(service: Service, within_s: float = 0.0) -> list[Remains]:
    """Find what is left of a service, looking again for a while; empty: nothing."""
    until = time.monotonic() + within_s
    pause_s = _FIRST_PAUSE_S
    while found := remains.find(service.endpoint, service.instance, service.env()):
        if time.monotonic() >= until:
            return found
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _LAST_PAUSE_S)
    return []


def sweep(service: Service) -> None:
    """End every process of a service that failed or died; containers are not removed."""
    session = None if service.run is None else service.run.process.pid
    processes.end_all(service.instance, grace_s=_SWEEP_GRACE_S, session=session)
    if service.run is not None:
        service.run.settle()


def pids(service: Service) -> list[int]:
    """List the processes of a service, its container's first one too."""
    found = containers.find(service.endpoint, service.env())
    inside = [one.pid for one in found if one.running and one.pid is not None]
    return [*processes.members(service.instance), *inside]
