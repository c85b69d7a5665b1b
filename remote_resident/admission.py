"""Is there room for one more: budgets and readings in, a verdict out."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The host's memory in GiB; None = the kernel does not say."""

    total_gb: float | None
    free_gb: float | None
    available_gb: float | None
    cached_gb: float | None = None
    swap_total_gb: float | None = None
    swap_free_gb: float | None = None
    source: str = "MemTotal"
    """What `total_gb` is: MemTotal, or the cgroup that lowers it."""
