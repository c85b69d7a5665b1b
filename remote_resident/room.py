"""Read the machine for a decision: budgets from manifests and reports, holders, memory."""

import os
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from remote_resident import admission, machine, nvidia, places
from remote_resident.admission import UNKNOWN, Budget, Holder, Readings, Verdict
from remote_resident.errors import ProviderError
from remote_resident.manifest import LadderStep, ProviderManifest, find, load

GIB = 2**30


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
    """
    if isinstance(manifest, str):
        manifest = find(places.find_tree(), manifest)
    readings = readings or machine.readings()
    if held is None:
        held = holders()
    others = [h for h in held if own_instance is None or h.instance != own_instance]
    budget = budget_of(manifest, size=size, devices=len(readings.gpus))
    return admission.decide(
        manifest.slug,
        replace(budget, measuring=smoke),
        others,
        readings=readings,
        pin=pin_of(manifest),
    )


def pin_of(manifest: ProviderManifest) -> str | None:
    """Give the CUDA_VISIBLE_DEVICES that limits a provider: the manifest's, then ours."""
    if manifest.gpu_policy == "none":
        return None
    name = "CUDA_VISIBLE_DEVICES"
    return manifest.env_vars.get(name) or os.environ.get(name) or None


def budget_of(
    manifest: ProviderManifest, *, size: float | None = None, devices: int | None = None
) -> Budget:
    """Give what a provider may take: the larger of declared and measured here.

    With a `size` and a ladder the step at or above it stands for the declared number.
    `devices`: how many there are, None to look; a provider whose device is optional takes
    none where there is none.
    """
    measured = _measured(manifest)
    vram, vram_source = _larger(
        _stepped(manifest.gpu_ladder, size, manifest.gpu_vram_budget_gb),
        measured.get("device_peak_bytes"),
    )
    ram, ram_source = _larger(
        _stepped(manifest.host_ladder, size, manifest.host_ram_budget_gb),
        measured.get("rss_peak_bytes"),
    )
    sources = [ram_source]
    if _without_device(manifest, devices):
        vram = 0.0
    else:
        sources.insert(0, vram_source)
    return Budget(
        vram_gb=vram,
        ram_gb=ram,
        source=", ".join(dict.fromkeys(sources)),
        shareable=manifest.gpu_shareable,
        ram_unmeasured=manifest.host_ram_budget_unmeasured,
    )


def _without_device(manifest: ProviderManifest, devices: int | None) -> bool:
    if manifest.gpu_policy == "none":
        return True
    if manifest.gpu_policy == "required":
        return False
    return (nvidia.device_count() if devices is None else devices) == 0


def _stepped(
    ladder: Sequence[LadderStep], size: float | None, declared: float | None
) -> tuple[float | None, str]:
    if size is not None:
        for step in ladder:
            if step.size >= size:
                return step.peak_gb, f"ladder at {step.size}"
    return declared, "declared" if declared is not None else "not declared"


def _larger(
    declared: tuple[float | None, str], peak_bytes: int | None
) -> tuple[float | None, str]:
    number, source = declared
    if peak_bytes is None:
        return number, source
    peak = peak_bytes / GIB
    if number is None or peak > number:
        return peak, "measured"
    return number, source


def _measured(manifest: ProviderManifest) -> dict[str, int]:
    """Read the peaks of this machine's report; empty where there is none.

    A report of other inputs counts too: it can only raise what is asked for.
    """
    path = places.measured_path(manifest.slug, manifest.tree)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("memory", {})
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in table.items() if type(value) is int}


def holders(proc: Path = machine.PROC) -> list[Holder]:
    """List who holds memory on this machine, each with the budget of its own manifest."""
    return [
        replace(holder, budget=_budget_of_holder(holder))
        for holder in machine.holdings(proc)
    ]


def _budget_of_holder(holder: Holder) -> Budget:
    """Find a holder's manifest by its argv; UNKNOWN where it cannot be read."""
    folders = [Path(holder.manifest_dir)] if holder.manifest_dir else []
    if holder.tree:
        folders += [Path(holder.tree) / "manifests" / holder.slug, Path(holder.tree)]
    for folder in folders:
        path = folder / "provider.toml"
        try:
            if not path.is_file():
                continue
            return budget_of(load(path, Path(holder.tree) if holder.tree else None))
        except (OSError, ProviderError):
            return UNKNOWN
    return UNKNOWN


def declared_budget(slug: str, tree: Path | None = None) -> Budget | None:
    """Give the budget of a provider; None where it cannot be read."""
    try:
        return budget_of(find(tree or places.find_tree(), slug))
    except ProviderError:
        return None


def declares_resident_worker(slug: str, tree: Path | None = None) -> bool:
    """Say whether a slug is a provider that holds a resident worker."""
    try:
        provider = find(tree or places.find_tree(), slug)
    except ProviderError:
        return False
    return provider.runtime_mode == "resident"
