"""What this machine has and holds: memory, devices, the process table."""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from remote_resident.driver import device_count
from remote_resident.holdings import UNKNOWN, Budget, Gpu, Holder, Memory, Readings
from remote_resident.nvidia import driver_version, gpus

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest

__all__ = [
    "capacity",
    "declared_budget",
    "declares_resident_worker",
    "device_count",
    "driver_version",
    "facts",
    "gpus",
    "holdings",
    "meminfo",
    "partial_table",
    "pool_free",
    "readings",
]

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")

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


def readings(proc: Path = PROC) -> Readings:
    """Read what a decision needs: memory, devices, and whether the table is whole."""
    return Readings(
        meminfo(proc), gpus(proc / "driver/nvidia"), partial_table(proc) or False
    )


def capacity(gpu: Gpu | None = None, mem: Memory | None = None) -> float | None:
    """Give a pool's size, GiB: a device's own memory, or the host's.

    `gpu` None, or with unified memory: the host's. `mem` None reads it now. None: not
    known.
    """
    if gpu is not None and not gpu.unified:
        return gpu.total_gb
    return (mem or meminfo()).total_gb


def pool_free(
    gpu: Gpu | None = None, mem: Memory | None = None, *, co_tenants: bool = False
) -> float | None:
    """Give what is free of a pool now, GiB; None: not known.

    Of a unified pool with co-tenants it is MemFree: what is merely available is not
    there in time.
    """
    if gpu is not None and not gpu.unified:
        return gpu.free_gb
    mem = mem or meminfo()
    if gpu is None or not co_tenants:
        return mem.available_gb
    known = [n for n in (mem.free_gb, mem.available_gb) if n is not None]
    return min(known) if len(known) == 2 else None


def declared_budget(slug: str, tree: Path | None = None) -> Budget:
    """Give what a provider's manifest declares; UNKNOWN where it cannot be read.

    VRAM is 0.0 for policy none, and None where none is declared. `tree` None: the one in
    force.
    """
    provider = _provider(slug, tree)
    if provider is None:
        return UNKNOWN
    none = provider.gpu_policy == "none"
    return Budget(
        vram_gb=0.0 if none else provider.gpu_vram_budget_gb,
        ram_gb=provider.host_ram_budget_gb,
        source="declared",
        shareable=provider.gpu_shareable,
        ram_unmeasured=provider.host_ram_budget_unmeasured,
    )


def declares_resident_worker(slug: str, tree: Path | None = None) -> bool:
    """Say whether a slug is a provider that holds a resident worker."""
    provider = _provider(slug, tree)
    return provider is not None and provider.runtime_mode == "resident"


def _provider(slug: str, tree: Path | None) -> "ProviderManifest | None":
    from remote_resident import manifest, places
    from remote_resident.errors import ProviderError

    try:
        return manifest.find(tree or places.find_tree(), slug)
    except ProviderError:
        return None


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
        host = _swap_lowered(_lowered(host, version, directory), version, directory)
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
_SWAP = {
    # of version 1 it counts the memory too, and so is at least what there is of swap
    _V1: ("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes"),
    _V2: ("memory.swap.max", "memory.swap.current"),
}
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


def _swap_lowered(memory: Memory, version: int, directory: Path) -> Memory:
    limit, used = (_bytes_in(directory / name) for name in _SWAP[version])
    if limit is None or memory.swap_total_gb is None:
        return memory
    free_gb = None if used is None else max(0.0, (limit - used) / _GIB)
    return replace(
        memory,
        swap_total_gb=min(memory.swap_total_gb, limit / _GIB),
        swap_free_gb=_lower(memory.swap_free_gb, free_gb),
    )


def _lower(host: float | None, group: float | None) -> float | None:
    return None if host is None or group is None else min(host, group)


# The process table

_SLUG, _TREE, _INSTANCE = "--resident-slug", "--resident-tree", "--resident-instance"
_MARK = _INSTANCE.encode()
_FOREIGN = "_resident_worker.py"
_FOREIGN_MARK = _FOREIGN.encode()
_PYTHON = re.compile(r"python[\d.]*[a-z]?|pypy[\d.]*")
_LAUNCHERS = frozenset(
    "apptainer docker env nice nohup podman setsid singularity sudo timeout".split()
)
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""The kernel's fixed number for the namespace that sees every process."""
_SOCKET_GRAIN_S = 2.0
"""How far a file's time and a process's start may be off each other."""


def partial_table(proc: Path = PROC) -> str | None:
    """Say why not every process can be seen here; None: the table is whole."""
    try:
        namespace = str((proc / "self/ns/pid").readlink())
    except OSError as exc:
        return f"the PID namespace cannot be read ({exc.strerror})"
    if namespace != _FIRST_PID_NAMESPACE:
        return f"this is the PID namespace {namespace}, not the machine's"
    mounts = _text(proc / "self/mountinfo") or ""
    hidden = re.search(r" - proc \S+ \S*hidepid=([^,\s]+)", mounts)
    if hidden and hidden.group(1) not in ("0", "off") and os.geteuid() != 0:
        return f"/proc is mounted with hidepid={hidden.group(1)}"
    return None


def holdings(proc: Path = PROC) -> list[Holder]:
    """List the workers that are alive on this machine, one record per instance.

    Found by the markers in their argv, or by a script `*_resident_worker.py` with
    `--socket` run by a Python, which is a holder of unknown instance. Forks and the
    container clients of an instance are one holder with it. `budget` is unknown here:
    `remote_resident.room` reads it from the holder's own manifest.
    """
    found: dict[tuple[str, ...], _Claim] = {}
    for pid, argv in _worker_argvs(proc):
        claim = _claim(argv)
        if claim is not None:
            found.setdefault(claim.key, claim).pids.append(pid)
    booted = _booted(proc) if found else None
    holders = (_holder(proc, claim, booted) for claim in found.values())
    return sorted(
        (holder for holder in holders if holder is not None),
        key=lambda holder: (holder.started or 0.0, holder.pids),
    )


def _worker_argvs(proc: Path) -> Iterator[tuple[int, list[str]]]:
    # listdir, open and read without a Path each: this loop is the cost of a decision
    base = os.fspath(proc)
    for name in os.listdir(base):  # noqa: PTH208
        if not name.isdigit():
            continue
        try:
            fd = os.open(f"{base}/{name}/cmdline", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            raw = os.read(fd, 1 << 16)
            if _MARK in raw or _FOREIGN_MARK in raw:
                while more := os.read(fd, 1 << 16):
                    raw += more
                yield int(name), os.fsdecode(raw).rstrip("\0").split("\0")
        except OSError:
            continue
        finally:
            os.close(fd)


@dataclass(slots=True)
class _Claim:
    """What an argv says of the worker that it runs."""

    slug: str
    tree: str | None
    instance: str | None
    socket: str | None
    device: str | None = None
    manifest_dir: str | None = None
    pids: list[int] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, ...]:
        if self.instance is not None:
            return ("instance", self.instance)
        return ("foreign", self.slug, self.socket or "")


def _claim(argv: list[str]) -> _Claim | None:
    own = _own_part(argv)
    slug, tree, instance = (_value(own, flag) for flag in (_SLUG, _TREE, _INSTANCE))
    if slug and tree and instance:
        return _Claim(
            slug=slug,
            tree=tree,
            instance=instance,
            socket=_value(own, "--socket"),
            device=_value(own, "--device"),
            manifest_dir=_value(own, "--manifest-dir"),
        )
    return _foreign(argv)


def _own_part(argv: list[str]) -> list[str]:
    """Cut an argv to what is ours: behind a launcher, before the provider's own args."""
    if _SLUG not in argv:
        return []
    own = argv[argv.index(_SLUG) :]
    return own[: own.index("--")] if "--" in own else own


def _foreign(argv: list[str]) -> _Claim | None:
    """Tell a worker of another make from an editor or a search that names its file."""
    runner = os.path.basename(argv[0])  # noqa: PTH119
    if not _PYTHON.fullmatch(runner) and runner not in _LAUNCHERS:
        return None
    pythons = 0
    for place, word in enumerate(argv):
        name = word.rpartition("/")[2]
        pythons += bool(_PYTHON.fullmatch(name))
        if pythons and name.endswith(_FOREIGN) and not word.startswith("-"):
            socket = _value(argv[place:], "--socket")
            slug = name.removesuffix(_FOREIGN) or name
            return _Claim(slug, None, None, socket) if socket else None
    return None


def _value(argv: list[str], flag: str) -> str | None:
    """Give what follows a flag, as the next word or behind an equals sign."""
    for place, word in enumerate(argv):
        if word == flag:
            return argv[place + 1] if place + 1 < len(argv) else None
        if word.startswith(f"{flag}="):
            return word[len(flag) + 1 :]
    return None


def _holder(proc: Path, claim: _Claim, booted: float | None) -> Holder | None:
    ages = {pid: _started(proc, pid, booted) for pid in claim.pids}
    living = [pid for pid, started in ages.items() if started is not None]
    if not living:
        return None
    pids = tuple(sorted(living, key=lambda pid: (ages[pid] or 0.0, pid)))
    started = ages[pids[0]] or None
    resident = [_resident_gb(proc, pid) for pid in pids]
    known = [one for one in resident if one is not None]
    device = claim.device or _environ(proc, pids, "CUDA_VISIBLE_DEVICES")
    return Holder(
        slug=claim.slug,
        tree=claim.tree,
        instance=claim.instance,
        pids=pids,
        uid=_uid(proc, pids[0]),
        device=device,
        budget=UNKNOWN,
        loading=_loading(claim, started),
        # forks share their pages: the largest is what is surely held
        resident_gb=max(known) if known else None,
        started=started,
        socket=claim.socket,
        manifest_dir=claim.manifest_dir,
    )


def _loading(claim: _Claim, started: float | None) -> bool | None:
    """Say whether the worker's socket does not accept yet; None: not to be seen.

    A worker without a socket computes from start to end: it may take more all along.
    """
    if claim.socket is None:
        return True
    try:
        found = os.stat(claim.socket)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return None
    if not stat.S_ISSOCK(found.st_mode):
        return True
    if started is not None and found.st_mtime > started + _SOCKET_GRAIN_S:
        # bound by this worker, and a path that exists accepts
        return False
    return _refuses(claim.socket)


def _refuses(path: str) -> bool | None:
    """Knock: a socket that an earlier instance left behind does not answer."""
    import socket

    with socket.socket(socket.AF_UNIX) as knocking:
        knocking.setblocking(False)
        try:
            knocking.connect(path)
        except BlockingIOError:
            # its queue is full: somebody accepts
            return False
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except OSError:
            return None
    return False


def _booted(proc: Path) -> float | None:
    found = re.search(r"^btime (\d+)$", _text(proc / "stat") or "", re.MULTILINE)
    return float(found.group(1)) if found else None


def _started(proc: Path, pid: int, booted: float | None) -> float | None:
    """Give the start in seconds since the epoch; None: ended meanwhile, or a zombie."""
    text = _text(proc / str(pid) / "stat")
    if text is None:
        return None
    # the name may hold blanks and parentheses: only what follows the last is fields
    fields = text[text.rfind(")") + 2 :].split()
    if fields[0] in "ZX":
        return None
    return (booted or 0.0) + int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _uid(proc: Path, pid: int) -> int | None:
    text = _text(proc / str(pid) / "status") or ""
    found = re.search(r"^Uid:\s+(\d+)", text, re.MULTILINE)
    return int(found.group(1)) if found else None


def _resident_gb(proc: Path, pid: int) -> float | None:
    words = (_text(proc / str(pid) / "statm") or "").split()
    if len(words) < 2:
        return None
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") / _GIB


def _environ(proc: Path, pids: Sequence[int], name: str) -> str | None:
    for pid in pids:
        for word in (_text(proc / str(pid) / "environ") or "").split("\0"):
            if word.startswith(f"{name}="):
                return word[len(name) + 1 :]
    return None
