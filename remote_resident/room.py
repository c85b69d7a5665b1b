"""Read the machine for a decision, and make room: budgets, holders, who may go.

What is decided is decided in `admission`; here is what it is decided on.
"""

import json
import os
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from remote_resident import admission, machine, places, retiring
from remote_resident.admission import Budget, Holder, Readings, Verdict
from remote_resident.errors import ProviderError
from remote_resident.holdings import UNKNOWN
from remote_resident.manifest import (
    LadderStep,
    ProviderManifest,
    effective_digest,
    find,
    load,
)
from remote_resident.readings import content

_GIB = 2**30
_NO_MEMORY = 2**63
"""No machine has so much, whatever is counted: a file that says so is damaged."""
_EXEC_S = 0.02
"""Longer than an exec shows no environment."""
_DEVICES = "CUDA_VISIBLE_DEVICES"
_START_TIMEOUT_S = 900.0
_PING_S = 2.0
_LEAVING_S = 30.0
RETURN_S = 10.0
"""How long the memory of who was retired may take to come back."""
_LOOK_S = 0.05


def room_for(
    manifest: ProviderManifest | str,
    *,
    own_instance: str | None = None,
    size: float | None = None,
    readings: Readings | None = None,
    held: Sequence[Holder] | None = None,
    smoke: bool = False,
) -> Verdict:
    """Read the machine and decide whether a provider fits beside what it holds.

    `manifest`: or a slug of the tree in force. `own_instance` is the one that this start
    replaces, which is left out of the sum. `size` is the request's, for a ladder.
    `readings` and `held`: None reads them now. `smoke`: this start measures the budget.
    Raises UsageError and ManifestError for a slug that is no provider.
    """
    if isinstance(manifest, str):
        manifest = find(places.find_tree(), manifest)
    readings = machine.readings() if readings is None else readings
    held = holders() if held is None else held
    own = [h for h in held if own_instance is not None and h.instance == own_instance]
    pin = pin_of(manifest)
    devices = len(admission.visible(readings.gpus, pin))
    budget = budget_of(manifest, size=size, devices=devices)
    return admission.decide(
        manifest.slug,
        replace(budget, measuring=smoke),
        [holder for holder in held if holder not in own],
        readings=_without(readings, own),
        pin=pin,
    )


def rooms_for(manifests: Iterable[ProviderManifest]) -> list[Verdict]:
    """Decide for each provider, on one reading of the machine."""
    readings, held = machine.readings(), holders()
    return [room_for(one, readings=readings, held=held) for one in manifests]


def _without(readings: Readings, own: Sequence[Holder]) -> Readings:
    """Leave the processes of who is replaced off the devices: no co-tenants of ours."""
    pids = {pid for holder in own for pid in holder.pids}
    if not pids:
        return readings
    gpus = [
        gpu
        if gpu.processes is None
        else replace(
            gpu, processes=tuple(p for p in gpu.processes if p.pid not in pids)
        )
        for gpu in readings.gpus
    ]
    return replace(readings, gpus=gpus)


def pin_of(manifest: ProviderManifest) -> str | None:
    """Give the CUDA_VISIBLE_DEVICES that limits a provider: the manifest's, then ours.

    Empty is a limit too: no device at all. None: no limit.
    """
    if manifest.gpu_policy == "none":
        return None
    for names in (manifest.kit_env, manifest.env_vars, os.environ):
        if _DEVICES in names:
            return names[_DEVICES]
    return None


# Budgets


def budget_of(
    manifest: ProviderManifest, *, size: float | None = None, devices: int | None = None
) -> Budget:
    """Give what a provider may take: the larger of declared and measured here.

    With a `size` and a ladder it is the step at or above it; for a size above them all
    no less than the last step. `devices`: how many there are for it, None to look; a provider whose device is optional takes none where there
    is none.
    """
    measured, current = _measured(manifest)
    ram, ram_source = _one_budget(
        manifest.host_ladder,
        size,
        manifest.host_ram_budget_gb,
        measured.get("rss_peak_bytes"),
        current=current,
    )
    vram, vram_source = _one_budget(
        manifest.gpu_ladder,
        size,
        manifest.gpu_vram_budget_gb,
        measured.get("device_peak_bytes"),
        current=current,
    )
    if _without_device(manifest, devices):
        vram, vram_source = 0.0, ram_source
    same = vram_source == ram_source
    return Budget(
        vram_gb=vram,
        ram_gb=ram,
        source=ram_source if same else f"VRAM {vram_source}, RAM {ram_source}",
        shareable=manifest.gpu_shareable,
        ram_unmeasured=manifest.host_ram_budget_unmeasured,
    )


def _without_device(manifest: ProviderManifest, devices: int | None) -> bool:
    if manifest.gpu_policy != "optional":
        return manifest.gpu_policy == "none"
    return (machine.device_count() if devices is None else devices) == 0


def _one_budget(
    ladder: Sequence[LadderStep],
    size: float | None,
    declared: float | None,
    peak_bytes: int | None,
    *,
    current: bool,
) -> tuple[float | None, str]:
    whole, source = _whole(declared, peak_bytes, current=current)
    if size is None or not ladder:
        return whole, source
    step = next((step for step in ladder if step.size >= size), ladder[-1])
    if step.size >= size or (whole is not None and step.peak_gb > whole):
        return step.peak_gb, f"ladder at {step.size}"
    return whole, source


def _whole(
    declared: float | None, peak_bytes: int | None, *, current: bool
) -> tuple[float | None, str]:
    peak = None if peak_bytes is None else peak_bytes / _GIB
    if declared is None:
        # a report of another manifest may raise what is declared, not stand for it
        return (peak, "measured") if peak and current else (None, "not declared")
    if peak is not None and peak > declared:
        return peak, "measured"
    return declared, "declared"


def _measured(manifest: ProviderManifest) -> tuple[Mapping[str, int], bool]:
    """Read the peaks of this machine's report, and whether this manifest made it."""
    path = places.measured_path(manifest.slug, manifest.tree)
    try:
        report = tomllib.loads(content(str(path))[0].decode())
    except (OSError, ValueError, RecursionError):
        return {}, False
    memory, inputs = report.get("memory"), report.get("inputs")
    if not isinstance(memory, dict) or not isinstance(inputs, dict):
        return {}, False
    peaks = {
        key: value
        for key, value in memory.items()
        if type(value) is int and 0 <= value < _NO_MEMORY
    }
    return peaks, inputs.get("manifest") == effective_digest(manifest)


# Holders


def holders(proc: Path = machine.PROC) -> list[Holder]:
    """List who holds memory on this machine, each with the budget of its own manifest."""
    known: dict[str, ProviderManifest | None] = {}
    found = []
    for holder in machine.holdings(proc):
        path = _manifest_path(holder)
        if path not in known:
            known[path] = _loaded(path, holder.tree)
        found.append(_budgeted(holder, known[path]))
    return [*found, *recorded()]


def _manifest_path(holder: Holder) -> str:
    """Name a holder's manifest; empty where its argv says nothing of one."""
    if holder.manifest_dir:
        path = f"{holder.manifest_dir}/provider.toml"
    else:
        path = f"{holder.tree or ''}/manifests/{holder.slug}/provider.toml"
    # from where its owner stood is not known: from here it would be another's
    return path if path.startswith("/") and (holder.tree or holder.manifest_dir) else ""


def _loaded(path: str, tree: str | None) -> ProviderManifest | None:
    if not path:
        return None
    inside = tree is not None and path.startswith(f"{tree}/manifests/")
    try:
        return load(Path(path), Path(tree) if tree and inside else None)
    except (OSError, ValueError, ProviderError):
        return None


def _budgeted(holder: Holder, manifest: ProviderManifest | None) -> Holder:
    if manifest is None or manifest.slug != holder.slug:
        limit_s, budget = _START_TIMEOUT_S, UNKNOWN
    else:
        limit_s, budget = manifest.runtime_start_timeout_s, budget_of(manifest)
    loading = holder.loading
    if loading is None and holder.started is not None:
        # its socket is not ours to see; who is older than a load may last has loaded
        loading = time.time() - holder.started < limit_s
    return replace(holder, budget=budget, loading=loading)


def recorded(directory: Path | None = None) -> list[Holder]:
    """List the services that this user's daemon runs, by its records of them.

    A record is `<name>.json` in `<state>/held`: `slug`, `tree`, `instance`, `pids`,
    `began` (when each pid began), `daemon` (its pid, and when it began), `contained`,
    `device`, `vram_gb`, `ram_gb`, `loading`, `boot_id`; what is not there is unknown. A
    record of an earlier boot is of nobody, as is one whose daemon and service do not
    live; one that cannot be read is somebody's.
    """
    directory = places.state_dir() / "held" if directory is None else directory
    try:
        names = sorted(path for path in directory.iterdir() if path.suffix == ".json")
    except OSError:
        return []
    return [holder for path in names for holder in _recorded(path)]


def _recorded(path: Path) -> Iterator[Holder]:
    try:
        said: Any = json.loads(content(str(path))[0])
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError):
        said = {}
    said = said if isinstance(said, dict) else {}
    if said.get("boot_id", boot_id()) != boot_id() or not _may_live(said):
        return

    def number(name: str) -> float | None:
        value = said.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        # nothing is above what is no number, and a budget below zero would make room
        return float(value) if 0 <= value < _NO_MEMORY else None

    def word(name: str) -> str | None:
        value = said.get(name)
        return value if isinstance(value, str) else None

    pids = said.get("pids")
    yield Holder(
        slug=word("slug") or path.stem,
        tree=word("tree"),
        instance=word("instance"),
        pids=tuple(p for p in pids if type(p) is int) if isinstance(pids, list) else (),
        uid=os.geteuid(),
        device=word("device"),
        budget=Budget(number("vram_gb"), number("ram_gb"), "registered"),
        loading=said.get("loading") is not False,
        resident_gb=None,
    )


def _may_live(said: Mapping[str, Any]) -> bool:
    """Say whether anything of a record lives; what it does not tell is taken to."""
    from remote_resident import processes

    instance, pids, began = (said.get(name) for name in ("instance", "pids", "began"))
    if not isinstance(pids, list) or not isinstance(began, list):
        return True
    if not isinstance(instance, str) or _lives(said.get("daemon")):
        # who wrote it takes it away in time
        return True
    if said.get("contained") is not False:
        # it may load, or its engine may have started it anew: the next daemon looks
        return True
    if any(_lives(one) for one in zip(pids, began, strict=False)):
        return True
    if processes.members(instance):
        return True
    # one that is just being replaced by exec shows no environment: look twice
    time.sleep(_EXEC_S)
    return bool(processes.members(instance))


def _lives(identity: object) -> bool:
    from remote_resident import processes

    if not isinstance(identity, list | tuple) or len(identity) != 2:
        return False
    pid, began = identity
    return type(pid) is int and processes.started_at(pid) == began is not None


def boot_id() -> str | None:
    """Give what tells this boot of the machine from every other; None: not known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


# Making room


def make_room(
    verdict: Verdict,
    again: Callable[[], Verdict],
    *,
    idle_s: Callable[[Holder], float | None] | None = None,
    retire: Callable[[Holder], object] | None = None,
    wait_s: float = RETURN_S,
) -> tuple[Verdict, list[Holder]]:
    """Retire idle workers of this user until a refused provider fits; give who went.

    Idle job workers are asked first to give back what they merely cache. Least recently
    used first, as few as needed, none where all of them would not do.
    `idle_s` gives the seconds that a holder has been idle, None for one that is busy or
    cannot be asked; `retire` returns once its processes are gone. Memory may come back
    only later: `again` reads and decides afresh until it admits or `wait_s` are over.
    """
    idle_s, retire = idle_s or ask_idle_s, retire or end
    mine = [holder for holder in verdict.holders if holder.uid == os.geteuid()]
    waits = [(idle_s(holder), holder) for holder in mine]
    idle = sorted(
        ((s, holder) for s, holder in waits if s is not None), key=lambda one: -one[0]
    )
    if _reclaimed([holder for _, holder in idle]):
        verdict = again()
        if verdict.admit:
            return verdict, []
    gone = retiring.to_retire(verdict, [holder for _, holder in idle])
    if not gone:
        return verdict, []
    for holder in gone:
        retire(holder)
    deadline = time.monotonic() + wait_s
    while not (verdict := again()).admit and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return _having_told(verdict, gone), gone


def _having_told(verdict: Verdict, gone: Sequence[Holder]) -> Verdict:
    """Say who went, in the verdict and aloud: nobody reads that of an admission."""
    from logging import getLogger

    told = f"retired to make room: {', '.join(map(str, gone))}"
    getLogger(__name__).warning("%s: %s", verdict.slug, told)
    notes = (*verdict.notes, told)
    return replace(verdict, notes=notes, text=f"{verdict.text}; {told}")


def ask_idle_s(holder: Holder) -> float | None:
    """Ask a worker for how long nobody has asked it; None: busy, or not to be asked.

    A worker that does not tell has been idle since it started, at most.
    """
    from remote_resident import client
    from remote_resident.errors import WorkerRequestError
    from remote_resident.worker_side.protocol import ProtocolError

    if holder.instance is None or holder.socket is None:
        return None
    if is_job_worker(holder):
        return job_worker_idle_s(holder, Path(holder.socket))
    try:
        reply, _ = client.ask(Path(holder.socket), "ping", _PING_S)
    except (client.Gone, client.Silent, WorkerRequestError, ProtocolError):
        return None
    is_free = reply.get("busy_since") is None and not reply.get("queue")
    if reply.get("instance") != holder.instance or not is_free:
        return None
    seconds = reply.get("idle_s", reply.get("uptime_s"))
    return float(seconds) if isinstance(seconds, int | float) else None


def is_job_worker(holder: Holder) -> bool:
    """Say whether a holder answers HTTP and runs jobs, by what it was started as."""
    from remote_resident import processes

    return any("entry" in processes.marks(pid) for pid in holder.pids[:1])


def job_worker_idle_s(holder: Holder, socket: Path) -> float | None:
    """Give for how long a job worker may have had no job, at most; None: it has one."""
    from remote_resident import unix_http

    try:
        status, said = unix_http.ask(socket, "GET", "/busy", timeout_s=_PING_S)
    except unix_http.NoAnswer:
        return None
    is_free = status == 200 and isinstance(said, dict) and said.get("active_jobs") == 0
    return max(0.0, time.time() - (holder.started or time.time())) if is_free else None


def _reclaimed(idle: Sequence[Holder]) -> bool:
    """Have idle job workers give cached memory back, all at once; False: none did."""
    from concurrent.futures import ThreadPoolExecutor

    from remote_resident import unix_http

    def ask(socket: str) -> bool:
        try:
            unix_http.ask(Path(socket), "POST", "/reclaim", timeout_s=_PING_S)
        except unix_http.NoAnswer:
            return False
        return True

    sockets = [h.socket for h in idle if h.socket and is_job_worker(h)]
    if not sockets:
        return False
    with ThreadPoolExecutor(len(sockets), "reclaim") as pool:
        return any(list(pool.map(ask, sockets)))


def end(holder: Holder) -> None:
    """Ask an idle worker to stop, wait, and end what is left of its instance."""
    import contextlib

    from remote_resident import processes, start_lock

    if holder.instance is not None and holder.socket is not None:
        start_lock.note_stopped(Path(holder.socket), holder.instance)
    with contextlib.ExitStack() as stack:
        fds = []
        for pid in holder.pids:
            with contextlib.suppress(OSError):
                fds.append(os.pidfd_open(pid))
                stack.callback(os.close, fds[-1])
        if _asked_to_stop(holder):
            _until_ended(fds)
    if holder.instance is not None:
        processes.end_all(holder.instance, container_cli=_container_cli(holder))


def _container_cli(holder: Holder) -> str | None:
    """Find the program that ends a holder's container; None: it runs in none."""
    manifest = _loaded(_manifest_path(holder), holder.tree)
    if manifest is None or manifest.env_kind != "docker":
        return None
    from remote_resident import exec_env

    try:
        return exec_env.from_manifest(manifest).container_cli()
    except ProviderError:
        return None


def _asked_to_stop(holder: Holder) -> bool:
    from remote_resident import client
    from remote_resident.errors import WorkerRequestError
    from remote_resident.worker_side.protocol import ProtocolError

    if holder.socket is None or is_job_worker(holder):
        return False
    try:
        client.ask(Path(holder.socket), "stop", _PING_S)
    except (client.Gone, client.Silent, WorkerRequestError, ProtocolError):
        return False
    return True


def _until_ended(pidfds: list[int]) -> None:
    import select

    poll = select.poll()
    for fd in pidfds:
        poll.register(fd, select.POLLIN)
    waiting = len(pidfds)
    deadline = time.monotonic() + _LEAVING_S
    while waiting and (left_s := deadline - time.monotonic()) > 0:
        for fd, _ in poll.poll(left_s * 1000):
            poll.unregister(fd)
            waiting -= 1
