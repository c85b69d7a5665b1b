"""The phases of acceptance but the last, in the order in which they are gone through."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_resident.errors import WorkerRequestError
from tasks import answer
from tasks.accept_hostile import (
    busy_core,
    full_disk,
    reached,
    set_trap,
    strayed,
    strays,
)
from tasks.accept_stage import LadderRow, Stage, place, seconds_of, watched

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest
    from tasks.answer import Answer

GIB = 2**30
IDENTICAL = 4


# -- 1


def repeat(stage: Stage) -> str:
    """Ask the same four times: the answers are one, and memory does not grow."""
    provider, known = stage.provider, stage.known
    stage.start()
    answers: list[Answer] = []
    for number in range(1, IDENTICAL + 1):
        answers.append(stage.ask(f"identical {number}", known.requests.plain))
        known.reference = answers[0]
    for number, given in enumerate(answers[1:], 2):
        stage.same(f"identical requests 1 and {number}", answers[0], given)
    known.varying = frozenset(
        place(text)
        for given in answers[1:]
        for text in answer.differences(answers[0], given)
    )
    grown = []
    if provider.runtime_mode == "resident":
        for what, after in (
            ("memory", stage.meter.rss_after),
            ("device memory", stage.meter.device_after),
        ):
            grown += _growth(stage, what, after)
    alike = (
        "identical answers" if provider.smoke_deterministic else "answers as expected"
    )
    return "; ".join([f"{IDENTICAL} {alike}: {seconds_of(answers)}", *grown])


def _growth(stage: Stage, what: str, after: Sequence[int | None]) -> list[str]:
    growth, limit = answer.growth_mib(after), stage.provider.smoke_max_growth_mib
    if growth is None:
        return []
    if growth > limit:
        readings = ", ".join(map(str, after))
        stage.wrong(
            "grows",
            f"{growth} MiB of {what} more after each identical request found "
            f"({readings} bytes after each), at most {limit} wanted "
            "(smoke.max_growth_mib)",
            "smoke.max_growth_mib",
        )
    return [f"{what} {growth:+.3f} MiB a request"]


# -- 2


def shapes(stage: Stage) -> str:
    """Ask large and small in turns, all of it twice: nothing stays of what was between."""
    turns = _turns(stage)
    if len(turns) < 2:
        _undeclared(stage, "two")
        return "nothing was asked"
    stage.start()
    order = _interleaved(list(turns))
    before = {what: stage.ask(what, turns[what]) for what in order}
    for what in order:
        again = stage.ask(f"{what} again", turns[what])
        stage.same(f"{what} before and after others", before[what], again)
    alike = "alike" if stage.provider.smoke_deterministic else "as expected"
    return f"{', '.join(order)}, and all again: answered {alike}"


def _turns(stage: Stage) -> dict[str, Mapping[str, Any]]:
    requests = stage.known.requests
    turns = {f"size {size}": asked for size, asked in requests.by_size.items()}
    return {"smoke": requests.plain, **turns} if len(turns) == 1 else turns


def _interleaved(ascending: list[str]) -> list[str]:
    """Put the smallest beside the largest, and so on inwards."""
    left, order = list(ascending), []
    while left:
        order.append(left.pop(0))
        if left:
            order.append(left.pop())
    return order


def _undeclared(stage: Stage, wanted: str) -> None:
    stage.wrong(
        "manifest_invalid",
        f"accept.sizes: none declared found, {wanted} or more sizes wanted",
        "accept.sizes",
    )


# -- 3


def ladder(stage: Stage) -> str:
    """Ask for ascending sizes as far as there is room, and note what each takes."""
    sizes = stage.known.requests.by_size
    if not sizes:
        _undeclared(stage, "one")
        return "nothing was asked"
    stage.start()
    over = ""
    for size, request in sizes.items():
        if over := _no_room(stage, size):
            break
        given = stage.ask(f"size {size}", request)
        stage.meter.read()
        stage.meter.read_devices(stage.provider)
        stage.known.ladder += (rows := _rows(stage, size, given.seconds or 0.0))
        for row in rows:
            _within(stage, row)
        stage.said.put(", ".join(map(_shown, rows)) or f"size {size}: no peak known")
    return "; ".join(filter(None, [*_spans(stage.known.ladder), over]))


def _spans(rows: Sequence[LadderRow]) -> Iterator[str]:
    for pool in dict.fromkeys(row.pool for row in rows):
        of_pool = [row for row in rows if row.pool == pool]
        first, last = of_pool[0], of_pool[-1]
        yield (
            f"sizes {first.size} to {last.size}: {pool} {first.peak_gb:.3f} to "
            f"{last.peak_gb:.3f} GiB, {first.seconds:.3f} to {last.seconds:.3f} s"
        )


def _no_room(stage: Stage, size: int) -> str:
    """Say why an input of a size is not admitted; empty: it is."""
    if stage.admit is None:
        return ""
    from remote_resident.room import room_for

    provider = stage.provider
    verdict = room_for(
        provider,
        own_instance=stage.instance,
        size=size,
        smoke=provider.gpu_budget_unmeasured,
    )
    if verdict.admit:
        return ""
    if not stage.known.ladder:
        stage.wrong(verdict.reason, f"size {size}: {verdict.text}")
    return f"size {size} not admitted: {verdict.text}"


def _rows(stage: Stage, size: int, seconds: float) -> list[LadderRow]:
    meter, rows = stage.meter, []
    framework = meter.device_framework_bytes == meter.device_peak_bytes
    for pool, peak, source in (
        ("host", meter.rss_peak_bytes, "VmHWM and RSS of the worker's processes"),
        (
            "device",
            meter.device_peak_bytes,
            "reserved by the framework" if framework else "used as the driver says",
        ),
    ):
        if peak:
            rows.append(
                LadderRow(
                    size=size,
                    peak_gb=peak / GIB,
                    pool=pool,
                    seconds=seconds,
                    peak_source=source,
                )
            )
    return rows


def _shown(row: LadderRow) -> str:
    return f"size {row.size} {row.pool} {row.peak_gb:.3f} GiB {row.seconds:.3f} s"


def _within(stage: Stage, row: LadderRow) -> None:
    """Hold a peak against what the manifest says of that size."""
    key, budget = _declared(stage.provider, row)
    if budget is not None and row.peak_gb > budget:
        stage.wrong(
            "over_budget",
            f"size {row.size}: {key}: {budget} GiB declared, "
            f"{row.peak_gb} GiB measured",
            key,
        )


def _declared(provider: "ProviderManifest", row: LadderRow) -> tuple[str, float | None]:
    table = "host" if row.pool == "host" else "gpu"
    steps = provider.host_ladder if row.pool == "host" else provider.gpu_ladder
    for index, step in enumerate(steps):
        if step.size >= row.size:
            return f"{table}.ladder[{index}].peak_gb", step.peak_gb
    if row.pool == "host":
        return "host.ram_budget_gb", provider.host_ram_budget_gb
    return "gpu.vram_budget_gb", provider.gpu_vram_budget_gb


# -- 4


def hostile(stage: Stage) -> str:
    """Start under stray variables, then ask beside a busy core and onto a full disk."""
    known, said = stage.known, []
    trap = stage.corner.directory / "trap"
    set_trap(trap)
    variables = strays(stage.provider, trap)
    with strayed(variables):
        stage.start()
        given = stage.ask("stray variables", known.requests.plain)
    with watched(stage.instance) as seen:
        through = reached(stage.provider, variables, list(seen))
    if through:
        stage.wrong(
            "environment_names",
            f"{', '.join(through)}: from the caller's environment found in the "
            "worker's, none of them wanted",
        )
    stage.same(
        "the first request and one under stray variables", known.reference, given
    )
    said.append(f"{len(variables)} stray variables")
    with busy_core():
        given = stage.ask("busy core", known.requests.plain)
    stage.same("the first request and one beside a busy core", known.reference, given)
    said.append(f"a busy core {given.seconds or 0.0:.3f} s")
    said.append(_full(stage))
    return ", ".join(said)


def _full(stage: Stage) -> str:
    """Ask for outputs on a disk without room: an error, and the model stays."""
    known, before = stage.known, stage.answering()
    files = sorted(known.reference.files) if known.reference else []
    contained = stage.provider.env_kind != "venv"
    with full_disk(stage.corner.directory, files, contained=contained) as (disk, what):
        if disk is None:
            return what
        said = _on_full(stage, disk, files)
    stays = not any(problem.reason == "worker_died" for problem in stage.problems)
    given = stage.ask("after a full disk", known.requests.plain)
    stage.same("the first request and one after a full disk", known.reference, given)
    after = stage.answering()
    if stays and before != after:
        stage.wrong(
            "worker_died",
            f"full disk: worker {before} before and {after} after it found, the same "
            "one wanted",
        )
    return f"{what} {said}"


def _on_full(stage: Stage, disk: Path, files: list[str]) -> str:
    try:
        stage.ask("full disk", stage.known.requests.plain, output_dir=disk)
    except WorkerRequestError as exc:
        if exc.reason == "worker_died":
            said = str(exc).removeprefix(f"{stage.provider.slug}: ")
            stage.wrong(
                exc.reason, f"full disk: {said}; an error and a model that stays wanted"
            )
        return f"answered {exc.reason}"
    if files:
        stage.wrong(
            "outputs_missing",
            f"full disk: a good answer found, an error wanted: {', '.join(files)} "
            "cannot have been written",
        )
        return "answered as if there was room"
    return "not written to"
