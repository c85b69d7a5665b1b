"""The memory of endpoints with budgets: admitted like any provider, held like any."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from remote_resident import (
    admission,
    machine,
    places,
    processes,
    reservation,
    retiring,
    room,
    whole_file,
)
from remote_resident.admission import Budget, Holder, Readings, Verdict
from remote_resident.endpoints import containers
from remote_resident.endpoints.record import Endpoint


class Crowded(Exception):
    """There would be memory if these endpoints had left; `verdict` says what is missing."""

    def __init__(self, names: Sequence[str], verdict: Verdict) -> None:
        super().__init__(verdict.text)
        self.names = tuple(names)
        self.verdict = verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What a decision is taken on, read anew each time."""

    readings: Callable[[], Readings] = machine.readings
    holders: Callable[[], list[Holder]] = room.holders


def budget(endpoint: Endpoint) -> Budget | None:
    """Give what an endpoint may take; None: it declares nothing and is not counted."""
    vram, ram = endpoint.vram_budget_gb, endpoint.ram_budget_gb
    if vram is None and ram is None:
        return None
    return Budget(
        vram_gb=vram,
        ram_gb=ram,
        source="registered",
        # a registration cannot say more than that it did not measure it
        ram_unmeasured=ram is None,
    )


def is_whole(endpoint: Endpoint) -> bool:
    """Say whether an endpoint declares both of its budgets."""
    return None not in (endpoint.vram_budget_gb, endpoint.ram_budget_gb)


@contextlib.contextmanager
def admitted(
    endpoint: Endpoint, instance: str, host: Host, others: Sequence[str] = ()
) -> Iterator[None]:
    """Hold the room for a start until the block ends: spawn inside it.

    Idle workers of this user are retired where that makes it fit. `others` are the
    instances of endpoints that could leave, least recently used first. Raises Crowded
    where some of them must, AdmissionRefused, and ProviderError (`locked`). An endpoint
    without budgets is let through.
    """
    wanted = budget(endpoint)
    if wanted is None:
        yield
        return

    def decided() -> Verdict:
        return admission.decide(
            endpoint.name, wanted, host.holders(), readings=host.readings()
        )

    with reservation.reserve():
        verdict = decided()
        if not verdict.admit:
            _refuse_crowded(verdict, others)
            verdict, _ = room.make_room(verdict, decided)
        verdict.raise_if_refused()
        hold(endpoint, instance, (), loading=True)
        try:
            yield
        except BaseException:
            release(endpoint.name)
            raise


def _refuse_crowded(verdict: Verdict, others: Sequence[str]) -> None:
    """Raise Crowded where endpoints must leave, the idle workers gone or not."""
    by_instance = {holder.instance: holder for holder in verdict.holders}
    leaving = [by_instance[one] for one in others if one in by_instance]
    if not leaving or retiring.to_retire(verdict, workers := _idle(verdict)):
        return
    chosen = retiring.to_retire(verdict, [*workers, *leaving])
    names = [holder.slug for holder in chosen if holder in leaving]
    if names:
        raise Crowded(names, verdict)


def _idle(verdict: Verdict) -> list[Holder]:
    return [holder for holder in verdict.holders if room.ask_idle_s(holder) is not None]


def hold(
    endpoint: Endpoint, instance: str, pids: Sequence[int], *, loading: bool
) -> None:
    """Write down for every decision on this machine what a service may take."""
    if budget(endpoint) is None:
        return
    document = {
        "slug": endpoint.name,
        "instance": instance,
        "pids": list(pids),
        "began": [processes.started_at(pid) for pid in pids],
        "daemon": [os.getpid(), processes.started_at(os.getpid())],
        "contained": bool(containers.engines(endpoint)),
        "vram_gb": endpoint.vram_budget_gb,
        "ram_gb": endpoint.ram_budget_gb,
        "loading": loading,
        "boot_id": room.boot_id(),
    }
    whole_file.write(_path(endpoint.name), json.dumps(document).encode())


def release(name: str) -> None:
    """Say that a service holds nothing any more."""
    whole_file.remove(_path(name))


def held() -> list[str]:
    """List the names of what is written down."""
    with contextlib.suppress(OSError):
        return sorted(path.stem for path in _path("x").parent.glob("*.json"))
    return []


def _path(name: str) -> Path:
    return places.state_dir() / "held" / f"{name}.json"
