"""Whom to ask to leave, so that a provider that was refused fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from remote_resident.admission import Verdict, decide
from remote_resident.holdings import (
    NOTHING_READ,
    Gpu,
    Holder,
    Readings,
    may_be_on,
    used_on,
)
from remote_resident.pools import known_sum


def to_retire(verdict: Verdict, idle: Sequence[Holder]) -> list[Holder]:
    """Choose whom to retire so that a refused provider fits: as few as needed.

    `idle` is in the order to be asked, least recently used first. Empty when it would
    not fit with all of them gone, or needs none of them gone.
    """
    if verdict.admit or not _fits_without(verdict, idle):
        return []
    chosen: list[Holder] = []
    for holder in idle:
        chosen.append(holder)
        if _fits_without(verdict, chosen):
            break
    # the latest of them made it fit; earlier ones may have helped nothing
    for holder in chosen[-2::-1]:
        others = [other for other in chosen if other is not holder]
        if _fits_without(verdict, others):
            chosen = others
    return chosen


def _fits_without(verdict: Verdict, gone: Sequence[Holder]) -> bool:
    """Decide as if these holders had left and given back what they hold.

    Where that is not known their budget stands for it: this is a plan, and the decision
    is taken on what is then read.
    """
    readings = verdict.readings or NOTHING_READ
    left = [holder for holder in verdict.holders if holder not in gone]
    return decide(
        verdict.slug,
        verdict.budget,
        left,
        reserve_gb=verdict.reserve_gb,
        readings=_given_back(readings, gone),
        pin=verdict.pin,
    ).admit


def _given_back(readings: Readings, gone: Sequence[Holder]) -> Readings:
    pids = {pid for holder in gone for pid in holder.pids}
    back_gb = sum(_or(holder.resident_gb, holder.budget.ram_gb) for holder in gone)
    gpus = []
    for gpu in readings.gpus:
        used_gb = sum(_back_on(holder, gpu, readings.gpus) for holder in gone)
        if gpu.unified:
            back_gb += used_gb
        left = None
        if gpu.processes is not None:
            left = tuple(p for p in gpu.processes if p.pid not in pids)
        free_gb = None if gpu.free_gb is None else gpu.free_gb + used_gb
        gpus.append(replace(gpu, free_gb=free_gb, processes=left))
    mem = readings.mem
    mem = replace(
        mem,
        free_gb=known_sum(mem.free_gb, back_gb),
        available_gb=known_sum(mem.available_gb, back_gb),
    )
    return Readings(mem, tuple(gpus), readings.partial)


def _back_on(holder: Holder, gpu: Gpu, gpus: Sequence[Gpu]) -> float:
    if not may_be_on(holder, gpu, gpus):
        return 0.0
    used = [p.used_gb for p in gpu.processes or () if p.pid in holder.pids]
    known = None if None in used or not used else used_on(holder, gpu)
    return _or(known, holder.budget.vram_gb)


def _or(known: float | None, budget_gb: float | None) -> float:
    return (budget_gb or 0.0) if known is None else known
