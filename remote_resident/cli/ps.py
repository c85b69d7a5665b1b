"""`tu remote ps`: who holds memory on this machine, whoever started it."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_resident.cli import tree
from remote_resident.cli.answer import Answer, Asked

if TYPE_CHECKING:
    from remote_resident.admission import Holder

_PING_S = 2.0
_GIB = 2**30


def arguments(parser: Any) -> None:
    """Say what may be typed: nothing of its own."""


def run(asked: Asked) -> Answer:
    """List the holders, each asked what it does, where it may be asked."""
    from remote_resident import room

    found = [_row(holder) for holder in room.holders()]
    return Answer(document={"holders": found}, text=_text(found))


def _row(holder: "Holder") -> dict[str, Any]:
    said = _said(holder)
    peak = said.get("rss_peak_bytes")
    return {
        "slug": holder.slug,
        "tree": holder.tree,
        "pid": holder.pids[0] if holder.pids else None,
        "uid": holder.uid,
        "started": holder.started,
        "state": said["state"],
        "requests": said.get("requests"),
        "budget": {
            "vram_gb": holder.budget.vram_gb,
            "ram_gb": holder.budget.ram_gb,
            "source": holder.budget.source,
        },
        "now_gb": holder.resident_gb,
        "peak_gb": peak / _GIB if isinstance(peak, int) else None,
        "device": holder.device,
        "socket": holder.socket,
    }


def _said(holder: "Holder") -> dict[str, Any]:
    """Give what a holder answers to a ping, and its state; None: not known."""
    from remote_resident import client
    from remote_resident.errors import WorkerRequestError
    from remote_resident.worker_side.protocol import ProtocolError

    state = "loading" if holder.loading else None
    if holder.socket is None or holder.uid != os.geteuid():
        return {"state": state}
    try:
        reply, _ = client.ask(Path(holder.socket), "ping", _PING_S)
    except client.Silent:
        return {"state": "busy, unconfirmed"}
    except (client.Gone, WorkerRequestError, ProtocolError):
        return {"state": state}
    return {**reply, "state": "ready" if reply.get("busy_since") is None else "busy"}


def _text(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "nobody holds anything"
    lines = [("provider", "pid", "state", "since", "requests", "now", "budget", "tree")]
    for row in rows:
        budget = row["budget"]
        shares = [("vram_gb", "VRAM"), ("ram_gb", "RAM")]
        spent = [
            f"{name} {_gib(budget[key])}" for key, name in shares if budget[key] != 0
        ]
        lines.append(
            (
                row["slug"],
                _known(row["pid"]),
                row["state"] or "-",
                _since(row["started"]),
                _known(row["requests"]),
                _gib(row["now_gb"]),
                ", ".join(spent) or "0 GiB",
                row["tree"] or "-",
            )
        )
    return tree.columns(lines)


def _known(value: object) -> str:
    return "-" if value is None else str(value)


def _gib(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} GiB"


def _since(started: float | None) -> str:
    if started is None:
        return "-"
    seconds = max(0.0, time.time() - started)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
