"""Many starters at once, of two users, with memory really taken: never over-admitted."""

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import small_provider

from remote_resident import machine
from remote_resident.admission import RESERVE_GB

GIB = 2**30
CAPACITY_GB = 0.5
"""Beside the reserve; each of the starters wants 0.2 of it: two fit, three do not."""
BUDGET_GB = 0.2
TAKEN_BYTES = 160 * 2**20
"""What a holder really takes beside its interpreter, within its budget."""
HOLDERS = 2
STARTERS = 6
NOBODY = 65534
EVERYBODYS_PYTHON = "/usr/bin/python3"
"""One that the other user may run: this one may lie in a closed directory."""

HOLDER = """
import sys
taken = bytearray({taken})
taken[::4096] = b"x" * len(taken[::4096])
print("holds", flush=True)
sys.stdin.read()
"""

STARTER = """
import os, subprocess, sys
from pathlib import Path
from remote_resident import admission, machine, reservation, room
from remote_resident.admission import Memory, Readings
from remote_resident.manifest import load

tree, lock, holder, slug, rounds, python, uid = sys.argv[1:8]
capacity = float(sys.argv[8])
manifest = load(Path(tree) / "manifests" / slug / "provider.toml", Path(tree))
argv = [python, "-I", "-S", holder, "--resident-slug", slug]
argv += ["--resident-tree", tree, "--resident-instance"]
total = capacity + admission.RESERVE_GB


def of_the_tree():
    return [one for one in room.holders() if one.tree == tree]


def readings(held):
    # what is free of a machine of that size, by what its holders really hold
    free = total - sum(one.resident_gb or 0.0 for one in held)
    return Readings(Memory(total_gb=total, free_gb=free, available_gb=free), [])


def decide():
    held = of_the_tree()
    return room.room_for(manifest, readings=readings(held), held=held)


# once as who can read all that this imports, then as who it is to be
decide()
os.setgid(int(uid))
os.setuid(int(uid))
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(rounds)):
    worker = None
    with reservation.reserve(places=[Path(lock)], wait_s=120):
        verdict = decide()
        if verdict.admit:
            worker = subprocess.Popen(
                [*argv, f"{slug}-{number}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            # its argv is empty for an instant after Popen has returned
            shown = Path(f"/proc/{worker.pid}/cmdline")
            while not shown.read_bytes() and worker.poll() is None:
                pass
    if worker is None:
        print(verdict.reason, flush=True)
        continue
    worker.stdout.readline()
    # at its fullest: who is held now was admitted together
    together = of_the_tree()
    worker.communicate()
    spent = sum(one.budget.ram_gb for one in together)
    print("held", len(together), spent, flush=True)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    # not below the test's own directory, which is closed to the other user
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def users() -> list[tuple[str, int]]:
    """Give who starts what: this user, and another one where that can be."""
    me = (sys.executable, os.geteuid())
    if os.geteuid() != 0 or not Path(EVERYBODYS_PYTHON).exists():
        return [me]
    return [me, (EVERYBODYS_PYTHON, NOBODY)]


def test_a_storm_of_starters_never_takes_more_than_there_is(
    place: Path, pytestconfig: pytest.Config
) -> None:
    rounds = 40 if pytestconfig.getoption("--long") else 5
    lock, holder = place / "lock", place / "holder.py"
    lock.mkdir()
    lock.chmod(0o1777)
    holder.write_text(HOLDER.format(taken=TAKEN_BYTES))
    slugs = [f"starter-{number}" for number in range(STARTERS)]
    for slug in slugs:
        small_provider.write(place, "echo", slug, host={"ram_budget_gb": BUDGET_GB})
    starters = [
        subprocess.Popen(
            [
                *(sys.executable, "-c", STARTER, str(place), str(lock), str(holder)),
                *(slug, str(rounds), python, str(uid), str(CAPACITY_GB)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for slug, (python, uid) in zip(slugs, itertools.cycle(users()))
    ]
    assert [one.stdout.readline() for one in starters if one.stdout] == [
        "ready\n"
    ] * STARTERS
    for one in starters:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()

    most = held_at_most(place, starters)
    said = [line for one in starters for line in one.communicate()[0].splitlines()]

    assert [one.returncode for one in starters] == [0] * STARTERS
    assert len(said) == STARTERS * rounds
    spent = [line.split() for line in said if line.startswith("held")]
    assert {line for line in said if not line.startswith("held")} <= {"no_room"}
    assert spent
    assert max(int(number) for _, number, _ in spent) <= HOLDERS
    assert max(float(budget) for _, _, budget in spent) <= CAPACITY_GB
    assert most <= HOLDERS
    assert machine_holders(place) == []


def held_at_most(place: Path, starters: list["subprocess.Popen[str]"]) -> int:
    """Look at the process table until all starters ended; the most seen at once."""
    most = 0
    while any(one.poll() is None for one in starters):
        most = max(most, len(machine_holders(place)))
    return most


def machine_holders(place: Path) -> list[str]:
    return [one.slug for one in machine.holdings() if one.tree == str(place)]


def test_of_two_calls_at_once_that_fit_only_singly_one_is_refused_with_numbers(
    tmp_path: Path,
) -> None:
    mem = machine.meminfo()
    assert mem.available_gb is not None
    wanted = round(0.6 * (mem.available_gb - RESERVE_GB), 3)
    for slug in ("one", "two"):
        small_provider.write(tmp_path, "echo", slug, host={"ram_budget_gb": wanted})
    tu = [sys.executable, "-m", "remote_resident", "--tree", str(tmp_path), "--json"]
    tu += ["remote"]
    try:
        for _ in range(10):
            calls = [
                subprocess.Popen(
                    [*tu, "call", slug, '{"x": 1}'], stdout=subprocess.PIPE
                )
                for slug in ("one", "two")
            ]
            told = [json.loads(call.communicate()[0]) for call in calls]
            refused = [answer for answer in told if not answer["ok"]]
            assert [answer["reason"] for answer in refused] == ["no_room"]
            assert f"{wanted} GiB wanted + " in refused[0]["error"]
            assert f"({tmp_path}, pid " in refused[0]["error"]
            assert sum(answer["ok"] for answer in told) == 1
            stop(tu)
    finally:
        stop(tu)
    assert machine_holders(tmp_path) == []


def stop(tu: list[str]) -> None:
    for slug in ("one", "two"):
        subprocess.run([*tu, "stop", slug], stdout=subprocess.PIPE, check=True)
