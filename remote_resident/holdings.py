"""What a decision on room rests on: who holds memory, by what budget, and what there is.

Every number is GiB (2**30 bytes). None is unknown, which is never summed as nothing.
Nothing here reads the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from remote_resident.printable import escaped


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
    swap_total_gb: float | None = None
    swap_free_gb: float | None = None
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


NOTHING_READ = Readings(
    Memory(total_gb=None, free_gb=None, available_gb=None, source="not read"),
    (),
    partial="nothing was read",
)


def may_be_on(holder: Holder, gpu: Gpu, gpus: Sequence[Gpu]) -> bool:
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
    return is_named(gpu, holder.device) or not any(
        is_named(other, holder.device) for other in gpus
    )


def _computes_on(holder: Holder, gpu: Gpu) -> bool:
    return any(process.pid in holder.pids for process in gpu.processes or ())


def used_on(holder: Holder, gpu: Gpu) -> float:
    """Sum the device memory that a holder has surely taken."""
    used = [p.used_gb for p in gpu.processes or () if p.pid in holder.pids]
    return sum((one for one in used if one is not None), 0.0)


def _tokens(visible: str) -> list[str]:
    tokens = [token.strip() for token in visible.split(",")]
    return [token for token in tokens if token and token != "-1"]


def is_named(gpu: Gpu, visible: str) -> bool:
    """Say whether a CUDA_VISIBLE_DEVICES value names this device."""
    for token in _tokens(visible):
        # compared as text: a holder's owner may have written any digits, and any number
        if token.isdigit() and str(gpu.index) == (token.lstrip("0") or "0"):
            return True
        if not token.isdigit() and (gpu.uuid or "").startswith(token):
            return True
    return False
