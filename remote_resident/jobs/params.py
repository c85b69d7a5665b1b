"""What a job may be asked for: JSON that every reader of it can hold."""

import json
from collections.abc import Mapping
from typing import Any

from remote_resident.errors import UsageError
from remote_resident.jobs.worker.encoding import DEEPEST, is_deeper


def refuse_bad(params: Mapping[str, Any]) -> None:
    """Raise UsageError (`bad_request`) for params that no worker would take."""
    if is_deeper(params, DEEPEST):
        fault = f"lists and objects deeper in one another than {DEEPEST} levels"
    else:
        try:
            json.dumps(params, allow_nan=False)
        except ValueError:
            fault = "NaN or an infinity"
        else:
            return
    raise UsageError(f"params: {fault} found, JSON wanted", reason="bad_request")
