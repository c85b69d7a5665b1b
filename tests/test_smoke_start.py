"""What ends a smoke before its first request: no room, a bad weight, a failed load."""

import hashlib
import os
import time
from pathlib import Path

import pytest
from small_smoke import corners, made, provider, smoked

from remote_resident.errors import AdmissionRefused
from tasks import smoke


def test_a_model_that_fails_to_load_says_why_as_often_as_it_is_asked(
    tmp_path: Path,
) -> None:
    worker = """
    def build(config):
        raise OSError("no such checkpoint")

    def predict(model, request):
        return {}
    """
    tiny = provider(tmp_path, worker)
    # more often than a crash loop takes: somebody asked, each time
    for _ in range(4):
        result = smoked(tiny)
        assert (result.verdict, result.reason) == ("failed", "start_failed")
        assert "no such checkpoint" in "\n".join(result.lines)
        # not that of a held worker's log: there is none
        assert result.lines[-1] == "next: doit setup:tiny"


def test_no_room_refuses_before_anything_is_started(tmp_path: Path) -> None:
    def admit(candidate: object) -> object:
        raise AdmissionRefused("tiny: 28 GiB wanted", verdict=None, reason="no_room")

    tiny = provider(tmp_path)
    result, _ = made(smoke.make(tiny, admit=admit))
    assert (result.verdict, result.reason) == ("refused", "no_room")
    assert result.lines == [
        "no_room: tiny: 28 GiB wanted",
        "nothing was started",
        "next: tu remote room",
    ]
    assert corners() == []


@pytest.mark.parametrize("how", ["cut", "flipped", "remembered"])
def test_a_bad_weight_is_found_in_its_bytes_before_anything_is_started(
    tmp_path: Path, how: str
) -> None:
    whole = bytes(range(256)) * 4
    # by sha256sum
    pin = "785b0751fc2c53dc14a4ce3d800e69ef9ce1009eb327ccf458afe09c242c26c9"
    flipped = b"\1" + whole[1:]
    file = tmp_path / "w" / "model.bin"
    file.parent.mkdir()
    file.write_bytes(whole[:12] if how == "cut" else flipped)
    # as old as the file that it was: the memo keeps no young ones
    hour_ago = time.time() - 3600
    os.utime(file, (hour_ago, hour_ago))
    files = [{"name": "model.bin", "size": 1024, "sha256": pin}]
    weights = {"root_default": str(file.parent), "file": files}
    tiny = provider(tmp_path, weights=weights)
    if how == "remembered":
        # what the memo says is enough for a check, and not for a certificate
        memo = tiny.weights_memo()
        memo.put(file, file.stat(), pin)
        memo.save()

    def admit(candidate: object) -> object:
        raise AssertionError("asked for room")

    result, _ = made(smoke.make(tiny, admit=admit))
    assert (result.verdict, result.reason) == (
        "refused",
        "size" if how == "cut" else "digest",
    )
    wanted, found = ("1024", "12") if how == "cut" else (pin, _sha256(flipped))
    assert wanted in result.lines[0]
    assert found in result.lines[0]
    assert "nothing was started" in result.lines
    assert file.read_bytes() == (whole[:12] if how == "cut" else flipped)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
