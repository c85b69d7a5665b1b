"""What a manifest claims, held against what machines measured of it.

`check`, `report` and the page ask here, so that all three say the same.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from remote_resident.errors import Problem
from tasks.figures import number
from tasks.measured import over_budget

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest
    from tasks.ladder import Acceptance, Rung
    from tasks.report_file import Report

_ARCHS = {
    "x86_64": ("x86_64", "x86-64", "amd64", "x64"),
    "aarch64": ("aarch64", "arm64"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What came of holding claims against measurements."""

    problems: tuple[Problem, ...] = ()
    """Claims that the report contradicts: they fail a check."""
    notes: tuple[str, ...] = ()
    """What an operator should know of the others: it fails nothing."""


NOTHING = Compared()


def compared(
    provider: "ProviderManifest",
    report: "Report | None",
    *,
    state: str,
    acceptance: "Acceptance | None" = None,
    here: bool = True,
) -> Compared:
    """Hold each claim of a manifest against a report and an acceptance suite.

    `state`: of the report, current, stale or missing (it is None then, or is damaged).
    `here`: both are of this machine.
    """
    notes = [*_ladder(provider, acceptance)]
    if here:
        notes += _status(provider, report, state)
    if report is None:
        return Compared(notes=tuple(notes))
    if state == "current":
        notes += _verified_on(provider, report)
    return Compared(problems=tuple(_contradicted(provider, report)), notes=tuple(notes))


# -- what fails a check


def _contradicted(provider: "ProviderManifest", report: "Report") -> Iterator[Problem]:
    memory, timing, slug = report.memory, report.timing, provider.slug
    for key, measured in (
        ("host.ram_budget_gb", "rss_peak_bytes"),
        ("gpu.vram_budget_gb", "device_peak_bytes"),
    ):
        budget, peak = (
            getattr(provider, key.replace(".", "_")),
            number(memory, measured),
        )
        text = over_budget(slug, key, budget, None if peak is None else int(peak))
        if text is not None:
            yield _problem(provider, "over_budget", key, text)
    limit = provider.smoke_max_growth_mib
    for measured, what in (("growth_mib", ""), ("device_growth_mib", " on the device")):
        growth = number(memory, measured)
        if growth is not None and growth > limit:
            key = "smoke.max_growth_mib"
            text = f"{slug}: {key}: {limit} declared, {growth}{what} measured"
            yield _problem(provider, "grows", key, text)
    start, limit = number(timing, "spawn_to_ready_s"), provider.runtime_start_timeout_s
    if start is not None and start > limit:
        key = "runtime.start_timeout_s"
        text = f"{slug}: {key}: {limit} s declared, {start} s measured"
        yield _problem(provider, "start_timeout", key, text)
    if provider.status == "broken":
        text = f'{slug}: status: "broken" declared, {_passed(report)}'
        yield _problem(provider, "answer_wrong", "status", text)


def _problem(
    provider: "ProviderManifest", reason: str, name: str, text: str
) -> Problem:
    return Problem(
        step="measured",
        reason=reason,
        text=text,
        path=str(provider.path),
        name=name,
        next=f"tu remote report {provider.slug}",
    )


# -- what is worth a note


def _status(
    provider: "ProviderManifest", report: "Report | None", state: str
) -> Iterator[str]:
    claim = f'{provider.slug}: status: "{provider.status}" declared'
    if provider.status == "verified" and state == "missing":
        yield f"{claim}, no report of this machine found"
    elif provider.status == "verified" and state == "stale":
        yield f"{claim}, no current report of this machine found"
    elif provider.status == "untested" and state == "current" and report is not None:
        yield f"{claim}, {_passed(report)}"


def _passed(report: "Report") -> str:
    at = report.certified.get("at")
    when = f" at {at}" if at else ""
    return f"a smoke that passed{when} measured"


def _verified_on(provider: "ProviderManifest", report: "Report") -> Iterator[str]:
    """Name what the machine of a report is and `verified_on` does not say."""
    claim = provider.verified_on
    if not claim:
        return
    with_device = provider.gpu_policy != "none"
    facts = list(_facts(report.machine, with_device=with_device))
    unnamed = [shown for shown, words in facts if not _named(claim, words)]
    if unnamed:
        yield (
            f'{provider.slug}: verified_on: "{claim}" declared, which does not name '
            f"{', '.join(unnamed)} of the machine that measured"
        )


Fact = tuple[str, tuple[tuple[str, ...], ...]]
"""What is shown, and the words for it: one of each group has to be there."""


def _facts(machine: Mapping[str, Any], *, with_device: bool) -> Iterator[Fact]:
    system = str(machine.get("os", ""))
    name, version = system.partition(" ")[0], re.search(r"\d+", system)
    if name:
        number_of_it = ((version[0],),) if version else ()
        yield system, ((name,), *number_of_it)
    arch = str(machine.get("arch", ""))
    if arch:
        yield arch, (_ARCHS.get(arch, (arch,)),)
    if not with_device:
        return
    gpus = machine.get("gpus")
    names = [
        str(gpu["name"])
        for gpu in (gpus if isinstance(gpus, list) else [])
        if isinstance(gpu, Mapping) and gpu.get("name")
    ]
    if not names:
        yield "CPU only", (("CPU",),)
    for gpu_name in dict.fromkeys(names):
        model = next((w for w in re.split(r"[\s-]+", gpu_name) if _has_digit(w)), None)
        yield gpu_name, ((model or gpu_name,),)


def _has_digit(word: str) -> bool:
    return any(letter.isdigit() for letter in word)


def _named(claim: str, words: Iterable[tuple[str, ...]]) -> bool:
    return all(any(_word_in(word, claim) for word in group) for group in words)


def _word_in(word: str, text: str) -> bool:
    found = re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE)
    return found is not None


def _ladder(
    provider: "ProviderManifest", acceptance: "Acceptance | None"
) -> Iterator[str]:
    """Name what admission would take too little for, by what was measured by size.

    Each claim once, with the largest of the peaks that are above it.
    """
    above: dict[tuple[str, float, str], Rung] = {}
    for rung in acceptance.rungs if acceptance else ():
        claim = _claimed(provider, rung)
        if claim is None or rung.peak_gb is None or rung.peak_gb <= claim[1]:
            continue
        largest = above.setdefault(claim, rung)
        if rung.peak_gb > (largest.peak_gb or 0.0):
            above[claim] = rung
    for (key, declared, where), rung in above.items():
        at = f" at {acceptance.at}" if acceptance and acceptance.at else ""
        yield (
            f"{provider.slug}: {key}: {declared} GiB{where} declared, "
            f"{rung.peak_gb} GiB at size {rung.size} measured by the acceptance "
            f"suite{at}"
        )


def _claimed(
    provider: "ProviderManifest", rung: "Rung"
) -> tuple[str, float, str] | None:
    """Give what is declared for a size, as admission looks it up; None: nothing."""
    on_host = rung.pool == "host"
    steps = provider.host_ladder if on_host else provider.gpu_ladder
    step = next((step for step in steps if step.size >= rung.size), None)
    if step is not None:
        key = "host.ladder" if on_host else "gpu.ladder"
        return key, step.peak_gb, f" for sizes to {step.size}"
    budget = provider.host_ram_budget_gb if on_host else provider.gpu_vram_budget_gb
    key = "host.ram_budget_gb" if on_host else "gpu.vram_budget_gb"
    return None if budget is None else (key, budget, "")
