"""What a provider wants: its manifest's budget, its report's, and its ladder's step."""

import os
from pathlib import Path

import pytest
from small_room import GPU, UNMEASURED, numbers, provider

from remote_resident import places, room
from remote_resident.manifest import ProviderManifest, effective_digest

GIB = 2**30


LADDER = "".join(
    f"[[gpu.ladder]]\nsize = {size}\npeak_gb = {peak}\n"
    for size, peak in ((256, 6), (512, 11), (1024, 19))
)


def report(manifest: ProviderManifest, *, digest: str = "", **memory: int) -> None:
    path = places.measured_path(manifest.slug, manifest.tree)
    path.parent.mkdir(parents=True)
    lines = [f"{name} = {value}" for name, value in memory.items()]
    made_by = digest or effective_digest(manifest)
    path.write_text("\n".join([f'[inputs]\nmanifest = "{made_by}"\n[memory]', *lines]))


def test_a_budget_is_what_is_declared(tree: Path) -> None:
    assert numbers(room.budget_of(provider(tree, GPU))) == (20, 1, "declared")


def test_a_provider_without_a_device_wants_none(tree: Path) -> None:
    assert numbers(room.budget_of(provider(tree))) == (0, 1, "declared")


def test_a_peak_measured_above_the_declared_budget_stands_for_it(tree: Path) -> None:
    manifest = provider(tree, GPU)
    report(manifest, device_peak_bytes=25 * GIB, rss_peak_bytes=GIB // 2)

    found = numbers(room.budget_of(manifest))

    assert found == (25, 1, "VRAM measured, RAM declared")


def test_a_report_supplies_the_budget_that_nobody_declared(tree: Path) -> None:
    manifest = provider(tree, UNMEASURED, ram="ram_budget_unmeasured = true")
    assert numbers(room.budget_of(manifest)) == (None, None, "not declared")

    report(manifest, device_peak_bytes=25 * GIB, rss_peak_bytes=2 * GIB)

    assert numbers(room.budget_of(manifest)) == (25, 2, "measured")


def test_a_report_of_another_manifest_may_raise_a_budget_not_supply_one(
    tree: Path,
) -> None:
    unmeasured = provider(tree, UNMEASURED)
    report(unmeasured, digest="0" * 64, device_peak_bytes=GIB, rss_peak_bytes=3 * GIB)

    found = numbers(room.budget_of(unmeasured))

    assert found == (None, 3, "VRAM not declared, RAM measured")


@pytest.mark.parametrize(
    "text",
    ["", "not toml [", "memory = 3", "[memory]\nx = 1", "a = " + "[" * 9999],
    ids=lambda text: text[:12],
)
def test_a_damaged_report_is_none(tree: Path, text: str) -> None:
    manifest = provider(tree, GPU)
    path = places.measured_path("echo", tree)
    path.parent.mkdir(parents=True)
    path.write_text(text)

    assert numbers(room.budget_of(manifest)) == (20, 1, "declared")


@pytest.mark.parametrize("peak", [-GIB, 2**63, 2**4000])
def test_a_peak_that_no_machine_has_is_not_known(tree: Path, peak: int) -> None:
    manifest = provider(tree, UNMEASURED)
    report(manifest, device_peak_bytes=peak, rss_peak_bytes=peak)

    assert numbers(room.budget_of(manifest)) == (
        None,
        1,
        "VRAM not declared, RAM declared",
    )


@pytest.mark.parametrize(
    ("size", "vram", "source"),
    [
        (None, 20, "declared"),
        (1, 6, "VRAM ladder at 256, RAM declared"),
        (256, 6, "VRAM ladder at 256, RAM declared"),
        (257, 11, "VRAM ladder at 512, RAM declared"),
        (1025, 20, "declared"),
    ],
)
def test_a_request_is_budgeted_by_the_ladders_next_step_up(
    tree: Path, size: int | None, vram: float, source: str
) -> None:
    budget = room.budget_of(provider(tree, GPU + LADDER), size=size)

    assert numbers(budget) == (vram, 1, source)


def test_an_input_above_the_ladder_is_budgeted_for_no_less_than_its_last_step(
    tree: Path,
) -> None:
    manifest = provider(tree, GPU + LADDER.replace("peak_gb = 19", "peak_gb = 25"))
    budget = room.budget_of(manifest, size=1025)

    assert numbers(budget) == (25, 1, "VRAM ladder at 1024, RAM declared")


def test_what_is_no_regular_file_is_not_waited_for(tree: Path, tmp_path: Path) -> None:
    manifest = provider(tree, GPU)
    path = places.measured_path("echo", tree)
    for fifo in (path, tmp_path / "held/a.json"):
        fifo.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(fifo)

    assert numbers(room.budget_of(manifest)) == (20, 1, "declared")
    assert [holder.slug for holder in room.recorded(tmp_path / "held")] == ["a"]
