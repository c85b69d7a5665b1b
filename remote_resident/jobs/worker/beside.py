"""The files of `worker_side` that this worker uses too, loaded by path."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remote_resident.worker_side import door, memory, protocol, stacks
else:
    _package = ModuleType("resident_side")
    _package.__path__ = [str(Path(__file__).resolve().parents[2] / "worker_side")]
    sys.modules.setdefault(_package.__name__, _package)
    from resident_side import door, memory, protocol, stacks

__all__ = ["door", "memory", "protocol", "stacks"]
