"""`tu remote ps`: who holds memory on this machine, whoever started it."""

import time
from typing import TYPE_CHECKING, Any

from remote_resident.cli import holding, tree
from remote_resident.cli.answer import Answer, Asked

if TYPE_CHECKING:
    from remote_resident.admission import Holder


def arguments(parser: Any) -> None:
    """Say what may be typed: nothing of its own."""


def run(asked: Asked) -> Answer:
    """List the holders, each asked what it does, where it may be asked."""
    from remote_resident import room

    found = [_row(holder) for holder in room.holders()]
    return Answer(document={"holders": found}, text=_text(found))


def _row(holder: "Holder") -> dict[str, Any]:
    said = holding.said(holder)
    peak = holding.peaks(holder, said)
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
        "peak_gb": holding.gib(said.get("rss_peak_bytes")),
        "over_budget": holding.over_budget(holder.budget, peak),
        "device": holder.device,
        "socket": holder.socket,
    }


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
    over = [
        f"{row['slug']}, pid {_known(row['pid'])}: {text}"
        for row in rows
        for text in row["over_budget"]
    ]
    return "\n".join([tree.columns(lines), *over])


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
