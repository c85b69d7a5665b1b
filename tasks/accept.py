"""Accept a provider: five phases that its status rests on, and what each size takes.

Each phase has a worker of its own, started as production starts it, on a socket and with
output directories that nobody else uses. One that fails stops no later one, as what they
look at differs.
"""

import math
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from remote_resident import whole_file
from remote_resident.errors import (
    AdmissionRefused,
    ExecEnvironmentError,
    KitUnavailable,
    Problem,
)
from tasks import ladder as acceptance
from tasks import measured
from tasks.accept_kill import kill
from tasks.accept_phases import hostile, ladder, repeat, shapes
from tasks.accept_requests import Requests
from tasks.accept_requests import build as build_requests
from tasks.accept_stage import STEP, Known, LadderRow, Stage
from tasks.smoke import production_admit
from tasks.step import Making, Progress, StepResult, failed, refused
from tasks.trial import clear_corner, end_left, make_corner

if TYPE_CHECKING:
    from remote_resident.caller_side.start_command import Admit
    from remote_resident.manifest import ProviderManifest
    from tasks.trial import Corner

Phases = Sequence[tuple[str, Callable[[Stage], str]]]
PHASES: Phases = (
    ("repeat", repeat),
    ("shapes", shapes),
    ("ladder", ladder),
    ("hostile", hostile),
    ("kill", kill),
)
MARGIN = 1.3
"""What a manifest's ladder has above one run's peak: by so much six runs of proteinmpnn
differed at 400 and at 800 residues, as an allocator keeps now more and now less."""
RULE = "each peak and 30 %, rounded up to the next 0.01 GiB"

OnPhase = Callable[[StepResult], object]


def make(
    provider: "ProviderManifest",
    *,
    admit: "Admit | None" = production_admit,
    on_phase: OnPhase | None = None,
    phases: Phases = PHASES,
) -> Making:
    """Go through the phases and write `<slug>.accept.toml`, whatever came of them.

    `on_phase` gets each phase's result as it ends; `admit` is asked for room before each
    start, None asks nobody. The caller holds the provider's turn.
    """
    if provider.runtime_mode == "jobs":
        return refused(STEP, [_no_jobs(provider)])
    for pids in end_left(provider):
        yield f"ended what an earlier trial left: process {', '.join(map(str, pids))}"
    corner = make_corner(provider)
    keep = False
    try:
        requests = yield from build_requests(provider, corner.directory)
        if not isinstance(requests, Requests):
            return refused(STEP, requests, lines=["nothing was started"])
        known = Known(requests=requests)
        stages = [_stage(provider, corner, admit, known, *phase) for phase in phases]
        results = yield from _gone_through(stages, on_phase)
        keep = any(result.verdict == "failed" for result in results)
    finally:
        clear_corner(corner, keep=keep)
    if results[-1].verdict == "refused":
        return results[-1]
    kept = [f"kept: {corner.directory}"] if keep else []
    return _written(provider, results, known.ladder, kept)


def _stage(
    provider: "ProviderManifest",
    corner: "Corner",
    admit: "Admit | None",
    known: Known,
    name: str,
    work: Callable[[Stage], str],
) -> Stage:
    return Stage(
        provider=provider,
        corner=corner,
        admit=admit,
        limit_s=provider.accept_timeout_s,
        name=name,
        known=known,
        work=work,
    )


def _gone_through(
    stages: Sequence[Stage], on_phase: OnPhase | None
) -> Generator[str | Progress, None, list[StepResult]]:
    results: list[StepResult] = []
    for stage in stages:
        results.append((yield from _phase(stage)))
        if results[-1].verdict == "refused":
            # no room, no interpreter: that is not the provider's to mend
            break
        if on_phase is not None:
            on_phase(results[-1])
    return results


def _phase(stage: Stage) -> Generator[str | Progress, None, StepResult]:
    """Run one phase to its end, and leave nothing of it running."""
    _forget_crashes(stage.provider)
    try:
        yield from stage.run()
    finally:
        stage.clear()
    problems = stage.verdict()
    if isinstance(
        stage.error, AdmissionRefused | ExecEnvironmentError | KitUnavailable
    ):
        return refused(STEP, problems)
    if not problems:
        return StepResult(stage.name, "done", stage.text, seconds=stage.seconds)
    lines = _evidence(stage)
    result = failed(stage.name, [replace(p, next=None) for p in problems], lines=lines)
    return result.timed(stage.seconds)


def _forget_crashes(provider: "ProviderManifest") -> None:
    # a start that failed in one phase may not refuse that of the next
    from remote_resident import places
    from remote_resident.caller_side import crashes

    crashes.History(places.crash_path(provider.slug, provider.tree)).forget()


def _evidence(stage: Stage) -> list[str]:
    told = "\n".join(problem.text for problem in stage.problems)
    lines = []
    if stage.tail and not all(line in told for line in stage.tail):
        lines += ["the worker's last lines:", *(f"  {line}" for line in stage.tail)]
    if stage.stacks:
        lines += ["its stacks at the deadline:", *(f"  {s}" for s in stage.stacks)]
    return lines


def _no_jobs(provider: "ProviderManifest") -> Problem:
    return Problem(
        step=STEP,
        reason="wrong_mode",
        text=f"{provider.slug}: runtime.mode = 'jobs' found, 'resident' or "
        "'subprocess' wanted: a job cannot be accepted yet",
        path=str(provider.path),
        name="runtime.mode",
    )


# -- what came of it


def _written(
    provider: "ProviderManifest",
    results: Sequence[StepResult],
    rows: Sequence[LadderRow],
    kept: Sequence[str],
) -> StepResult:
    import tomli_w

    path = acceptance.beside(measured.report_path(provider))
    whole_file.write(path, tomli_w.dumps(document(provider, results, rows)).encode())
    lines = [*manifest_lines(rows), f"written: {path}", *kept]
    wrong = [result for result in results if not result.ok]
    if not wrong:
        detail = f"{len(results)} phases"
        if rows:
            detail += f", up to size {max(row.size for row in rows)}"
        return StepResult(STEP, "done", detail, lines=lines)
    names = ", ".join(f"{result.step} ({result.reason})" for result in wrong)
    return StepResult(
        STEP,
        "failed",
        f"{len(wrong)} of {len(results)} phases failed: {names}",
        wrong[0].reason,
        [*lines, f"next: doit accept:{provider.slug}"],
    )


def document(
    provider: "ProviderManifest",
    results: Sequence[StepResult],
    rows: Sequence[LadderRow],
) -> dict[str, Any]:
    """Give what the file holds."""
    from datetime import UTC, datetime

    return {
        "accept": {
            "slug": provider.slug,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": os.uname().nodename,
            "ok": all(result.ok for result in results),
        },
        "phase": [
            {
                "name": result.step,
                "ok": result.ok,
                "reason": result.reason,
                "text": result.detail,
                "seconds": result.seconds,
            }
            for result in results
        ],
        "ladder": [asdict(row) for row in rows],
    }


def manifest_lines(rows: Iterable[LadderRow]) -> list[str]:
    """Give the ladder as a manifest has it."""
    lines = []
    for row in rows:
        table = "host" if row.pool == "host" else "gpu"
        lines += [
            f"[[{table}.ladder]]",
            f"size = {row.size}",
            f"peak_gb = {rounded_up(row.peak_gb)}",
        ]
    return [f"for provider.toml ({RULE}):", *lines] if lines else []


def rounded_up(peak_gb: float) -> float:
    """Give the budget that holds a peak: never below it."""
    return math.ceil(round(peak_gb * MARGIN * 100, 6)) / 100
