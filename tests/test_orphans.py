"""Nothing runs on for ever that nobody waits for, whoever was killed and whenever."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_provider import DEADLINE_S, provider, until, write

from remote_resident import places, processes
from remote_resident.errors import WorkerRequestError
from remote_resident.supervisor import ResidentWorker, run_once

ASKING = """
import json, sys
from remote_resident import manifest
from remote_resident.supervisor import ResidentWorker
worker = ResidentWorker(manifest.load(sys.argv[1]), admit=None, owned=sys.argv[2] == "o")
worker.request(json.loads(sys.argv[3]))
"""
ONCE = """
import json, sys
from remote_resident import manifest
from remote_resident.caller_side.once import run_once
print(run_once(manifest.load(sys.argv[1]), json.loads(sys.argv[2]), admit=None)[0]["ok"])
"""
HOLDER = """
import subprocess, sys
child = subprocess.Popen(sys.argv[1:])
print(child.wait(), flush=True)
sys.stdin.read()
"""
BASE = Path(processes.__file__).with_name("worker_side") / "worker_base.py"
WORKERS = Path(__file__).with_name("workers")

Run = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    """Give a tree; what its provider still runs ends with the test."""
    path = tmp_path / "a tree"
    path.mkdir()
    yield path
    for left in processes.instances("tiny", str(path)):
        processes.end_all(left.instance, grace_s=0.0)


def instance_of(tree: Path) -> str:
    """Wait for a worker of the tree's provider and give its instance."""
    found: list[processes.Instance] = []

    def there() -> bool:
        found[:] = processes.instances("tiny", str(tree))
        return any(one.leader for one in found)

    until(there, "a worker")
    return next(one.instance for one in found if one.leader)


def gone(instance: str) -> None:
    until(lambda: not processes.members(instance), f"nothing left of {instance}")


# --- a request that never ends


@pytest.mark.parametrize("owned", ["o", "u"], ids=["owned", "unowned"])
@pytest.mark.parametrize("hangs", ["python", "c"])
def test_a_hung_prediction_ends_although_its_caller_was_killed(
    tree: Path, tmp_path: Path, run: Run, hangs: str, owned: str
) -> None:
    begun = tmp_path / "begun"
    limits = {"request_timeout_s": 1.0, "orphan_grace_s": 0.1}
    path = write(tree, "does", runtime=limits)
    asked = json.dumps({"hangs": hangs, "begun": str(begun)})
    caller = run("-c", ASKING, str(path), owned, asked)
    instance = instance_of(tree)
    until(begun.exists, "begun")

    caller.kill()

    gone(instance)
    # where it hung is in the log
    assert "in predict" in places.log_path("tiny", tree).read_text()


def test_a_hung_load_ends_although_its_caller_was_killed(tree: Path, run: Run) -> None:
    env = {"vars": {"LOAD": "hangs"}}
    path = write(tree, "does", runtime={"start_timeout_s": 2.0}, env=env)
    caller = run("-c", ASKING, str(path), "u", "{}")
    instance = instance_of(tree)

    caller.kill()

    gone(instance)
    said = places.log_path("tiny", tree).read_text()
    assert "no end 2.0 s after the begin of a load; leaving" in said


# --- what a worker that leaves by itself takes along


def test_a_worker_that_leaves_takes_its_children_along(tree: Path) -> None:
    worker = ResidentWorker(
        provider(tree, "left_behind", runtime={"idle_timeout_s": 0.1}),
        admit=None,
        owned=False,
    )
    worker.request({})
    instance = str(worker.instance)

    gone(instance)

    assert "nobody asks; leaving" in worker.log_path.read_text()


@pytest.mark.parametrize("how", ["idle", "stopped"])
def test_a_child_with_nothing_of_its_worker_goes_with_it(tree: Path, how: str) -> None:
    idle_s = 0.1 if how == "idle" else 2 * DEADLINE_S
    worker = ResidentWorker(
        provider(tree, "left_behind", runtime={"idle_timeout_s": idle_s}),
        admit=None,
        owned=False,
    )
    child = worker.request({"bare": True})["child"]

    if how == "stopped":
        worker.stop()

    until(lambda: processes.started_at(child) is None, "the child's end")


def test_what_is_above_a_worker_is_not_taken_along(tmp_path: Path, run: Run) -> None:
    socket = tmp_path / "s"
    words = ["--resident-instance", "i7", "--idle-timeout", "0.1"]
    words += ["--socket", str(socket), "--script", str(WORKERS / "echo.py")]
    above = run(
        *("-c", HOLDER, sys.executable, str(BASE), *words),
        env={**os.environ, processes.INSTANCE_VARIABLE: "i7"},
    )

    assert above.stdout is not None
    assert above.stdout.readline() == "0\n"
    assert above.poll() is None


def test_a_forked_child_that_ends_does_not_end_the_worker_above_it(tree: Path) -> None:
    worker = ResidentWorker(provider(tree, "forks_in_build"), admit=None)
    try:
        reply = worker.request({})
        assert (reply["ended"], reply["stays"]) == (4, True)
    finally:
        worker.stop(0.1)


# --- a fresh process


@pytest.mark.parametrize("hangs", ["python", "c"])
def test_what_a_killed_caller_s_fresh_process_left_is_ended(
    tree: Path, tmp_path: Path, run: Run, hangs: str
) -> None:
    begun = tmp_path / "begun"
    declared = provider(tree, "does")
    asked = json.dumps({"hangs": hangs, "begun": str(begun)})
    caller = run("-c", ONCE, str(declared.path), asked)
    until(begun.exists, "begun")
    left = instance_of(tree)
    assert processes.members(left)

    caller.kill()
    caller.wait()
    if hangs == "c":
        # it cannot look after itself: the next one does
        assert processes.members(left)
        reply, _ = run_once(declared, {"x": 1}, admit=None)
        assert reply["echo"] == 1
        assert processes.members(left) == []
    else:
        gone(left)


def test_a_fresh_process_whose_caller_waits_is_left_alone(
    tree: Path, tmp_path: Path, run: Run
) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    declared = provider(tree, "finishes")
    asked = json.dumps({"begun": str(begun), "until": str(go), "done": f"{go}.done"})
    caller = run("-c", ONCE, str(declared.path), asked)
    until(begun.exists, "begun")

    run_once(declared, {}, admit=None)
    worker = ResidentWorker(declared, admit=None)
    worker.request({})
    worker.stop(0.1)
    go.touch()

    out, _ = caller.communicate(timeout=DEADLINE_S)
    assert out == "True\n"


# --- callers that vanish at every moment


def test_a_caller_that_vanishes_at_any_moment_costs_the_worker_nothing(
    tree: Path, run: Run, request: pytest.FixtureRequest
) -> None:
    rounds = 300 if request.config.getoption("--long") else 20
    worker = ResidentWorker(provider(tree, "counts", runtime=NOWHERE), admit=None)
    program = (
        "import sys\n"
        "from remote_resident import client\n"
        "from pathlib import Path\n"
        "print('up', flush=True)\n"
        "while True:\n"
        "    channel = client.connect(Path(sys.argv[1]))\n"
        "    for _ in range(20):\n"
        "        channel.send({'op': 'predict', 'fill': 'x' * 300_000}, 5)\n"
        "        channel.next(5)\n"
    )
    try:
        # the first opens what stays open
        worker.request({})
        before = worker.request({})
        chance = random.Random(7)
        for _ in range(rounds):
            caller = run("-c", program, str(worker.socket_path))
            assert caller.stdout is not None
            caller.stdout.readline()
            # no wait for something: any moment is one of those meant
            threading.Event().wait(chance.uniform(0, 0.02))
            caller.send_signal(signal.SIGKILL)
            caller.communicate()
        until(lambda: worker.ping()["queue"] == 0, "an empty queue")
        after = worker.request({})
    finally:
        worker.stop(0.1)

    assert (after["pid"], after["fds"]) == (before["pid"], before["fds"])


NOWHERE = {"worker_args": ["/dev/null"]}


def test_what_no_worker_takes_starts_none(tree: Path) -> None:
    worker = ResidentWorker(provider(tree, "echo"), admit=None)

    for ask in (worker.request, lambda p: run_once(worker.manifest, p, admit=None)):
        with pytest.raises(WorkerRequestError) as caught:
            ask({"op": "fly"})
        assert caught.value.reason == "bad_request"
        assert str(caught.value) == (
            "tiny: op: 'fly' found, one of predict, ping, stop, stacks wanted"
        )

    assert worker.instance is None
    assert not worker.log_path.exists()
