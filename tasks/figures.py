"""Numbers in a file that may hold anything."""

import math
from collections.abc import Mapping
from typing import Any


def number(table: Mapping[str, Any], key: str) -> float | None:
    """Give a number of a file, finite and not below zero; None: not known."""
    value = change(table, key)
    return None if value is None or value < 0 else value


def change(table: Mapping[str, Any], key: str) -> float | None:
    """Give a finite number of a file, below zero where less was left; None: not known."""
    value = table.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None
