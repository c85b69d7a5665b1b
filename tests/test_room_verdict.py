"""Whether there is room for one provider: its device, and who is replaced by it."""

from dataclasses import replace
from pathlib import Path

import pytest
from small_room import CARD, GPU, HOST, NO_CARD, ONE_CARD, UNMEASURED, other, provider

from remote_resident import room
from remote_resident.admission import GpuProcess, Holder, Memory, Readings
from remote_resident.errors import UsageError


def test_the_smoke_of_an_unmeasured_provider_runs_and_nothing_else_does(
    tree: Path,
) -> None:
    manifest = provider(tree, UNMEASURED)

    plain = room.room_for(manifest, readings=ONE_CARD, held=[])
    smoke = room.room_for(manifest, readings=ONE_CARD, held=[], smoke=True)

    assert (plain.admit, plain.reason) == (False, "budget_unknown")
    assert (smoke.admit, smoke.device) == (True, "GPU-0")


def test_an_optional_device_is_done_without_where_there_is_none(tree: Path) -> None:
    manifest = provider(tree, '[gpu]\npolicy = "optional"\nvram_budget_gb = 20\n')

    assert room.room_for(manifest, readings=NO_CARD, held=[]).admit
    assert room.room_for(manifest, readings=ONE_CARD, held=[]).device == "GPU-0"


def test_an_optional_device_that_the_operator_hides_is_done_without(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = provider(tree, '[gpu]\npolicy = "optional"\nvram_budget_gb = 20\n')
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    verdict = room.room_for(manifest, readings=ONE_CARD, held=[])

    assert (verdict.admit, verdict.device) == (True, None)


def test_the_manifests_pin_is_above_the_operators(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = provider(tree, GPU)
    pinned = replace(manifest, env_vars={"CUDA_VISIBLE_DEVICES": "GPU-1"})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-0")
    two = Readings(HOST, [CARD, replace(CARD, index=1, uuid="GPU-1")])

    assert room.room_for(manifest, readings=two, held=[]).device == "GPU-0"
    assert room.room_for(pinned, readings=two, held=[]).device == "GPU-1"


def test_only_the_instance_that_is_replaced_is_left_out(tree: Path) -> None:
    manifest = provider(tree, ram="ram_budget_gb = 70")
    held = [other(70, instance="mine"), other(70, instance="theirs")]

    def admits(held: list[Holder], own: str | None) -> bool:
        found = room.room_for(manifest, own_instance=own, readings=NO_CARD, held=held)
        return found.admit

    assert admits(held[:1], "mine")
    assert not admits(held[:1], "none")
    assert not admits(held, "mine")


def test_the_processes_of_who_is_replaced_are_no_co_tenants(tree: Path) -> None:
    manifest = provider(tree, GPU)
    gpu = replace(CARD, unified=True, processes=(GpuProcess(pid=11),))
    mem = Memory(total_gb=121, free_gb=5, available_gb=60.4)
    held = [other(1, instance="mine", pids=(11,))]

    verdict = room.room_for(
        manifest, own_instance="mine", readings=Readings(mem, [gpu]), held=held
    )

    assert verdict.admit, verdict.text
    assert verdict.as_dict()["co_tenants"] == []


def test_a_slug_is_looked_up_in_the_tree_in_force(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider(tree)
    monkeypatch.setenv("TU_REMOTE_TREE", str(tree))

    assert room.room_for("echo", readings=NO_CARD, held=[]).admit
    with pytest.raises(UsageError):
        room.room_for("ehco", readings=NO_CARD, held=[])


def test_many_providers_are_judged_on_one_reading(tree: Path) -> None:
    small = provider(tree)
    large = provider(tree, ram="ram_budget_gb = 1000000", slug="large")

    verdicts = room.rooms_for([small, large])

    assert [verdict.slug for verdict in verdicts] == ["echo", "large"]
    assert not verdicts[1].admit
    assert verdicts[0].readings == verdicts[1].readings
