"""Is there room for one more: budgets and readings in, a verdict out.

Every number is GiB (2**30 bytes). None is unknown, which is never summed as nothing:
what cannot be read or was not declared refuses, by name. Nothing here reads the machine;
`room_for` hands on to `remote_resident.room`, which does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import fsum
from typing import TYPE_CHECKING

from remote_resident.errors import AdmissionRefused
from remote_resident.printable import escaped

if TYPE_CHECKING:
    pass

RESERVE_GB = 4.0
"""What stays free in each pool after a start."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The memory that a provider may take at its peak, and on what terms."""

    vram_gb: float | None
    """0.0: no device wanted; None: nobody has measured it."""
    ram_gb: float | None
    source: str
    """Where the numbers come from: declared, measured, a ladder's step, unknown."""
    shareable: bool = True
    """False: alone on its device."""
    ram_unmeasured: bool = False
    """The manifest says of itself that nobody measured the host memory."""
    measuring: bool = False
    """This very start is the smoke that measures the budget."""

    def as_dict(self) -> dict[str, object]:
        """Give the JSON shape of a budget."""
        return {"vram_gb": self.vram_gb, "ram_gb": self.ram_gb, "source": self.source}


UNKNOWN = Budget(None, None, "unknown")
"""The budget of a holder of whom nothing could be read."""


@dataclass(frozen=True, slots=True)
class Holder:
    """One instance of a worker that is alive on this machine, whoever started it."""

    slug: str
    tree: str | None
    instance: str | None
    """None: a worker that carries no instance."""
    pids: tuple[int, ...]
    """Oldest first; empty for a service whose processes are not known."""
    uid: int | None
    device: str | None
    """CUDA_VISIBLE_DEVICES as the worker has it; None: not set or not readable."""
    budget: Budget
    loading: bool | None
    """It may still take what it has not taken; None: not known, judged as loading."""
    resident_gb: float | None
    """Host memory that it holds now, at least."""
    started: float | None = None
    """Seconds since the epoch."""
    socket: str | None = None
    manifest_dir: str | None = None
    """Where its manifest is, when it says so itself."""

    def __str__(self) -> str:
        """Name the holder for a person: slug, tree and process, on one line."""
        where = [self.tree] if self.tree else []
        where += [f"pid {self.pids[0]}"] if self.pids else []
        name = f"{self.slug} ({', '.join(where)})" if where else self.slug
        # an argv is what its owner wrote: a line break would forge lines of ours
        return escaped(name, kept="")

    def as_dict(self) -> dict[str, object]:
        """Give the JSON shape of a holder."""
        shape = asdict(self)
        del shape["manifest_dir"]
        return {**shape, "pids": list(self.pids), "budget": self.budget.as_dict()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The host's memory; None = the kernel does not say."""

    total_gb: float | None
    free_gb: float | None
    available_gb: float | None
    cached_gb: float | None = None
    source: str = "MemTotal"
    """What `total_gb` is: MemTotal, or the cgroup that lowers it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that computes on a device."""

    pid: int
    used_gb: float | None = None
    """Device memory; None: the driver does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A device, or one MIG instance of it; each field by itself may be unknown."""

    index: int | None
    uuid: str | None
    name: str | None = None
    driver: str | None = None
    compute_capability: str | None = None
    total_gb: float | None = None
    free_gb: float | None = None
    unified: bool | None = False
    """True: its memory is the host's; None: not known."""
    mig: bool | None = False
    """True: this is one MIG instance."""
    parent: str | None = None
    """UUID of the device that a MIG instance is a part of."""
    processes: tuple[GpuProcess, ...] | None = ()
    """Compute processes on it; None: not known."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Why a field is None, by the field's name."""

    def __str__(self) -> str:
        """Name the device for a person."""
        known = [self.uuid or "", self.name or ""]
        number = "?" if self.index is None else str(self.index)
        return f"device {number} ({', '.join(filter(None, known)) or 'unknown'})"


@dataclass(frozen=True, slots=True)
class Readings:
    """What was read of the machine for one decision."""

    mem: Memory
    gpus: Sequence[Gpu]
    partial: bool | str = False
    """True, or why: not every process of the machine could be seen."""


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
    case = _Case(
        slug=slug,
        budget=budget,
        held=tuple(held),
        reserve_gb=reserve_gb,
        readings=readings or _NOTHING_READ,
        pin=pin,
    )
    if budget.vram_gb == 0.0:
        return case.verdict(None, (_host_pool(case, budget.ram_gb),))
    devices = visible(case.readings.gpus, pin)
    if not devices:
        return case.no_device()
    return _best_fit(case, [(gpu, _device_pools(case, gpu)) for gpu in devices])


def visible(gpus: Iterable[Gpu], pin: str | None) -> list[Gpu]:
    """List the devices that a CUDA_VISIBLE_DEVICES value leaves; None: all of them."""
    return [gpu for gpu in gpus if pin is None or _is_named(gpu, pin)]


def to_retire(verdict: Verdict, idle: Sequence[Holder]) -> list[Holder]:
    """Choose whom to retire so that a refused provider fits: as few as needed.

    `idle` is in the order to be asked, least recently used first. Empty when it would
    not fit with all of them gone, or needs none of them gone.
    """
    if verdict.admit or not _fits_without(verdict, idle):
        return []
    chosen: list[Holder] = []
    for holder in idle:
        chosen.append(holder)
        if _fits_without(verdict, chosen):
            break
    # the latest of them made it fit; earlier ones may have helped nothing
    for holder in chosen[-2::-1]:
        others = [other for other in chosen if other is not holder]
        if _fits_without(verdict, others):
            chosen = others
    return chosen


_NOTHING_READ = Readings(
    Memory(total_gb=None, free_gb=None, available_gb=None, source="not read"),
    (),
    partial="nothing was read",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """All that one decision is about."""

    slug: str
    budget: Budget
    held: tuple[Holder, ...]
    reserve_gb: float
    readings: Readings
    pin: str | None

    def verdict(self, gpu: Gpu | None, pools: tuple[Pool, ...]) -> Verdict:
        refusing = [pool for pool in pools if pool.refused]
        ordered = (*refusing, *(pool for pool in pools if not pool.refused))
        first = ordered[0]
        told = "; ".join(
            f"{pool.refused}; {_told(pool, self.reserve_gb)}".removeprefix("; ")
            for pool in refusing or ordered
        )
        notes = self._notes(gpu)
        answer = "no room" if refusing else "room"
        where = f" on {gpu}" if gpu else ""
        return Verdict(
            admit=not refusing,
            reason=first.reason,
            text="; ".join((f"{self.slug}: {answer}{where}: {told}", *notes)),
            slug=self.slug,
            device=gpu.uuid if gpu else None,
            budget=self.budget,
            reserve_gb=self.reserve_gb,
            pools=ordered,
            holders=self.held,
            notes=notes,
            gate=first.gate,
            partial=bool(self.readings.partial),
            readings=self.readings,
            pin=self.pin,
        )

    def no_device(self) -> Verdict:
        seen = ", ".join(map(str, self.readings.gpus)) or "none"
        wanted = f"one of CUDA_VISIBLE_DEVICES={self.pin}"
        wanted = "a device" if self.pin is None else wanted
        vram = _gib(self.budget.vram_gb)
        return Verdict(
            admit=False,
            reason="no_gpu",
            text=f"{self.slug}: {wanted} with {vram} wanted, devices found: {seen}; "
            "host memory is not device memory",
            slug=self.slug,
            device=None,
            budget=self.budget,
            reserve_gb=self.reserve_gb,
            pools=(),
            holders=self.held,
            gate="device",
            partial=bool(self.readings.partial),
            readings=self.readings,
            pin=self.pin,
        )

    def _notes(self, gpu: Gpu | None) -> tuple[str, ...]:
        notes = []
        if self.budget.ram_gb is None and self.budget.ram_unmeasured:
            notes.append("the RAM budget is not measured: judged by what is free now")
        if self.budget.measuring and None in (self.budget.vram_gb, self.budget.ram_gb):
            notes.append("the budget is unknown: this start measures it")
        if self.readings.partial:
            why = self.readings.partial
            told = why if isinstance(why, str) else "processes of others are not seen"
            notes.append(f"the process table is partial: {told}")
        return tuple(notes)


def _best_fit(case: _Case, judged: list[tuple[Gpu, tuple[Pool, ...]]]) -> Verdict:
    """Take the device that the start leaves fullest; without one, the emptiest's no."""

    def slack(pools: tuple[Pool, ...]) -> float:
        free = pools[0].free_gb
        return float("-inf") if free is None else free - (pools[0].loading_gb or 0.0)

    fitting = [one for one in judged if not any(pool.refused for pool in one[1])]
    if fitting:
        return case.verdict(*min(fitting, key=lambda one: slack(one[1])))
    return case.verdict(*max(judged, key=lambda one: slack(one[1])))


def _device_pools(case: _Case, gpu: Gpu) -> tuple[Pool, ...]:
    if gpu.unified:
        need = _sum(case.budget.vram_gb, case.budget.ram_gb)
        if case.budget.ram_unmeasured and case.budget.ram_gb is None:
            need = case.budget.vram_gb
        pool = _host_pool(case, need)
        return (_apart(case, gpu, pool),)
    device = _apart(case, gpu, _card_pool(case, gpu))
    return (device, _host_pool(case, case.budget.ram_gb))


def _card_pool(case: _Case, gpu: Gpu) -> Pool:
    shares = []
    for holder in case.held:
        if _may_be_on(holder, gpu, case.readings.gpus):
            used = _used_on(holder, gpu)
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


def _host_pool(case: _Case, need_gb: float | None) -> Pool:
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
        taken_gb += _used_on(holder, gpu)
    if any(_may_be_on(holder, gpu, gpus) for gpu in unified):
        budget_gb = _sum(budget_gb, holder.budget.vram_gb)
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
    loading_gb = _sum(*(share.yet_to_take_gb for share in shares))
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


def _gated(case: _Case, pool: Pool, *, skip_declared: bool) -> Pool:
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


def _measuring_gate(case: _Case, pool: Pool) -> Pool:
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


def _declared_refusal(case: _Case, pool: Pool) -> tuple[str, str] | None:
    if pool.unknown_budgets:
        names = ", ".join(pool.unknown_budgets)
        return "budget_unknown", f"unknown budget in {pool.name} held by {names}"
    if pool.capacity_gb is None:
        return _unread(pool, "capacity")
    wanted = fsum((pool.declared_gb, pool.need_gb or 0.0, case.reserve_gb))
    if wanted > pool.capacity_gb:
        return "no_room", (
            f"{_gib(wanted)} of {pool.name} would be declared, "
            f"{_gib(pool.capacity_gb)} are there"
        )
    return None


def _live_refusal(case: _Case, pool: Pool) -> tuple[str, str] | None:
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
            f"{_gib(wanted)} of {pool.name} would be taken, "
            f"{_gib(pool.free_gb)} are free"
        )
    return None


def _unread(pool: Pool, what: str) -> tuple[str, str]:
    timed_out = "no answer within" in pool.capacity_source
    said = f"{what} of {pool.name} is unknown ({pool.capacity_source})"
    return "probe_timeout" if timed_out else "no_room", said


def _refusing(pool: Pool, gate: str, reason: str, refused: str) -> Pool:
    return replace(pool, gate=gate, reason=reason, refused=refused)


def _apart(case: _Case, gpu: Gpu, pool: Pool) -> Pool:
    """Refuse a device that is not shared: by the candidate, or by who is on it."""
    there = [h for h in case.held if _may_be_on(h, gpu, case.readings.gpus)]
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


def _may_be_on(holder: Holder, gpu: Gpu, gpus: Sequence[Gpu]) -> bool:
    """Say whether a holder's device memory may be on this device.

    A holder whose device is not known may be on any.
    """
    if _computes_on(holder, gpu):
        return True
    if holder.budget.vram_gb == 0.0:
        return False
    if holder.device is None:
        return not any(_computes_on(holder, other) for other in gpus)
    if not _tokens(holder.device):
        return False
    # a name that is no device's here may be that of one whose name cannot be read
    return _is_named(gpu, holder.device) or not any(
        _is_named(other, holder.device) for other in gpus
    )


def _computes_on(holder: Holder, gpu: Gpu) -> bool:
    return any(process.pid in holder.pids for process in gpu.processes or ())


def _used_on(holder: Holder, gpu: Gpu) -> float:
    """Sum the device memory that a holder has surely taken."""
    used = [p.used_gb for p in gpu.processes or () if p.pid in holder.pids]
    return sum((one for one in used if one is not None), 0.0)


def _tokens(visible: str) -> list[str]:
    tokens = [token.strip() for token in visible.split(",")]
    return [token for token in tokens if token and token != "-1"]


def _is_named(gpu: Gpu, visible: str) -> bool:
    for token in _tokens(visible):
        # compared as text: a holder's owner may have written any digits, and any number
        if token.isdigit() and str(gpu.index) == (token.lstrip("0") or "0"):
            return True
        if not token.isdigit() and (gpu.uuid or "").startswith(token):
            return True
    return False


def _fits_without(verdict: Verdict, gone: Sequence[Holder]) -> bool:
    """Decide as if these holders had left and given back what they hold.

    Where that is not known their budget stands for it: this is a plan, and the decision
    is taken on what is then read.
    """
    readings = verdict.readings or _NOTHING_READ
    left = [holder for holder in verdict.holders if holder not in gone]
    return decide(
        verdict.slug,
        verdict.budget,
        left,
        reserve_gb=verdict.reserve_gb,
        readings=_given_back(readings, gone),
        pin=verdict.pin,
    ).admit


def _given_back(readings: Readings, gone: Sequence[Holder]) -> Readings:
    pids = {pid for holder in gone for pid in holder.pids}
    back_gb = sum(_or(holder.resident_gb, holder.budget.ram_gb) for holder in gone)
    gpus = []
    for gpu in readings.gpus:
        used_gb = sum(_back_on(holder, gpu, readings.gpus) for holder in gone)
        if gpu.unified:
            back_gb += used_gb
        left = None
        if gpu.processes is not None:
            left = tuple(p for p in gpu.processes if p.pid not in pids)
        free_gb = None if gpu.free_gb is None else gpu.free_gb + used_gb
        gpus.append(replace(gpu, free_gb=free_gb, processes=left))
    mem = readings.mem
    mem = replace(
        mem,
        free_gb=_sum(mem.free_gb, back_gb),
        available_gb=_sum(mem.available_gb, back_gb),
    )
    return Readings(mem, tuple(gpus), readings.partial)


def _back_on(holder: Holder, gpu: Gpu, gpus: Sequence[Gpu]) -> float:
    if not _may_be_on(holder, gpu, gpus):
        return 0.0
    used = [p.used_gb for p in gpu.processes or () if p.pid in holder.pids]
    known = None if None in used or not used else _used_on(holder, gpu)
    return _or(known, holder.budget.vram_gb)


def _or(known: float | None, budget_gb: float | None) -> float:
    return (budget_gb or 0.0) if known is None else known


def _told(pool: Pool, reserve_gb: float) -> str:
    """Tell a pool's numbers, unrounded: what the two gates compare."""
    wanted = f"{_gib(pool.need_gb)} wanted"
    reserve = f"{_gib(reserve_gb)} reserve"
    others = f" ({', '.join(pool.co_tenants)})" if pool.co_tenants else ""
    declared = _sum(pool.need_gb, pool.declared_gb, reserve_gb)
    now = _sum(pool.need_gb, pool.loading_gb, reserve_gb)
    return (
        f"{pool.name}: {wanted} + {_gib(pool.declared_gb)} declared by others{others} "
        f"+ {reserve} = {_gib(declared)} of {_gib(pool.capacity_gb)} "
        f"({pool.capacity_source}); {wanted} + {_gib(pool.loading_gb)} that others "
        f"are still to take + {reserve} = {_gib(now)} of {_gib(pool.free_gb)} free "
        f"({_gib(pool.available_gb)} available)"
    )


def _gib(number: float | None) -> str:
    return "unknown" if number is None else f"{number!r} GiB"


def _sum(*numbers: float | None) -> float | None:
    known = [number for number in numbers if number is not None]
    return fsum(known) if len(known) == len(numbers) else None


def _least(*numbers: float | None) -> float | None:
    known = [number for number in numbers if number is not None]
    return min(known) if len(known) == len(numbers) else None
