"""What the NVIDIA driver and nvidia-smi say of this machine's devices."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from remote_resident.driver import NVIDIA
from remote_resident.holdings import Gpu, GpuProcess

if TYPE_CHECKING:
    import subprocess

SMI_LIMIT_S = 15.0
"""How long nvidia-smi may take, all questions together."""

_MIB_PER_GIB = 2.0**10


def driver_version(root: Path = NVIDIA) -> str | None:
    """Give the loaded NVIDIA driver's version, None where no driver is loaded."""
    text = _text(root / "version") or ""
    found = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)*)\s", text)
    return found.group(1) if found else None


def gpus(
    root: Path = NVIDIA, *, program: str = "nvidia-smi", limit_s: float = SMI_LIMIT_S
) -> list[Gpu]:
    """List the devices, one per MIG instance where MIG is on.

    Which devices there are is what the driver's own directory and nvidia-smi say
    together: one that cannot be read is listed with its fields None and
    `unknown` telling why. Memory that the driver calls not applicable is the host's
    (`unified`). Empty without a driver.
    """
    import shutil

    loaded = driver_version(root)
    present = _driver_devices(root)
    path = shutil.which(program)
    if path is None:
        why = f"{program}: not on the path"
        return [_unread(gpu, loaded, why) for gpu in present]
    smi = _Smi(path, time.monotonic() + limit_s, limit_s)
    listed, why = _listed(smi)
    if not present and not listed and _NO_DRIVER.search(why):
        return []
    found = [*listed, *_unlisted(present, listed, loaded, why)]
    return _with_processes(smi, _with_instances(smi, found))


_NO_DRIVER = re.compile(r"communicate with the NVIDIA driver|No devices were found")
_NOT_APPLICABLE = frozenset({"[N/A]", "N/A", "[Not Supported]", "Not Supported"})
_FIELDS = (
    "index",
    "uuid",
    "name",
    "driver_version",
    "compute_cap",
    "memory.total",
    "memory.free",
    "mig.mode.current",
)


@dataclass(slots=True)
class _Smi:
    """One nvidia-smi that is asked until a deadline."""

    path: str
    deadline: float
    limit_s: float

    def ask(self, *args: str) -> tuple[str, str]:
        """Give its output and why it is not whole; the reason is empty when it is."""
        import subprocess

        left_s = self.deadline - time.monotonic()
        late = f"nvidia-smi: no answer within {self.limit_s} s"
        if left_s <= 0:
            return "", late
        try:
            child = subprocess.Popen(
                [self.path, *args],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as exc:
            return "", f"{self.path}: {exc.strerror}"
        try:
            text, _ = child.communicate(timeout=left_s)
        except subprocess.TimeoutExpired:
            _end(child)
            return "", late
        if child.returncode == 0:
            return text, ""
        said = next(filter(None, map(str.strip, text.splitlines())), "")
        return text, f"nvidia-smi: exit status {child.returncode}: {said}"


def _end(child: subprocess.Popen[str]) -> None:
    """End a session that hangs, without waiting for what the kernel cannot end."""
    import contextlib
    import signal
    import subprocess

    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    if child.stdout:
        child.stdout.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=1.0)


def _driver_devices(root: Path) -> list[Gpu]:
    """List the devices of the driver's own directory, in the order of their buses."""
    found = []
    try:
        buses = sorted((root / "gpus").iterdir())
    except OSError:
        return []
    for bus in buses:
        text = _text(bus / "information") or ""
        said = dict(re.findall(r"^([^:\n]+):[ \t]*(.*)$", text, re.MULTILINE))
        uuid = said.get("GPU UUID", "").strip()
        # an uninitialised device shows question marks for its UUID
        uuid = "" if "?" in uuid else uuid
        name = said.get("Model", "").strip()
        found.append(Gpu(index=None, uuid=uuid or None, name=name or None))
    return found


def _unread(gpu: Gpu, driver: str | None, why: str) -> Gpu:
    fields = ("index", "compute_capability", "total_gb", "free_gb", "unified", "mig")
    return replace(
        gpu,
        driver=driver,
        total_gb=None,
        free_gb=None,
        unified=None,
        mig=None,
        processes=None,
        unknown=dict.fromkeys((*fields, "processes"), why),
    )


def _listed(smi: _Smi) -> tuple[list[Gpu], str]:
    """Ask for every device's fields; the reason tells what was no device's line."""
    fields = list(_FIELDS)
    while True:
        text, why = smi.ask(
            f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"
        )
        refused = re.search(r'Field "([^"]+)" is not a valid field', text)
        if not refused or refused.group(1) not in fields:
            break
        # an older driver: ask for what it knows
        fields.remove(refused.group(1))
    found, broken = [], []
    for line in filter(None, map(str.strip, text.splitlines())):
        values = [value.strip() for value in line.split(",")]
        if len(values) == len(fields) and values[0].isdigit():
            found.append(_gpu(dict(zip(fields, values, strict=True))))
        else:
            broken.append(line)
    if broken and found:
        why = "; ".join(broken)
    return found, why or "; ".join(broken)


def _gpu(values: dict[str, str]) -> Gpu:
    unknown: dict[str, str] = {}

    def word(name: str, attribute: str) -> str | None:
        value = values.get(name, "not a field of this driver")
        if value and not value.startswith("[") and name in values:
            return value
        unknown[attribute] = f"nvidia-smi: {name}: {value}"
        return None

    def memory(name: str, attribute: str) -> float | None:
        value = values[name].removesuffix("MiB").strip()
        if re.fullmatch(r"\d+(\.\d+)?", value):
            return float(value) / _MIB_PER_GIB
        unknown[attribute] = f"nvidia-smi: {name}: {values[name]}"
        return None

    total_gb = memory("memory.total", "total_gb")
    unified = values["memory.total"] in _NOT_APPLICABLE
    mig = values.get("mig.mode.current", "[N/A]")
    return Gpu(
        index=int(values["index"]),
        uuid=word("uuid", "uuid"),
        name=word("name", "name"),
        driver=word("driver_version", "driver"),
        compute_capability=word("compute_cap", "compute_capability"),
        total_gb=total_gb,
        free_gb=memory("memory.free", "free_gb"),
        unified=True if unified else _known(total_gb),
        mig=mig == "Enabled",
        unknown=unknown,
    )


def _known(total_gb: float | None) -> bool | None:
    """Say False, not unified, for a device with a memory of its own; else unknown."""
    return None if total_gb is None else False


def _unlisted(
    present: list[Gpu], listed: list[Gpu], driver: str | None, why: str
) -> Iterator[Gpu]:
    """Yield what is there and was not listed, or the one nameless device of an error."""
    uuids = {gpu.uuid for gpu in listed}
    missing = [gpu for gpu in present if gpu.uuid not in uuids]
    # without UUIDs in the driver's directory only the count tells
    spare = len(present) - len(listed)
    for gpu in missing[: spare if None in {g.uuid for g in missing} else None]:
        yield _unread(gpu, driver, why or "nvidia-smi does not list it")
    if not present and why:
        yield _unread(Gpu(index=None, uuid=None), driver, why)


def _with_processes(smi: _Smi, found: Sequence[Gpu]) -> list[Gpu]:
    if not found or all(gpu.processes is None for gpu in found):
        return list(found)
    text, why = smi.ask(
        "--query-compute-apps=gpu_uuid,pid,used_gpu_memory",
        "--format=csv,noheader,nounits",
    )
    by_uuid: dict[str, list[GpuProcess]] = {}
    for line in text.splitlines():
        said = re.fullmatch(r"\s*(\S+),\s*(\d+),\s*(.*?)\s*", line)
        if said:
            number = said.group(3).removesuffix("MiB").strip()
            used_gb = float(number) / _MIB_PER_GIB if number.isdigit() else None
            process = GpuProcess(pid=int(said.group(2)), used_gb=used_gb)
            by_uuid.setdefault(said.group(1), []).append(process)
        elif line.strip() and not _NO_PROCESSES.search(line):
            why = why or f"nvidia-smi: {line.strip()}"
    return [_with_own(gpu, by_uuid, why) for gpu in found]


_NO_PROCESSES = re.compile(r"No running (compute )?processes found")


def _with_own(gpu: Gpu, by_uuid: dict[str, list[GpuProcess]], why: str) -> Gpu:
    if gpu.processes is None:
        return gpu
    # a MIG instance's process may be told under the whole device's UUID
    own = [uuid for uuid in (gpu.uuid, gpu.parent) if uuid]
    there = tuple(process for uuid in own for process in by_uuid.get(uuid, ()))
    if why and not there:
        return replace(gpu, processes=None, unknown={**gpu.unknown, "processes": why})
    return replace(gpu, processes=there)


def _with_instances(smi: _Smi, found: Sequence[Gpu]) -> list[Gpu]:
    """Put a device's MIG instances in the place of a device with MIG on."""
    if not any(gpu.mig for gpu in found):
        return list(found)
    names, why = smi.ask("-L")
    memory = _instance_memory(smi)
    instances: dict[str | None, list[Gpu]] = {}
    parent: Gpu | None = None
    for line in names.splitlines():
        uuid = re.search(r"UUID: ((?:GPU|MIG)-[^)\s]+)", line)
        if not uuid:
            continue
        if line.startswith("GPU"):
            parent = next((g for g in found if g.uuid == uuid.group(1)), None)
        elif parent:
            own = instances.setdefault(parent.uuid, [])
            sizes = memory.get((parent.uuid or "", len(own)), (None, None))
            own.append(_instance(parent, uuid.group(1), line, sizes))
    result = []
    for gpu in found:
        if not gpu.mig:
            result.append(gpu)
        elif why:
            result.append(_unread(gpu, gpu.driver, why))
        else:
            result += instances.get(gpu.uuid, [])
    return result


def _instance(
    parent: Gpu, uuid: str, line: str, sizes: tuple[float | None, float | None]
) -> Gpu:
    profile = re.search(r"MIG\s+(\S+)", line)
    why = "nvidia-smi: no memory told for this MIG instance"
    unknown = dict.fromkeys(("total_gb", "free_gb"), why) if None in sizes else {}
    return replace(
        parent,
        uuid=uuid,
        parent=parent.uuid,
        name=f"{parent.name} MIG {profile.group(1) if profile else ''}".strip(),
        total_gb=sizes[0],
        free_gb=sizes[1],
        unified=_known(sizes[0]),
        unknown=unknown,
    )


def _instance_memory(
    smi: _Smi,
) -> dict[tuple[str, int], tuple[float | None, float | None]]:
    """Read total and free of each MIG instance, by its device's UUID and its number."""
    import xml.etree.ElementTree as ElementTree

    text, _ = smi.ask("-q", "-x")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return {}
    found = {}
    for device in root.iter("gpu"):
        uuid = device.findtext("uuid", "").strip()
        for number, one in enumerate(device.iter("mig_device")):
            sizes = [
                one.findtext(f"fb_memory_usage/{name}", "").removesuffix("MiB").strip()
                for name in ("total", "free")
            ]
            total, free = (
                float(size) / _MIB_PER_GIB if size.isdigit() else None for size in sizes
            )
            found[uuid, number] = (total, free)
    return found


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
