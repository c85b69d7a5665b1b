"""The owner of this worker: gone when its end of the lifeline is, or its process."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable


def watch(lifeline: int, gone: Callable[[str], object]) -> None:
    """Call `gone` with the reason, in the running loop, once there is no owner."""
    loop = asyncio.get_running_loop()

    def heard() -> None:
        with contextlib.suppress(OSError):
            if os.read(lifeline, 4096):
                return
        loop.remove_reader(lifeline)
        gone("its end of the lifeline is closed")

    os.set_inheritable(lifeline, False)
    loop.add_reader(lifeline, heard)
    # a fork of the owner could hold the pipe open; 0: outside this container
    parent = os.getppid()
    if parent <= 0 or not hasattr(os, "pidfd_open"):
        return
    with contextlib.suppress(OSError):
        process = os.pidfd_open(parent)

        def ended() -> None:
            loop.remove_reader(process)
            gone(f"process {parent} has ended")

        loop.add_reader(process, ended)
