"""Readings, holders and budgets that are written down in a test."""

from remote_resident.admission import (
    Budget,
    Gpu,
    Holder,
    Memory,
    Readings,
)


def mem(total: float = 128, free: float = 100, available: float = 110) -> Memory:
    return Memory(total_gb=total, free_gb=free, available_gb=available)


def card(
    index: int = 0, total: float | None = 80, free: float | None = 80, **more: object
) -> Gpu:
    said: dict[str, object] = {"index": index, "uuid": f"GPU-{index}", "name": "Card"}
    return Gpu(**{**said, "total_gb": total, "free_gb": free, **more})  # type: ignore[arg-type]


def unified(**more: object) -> Gpu:
    return card(total=None, free=None, unified=True, **more)  # type: ignore[arg-type]


def holder(
    slug: str = "other",
    vram: float | None = 0.0,
    ram: float | None = 0.0,
    *,
    loading: bool | None = False,
    **more: object,
) -> Holder:
    terms = {
        key: more.pop(key) for key in ("shareable", "ram_unmeasured") & more.keys()
    }
    said: dict[str, object] = {
        "tree": "/checkouts/b",
        "instance": slug,
        "pids": (4242,),
        "uid": 1000,
        "device": None,
        "resident_gb": 0.0,
    }
    budget = Budget(vram, ram, "declared", **terms)  # type: ignore[arg-type]
    return Holder(slug=slug, budget=budget, loading=loading, **{**said, **more})  # type: ignore[arg-type]


def ask(vram: float | None = 0.0, ram: float | None = 0.0, **terms: bool) -> Budget:
    return Budget(vram, ram, "declared", **terms)


def one(gpu: Gpu, memory: Memory | None = None, partial: bool = False) -> Readings:
    return Readings(memory or mem(), [gpu], partial)


HOST = Readings(mem(), [])
CARD = one(card())
