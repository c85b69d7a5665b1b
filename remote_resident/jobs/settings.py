"""What the daemon's environment says of jobs."""

import math
import os

LIVENESS_S = 600.0
CANCEL_GRACE_S = 60.0


def liveness_s() -> float:
    """Give how long a worker with a job in hand may give no sign of life."""
    return _seconds("TU_JOB_LIVENESS_S") or LIVENESS_S


def cancel_grace_s() -> float:
    """Give how long a cancel may be ignored, as the workers see it; infinite: for ever."""
    found = _seconds("TU_JOB_CANCEL_GRACE_S")
    if found is None:
        return CANCEL_GRACE_S
    return found if found > 0 else math.inf


def _seconds(name: str) -> float | None:
    """Read a setting; None: not set, or no number of seconds."""
    try:
        found = float(os.environ.get(name, ""))
    except ValueError:
        return None
    return found if math.isfinite(found) else None
