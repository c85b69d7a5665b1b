"""Who holds memory: real processes, each by its own manifest."""

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from small_room import NO_CARD, SIT, held_in, other, provider

from remote_resident import room
from remote_resident.admission import UNKNOWN, Memory, Readings

Sit = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def sit(tmp_path: Path) -> Iterator[Sit]:
    script = tmp_path / "sit.sh"
    script.write_text(SIT)
    started: list[subprocess.Popen[bytes]] = []

    def start(tree: Path, slug: str, *more: str) -> subprocess.Popen[bytes]:
        argv = [
            "sh",
            str(script),
            "--resident-slug",
            slug,
            "--resident-tree",
            str(tree),
        ]
        argv += ["--resident-instance", f"{slug}-{len(started)}", *more]
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"there\n"
        return child

    yield start
    for child in started:
        child.communicate()


def test_another_checkouts_worker_counts_by_its_own_manifest(
    tree: Path, sit: Sit, tmp_path: Path
) -> None:
    mine = provider(tree, ram="ram_budget_gb = 28")
    elsewhere = tmp_path / "elsewhere"
    provider(elsewhere, ram="ram_budget_gb = 12")
    sit(elsewhere, "echo")
    forty = Readings(Memory(total_gb=40, free_gb=38, available_gb=38), [])

    verdict = room.room_for(mine, readings=forty, held=held_in(elsewhere))

    assert (verdict.admit, verdict.reason) == (False, "no_room")
    assert "44.0 GiB of host memory would be declared, 40 GiB are there" in verdict.text
    assert f"echo ({elsewhere}, pid " in verdict.text


def test_a_holder_outside_of_any_tree_is_found_by_its_manifests_directory(
    tree: Path, sit: Sit
) -> None:
    provider(tree, ram="ram_budget_gb = 3")
    where = tree / "manifests/echo"
    sit(where, "echo", "--manifest-dir", str(where))

    assert [holder.budget.ram_gb for holder in held_in(where)] == [3]


def test_a_holder_is_not_believed_to_be_another_provider(tree: Path, sit: Sit) -> None:
    provider(tree)
    sit(tree, "another", "--manifest-dir", str(tree / "manifests/echo"))

    assert [holder.budget for holder in held_in(tree)] == [UNKNOWN]


@pytest.mark.parametrize("text", [None, "slug = 3", 'slug = "another"'])
def test_a_holder_whose_manifest_cannot_be_read_is_unknown_and_refuses_by_name(
    tree: Path, sit: Sit, text: str | None
) -> None:
    mine = provider(tree)
    child = sit(tree, "gone")
    if text is not None:
        (tree / "manifests/gone").mkdir()
        (tree / "manifests/gone/provider.toml").write_text(text)

    held = held_in(tree)
    verdict = room.room_for(mine, readings=NO_CARD, held=held)

    assert [holder.budget for holder in held] == [UNKNOWN]
    assert (verdict.admit, verdict.reason) == (False, "budget_unknown")
    assert f"held by gone ({tree}, pid {child.pid})" in verdict.text


def test_who_is_older_than_a_load_may_last_has_loaded(tree: Path) -> None:
    manifest = provider(tree)
    young = other(1, loading=None, started=2**40)
    old = replace(young, started=1.0)

    assert room._budgeted(young, manifest).loading is True
    assert room._budgeted(old, manifest).loading is False


def test_a_manifest_is_not_looked_for_where_the_reader_stands(
    tree: Path, sit: Sit, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider(tree, ram="ram_budget_gb = 3")
    monkeypatch.chdir(tree.parent)
    beside = Path(tree.name)
    sit(beside, "echo")
    sit(beside, "echo", "--manifest-dir", "manifests/echo")
    monkeypatch.chdir(tree)
    sit(beside, "echo", "--manifest-dir", "manifests/echo")

    assert [holder.budget for holder in held_in(beside)] == [UNKNOWN] * 3
