"""The most memory that a worker's processes take, watched from outside."""

import contextlib
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from remote_resident import machine, processes

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest

_EVERY_S = 0.05
_SHARE = 10
"""A scan of all processes may take so small a part of the time: what is measured must
not wait for it. In between, those that are known are asked, and their children."""
GIB = 2**30


@dataclass(slots=True)
class Meter:
    """Peaks of one instance's processes; None: not known.

    What one process took at most is the kernel's own count. What several took together
    is the largest sum seen: their single peaks need not have come at one time.
    """

    rss_peak_bytes: int | None = None
    device_framework_bytes: int | None = None
    """Reserved by the framework at most, as the worker tells it."""
    device_driver_bytes: int | None = None
    """Used at the end of the requests, as the driver tells it."""
    rss_after: list[int | None] = field(default_factory=list)
    """Resident bytes of the worker after each request, as it tells them."""
    device_after: list[int | None] = field(default_factory=list)
    _instance: str | None = None
    known: set[int] = field(default_factory=set)
    """The instance's processes, as last seen."""
    _weighs: bool = True
    _wake: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def watch(self, instance: str | None, *, weigh: bool = True) -> None:
        """Look at the processes of an instance from now on; `weigh`: and note peaks."""
        self._instance, self.known, self._weighs = instance, set(), weigh
        if instance is not None and self._thread is None:
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Look no more; what is known stays."""
        self._wake.set()

    def read(self) -> None:
        """Look at all processes of the instance."""
        instance = self._instance
        if instance is not None:
            found = set(processes.members(instance))
            if instance == self._instance:
                self.known = found
                self._weigh(instance)

    def _weigh(self, instance: str) -> None:
        """Add up what the known processes and their descendants take."""
        self.known = _descended(self.known)
        sizes = [_sizes(pid) for pid in self.known]
        known = [size for size in sizes if size is not None]
        if known and self._weighs and instance == self._instance:
            together = sum(now for now, _ in known)
            self._raise_to(max(together, *(peak for _, peak in known)))

    def told(self, meter: object) -> None:
        """Take what a reply tells of its worker."""
        if not isinstance(meter, Mapping) or self._instance is None:
            return
        peak = _whole(meter.get("rss_peak_bytes"))
        if peak is not None:
            self._raise_to(peak)
        self.rss_after.append(_whole(meter.get("rss_bytes")))
        self.device_after.append(_whole(meter.get("device_bytes")))
        device = _whole(meter.get("device_peak_bytes"))
        if device is not None:
            self.device_framework_bytes = max(device, self.device_framework_bytes or 0)

    def read_devices(self, provider: "ProviderManifest") -> None:
        """Ask the driver what the instance's processes use, where it may use any."""
        if provider.gpu_policy == "none" or self._instance is None:
            return
        if not machine.device_count():
            return
        pids = set(processes.members(self._instance))
        used = [
            process.used_gb
            for gpu in machine.gpus()
            for process in gpu.processes or ()
            if process.pid in pids and process.used_gb is not None
        ]
        if used:
            self.device_driver_bytes = round(sum(used) * GIB)

    @property
    def device_peak_bytes(self) -> int | None:
        """Give the larger of the two counts of device memory."""
        counts = (self.device_framework_bytes, self.device_driver_bytes)
        return max((n for n in counts if n is not None), default=None)

    def _raise_to(self, peak: int) -> None:
        with self._lock:
            self.rss_peak_bytes = max(peak, self.rss_peak_bytes or 0)

    def _look(self) -> None:
        next_scan = 0.0
        while not self._wake.wait(_EVERY_S if next_scan else 0.0):
            began = time.monotonic()
            instance = self._instance
            if began >= next_scan:
                self.read()
                over = time.monotonic()
                # until it is there it is looked for
                next_scan = over + (_SHARE * (over - began) if self.known else 0.0)
            elif instance is not None:
                self._weigh(instance)


def _descended(pids: set[int]) -> set[int]:
    """Add the descendants of processes, by the kernel's own lists."""
    found, waiting = set(pids), list(pids)
    while waiting:
        for child in _children(waiting.pop()) - found:
            found.add(child)
            waiting.append(child)
    return found


def _children(pid: int) -> set[int]:
    children: set[int] = set()
    # any thread may have started them; and the process may end meanwhile
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children.update(map(int, (task / "children").read_bytes().split()))
    return children


def _sizes(pid: int) -> tuple[int, int] | None:
    """Read a process's resident bytes, now and at most; None: it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return None
    now, peak = _kib(text, b"VmRSS:"), _kib(text, b"VmHWM:")
    return None if now is None or peak is None else (now * 1024, peak * 1024)


def _kib(text: bytes, name: bytes) -> int | None:
    fields = text.partition(b"\n" + name)[2].split(None, 1)
    return int(fields[0]) if fields else None


def _whole(value: object) -> int | None:
    return value if type(value) is int else None
