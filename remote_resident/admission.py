"""Is there room for one more: budgets and readings in, a verdict out.

Every number is GiB (2**30 bytes). None is unknown, which is never summed as nothing:
what cannot be read or was not declared refuses, by name. Nothing here reads the machine;
`room` does, and asks here. `holdings` is what is decided on, `pools` the sums.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from remote_resident.errors import AdmissionRefused
from remote_resident.holdings import (
    NOTHING_READ,
    UNKNOWN,
    Budget,
    Gpu,
    GpuProcess,
    Holder,
    Memory,
    Readings,
    is_named,
)
from remote_resident.pools import Case, Pool, device_pools, gib, host_pool, known_sum

__all__ = [
    "RESERVE_GB",
    "UNKNOWN",
    "Budget",
    "Gpu",
    "GpuProcess",
    "Holder",
    "Memory",
    "Readings",
    "Verdict",
    "decide",
    "visible",
]

RESERVE_GB = 4.0
"""What stays free in each pool after a start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer, with every number that it rests on."""

    admit: bool
    reason: str
    """Reason token; empty when admitted."""
    text: str
    slug: str
    device: str | None
    """UUID of the device to use; None: no device, or one without a UUID."""
    budget: Budget
    reserve_gb: float
    pools: tuple[Pool, ...]
    """Every pool that was asked; the first is the one that the numbers below are of."""
    holders: tuple[Holder, ...]
    notes: tuple[str, ...] = ()
    """What a reader must know beside the numbers."""
    gate: str = ""
    """declared, live, shareable, budget or device: what refused, or what was passed."""
    partial: bool = False
    readings: Readings | None = field(default=None, repr=False)
    pin: str | None = None
    """CUDA_VISIBLE_DEVICES as the operator or the manifest set it."""

    @property
    def pool(self) -> Pool | None:
        """Give the pool that decided; None when no pool was asked."""
        return self.pools[0] if self.pools else None

    def as_dict(self) -> dict[str, object]:
        """Give the JSON shape of a verdict, numbers unrounded, None for unknown."""
        pool = self.pool
        return {
            "admit": self.admit,
            "reason": self.reason,
            "text": self.text,
            "slug": self.slug,
            "device": self.device,
            "budget": self.budget.as_dict(),
            "pool": pool.kind if pool else None,
            "need_gb": pool.need_gb if pool else None,
            "capacity_gb": pool.capacity_gb if pool else None,
            "capacity_source": pool.capacity_source if pool else None,
            "declared_gb": pool.declared_gb if pool else None,
            "loading_gb": pool.loading_gb if pool else None,
            "free_gb": pool.free_gb if pool else None,
            "available_gb": pool.available_gb if pool else None,
            "gate": self.gate,
            "co_tenants": list(pool.co_tenants) if pool else [],
            "reserve_gb": self.reserve_gb,
            "unknown_budgets": list(pool.unknown_budgets) if pool else [],
            "holders": [holder.as_dict() for holder in self.holders],
            "pools": [asdict(pool) for pool in self.pools],
            "notes": list(self.notes),
            "partial": self.partial,
        }

    def raise_if_refused(self) -> None:
        """Raise AdmissionRefused with every number of the refusal; nothing if admitted."""
        if not self.admit:
            raise AdmissionRefused(self.text, verdict=self, reason=self.reason)


def decide(
    slug: str,
    budget: Budget,
    held: Iterable[Holder],
    *,
    reserve_gb: float = RESERVE_GB,
    readings: Readings | None = None,
    pin: str | None = None,
) -> Verdict:
    """Say whether a provider with this budget fits beside what is held.

    Pure: the same arguments give the same verdict. `readings` None: nothing was read,
    which refuses. `pin` is a CUDA_VISIBLE_DEVICES value that limits the devices.
    """
    case = Case(
        slug=slug,
        budget=budget,
        held=tuple(held),
        reserve_gb=reserve_gb,
        readings=readings or NOTHING_READ,
        pin=pin,
    )
    if budget.vram_gb == 0.0:
        return _verdict(case, None, (host_pool(case, budget.ram_gb),))
    devices = visible(case.readings.gpus, pin)
    if not devices:
        return _no_device(case)
    return _best_fit(case, [(gpu, device_pools(case, gpu)) for gpu in devices])


def visible(gpus: Iterable[Gpu], pin: str | None) -> list[Gpu]:
    """List the devices that a CUDA_VISIBLE_DEVICES value leaves; None: all of them."""
    return [gpu for gpu in gpus if pin is None or is_named(gpu, pin)]


def _best_fit(case: Case, judged: list[tuple[Gpu, tuple[Pool, ...]]]) -> Verdict:
    """Take the device that the start leaves fullest; without one, the emptiest's no."""

    def slack(pools: tuple[Pool, ...]) -> float:
        free = pools[0].free_gb
        return float("-inf") if free is None else free - (pools[0].loading_gb or 0.0)

    fitting = [one for one in judged if not any(pool.refused for pool in one[1])]
    if fitting:
        return _verdict(case, *min(fitting, key=lambda one: slack(one[1])))
    return _verdict(case, *max(judged, key=lambda one: slack(one[1])))


def _verdict(case: Case, gpu: Gpu | None, pools: tuple[Pool, ...]) -> Verdict:
    refusing = [pool for pool in pools if pool.refused]
    ordered = (*refusing, *(pool for pool in pools if not pool.refused))
    first = ordered[0]
    told = "; ".join(
        f"{pool.refused}; {_told(pool, case.reserve_gb)}".removeprefix("; ")
        for pool in refusing or ordered
    )
    notes = _notes(case)
    answer = "no room" if refusing else "room"
    where = f" on {gpu}" if gpu else ""
    return Verdict(
        admit=not refusing,
        reason=first.reason,
        text="; ".join((f"{case.slug}: {answer}{where}: {told}", *notes)),
        slug=case.slug,
        device=gpu.uuid if gpu else None,
        budget=case.budget,
        reserve_gb=case.reserve_gb,
        pools=ordered,
        holders=case.held,
        notes=notes,
        gate=first.gate,
        partial=bool(case.readings.partial),
        readings=case.readings,
        pin=case.pin,
    )


def _no_device(case: Case) -> Verdict:
    seen = ", ".join(map(str, case.readings.gpus)) or "none"
    wanted = f"one of CUDA_VISIBLE_DEVICES={case.pin}"
    wanted = "a device" if case.pin is None else wanted
    vram = gib(case.budget.vram_gb)
    return Verdict(
        admit=False,
        reason="no_gpu",
        text=f"{case.slug}: {wanted} with {vram} wanted, devices found: {seen}; "
        "host memory is not device memory",
        slug=case.slug,
        device=None,
        budget=case.budget,
        reserve_gb=case.reserve_gb,
        pools=(),
        holders=case.held,
        gate="device",
        partial=bool(case.readings.partial),
        readings=case.readings,
        pin=case.pin,
    )


def _notes(case: Case) -> tuple[str, ...]:
    notes = []
    if case.budget.ram_gb is None and case.budget.ram_unmeasured:
        notes.append("the RAM budget is not measured: judged by what is free now")
    if case.budget.measuring and None in (case.budget.vram_gb, case.budget.ram_gb):
        notes.append("the budget is unknown: this start measures it")
    if case.readings.partial:
        why = case.readings.partial
        told = why if isinstance(why, str) else "processes of others are not seen"
        notes.append(f"the process table is partial: {told}")
    return tuple(notes)


def _told(pool: Pool, reserve_gb: float) -> str:
    """Tell a pool's numbers, unrounded: what the two gates compare."""
    wanted = f"{gib(pool.need_gb)} wanted"
    reserve = f"{gib(reserve_gb)} reserve"
    others = f" ({', '.join(pool.co_tenants)})" if pool.co_tenants else ""
    declared = known_sum(pool.need_gb, pool.declared_gb, reserve_gb)
    now = known_sum(pool.need_gb, pool.loading_gb, reserve_gb)
    return (
        f"{pool.name}: {wanted} + {gib(pool.declared_gb)} declared by others{others} "
        f"+ {reserve} = {gib(declared)} of {gib(pool.capacity_gb)} "
        f"({pool.capacity_source}); {wanted} + {gib(pool.loading_gb)} that others "
        f"are still to take + {reserve} = {gib(now)} of {gib(pool.free_gb)} free "
        f"({gib(pool.available_gb)} available)"
    )
