"""Which names a job may have."""

from __future__ import annotations

import re

ROUTES = frozenset(
    "health busy reclaim ui compute jobs run events cancel cancel-all".split()
)
"""The names of the route table."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def refused_name(name: str) -> str | None:
    """Say what is wrong with a name as a whole; None for a good one."""
    if _NAME.fullmatch(name):
        return None
    return f"{name!r} found, 1 to 64 of A-Z a-z 0-9 _ - wanted"


def refused_id(job_id: str) -> str | None:
    """Say why a job cannot be called that; None where it can."""
    if job_id in ROUTES:
        return f"job id: {job_id!r} found, which is the name of a route"
    fault = refused_name(job_id)
    return fault and f"job id: {fault}"
