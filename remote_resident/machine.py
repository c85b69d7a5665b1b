"""What this machine has and holds: memory, devices, the process table."""

import os
import re
from dataclasses import replace
from pathlib import Path

from remote_resident.admission import Memory

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
NVIDIA = PROC / "driver/nvidia"

_KIB_PER_GIB = 2.0**20
_GIB = 2.0**30


def facts(proc: Path = PROC, etc: Path = Path("/etc")) -> dict[str, object]:
    """Describe this machine for a report, without starting a program.

    `memory_bytes` is MemTotal as the kernel has it, not lowered by cgroups; None where
    a fact cannot be read.
    """
    names = os.uname()
    total = _meminfo_kib(proc).get("MemTotal")
    return {
        "hostname": names.nodename,
        "os": _os_name(etc) or names.sysname,
        "kernel": names.release,
        "arch": names.machine,
        "cpu_model": _cpu_model(proc),
        "cores": os.cpu_count(),
        "memory_bytes": None if total is None else total * 1024,
    }


def driver_version(root: Path = NVIDIA) -> str | None:
    """Give the loaded NVIDIA driver's version, None where no driver is loaded."""
    text = _text(root / "version") or ""
    found = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)*)\s", text)
    return found.group(1) if found else None


def device_count(root: Path = NVIDIA) -> int:
    """Count the devices that the loaded driver has; 0 without a driver."""
    try:
        return sum(1 for _ in (root / "gpus").iterdir())
    except OSError:
        return 0


def meminfo(proc: Path = PROC, cgroups: Path = CGROUPS) -> Memory:
    """Read the host's memory, lowered by the cgroups (v1, v2) that this process is in.

    A field is None where the kernel does not say.
    """
    read = _meminfo_kib(proc)

    def gib(name: str) -> float | None:
        return read[name] / _KIB_PER_GIB if name in read else None

    host = Memory(
        total_gb=gib("MemTotal"),
        free_gb=gib("MemFree"),
        available_gb=gib("MemAvailable"),
        cached_gb=gib("Cached"),
        swap_total_gb=gib("SwapTotal"),
        swap_free_gb=gib("SwapFree"),
        source="MemTotal",
    )
    for version, directory in _own_cgroups(proc, cgroups):
        host = _lowered(host, version, directory)
    return host


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _meminfo_kib(proc: Path) -> dict[str, int]:
    pattern = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
    text = _text(proc / "meminfo") or ""
    return {name: int(number) for name, number in pattern.findall(text)}


def _os_name(etc: Path) -> str | None:
    found = re.search(
        r'^PRETTY_NAME="?([^"\n]*)', _text(etc / "os-release") or "", re.MULTILINE
    )
    return found.group(1) if found else None


def _cpu_model(proc: Path) -> str | None:
    text = _text(proc / "cpuinfo") or ""
    found = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else None


_V1, _V2 = 1, 2
_LIMITS = {_V1: ("memory.limit_in_bytes",), _V2: ("memory.max", "memory.high")}
_USAGE = {_V1: "memory.usage_in_bytes", _V2: "memory.current"}
_INACTIVE = {_V1: "total_inactive_file", _V2: "inactive_file"}
_FILE = {_V1: "total_cache", _V2: "file"}


def _own_cgroups(proc: Path, cgroups: Path) -> list[tuple[int, Path]]:
    """List this process's memory cgroups and all that enclose them.

    In a container the path in /proc/self/cgroup may be one of the host's, which the
    mount does not show; the mount's own top is then the container's group.
    """
    found: list[tuple[int, Path]] = []
    for line in (_text(proc / "self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            found += [(_V1, d) for d in _upward(cgroups / "memory", path)]
        elif number == "0" and not controllers:
            hybrid = cgroups / "unified"
            top = hybrid if hybrid.is_dir() else cgroups
            found += [(_V2, d) for d in _upward(top, path)]
    return found


def _upward(top: Path, path: str) -> list[Path]:
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [top.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _bytes_in(path: Path) -> int | None:
    text = (_text(path) or "").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _lowered(memory: Memory, version: int, directory: Path) -> Memory:
    limits = [_bytes_in(directory / name) for name in _LIMITS[version]]
    known = [limit for limit in limits if limit is not None]
    if not known or memory.total_gb is None:
        return memory
    limit_gb = min(known) / _GIB
    used = _bytes_in(directory / _USAGE[version])
    free_gb = None if used is None else max(0.0, limit_gb - used / _GIB)
    text = _text(directory / "memory.stat") or ""
    stat = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    inactive_gb = int(stat.get(_INACTIVE[version], 0)) / _GIB
    file_gb = int(stat.get(_FILE[version], 0)) / _GIB
    tighter = limit_gb < memory.total_gb
    return replace(
        memory,
        total_gb=min(memory.total_gb, limit_gb),
        free_gb=_lower(memory.free_gb, free_gb),
        available_gb=_lower(
            memory.available_gb, None if free_gb is None else free_gb + inactive_gb
        ),
        cached_gb=_lower(memory.cached_gb, file_gb) if tighter else memory.cached_gb,
        source=f"cgroup {directory}" if tighter else memory.source,
    )


def _lower(host: float | None, group: float | None) -> float | None:
    return None if host is None or group is None else min(host, group)
