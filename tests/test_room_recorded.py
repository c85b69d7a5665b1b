"""Who holds memory: services, by the daemon's records."""

import json
from pathlib import Path

import pytest

from remote_resident import room
from remote_resident.admission import Budget


def test_a_service_of_the_daemon_is_a_holder_by_its_record(tmp_path: Path) -> None:
    record = {
        "slug": "boltz2-service",
        "tree": None,
        "instance": "i",
        "pids": [5, 6],
        "device": "GPU-0",
        "vram_gb": 12,
        "ram_gb": None,
        "loading": False,
        "boot_id": room.boot_id(),
    }
    (tmp_path / "boltz2-service.json").write_text(json.dumps(record))

    [found] = room.recorded(tmp_path)

    assert (found.slug, found.pids, found.loading) == ("boltz2-service", (5, 6), False)
    assert found.budget == Budget(12.0, None, "registered")


def test_a_record_of_an_earlier_boot_is_of_nobody(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"slug": "a", "boot_id": "another"}')

    assert room.recorded(tmp_path) == []
    assert room.recorded(tmp_path / "none") == []


@pytest.mark.parametrize("text", ["{", "[" * 99999], ids=["cut", "deep"])
def test_a_record_that_cannot_be_read_is_somebodys(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)

    [found] = room.recorded(tmp_path)

    assert (found.slug, found.budget.vram_gb, found.budget.ram_gb) == ("a", None, None)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "-5", "9" * 400])
def test_a_recorded_budget_that_is_no_amount_is_unknown(
    tmp_path: Path, number: str
) -> None:
    (tmp_path / "a.json").write_text(f'{{"vram_gb": {number}, "ram_gb": {number}}}')

    [found] = room.recorded(tmp_path)

    assert (found.budget.vram_gb, found.budget.ram_gb) == (None, None)
