"""What holders say of themselves, and where it is more than they were budgeted."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remote_resident.admission import Budget, Holder

_PING_S = 2.0
_GIB = 2**30


def said(holder: "Holder") -> dict[str, Any]:
    """Give what a holder answers to a ping, and its state; None: not known."""
    from remote_resident import client, room
    from remote_resident.errors import WorkerRequestError
    from remote_resident.worker_side.protocol import ProtocolError

    state = "loading" if holder.loading else None
    if holder.socket is None or holder.uid != os.geteuid():
        return {"state": state}
    if room.is_job_worker(holder):
        free = room.job_worker_idle_s(holder, Path(holder.socket)) is not None
        return {"state": "ready" if free else state or "busy"}
    try:
        reply, _ = client.ask(Path(holder.socket), "ping", _PING_S)
    except client.Silent:
        return {"state": "busy, unconfirmed"}
    except (client.Gone, WorkerRequestError, ProtocolError):
        return {"state": state}
    return {**reply, "state": "ready" if reply.get("busy_since") is None else "busy"}


def peaks(holder: "Holder", told: dict[str, Any]) -> dict[str, float | None]:
    """Give the most that a holder was seen to hold, GiB, by pool; None: not known.

    The larger of what it tells of its peak and what its processes hold now.
    """
    ram = [gib(told.get("rss_peak_bytes")), holder.resident_gb]
    known = [value for value in ram if value is not None]
    return {
        "ram_gb": max(known, default=None),
        "vram_gb": gib(told.get("device_peak_bytes")),
    }


def over_budget(budget: "Budget", peak: dict[str, float | None]) -> list[str]:
    """Say where a holder was seen above its budget; empty: nowhere, or not known."""
    pairs = [
        ("RAM", peak["ram_gb"], budget.ram_gb),
        ("VRAM", peak["vram_gb"], budget.vram_gb),
    ]
    return [
        f"{pool} peak {seen} GiB, above its budget of {wanted} GiB"
        for pool, seen, wanted in pairs
        if seen is not None and wanted is not None and seen > wanted
    ]


def gib(count: object) -> float | None:
    """Turn bytes into GiB; None for what is no number."""
    return count / _GIB if isinstance(count, int) else None
