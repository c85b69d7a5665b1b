"""What the attendant answers for itself, also while a prediction runs."""

# pathlib would cost each start of a worker half the interpreter's own
# ruff: noqa: PTH120

from __future__ import annotations

import os
from time import monotonic

from . import calls, protocol, stacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def reserved(attendant: Any, op: str) -> dict[str, object]:
    """Give the reply to ping, stacks or stop. Lock held."""
    if op == "ping":
        return _pinged(attendant)
    if op == "stacks":
        return _stacks(attendant)
    return {"ok": True, "stopping": True}


def _pinged(attendant: Any) -> dict[str, object]:
    options = attendant.options
    return {
        **attendant.ready,
        "ok": True,
        "protocol": protocol.VERSION,
        "slug": options.slug,
        "tree": options.tree,
        "instance": options.instance,
        "pid": attendant.pid,
        "inputs": options.inputs,
        "uptime_s": monotonic() - attendant.began,
        "requests": attendant.requests,
        "queue": len(attendant.queue),
        "busy_since": attendant.busy_since,
        # since the last request was over, not since somebody last looked
        "idle_s": None if attendant.running else monotonic() - attendant.active,
        "stopping": attendant.stopping or attendant.retiring,
        **attendant.memory.fields(),
    }


def _stacks(attendant: Any) -> dict[str, object]:
    """Give every thread's stack, which the log gets too."""
    try:
        text = stacks.text(os.path.dirname(attendant.door.path))
    except OSError as exc:
        return dict(calls.refusal(f"stacks: {exc.strerror}", "request_failed"))
    attendant.log(f"stacks:\n{text}")
    return {"ok": True, "stacks": text}
