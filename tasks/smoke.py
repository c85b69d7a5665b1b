"""The smoke step: run the model once for real, look at the answer, write it down."""

import math
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from remote_resident.errors import (
    AdmissionRefused,
    ExecEnvironmentError,
    KitUnavailable,
    Problem,
    ProviderError,
    WorkerRequestError,
)
from tasks import answer, measured
from tasks.step import Making, Progress, StepResult, failed, refused

if TYPE_CHECKING:
    from remote_resident.caller_side.start_command import Admit, Candidate
    from remote_resident.digests import Verification
    from remote_resident.manifest import ProviderManifest
    from tasks.trial import Trial

STEP = "smoke"


def problems(provider: "ProviderManifest") -> list[Problem]:
    """Say why there is no measured report, or why it is not current; empty: it is."""
    path = measured.report_path(provider)
    try:
        report = measured.read(path, provider.readings)
    except ProviderError as exc:
        return [_stale(provider, str(exc))]
    if report is None:
        text = f"{provider.slug}: no measured report at {path} found, one wanted"
        return [_stale(provider, text)]
    changes = measured.differs(provider, report)
    return [_stale(provider, f"{provider.slug}: {change}") for change in changes]


def production_admit(candidate: "Candidate") -> object:
    """Ask for room as every start does; a budget that nobody knows is measured alone."""
    from remote_resident.caller_side.start_command import default_admit

    if not candidate.manifest.gpu_budget_unmeasured:
        return default_admit(candidate)
    from remote_resident import reservation

    return reservation.reserved(
        candidate.manifest, own_instance=candidate.instance, smoke=True
    )


def make(
    provider: "ProviderManifest", *, admit: "Admit | None" = production_admit
) -> Making:
    """Read the weights, run the provider as production does, judge, write the report.

    `admit` is asked for room before a start; None asks nobody.
    """
    from remote_resident import digests

    yield from _end_left(provider)
    weights = yield from _read_weights(provider)
    if weights.problems:
        return refused(STEP, weights.problems, lines=["nothing was started"])
    inputs = measured.inputs(provider, _digests(provider, weights))
    if provider.smoke_script is not None:
        from tasks import smoke_script

        ran = yield from smoke_script.run(provider)
    else:
        ran = yield from _tried(provider, admit)
    if isinstance(ran, StepResult):
        return ran
    changed = digests.settle(provider.wanted_weights(), provider.weights_memo())
    if changed:
        return failed(STEP, changed)
    changes = measured.changes(inputs, measured.inputs_now(provider))
    if changes:
        text = f"{provider.slug}: changed while the smoke ran: {'; '.join(changes)}"
        return failed(STEP, [_stale(provider, text)])
    detail, tables = ran
    report = measured.compose(provider, inputs=inputs, **tables)
    measured.write(measured.report_path(provider), report)
    left = problems(provider)
    return failed(STEP, left) if left else StepResult(STEP, "done", detail=detail)


Ran = tuple[str, dict[str, dict[str, object]]]
"""The detail of a smoke that passed, and the tables of its report."""


def _tried(
    provider: "ProviderManifest", admit: "Admit | None"
) -> Generator[str | Progress, None, StepResult | Ran]:
    """Run a trial in its corner; the corner is kept unless all was well."""
    from tasks.trial import CUTS, clear_corner, make_corner

    corner = make_corner(provider)
    keep = True
    try:
        _forget_crashes(provider)
        trial = _kind(provider)(provider=provider, corner=corner, admit=admit)
        yield from trial.run()
        if trial.error is not None and not trial.timed_out:
            keep = not isinstance(trial.error, AdmissionRefused)
        result = judge(provider, trial)
        if result is None:
            keep = False
            return _detail(trial), tables(trial)
        return _with_evidence(result, trial, kept=keep)
    except CUTS:
        keep = False
        raise
    finally:
        clear_corner(corner, keep=keep)


def _kind(provider: "ProviderManifest") -> "type[Trial]":
    if provider.runtime_mode == "jobs":
        from tasks.job_smoke import JobTrial

        return JobTrial
    from tasks.trial import Trial

    return Trial


def judge(provider: "ProviderManifest", trial: "Trial") -> StepResult | None:
    """Say what a trial came to; None: the provider passed."""
    if trial.timed_out:
        return failed(STEP, [_late(provider, trial)])
    error = trial.error
    if isinstance(error, ProviderError):
        return _not_run(provider, trial, error)
    if error is not None:
        raise error
    found = [
        *_wrong_answers(provider, trial),
        *_not_identical(provider, trial),
        *_over_budget(provider, trial),
        *_grows(provider, trial),
    ]
    return failed(STEP, found) if found else None


def tables(trial: "Trial") -> dict[str, dict[str, object]]:
    """Give a report's tables of what a trial saw; None: not known."""
    import statistics

    meter, provider, started = trial.meter, trial.provider, trial.started
    answers = [given for _, given in trial.answers]
    fresh = trial.fresh.seconds if trial.fresh else None
    if not answers and trial.fresh is not None:
        answers = [trial.fresh]
    held = [given.seconds for given in answers[1:] if given.seconds is not None]
    compared = [given for _, given in _compared(trial)]
    identical = None
    if len(compared) > 1:
        identical = not any(answer.differences(compared[0], c) for c in compared[1:])
    return {
        "timing": {
            "spawn_to_ready_s": started.spawn_to_ready_s if started else None,
            "load_s": started.load_s if started else None,
            "first_s": answers[0].seconds if trial.answers else None,
            "held_s": held,
            "held_median_s": statistics.median(held) if held else None,
            "fresh_s": fresh,
            "total_s": trial.seconds,
        },
        "memory": {
            "rss_peak_bytes": meter.rss_peak_bytes,
            "device_peak_bytes": meter.device_peak_bytes,
            "device_framework_bytes": meter.device_framework_bytes,
            "device_driver_bytes": meter.device_driver_bytes,
            "growth_mib": answer.growth_mib(meter.rss_after),
            "device_growth_mib": answer.growth_mib(meter.device_after),
            "ram_budget_gb": provider.host_ram_budget_gb,
            "vram_budget_gb": provider.gpu_vram_budget_gb,
        },
        "answer": {**answer.table(provider, answers[0]), "identical": identical},
    }


# -- before ---------------------------------------------------------------------------


def _end_left(provider: "ProviderManifest") -> Iterator[str]:
    """End what a smoke that was killed left behind, and say so."""
    from tasks import trial

    # the caller holds this provider's turn: no smoke of it can still be somebody's
    for pids in trial.end_left(provider):
        told = ", ".join(map(str, pids))
        yield f"ended what an earlier smoke left: process {told}"


def _read_weights(
    provider: "ProviderManifest",
) -> Generator[Progress, None, "Verification"]:
    """Read every weight in full, except what this process has read already."""
    from remote_resident import digests

    if not provider.weights_files or provider.weights_root() is None:
        return provider.check_weights(deep=True)
    work = digests.verifying(
        provider.wanted_weights(), provider.weights_memo(), deep=True
    )
    try:
        while True:
            try:
                done, total = next(work)
            except StopIteration as end:
                found: Verification = end.value
                return found
            yield Progress("weights read", done, total, "bytes")
    finally:
        work.close()


def _digests(
    provider: "ProviderManifest", weights: "Verification"
) -> dict[str, str | None]:
    return {
        file.name: weights.digests.get(file.name) for file in provider.weights_files
    }


def _forget_crashes(provider: "ProviderManifest") -> None:
    # somebody asks for this start; and what made the earlier ones fail may be mended
    from remote_resident import places
    from remote_resident.caller_side import crashes

    crashes.History(places.crash_path(provider.slug, provider.tree)).forget()


# -- judging --------------------------------------------------------------------------


def _wrong_answers(provider: "ProviderManifest", trial: "Trial") -> list[Problem]:
    """List what is wrong with the first answer that is wrong."""
    given = list(trial.answers)
    if trial.fresh is not None:
        given.append(("fresh" if trial.answers else "first", trial.fresh))
    slug = provider.slug
    for name, one in given:
        found = answer.wrong(provider, provider.smoke_expect, one)
        if found:
            return found if name == "first" else [_of(slug, name, p) for p in found]
    return []


def _of(slug: str, name: str, problem: Problem) -> Problem:
    said = problem.text.removeprefix(f"{slug}: ")
    return replace(problem, text=f"{slug}: {name} request: {said}")


def _not_identical(provider: "ProviderManifest", trial: "Trial") -> Iterator[Problem]:
    if not provider.smoke_deterministic:
        return
    (_, first), *others = _compared(trial)
    for name, other in others:
        what = f"first and {name} request"
        found = answer.not_identical(provider.slug, what, first, other)
        if found:
            yield from found
            return


def _compared(trial: "Trial") -> "list[tuple[str, answer.Answer]]":
    """Name the answers to the one request, which are to be the same."""
    given = list(trial.answers)
    if trial.fresh is not None:
        given.append(("fresh" if given else "first", trial.fresh))
    if trial.again is not None:
        given.append(("second", trial.again))
    return given


def _over_budget(provider: "ProviderManifest", trial: "Trial") -> Iterator[Problem]:
    slug, meter = provider.slug, trial.meter
    for key, budget, peak in (
        ("host.ram_budget_gb", provider.host_ram_budget_gb, meter.rss_peak_bytes),
        ("gpu.vram_budget_gb", provider.gpu_vram_budget_gb, meter.device_peak_bytes),
    ):
        text = measured.over_budget(slug, key, budget, peak)
        if text is not None:
            raised = math.ceil((peak or 0) / measured.GIB * 100) / 100
            yield Problem(
                step=STEP,
                reason="over_budget",
                text=text,
                path=str(provider.path),
                name=key,
                wanted=budget,
                found=(peak or 0) / measured.GIB,
                next=_raised(provider, key, raised),
            )


def _raised(provider: "ProviderManifest", key: str, budget: float) -> str:
    """Give the command that raises a budget where it is declared, and asks again."""
    from shlex import quote

    name = key.rpartition(".")[2]
    edit = quote(rf"s/\b({name}\s*=\s*)[0-9.eE_+-]+/\1{budget}/")
    return f"sed -i -E {edit} {quote(str(provider.path))} && doit setup:{provider.slug}"


def _grows(provider: "ProviderManifest", trial: "Trial") -> Iterator[Problem]:
    limit = provider.smoke_max_growth_mib
    for what, after in (
        ("memory", trial.meter.rss_after),
        ("device memory", trial.meter.device_after),
    ):
        growth = answer.growth_mib(after)
        if growth is not None and growth > limit:
            yield Problem(
                step=STEP,
                reason="grows",
                text=f"{provider.slug}: {growth} MiB of {what} more after each held "
                f"request found ({', '.join(map(str, after))} bytes after each "
                f"request), at most {limit} wanted (smoke.max_growth_mib)",
                name="smoke.max_growth_mib",
                wanted=limit,
                found=growth,
            )


# -- what did not come to an answer ---------------------------------------------------


def _late(provider: "ProviderManifest", trial: "Trial") -> Problem:
    limit = provider.smoke_timeout_s
    return Problem(
        step=STEP,
        reason="timeout",
        text=f"{provider.slug}: {trial.at}: no end within {limit} s found, an end "
        "within that wanted (smoke.timeout_s); all of it was ended",
        name="smoke.timeout_s",
        wanted=limit,
        next=f"doit setup:{provider.slug}",
    )


def _not_run(
    provider: "ProviderManifest", trial: "Trial", error: ProviderError
) -> StepResult:
    if isinstance(error, AdmissionRefused | ExecEnvironmentError | KitUnavailable):
        return refused(STEP, [error.as_problem(STEP)], lines=["nothing was started"])
    if isinstance(error, WorkerRequestError) and error.reason != "socket_path":
        said = str(error).removeprefix(f"{provider.slug}: ")
        text = f"{provider.slug}: {trial.at}: {said} ({error.reason})"
        found = replace(error.as_problem(STEP), reason="request_failed", text=text)
        return failed(STEP, [_mended(provider, found)])
    if error.problems or error.reason == "crash_loop":
        return refused(STEP, error.problems or [error.as_problem(STEP)])
    return failed(STEP, [_mended(provider, error.as_problem(STEP))])


def _mended(provider: "ProviderManifest", problem: Problem) -> Problem:
    """Let the smoke be run again next, where its worker's log was."""
    if not (problem.next or "").startswith("tu remote logs "):
        return problem
    # that shows what held workers wrote; this one's log is told, and kept
    return replace(problem, next=f"doit setup:{provider.slug}")


def _with_evidence(result: StepResult, trial: "Trial", *, kept: bool) -> StepResult:
    """Add what the worker wrote and where its outputs are."""
    nexts = [line for line in result.lines if line.startswith("next: ")]
    lines = [line for line in result.lines if not line.startswith("next: ")]
    tail, told = trial.tail, "\n".join(lines)
    # a start that failed has told them already
    if tail and not all(line in told for line in tail):
        lines += ["the worker's last lines:", *(f"  {line}" for line in tail)]
    if trial.stacks:
        lines += ["its stacks at the deadline:", *(f"  {s}" for s in trial.stacks)]
    if kept:
        lines.append(f"kept: {trial.corner.directory}")
    return replace(result, lines=[*lines, *nexts])


def _stale(provider: "ProviderManifest", text: str) -> Problem:
    return Problem(
        step=STEP,
        reason="stale",
        text=text,
        path=str(measured.report_path(provider)),
        next=f"doit setup:{provider.slug}",
    )


def _detail(trial: "Trial") -> str:
    timing, peak = tables(trial)["timing"], trial.meter.rss_peak_bytes
    told: Mapping[str, Any] = {
        "first": timing["first_s"],
        "held": timing["held_median_s"],
        "fresh": timing["fresh_s"],
    }
    parts = [f"{name} {s:.3f} s" for name, s in told.items() if s is not None]
    if peak is not None:
        parts.append(f"peak {peak / measured.GIB:.3f} GiB")
    return ", ".join(parts)
