"""Whether this machine has a device, as the driver's own directory says."""

import os
from pathlib import Path

NVIDIA = Path("/proc/driver/nvidia")


def device_count(root: Path = NVIDIA) -> int:
    """Count the devices that the loaded driver has; 0 without a driver."""
    try:
        return len(os.listdir(f"{root}/gpus"))  # noqa: PTH208
    except OSError:
        return 0
