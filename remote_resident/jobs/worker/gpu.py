"""Give cached GPU memory back; a framework that is not loaded is never imported."""

from __future__ import annotations

import gc
import sys

from .beside import memory


def release_caches(alone: bool) -> bool:
    """Give back what torch keeps without need; False where nothing could be.

    `alone`: nothing else computes, so that its workspaces may go too. Never raises.
    """
    if alone:
        memory.release_cublas_workspaces()
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None:
        return False
    try:
        # one that cannot say whether it uses a device is asked to let go all the same
        if not getattr(cuda, "is_initialized", lambda: True)():
            return False
        # what an ended job left in cycles is held until it is collected
        gc.collect()
        cuda.empty_cache()
    # a framework's own trouble: a failed release changes nothing
    except Exception:
        return False
    return True
