"""The memories that budgets are spent from, and the gates of each.

Pure, as `admission` is: what one holder is taken to hold of a pool, what a candidate asks
of it, and why it refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import fsum

from remote_resident.holdings import Budget, Gpu, Holder, Readings, may_be_on, used_on


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One memory that budgets are spent from, as a decision saw it."""

    kind: str
    """device, host or unified."""
    name: str
    capacity_gb: float | None
    capacity_source: str
    declared_gb: float
    """Sum of the holders' known budgets in this pool."""
    loading_gb: float | None
    """What holders that still load have yet to take; None: not known."""
    free_gb: float | None
    """Free now by the rule of this pool."""
    available_gb: float | None
    """What the kernel could free besides; equals `free_gb` on a device."""
    co_tenants: tuple[str, ...]
    unknown_budgets: tuple[str, ...]
    """Holders whose budget in this pool is not known."""
    need_gb: float | None
    """What the candidate asks of this pool; None: not known."""
    refused: str = ""
    """Why this pool refuses; empty: it has room."""
    reason: str = ""
    gate: str = ""
    """The gates that were passed, or the one that refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that one decision is about."""

    slug: str
    budget: Budget
    held: tuple[Holder, ...]
    reserve_gb: float
    readings: Readings
    pin: str | None


def device_pools(case: Case, gpu: Gpu) -> tuple[Pool, ...]:
    """Judge what a start on this device would spend: its memory, and the host's."""
    if gpu.unified:
        need = known_sum(case.budget.vram_gb, case.budget.ram_gb)
        if case.budget.ram_unmeasured and case.budget.ram_gb is None:
            need = case.budget.vram_gb
        pool = host_pool(case, need)
        return (_apart(case, gpu, pool),)
    device = _apart(case, gpu, _card_pool(case, gpu))
    return (device, host_pool(case, case.budget.ram_gb))


def _card_pool(case: Case, gpu: Gpu) -> Pool:
    shares = []
    for holder in case.held:
        if may_be_on(holder, gpu, case.readings.gpus):
            used = used_on(holder, gpu)
            shares.append(_Share(holder, holder.budget.vram_gb, used))
    why = gpu.unknown.get("total_gb") or gpu.unknown.get("free_gb") or ""
    pool = _held(
        shares,
        kind="device",
        name=str(gpu),
        capacity_gb=gpu.total_gb,
        capacity_source=f"{gpu}" + (f": {why}" if why else ""),
    )
    pool = replace(
        pool,
        need_gb=case.budget.vram_gb,
        free_gb=gpu.free_gb,
        available_gb=gpu.free_gb,
        co_tenants=_co_tenants(shares, [gpu]),
    )
    return _gated(case, pool, skip_declared=False)


def host_pool(case: Case, need_gb: float | None) -> Pool:
    """Judge what a start would spend of the host's memory."""
    gpus = case.readings.gpus
    unified = [gpu for gpu in gpus if gpu.unified is not False]
    shares = [_host_share(holder, unified, gpus) for holder in case.held]
    mem = case.readings.mem
    is_unified = any(gpu.unified for gpu in unified)
    tenants = _co_tenants(shares, unified)
    free_gb = mem.available_gb
    if is_unified and tenants:
        # beside co-tenants what is merely available is not there in time
        free_gb = _least(mem.free_gb, mem.available_gb)
    pool = _held(
        shares,
        kind="unified" if is_unified else "host",
        name="unified memory" if is_unified else "host memory",
        capacity_gb=mem.total_gb,
        capacity_source=mem.source,
    )
    pool = replace(
        pool,
        need_gb=need_gb,
        free_gb=free_gb,
        available_gb=mem.available_gb,
        co_tenants=tenants,
    )
    skip = case.budget.ram_unmeasured and need_gb is None
    return _gated(case, pool, skip_declared=skip)


@dataclass(frozen=True, slots=True)
class _Share:
    """What one holder's budget asks of one pool, and what it has taken of it."""

    holder: Holder
    budget_gb: float | None
    taken_gb: float

    @property
    def yet_to_take_gb(self) -> float | None:
        if self.holder.loading is False:
            return 0.0
        if self.budget_gb is None:
            return None
        return max(0.0, self.budget_gb - self.taken_gb)


def _host_share(holder: Holder, unified: list[Gpu], gpus: Sequence[Gpu]) -> _Share:
    budget_gb = holder.budget.ram_gb
    taken_gb = holder.resident_gb or 0.0
    if budget_gb is None and holder.budget.ram_unmeasured and holder.loading is False:
        # declared as unmeasured and loaded: what it holds is the only number there is
        budget_gb = holder.resident_gb
    for gpu in unified:
        taken_gb += used_on(holder, gpu)
    if any(may_be_on(holder, gpu, gpus) for gpu in unified):
        budget_gb = known_sum(budget_gb, holder.budget.vram_gb)
    return _Share(holder, budget_gb, taken_gb)


def _held(
    shares: Sequence[_Share],
    *,
    kind: str,
    name: str,
    capacity_gb: float | None,
    capacity_source: str,
) -> Pool:
    known = [share.budget_gb for share in shares if share.budget_gb is not None]
    loading_gb = known_sum(*(share.yet_to_take_gb for share in shares))
    return Pool(
        kind=kind,
        name=name,
        capacity_gb=capacity_gb,
        capacity_source=capacity_source,
        declared_gb=fsum(known),
        loading_gb=loading_gb,
        free_gb=None,
        available_gb=None,
        co_tenants=(),
        unknown_budgets=tuple(str(s.holder) for s in shares if s.budget_gb is None),
        need_gb=None,
    )


def _gated(case: Case, pool: Pool, *, skip_declared: bool) -> Pool:
    """Put the candidate to the pool's two gates and write down what refused."""
    if pool.need_gb is None and not skip_declared:
        return _measuring_gate(case, pool)
    refused = None if skip_declared else _declared_refusal(case, pool)
    if refused:
        return _refusing(pool, "declared", *refused)
    refused = _live_refusal(case, pool)
    if refused:
        return _refusing(pool, "live", *refused)
    return replace(pool, gate="live" if skip_declared else "declared, live")


def _measuring_gate(case: Case, pool: Pool) -> Pool:
    """Judge a candidate of unknown budget: only its smoke, and only alone."""
    if not case.budget.measuring:
        said = f"its own budget in {pool.name} is unknown ({case.budget.source})"
        return _refusing(pool, "budget", "budget_unknown", said)
    if pool.co_tenants:
        others = ", ".join(pool.co_tenants)
        said = (
            f"its budget is unknown and can only be measured alone in {pool.name}, "
            f"which is held by {others}"
        )
        return _refusing(pool, "budget", "budget_unknown", said)
    refused = _live_refusal(case, pool)
    if refused:
        return _refusing(pool, "live", *refused)
    return replace(pool, gate="live")


def _declared_refusal(case: Case, pool: Pool) -> tuple[str, str] | None:
    if pool.unknown_budgets:
        names = ", ".join(pool.unknown_budgets)
        return "budget_unknown", f"unknown budget in {pool.name} held by {names}"
    if pool.capacity_gb is None:
        return _unread(pool, "capacity")
    wanted = fsum((pool.declared_gb, pool.need_gb or 0.0, case.reserve_gb))
    if wanted > pool.capacity_gb:
        return "no_room", (
            f"{gib(wanted)} of {pool.name} would be declared, "
            f"{gib(pool.capacity_gb)} are there"
        )
    return None


def _live_refusal(case: Case, pool: Pool) -> tuple[str, str] | None:
    if pool.loading_gb is None:
        names = ", ".join(pool.unknown_budgets)
        return "budget_unknown", (
            f"what still loads into {pool.name} is unknown: {names}"
        )
    if pool.free_gb is None:
        return _unread(pool, "free memory")
    wanted = fsum((pool.loading_gb, pool.need_gb or 0.0, case.reserve_gb))
    if wanted > pool.free_gb:
        return "no_room", (
            f"{gib(wanted)} of {pool.name} would be taken, {gib(pool.free_gb)} are free"
        )
    return None


def _unread(pool: Pool, what: str) -> tuple[str, str]:
    timed_out = "no answer within" in pool.capacity_source
    said = f"{what} of {pool.name} is unknown ({pool.capacity_source})"
    return "probe_timeout" if timed_out else "no_room", said


def _refusing(pool: Pool, gate: str, reason: str, refused: str) -> Pool:
    return replace(pool, gate=gate, reason=reason, refused=refused)


def _apart(case: Case, gpu: Gpu, pool: Pool) -> Pool:
    """Refuse a device that is not shared: by the candidate, or by who is on it."""
    there = [h for h in case.held if may_be_on(h, gpu, case.readings.gpus)]
    alone = [str(holder) for holder in there if not holder.budget.shareable]
    if alone:
        said = f"{', '.join(alone)} must be alone on {gpu}"
        return _refusing(pool, "shareable", "not_shareable", said)
    tenants = [*map(str, there), *_strangers(there, [gpu])]
    if tenants and not case.budget.shareable:
        said = f"it must be alone on {gpu}, which is held by {', '.join(tenants)}"
        return _refusing(pool, "shareable", "not_shareable", said)
    return pool


def _co_tenants(shares: Sequence[_Share], gpus: Sequence[Gpu]) -> tuple[str, ...]:
    holders = [share.holder for share in shares]
    return (*map(str, holders), *_strangers(holders, gpus))


def _strangers(held: Iterable[Holder], gpus: Sequence[Gpu]) -> Iterator[str]:
    """Name the compute processes that are no holder's, once each."""
    known = {pid for holder in held for pid in holder.pids}
    for gpu in gpus:
        if gpu.processes is None:
            yield f"unknown processes on {gpu}"
            continue
        for process in gpu.processes:
            if process.pid not in known:
                known.add(process.pid)
                yield f"process {process.pid} on {gpu}"


def gib(number: float | None) -> str:
    """Write a number of GiB, unrounded."""
    return "unknown" if number is None else f"{number!r} GiB"


def known_sum(*numbers: float | None) -> float | None:
    """Add up; None where one of them is not known."""
    known = [number for number in numbers if number is not None]
    return fsum(known) if len(known) == len(numbers) else None


def _least(*numbers: float | None) -> float | None:
    known = [number for number in numbers if number is not None]
    return min(known) if len(known) == len(numbers) else None
