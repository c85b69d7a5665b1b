"""Starts under admission: two at once, one that is refused, one that says its size."""

import subprocess
import sys
from pathlib import Path

import pytest
from small_room import SIT, provider

from remote_resident.admission import Verdict
from remote_resident.caller_side.start_command import size_of
from remote_resident.errors import AdmissionRefused
from remote_resident.reservation import reserved
from remote_resident.supervisor import ResidentWorker, run_once

STARTER = """
import subprocess, sys
from pathlib import Path
from remote_resident import admission, reservation, room
from remote_resident.admission import Memory, Readings
from remote_resident.manifest import load
tree, lock, sit, slug = map(Path, sys.argv[1:5])
manifest = load(tree / "manifests" / slug / "provider.toml", tree)
# 10 GiB beside the reserve, of which each of the two wants 6
readings = Readings(Memory(total_gb=14, free_gb=14, available_gb=14), [])
worker = None
print("ready", flush=True)
for number, _ in enumerate(sys.stdin):
    if worker:
        worker.communicate()
        worker = None
        print("ended", flush=True)
        continue
    argv = ["sh", str(sit), "--resident-slug", str(slug), "--resident-tree", str(tree)]
    argv += ["--resident-instance", f"{slug}-{number}"]
    with reservation.reserve(places=[lock]):
        held = [h for h in room.holders() if h.tree == str(tree)]
        verdict = room.room_for(manifest, readings=readings, held=held)
        if verdict.admit:
            worker = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            # its argv is in the process table when it speaks, and not before for certain
            worker.stdout.readline()
    print("started" if worker else verdict.reason, flush=True)
"""


def test_of_two_starts_at_once_that_fit_only_singly_exactly_one_starts(
    tree: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    lock = tmp_path / "lock"
    lock.mkdir()
    lock.chmod(0o1777)
    (tmp_path / "sit.sh").write_text(SIT)
    starters = []
    for slug in ("one", "two"):
        provider(tree, ram="ram_budget_gb = 6", slug=slug)
        argv = [str(tree), str(lock), str(tmp_path / "sit.sh"), slug]
        starters.append(
            subprocess.Popen(
                [sys.executable, "-c", STARTER, *argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
        )
    assert said(starters) == ["ready", "ready"]
    for _ in range(200 if pytestconfig.getoption("--long") else 20):
        tell(starters)
        answers = said(starters)
        assert sorted(answers) == ["no_room", "started"]
        winner = [starters[answers.index("started")]]
        tell(winner)
        assert said(winner) == ["ended"]
    for starter in starters:
        starter.communicate()


def tell(starters: list[subprocess.Popen[str]]) -> None:
    for starter in starters:
        assert starter.stdin is not None
        starter.stdin.write("go\n")


def said(starters: list[subprocess.Popen[str]]) -> list[str]:
    return [starter.stdout.readline().strip() for starter in starters if starter.stdout]


def test_a_start_that_is_refused_leaves_the_reservation_free(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    too_much = provider(tree, ram="ram_budget_gb = 1000000")
    for _ in range(2):
        with pytest.raises(AdmissionRefused), reserved(too_much, wait_s=30):
            raise AssertionError("admitted")


def test_a_request_that_says_its_size_is_admitted_by_the_ladder(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("P", sys.executable)
    steps = "[[host.ladder]]\nsize = 100\npeak_gb = 1000000\n"
    stepped = provider(tree, ram=f"ram_budget_gb = 1\n{steps}")
    asked = {"size": 50}
    held = ResidentWorker(stepped)
    for ask in (lambda: run_once(stepped, asked), lambda: held.request(asked)):
        with pytest.raises(AdmissionRefused) as caught:
            ask()
        verdict = caught.value.verdict
        assert isinstance(verdict, Verdict)
        assert verdict.budget.source == "ladder at 100"
    assert size_of({"size": "50"}) is size_of({"size": True}) is size_of({}) is None
