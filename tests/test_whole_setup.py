"""A setup that is killed at any moment, typed twice, or overtaken by an edit ends well."""

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from remote_resident import processes
from tests import whole_provider
from tests.small_tree import pin, wheel
from tests.whole_provider import Whole, verdicts, whole

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="no git here")

SEED = 20_251_129
STEPS = ("preflight", "environment", "kit", "weights", "smoke")


@pytest.fixture
def provider(tmp_path: Path, model_env: Path) -> Iterator[Whole]:
    found = whole(tmp_path, model_env)
    yield found
    end_left(found)
    found.undo()


def left(provider: Whole) -> list[processes.Instance]:
    return processes.instances("m", str(provider.tree))


def end_left(provider: Whole) -> None:
    for instance in left(provider):
        processes.end_all(instance.instance)


def setup(provider: Whole) -> dict[str, str]:
    """Set up with what a program reads; it must end well.

    Where models of somebody else leave no room, it is typed again when they are gone.
    """
    end = time.monotonic() + 120
    while True:
        code, said = provider.run("setup", "m", "--json")
        crowded = "budget_unknown: " in said or "no_room: " in said
        if not (code and crowded and time.monotonic() < end):
            assert code == 0, said
            return came(said)


def came(said: str) -> dict[str, str]:
    """Read the verdicts out of the document among what was said to people."""
    (line,) = [line for line in said.splitlines() if line.startswith("{")]
    (result,) = json.loads(line)["results"]
    return verdicts(result["steps"])


def killed_and_typed_again(provider: Whole, rounds: int) -> list[dict[str, str]]:
    chance = random.Random(SEED)
    began = time.monotonic()
    setup(provider)
    takes = time.monotonic() - began
    ends = []
    for _ in range(rounds):
        provider.undo()
        process = provider.start("setup", "m")
        with suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0.05, 1.0) * takes)
        process.kill()
        process.communicate()
        ends.append(setup(provider))
        code, said = provider.run("check", "m")
        assert code == 0, said
        assert left(provider) == []
    return ends


def test_a_setup_killed_at_any_moment_ends_well_when_typed_again(
    provider: Whole,
) -> None:
    for steps in killed_and_typed_again(provider, 3):
        assert tuple(steps) == STEPS


@pytest.mark.long
def test_fifty_killed_setups_end_well_when_typed_again(provider: Whole) -> None:
    assert len(killed_and_typed_again(provider, 50)) == 50


def test_of_two_setups_at_once_one_makes_and_one_finds_it_made(provider: Whole) -> None:
    both = [provider.start("setup", "m", "--json") for _ in range(2)]
    found = []
    for process in both:
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
        found.append(came(said))

    for step in STEPS[1:]:
        assert sorted(one[step] for one in found) == ["done", "present"]
    assert left(provider) == []


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def another_version(one: Whole) -> None:
    whole_provider.lock(one, pin("a", "1.1", wheel(one.wheels, "a", "1.1")))


def another_commit(one: Whole) -> None:
    whole_provider.commit(one, {"tiny/tiny_opt/more.py": "x = 1\n"})


def another_environment(one: Whole) -> None:
    stated = one.venv / "pyvenv.cfg"
    version = ".".join(map(str, sys.version_info[:3]))
    edit(stated, f"version = {version}", f"version = {version}.1")


MADE = {
    "nothing": (lambda one: None, set(), None),
    "lock": (another_version, {"environment", "smoke"}, "a: 1.0 found, 1.1 wanted"),
    "kit": (another_commit, {"kit", "smoke"}, "kit_commit "),
    "weight gone": (
        lambda one: (one.weights / "b.bin").unlink(),
        {"weights"},
        None,
    ),
    "worker": (
        lambda one: edit(
            one.tree / "manifests/m/worker.py", "import os\n", "import os  # x\n"
        ),
        {"smoke"},
        "worker ",
    ),
    "manifest": (
        lambda one: edit(
            one.tree / "manifests/m/provider.toml", "repeat = 2", "repeat = 3"
        ),
        {"smoke"},
        "manifest ",
    ),
    "interpreter": (another_environment, {"smoke"}, "interpreter "),
}
"""What is changed, the steps that it makes due again, and what is said of it."""


def test_each_change_makes_due_what_it_concerns_and_says_what_differs(
    provider: Whole,
) -> None:
    setup(provider)
    stated = (provider.venv / "pyvenv.cfg").read_text()
    try:
        for name, (change, due, differs) in MADE.items():
            change(provider)
            _, said = provider.run("check", "m")
            assert differs is None or differs in said, (name, said)
            steps = setup(provider)
            found = {step for step, verdict in steps.items() if verdict == "done"}
            assert found == due, (name, steps)
    finally:
        (provider.venv / "pyvenv.cfg").write_text(stated)


def changed_weight(one: Whole) -> None:
    (one.weights / "b.bin").write_bytes(b"c" * 100)


def test_a_changed_weight_is_refused_and_left_and_nothing_else_is_made(
    provider: Whole,
) -> None:
    setup(provider)
    changed_weight(provider)

    code, said = provider.run("setup", "m", "--json")

    steps = came(said)
    assert (code, steps["weights"]) == (1, "refused")
    assert "done" not in steps.values()
    assert (provider.weights / "b.bin").read_bytes() == b"c" * 100
