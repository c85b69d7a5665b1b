"""This process's memory: read cheaply, and given back where a framework hoards it."""

from __future__ import annotations

import os
import resource
import sys
from time import monotonic

from . import protocol

NO_RELEASE = "TOOLUNIVERSE_RESIDENT_NO_CUBLAS_RELEASE"
PAGE = resource.getpagesize()

BRIEF_S = 20e-6
"""Work that is too short to take more than a few dozen pages."""
FRESH_S = 0.1
"""How long a reading is told again after brief work."""


class Memory:
    """This process's memory, cheaply enough to be told with every reply."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._seen: object = None
        self._text = ""
        self._fresh_until = 0.0
        self._told: object = None
        self.device: tuple[int | None, int | None] = (None, None)
        """Reserved by the framework, now and at most, as last read by the main thread:
        another one could wait for the allocator with the interpreter in its hands."""

    def host(self) -> tuple[int | None, int | None]:
        """Give resident bytes, now and at most."""
        try:
            rss = int(self._read("/proc/self/statm").split()[1]) * PAGE
            # not ru_maxrss: that starts with the peak of the process that spawned this
            text = self._read("/proc/self/status")
            peak = int(text.partition(b"VmHWM:")[2].split()[0]) * 1024
        except (OSError, ValueError, IndexError):
            self._files.clear()
            return None, None
        return rss, max(rss, peak)

    def look_at_device(self) -> None:
        """Read what torch has reserved on its devices, where it uses any."""
        torch = sys.modules.get("torch")
        cuda = getattr(torch, "cuda", None)
        if cuda is None:
            return
        try:
            if cuda.is_initialized():
                devices = range(cuda.device_count())
                self.device = (
                    sum(int(cuda.memory_reserved(i)) for i in devices),
                    sum(int(cuda.max_memory_reserved(i)) for i in devices),
                )
        except Exception:  # a framework's own trouble: the numbers are unknown
            self.device = (None, None)

    def fields(self) -> dict[str, object]:
        """Give the four fields of a meter."""
        rss, peak = self.host()
        device, device_peak = self.device
        return {
            "rss_bytes": rss,
            "rss_peak_bytes": peak,
            "device_bytes": device,
            "device_peak_bytes": device_peak,
        }

    def _read(self, path: str) -> bytes:
        fd = self._files.get(path)
        if fd is None:
            fd = self._files[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(fd, 4096, 0)

    def text(self, spent_s: float) -> str:
        """Give the four fields as they stand in a meter, after so much work.

        Reading takes as long as the rest of a small reply, so it is left out where it
        can hardly differ: no page fault since, or work of less than BRIEF_S (a few
        dozen pages at most), and then not for longer than FRESH_S.
        """
        now = monotonic()
        device = self.device
        if spent_s < BRIEF_S and now < self._fresh_until and device is self._told:
            return self._text
        usage = resource.getrusage(resource.RUSAGE_SELF)
        seen = (usage.ru_minflt, usage.ru_majflt, device)
        if seen != self._seen:
            self._text = protocol.text_of(self.fields())[1:]
            self._seen = seen
        self._told = device
        self._fresh_until = now + FRESH_S
        return self._text


def release_cublas_workspaces() -> int:
    """Give back the workspaces that cuBLAS keeps per stream; the bytes freed.

    0 where torch is not loaded, has no CUDA, or does not say. Never raises. Off with
    TOOLUNIVERSE_RESIDENT_NO_CUBLAS_RELEASE=1, which reproduces the growth.
    """
    torch = sys.modules.get("torch")
    clear = getattr(getattr(torch, "_C", None), "_cuda_clearCublasWorkspaces", None)
    if clear is None or os.environ.get(NO_RELEASE) == "1":
        return 0
    try:
        before = _allocated(torch)
        clear()
        return max(0, before - _allocated(torch))
    except Exception:  # a framework's own trouble; the request has its answer
        return 0


def _allocated(torch: object) -> int:
    cuda = getattr(torch, "cuda", None)
    count = getattr(cuda, "memory_allocated", None)
    return int(count()) if count is not None else 0
