"""One resident worker: real processes, real sockets, real signals."""

import contextlib
import fcntl
import gc
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from small_provider import DEADLINE_S, provider, until, write

from remote_resident import client, manifest, places, processes, supervisor
from remote_resident.admission import Budget, Holder
from remote_resident.errors import (
    AdmissionRefused,
    ProviderError,
    WorkerRequestError,
    WorkerStartError,
)
from remote_resident.room import ask_idle_s
from remote_resident.supervisor import ResidentWorker, run_once

Make = Callable[..., ResidentWorker]

OWNER = """
import sys
from remote_resident import manifest
from remote_resident.supervisor import ResidentWorker
worker = ResidentWorker(manifest.load(sys.argv[1]), admit=None, owned="u" not in sys.argv[2])
"""
IDLE = OWNER + "print(worker.ensure_started().instance, flush=True); sys.stdin.read()"
ASKING = OWNER + (
    "import json; worker.ensure_started(); print(worker.instance, flush=True);"
    "worker.request(json.loads(sys.argv[3]))"
)
LOADING = OWNER + (
    "import threading, time\n"
    "threading.Thread(target=worker.ensure_started, daemon=True).start()\n"
    "while worker.status()['pid'] is None: time.sleep(.01)\n"
    "print(worker.instance, flush=True); sys.stdin.read()"
)
SUBREAPER = """
import ctypes, subprocess, sys
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
child = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]])
print(child.pid, flush=True)
child.wait()
sys.stdin.read()
"""


HELD = 15 * 10**7
"""A sum of so many numbers holds an interpreter for some seconds."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    path = tmp_path / "a tree"
    path.mkdir()
    return path


@pytest.fixture
def make(tree: Path) -> Iterator[Make]:
    """Make workers around tests/workers; what is left of them ends with the test."""
    made: list[ResidentWorker] = []

    def make(script: str, **tables: Any) -> ResidentWorker:
        options = {"admit": None, **tables.pop("options", {})}
        made.append(ResidentWorker(provider(tree, script, **tables), **options))
        return made[-1]

    yield make
    for worker in made:
        worker.stop(grace_s=0.1)


@pytest.fixture
def run() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a Python program; it is ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def run(program: str, *args: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", program, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(child)
        return child

    yield run
    for child in started:
        child.kill()
        child.communicate()


Run = Callable[..., "subprocess.Popen[str]"]


def open_descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def refused(ask: Callable[[], object]) -> WorkerRequestError:
    with pytest.raises(WorkerRequestError) as caught:
        ask()
    return caught.value


def not_started(worker: ResidentWorker) -> WorkerStartError:
    with pytest.raises(WorkerStartError) as caught:
        worker.ensure_started()
    return caught.value


def in_thread(call: Callable[[], Any]) -> "tuple[threading.Thread, list[Any]]":
    """Call in a thread; what it gave or raised is appended to the list."""
    results: list[Any] = []

    def target() -> None:
        try:
            results.append(call())
        except Exception as exc:
            results.append(exc)

    thread = threading.Thread(target=target)
    thread.start()
    return thread, results


def line_of(child: "subprocess.Popen[str]") -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def gone(instance: str) -> None:
    until(lambda: not processes.members(instance), f"nothing left of {instance}")


# --- start


def test_a_start_is_a_question_first(make: Make) -> None:
    first, second = make("counts", runtime=told_to("/dev/null")), None
    started = first.ensure_started()
    second = ResidentWorker(first.manifest, admit=None)

    adopted = second.ensure_started()

    assert (started.adopted, adopted.adopted) == (False, True)
    assert (adopted.pid, adopted.instance) == (started.pid, started.instance)


def told_to(name: str, **more: Any) -> dict[str, Any]:
    return {"worker_args": [name], **more}


def test_twenty_threads_share_one_start(make: Make, tmp_path: Path) -> None:
    loads = tmp_path / "loads"
    worker = make("counts", runtime=told_to(str(loads), max_queue=32))

    with ThreadPoolExecutor(20) as pool:
        replies = list(pool.map(lambda _: worker.request({}), range(20)))

    assert len(loads.read_text().splitlines()) == 1
    assert len({reply["pid"] for reply in replies}) == 1


def test_four_processes_share_one_start(make: Make, run: Run, tmp_path: Path) -> None:
    loads = tmp_path / "loads"
    worker = make("counts", runtime=told_to(str(loads)))
    # each stays until all are answered: the one that started it would stop it
    program = OWNER + "print(worker.request({})['pid'], flush=True); sys.stdin.read()"

    children = [run(program, str(worker.manifest.path), "") for _ in range(4)]
    pids = {line_of(child) for child in children}

    assert loads.read_text().split() == [*pids]


def test_all_who_wait_for_a_start_get_its_failure(make: Make) -> None:
    worker = make("fails_in_build")
    gate = threading.Barrier(8)

    def start(_: int) -> str:
        gate.wait()
        return str(not_started(worker))

    with ThreadPoolExecutor(8) as pool:
        texts = set(pool.map(start, range(8)))

    # one start, or a second one for who came when the first was over
    assert len(texts) <= 2


def test_a_missing_stack_fails_the_start_at_once_with_its_last_words(
    make: Make,
) -> None:
    worker = make("fails_at_import", runtime={"start_timeout_s": 600})
    began = time.monotonic()

    error = not_started(worker)

    assert time.monotonic() - began < 2
    assert error.reason == "start_failed"
    assert "exit status 1: an exception ended it" in str(error)
    assert str(error).endswith("No module named 'a_stack_that_is_not_there'")
    assert f"log {worker.log_path}" in str(error)


def test_a_load_over_its_time_is_named_and_nothing_of_it_is_left(
    make: Make, tmp_path: Path
) -> None:
    go = str(tmp_path / "go")
    worker = make("slow_load", runtime=told_to(go, start_timeout_s=0.3))

    error = not_started(worker)

    assert error.reason == "start_timeout"
    assert "at most 0.3 wanted" in str(error)
    assert processes.members(str(worker.instance)) == []


def test_three_failed_starts_refuse_the_next_until_the_inputs_change(
    make: Make, tree: Path
) -> None:
    worker = make("fails_in_build")
    reasons = [not_started(worker).reason for _ in range(4)]

    # another process's object, and an input that changed
    again = ResidentWorker(worker.manifest, admit=None)
    refused_too = not_started(again).reason
    worker.manifest.resolve("worker.py").write_text(
        "def build(config): ...\ndef predict(model, request): return {}\n"
    )

    assert reasons == ["start_failed"] * 3 + ["crash_loop"]
    assert refused_too == "crash_loop"
    assert again.request({})["ok"] is True
    again.stop()


def test_nothing_starts_on_a_weight_that_is_not_at_its_pin(
    make: Make, tmp_path: Path
) -> None:
    (tmp_path / "w.bin").write_bytes(b"short")
    files = [{"name": name, "size": 10, "sha256": "0" * 64} for name in ("w.bin", "v")]
    weights = {"root_default": str(tmp_path), "file": files}
    worker = make("echo", weights=weights)

    error = not_started(worker)

    assert error.reason == "size"
    assert [problem.reason for problem in error.problems] == ["size", "absent"]
    assert "2 of 2 weights not at their pins" in str(error)
    assert processes.instances(worker.slug, worker.tree) == []


def test_a_refused_admission_starts_nothing(make: Make) -> None:
    def refuse(candidate: object) -> None:
        raise AdmissionRefused("no room", verdict=None, reason="no_room")

    worker = make("echo", options={"admit": refuse})

    with pytest.raises(AdmissionRefused):
        worker.request({})

    assert processes.instances(worker.slug, worker.tree) == []


def test_the_room_is_held_until_the_process_is_in_the_table(make: Make) -> None:
    seen: list[list[int]] = []

    @contextlib.contextmanager
    def admit(candidate: Any) -> Iterator[None]:
        seen.append(processes.members(candidate.instance))
        yield
        seen.append(processes.members(candidate.instance))

    worker = make("echo", options={"admit": admit})
    started = worker.ensure_started()

    assert seen == [[], [started.pid]]


def test_a_worker_of_other_inputs_is_replaced_when_idle(make: Make) -> None:
    worker = make("finishes")
    first = worker.ensure_started()
    edit(worker)

    second = worker.ensure_started()

    assert second.pid != first.pid
    assert processes.members(first.instance) == []


def edit(worker: ResidentWorker) -> None:
    script = worker.manifest.resolve("worker.py")
    script.write_text(script.read_text() + "\n# edited\n")


def test_a_busy_worker_of_other_inputs_is_refused_and_left_alone(
    make: Make, tmp_path: Path
) -> None:
    worker = make("finishes")
    begun, go = tmp_path / "begun", tmp_path / "go"
    asked = {"begun": str(begun), "until": str(go)}
    thread, results = in_thread(lambda: worker.request(asked))
    until(begun.exists, "begun")
    edit(worker)

    error = not_started(worker)
    go.touch()
    thread.join(DEADLINE_S)

    assert error.reason == "stale_worker"
    assert results[0]["ok"] is True


def test_a_start_ends_what_an_earlier_instance_left_behind(make: Make) -> None:
    worker = make("left_behind")
    grandchild = worker.request({})["grandchild"]
    first = worker.ensure_started()
    # killed behind the supervisor's back, as the out-of-memory killer does
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: not worker.is_running(), "dead")
    assert grandchild in processes.members(first.instance)

    worker.ensure_started()

    assert processes.members(first.instance) == []


# --- owners


@pytest.mark.parametrize("when", ["idle", "loading", "mid-request"])
@pytest.mark.parametrize("reaper", [False, True], ids=["plain", "sub-reaper"])
def test_no_worker_outlives_an_owner_that_was_killed(
    tree: Path, run: Run, tmp_path: Path, when: str, reaper: bool
) -> None:
    begun, go, done = (tmp_path / name for name in ("begun", "go", "done"))
    asked = f'{{"begun": "{begun}", "until": "{go}", "done": "{done}"}}'
    script = "slow_load" if when == "loading" else "finishes"
    program = {"idle": IDLE, "loading": LOADING, "mid-request": ASKING}[when]
    path = write(tree, script, runtime=told_to(str(go), orphan_grace_s=0.1))
    args = (program, str(path), "", asked)
    child = run(SUBREAPER, *args) if reaper else run(*args)
    pid = int(line_of(child)) if reaper else child.pid
    instance = line_of(child)
    if when == "mid-request":
        until(begun.exists, "begun")

    os.kill(pid, signal.SIGKILL)
    if when == "mid-request":
        log = places.log_path("tiny", tree)
        until(lambda: "the owner is gone" in log.read_text(), "noticed")
        go.touch()

    gone(instance)
    assert done.exists() == (when == "mid-request")


def test_a_clean_exit_gives_the_card_back_at_once(tree: Path, run: Run) -> None:
    path = write(tree, "echo", runtime={"orphan_grace_s": 600})
    child = run(IDLE, str(path), "")
    instance = line_of(child)

    child.communicate(timeout=DEADLINE_S)

    assert child.returncode == 0
    assert processes.members(instance) == []


def test_a_worker_that_nobody_owns_outlives_its_starter_and_leaves_when_idle(
    tree: Path, run: Run, make: Make
) -> None:
    path = write(tree, "echo")
    child = run(IDLE, str(path), "u")
    instance = line_of(child)
    child.communicate(timeout=DEADLINE_S)
    other = ResidentWorker(manifest.load(path), admit=None)

    options = processes.marks(processes.members(instance)[0])

    assert options["idle-timeout"] == "900.0"
    assert "lifeline-fd" not in options
    assert other.ensure_started().adopted
    assert other.stop() != []
    assert processes.members(instance) == []


def test_a_load_goes_on_for_who_asks_next_where_its_starter_is_gone(
    tree: Path, run: Run, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    path = write(tree, "slow_load", runtime=told_to(str(go)))
    child = run(LOADING, str(path), "u")
    instance = line_of(child)
    until(Path(f"{go}.begun").exists, "begun")
    child.kill()
    child.wait()
    other = ResidentWorker(manifest.load(path), admit=None)

    thread, came = in_thread(other.ensure_started)
    until(lambda: not free(other.socket_path.with_name("x")), "asked next")
    go.touch()
    thread.join(DEADLINE_S)

    assert (came[0].instance, came[0].adopted) == (instance, True)
    assert other.stop() != []


def free(beside: Path) -> bool:
    """Say whether nobody is in the turn of a start."""
    (lock,) = beside.parent.glob("*.sock.lock")
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_an_owned_worker_that_nobody_refers_to_leaves(make: Make, tree: Path) -> None:
    worker = ResidentWorker(
        provider(tree, "echo", runtime={"orphan_grace_s": 0.1}), admit=None
    )
    instance = worker.ensure_started().instance

    del worker
    gc.collect()

    gone(instance)


def test_a_fork_of_the_owner_neither_keeps_nor_stops_its_worker(
    make: Make, run: Run, tree: Path
) -> None:
    path = write(tree, "echo", runtime={"orphan_grace_s": 0.1})
    program = OWNER + (
        "import os; print(worker.ensure_started().instance, flush=True)\n"
        "pid = os.fork()\n"
        "if pid == 0: sys.exit(0)\n"
        "os.waitpid(pid, 0)\n"
        "print(worker.request({})['ok'], flush=True)\n"
        "pid = os.fork()\n"
        "if pid == 0: sys.stdin.read()\n"
        "print(pid, flush=True)\n"
        "sys.stdin.read()"
    )
    child = run(program, str(path), "")
    instance, answered, fork = (line_of(child) for _ in range(3))
    before = processes.members(instance)

    os.kill(child.pid, signal.SIGKILL)
    gone(instance)
    os.kill(int(fork), signal.SIGKILL)

    assert answered == "True"
    assert len(before) == 1


# --- asking


def test_a_reply_is_what_the_model_answered(make: Make) -> None:
    events: list[Any] = []
    worker = make("echo")

    reply = worker.request({"x": 5}, on_event=events.append)

    assert (reply["ok"], reply["echo"]) == (True, 5)
    assert [event["event"] for event in events] == ["queued", "started"]


def test_the_worker_s_own_refusals_pass_with_their_reasons(make: Make) -> None:
    worker = make("raises")
    asked = [
        ({"op": "fly"}, "bad_request"),
        ({"output_dir": "here"}, "bad_request"),
        ({"raise": "no"}, "request_failed"),
        ({"raise": "no", "reason": "too_long"}, "too_long"),
        ({"x": float("nan")}, "bad_request"),
    ]

    for payload, reason in asked:
        assert refused(lambda payload=payload: worker.request(payload)).reason == reason


def test_two_hundred_failures_cost_neither_the_worker_nor_a_descriptor(
    make: Make, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    many = 500 if request.config.getoption("--long") else 200
    worker = make("counts", runtime=told_to(str(tmp_path / "loads")))
    # the first of each kind opens what stays open
    refused(lambda: worker.request({"fail": True}))
    before = worker.request({})
    ours = open_descriptors()

    for _ in range(many):
        assert (
            refused(lambda: worker.request({"fail": True})).reason == "request_failed"
        )
    after = worker.request({})

    assert (after["pid"], after["fds"]) == (before["pid"], before["fds"])
    # fewer: what an earlier test left may be collected meanwhile
    assert open_descriptors() <= ours
    grown = after["_meter"]["rss_bytes"] - before["_meter"]["rss_bytes"]
    assert grown < 8 * 2**20


@pytest.mark.long
def test_ten_thousand_requests_leave_no_trace(make: Make) -> None:
    worker = make("counts", runtime=told_to("/dev/null"))
    for _ in range(100):
        worker.request({})
    before, ours = worker.request({}), open_descriptors()

    for _ in range(10_000):
        worker.request({})
    after = worker.request({})

    assert (after["pid"], after["fds"]) == (before["pid"], before["fds"])
    assert open_descriptors() <= ours
    assert after["_meter"]["rss_bytes"] - before["_meter"]["rss_bytes"] < 2**20


DEATHS = [
    ("SIGKILL", "exit status -9: SIGKILL, often the out-of-memory killer"),
    ("SIGSEGV", "exit status -11: SIGSEGV, a crash in compiled code"),
    ("SIGABRT", "exit status -6: SIGABRT, a library gave up"),
    ("exit", "exit status 3: the kit refused"),
    ("system_exit", "exit status 5"),
]


@pytest.mark.parametrize(("how", "hint"), DEATHS)
def test_a_death_in_a_prediction_is_named_and_the_next_request_works(
    make: Make, how: str, hint: str
) -> None:
    worker = make("dies")
    first = worker.ensure_started().pid

    error = refused(lambda: worker.request({"how": how}))

    assert error.reason == "worker_died"
    assert f"worker {first}: {hint}; log {worker.log_path}" in str(error)
    assert worker.request({"how": "SIGCONT"})["ok"] is True
    assert worker.ensure_started().pid != first


GARBLED = [
    ("half", "worker_died", "exit status 9"),
    ("garbage", "protocol_error", "byte 0xff at 0 found, one JSON object wanted"),
    ("flood", "too_large", "at most 67108864 wanted"),
]


@pytest.mark.parametrize(("how", "reason", "text"), GARBLED)
def test_what_is_no_reply_is_named_and_the_next_request_works(
    make: Make, how: str, reason: str, text: str
) -> None:
    worker = make("garbles")

    error = refused(lambda: worker.request({"how": how}))

    assert error.reason == reason
    assert text in str(error)
    assert worker.request({})["fine"] is True


def test_a_request_that_had_begun_is_not_sent_again(make: Make, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    worker = make("finishes")
    pid = worker.ensure_started().pid
    asked = {"begun": str(begun), "until": str(tmp_path / "never")}
    thread, results = in_thread(lambda: worker.request(asked))
    until(begun.exists, "begun")
    begun.unlink()

    os.kill(pid, signal.SIGKILL)
    thread.join(DEADLINE_S)

    assert results[0].reason == "worker_died"
    assert not begun.exists()
    assert worker.status()["state"] == "not_running"


def test_a_lost_request_of_a_quick_model_is_not_sent_again(
    make: Make, tmp_path: Path
) -> None:
    """A model that answers at once has its begin told with the reply, or not at all."""
    begun = tmp_path / "begun"
    worker = make("does")
    told: list[list[str]] = []
    for _ in range(20):
        events: list[Any] = []
        worker.request({}, on_event=events.append)
        told.append([event["event"] for event in events])

    error = refused(lambda: worker.request({"begun": str(begun), "dies": True}))

    assert told == [["queued", "started"]] * 20
    assert error.reason == "worker_died"
    assert len(begun.read_text().splitlines()) == 1


def test_a_request_that_had_not_begun_goes_to_the_next_worker(
    make: Make, tmp_path: Path
) -> None:
    begun, never = tmp_path / "begun", tmp_path / "never"
    worker = make("finishes")
    pid = worker.ensure_started().pid
    asked = {"begun": str(begun), "until": str(never)}
    first, lost = in_thread(lambda: worker.request(asked))
    until(begun.exists, "begun")
    second, kept = in_thread(lambda: worker.request({"name": "b"}))
    until(lambda: worker.ping()["queue"] == 1, "queued")

    os.kill(pid, signal.SIGKILL)
    first.join(DEADLINE_S)
    second.join(DEADLINE_S)

    assert lost[0].reason == "worker_died"
    assert kept[0]["order"] == ["b"]
    assert kept[0]["pid"] != pid


def test_a_request_in_the_instant_of_retirement_is_answered(
    make: Make, request: pytest.FixtureRequest
) -> None:
    rounds = 1000 if request.config.getoption("--long") else 20
    idle_s = 0.03
    worker = make("finishes", runtime={"idle_timeout_s": idle_s})
    pids = set()

    for number in range(rounds):
        pids.add(worker.request({})["pid"])
        # not to wait for something: to meet the retirement at every moment of it
        time.sleep(idle_s * (0.9 + 0.3 * (number % 20) / 20))

    assert len(pids) > 1


def test_a_kept_connection_does_not_keep_an_idle_worker(make: Make) -> None:
    worker = make("echo", runtime={"idle_timeout_s": 0.1})
    worker.request({})

    gone(str(worker.instance))


# --- deadlines


def test_a_caller_s_deadline_only_ends_its_waiting(make: Make, tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    worker = make("finishes")
    pid = worker.ensure_started().pid
    asked = {"begun": str(begun), "until": str(go), "name": "a"}
    began = time.monotonic()

    error = refused(lambda: worker.request(asked, deadline_s=0.2))
    waited = time.monotonic() - began
    go.touch()

    assert error.reason == "request_timeout"
    assert 0.2 <= waited < 1
    assert worker.request({"name": "b"})["order"] == ["a", "b"]
    assert worker.ensure_started().pid == pid


def test_a_deadline_ends_the_waiting_for_a_load_and_not_the_load(
    make: Make, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    worker = make("slow_load", runtime=told_to(str(go)))

    error = refused(lambda: worker.request({}, deadline_s=0.2))
    state = worker.status()["state"]
    go.touch()

    assert error.reason == "request_timeout"
    assert state == "loading"
    assert worker.request({})["ok"] is True


def test_a_deadline_that_passes_in_the_queue_never_reaches_the_model(
    make: Make, tmp_path: Path
) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    worker = make("finishes")
    asked = {"begun": str(begun), "until": str(go), "name": "a"}
    thread, _ = in_thread(lambda: worker.request(asked))
    until(begun.exists, "begun")

    late = refused(lambda: worker.request({"name": "late"}, deadline_s=0.05))
    go.touch()
    thread.join(DEADLINE_S)

    assert late.reason == "request_timeout"
    assert worker.request({"name": "b"})["order"] == ["a", "b"]


def test_a_full_queue_says_so_and_who_waits_is_answered_in_order(
    make: Make, tmp_path: Path
) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    worker = make("finishes", runtime={"max_queue": 2})
    asked = {"begun": str(begun), "until": str(go), "name": "a"}
    waiting = [in_thread(lambda: worker.request(asked))]
    until(begun.exists, "begun")
    for number, name in enumerate("bc"):
        call = {"name": name}
        waiting.append(in_thread(lambda call=call: worker.request(call)))
        until(lambda n=number: worker.ping()["queue"] == n + 1, "queued")

    error = refused(lambda: worker.request({"name": "d"}))
    go.touch()
    for thread, _ in waiting:
        thread.join(DEADLINE_S)

    assert error.reason == "queue_full"
    assert waiting[2][1][0]["order"] == ["a", "b", "c"]


def test_a_stuck_worker_is_ended_with_its_stacks_in_the_log(
    make: Make, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    worker = make("finishes", runtime={"request_timeout_s": 1})
    pid = worker.ensure_started().pid
    asked = {"begun": str(begun), "until": str(tmp_path / "never")}
    first, lost = in_thread(lambda: worker.request(asked))
    until(begun.exists, "begun")
    second, kept = in_thread(lambda: worker.request({"name": "b"}))

    first.join(DEADLINE_S)
    second.join(DEADLINE_S)

    assert lost[0].reason == "request_timeout"
    assert f"worker {pid} was ended" in str(lost[0])
    assert "worker.py" in worker.log_path.read_text()
    assert "in predict" in worker.log_path.read_text()
    assert kept[0]["order"] == ["b"]


def test_a_ping_tells_how_long_nobody_asked(make: Make, tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    worker = make("finishes")
    asked = {"begun": str(begun), "until": str(go)}
    thread, _ = in_thread(lambda: worker.request(asked))
    until(begun.exists, "begun")
    holder = Holder(
        slug="tiny",
        tree=worker.tree,
        instance=worker.instance,
        pids=(),
        uid=os.geteuid(),
        device=None,
        budget=Budget(None, None, "declared"),
        loading=False,
        resident_gb=None,
        socket=str(worker.socket_path),
    )
    busy = (worker.ping()["idle_s"], ask_idle_s(holder))

    go.touch()
    thread.join(DEADLINE_S)
    worker.request({})
    first = ask_idle_s(holder)
    # a look is no use: it goes on counting
    second = ask_idle_s(holder)
    up = worker.ping()["uptime_s"]

    assert busy == (None, None)
    assert first is not None
    assert second is not None
    assert 0 <= first < second < up


def test_a_queue_of_requests_within_their_time_is_not_a_stuck_worker(
    make: Make, tmp_path: Path
) -> None:
    worker = make("finishes", runtime={"request_timeout_s": 3.0})
    pid = worker.ensure_started().pid
    goes = [tmp_path / f"go{n}" for n in range(2)]
    waiting = []
    for number, go in enumerate(goes):
        call = {"until": str(go), "begun": f"{go}.begun"}
        waiting.append(in_thread(lambda call=call: worker.request(call)))
        until(
            lambda n=number: (
                worker.ping()["queue"] == n and worker.ping()["busy_since"]
            ),
            "in line",
        )
    for go in goes:
        until(Path(f"{go}.begun").exists, "its turn")
        time.sleep(1.8)  # each takes so long, and all together longer than one may
        go.touch()
    for thread, _ in waiting:
        thread.join(DEADLINE_S)

    assert [result[0]["pid"] for _, result in waiting] == [pid] * 2


# --- what is said of a worker


def test_ready_is_never_said_while_loading(make: Make, tmp_path: Path) -> None:
    go = tmp_path / "go"
    worker = make("slow_load", runtime=told_to(str(go)))
    thread, started = in_thread(worker.ensure_started)
    until(lambda: worker.status()["pid"], "spawned")

    seen = [worker.status()["state"], worker.is_running()]
    error = refused(worker.ping)
    go.touch()
    thread.join(DEADLINE_S)

    assert seen == ["loading", False]
    assert error.reason == "not_running"
    assert worker.status()["state"] == "ready"
    assert started[0].load_s > 0


def test_a_worker_that_holds_its_interpreter_is_not_called_dead(make: Make) -> None:
    worker = make("hangs_in_c")
    started = worker.ensure_started()
    thread, results = in_thread(lambda: worker.request({"n": HELD}))
    other = ResidentWorker(worker.manifest, admit=None)
    other.ping_s = 0.2
    until(lambda: other.status()["state"] == "busy, unconfirmed", "silent")

    adopted = other.ensure_started()
    text = other.stacks()
    thread.join(60)

    assert (adopted.adopted, adopted.pid) == (True, started.pid)
    assert "in predict" in text
    assert results[0]["ok"] is True


# --- stop


def test_a_session_left_and_a_signal_ignored_do_not_escape_a_stop(make: Make) -> None:
    worker = make("left_behind")
    grandchild = worker.request({})["grandchild"]
    instance = str(worker.instance)

    ended = worker.stop()

    assert grandchild in ended
    assert processes.members(instance) == []


def test_a_stop_finishes_what_is_in_hand(make: Make, tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    worker = make("finishes")
    asked = {"begun": str(begun), "until": str(go)}
    thread, results = in_thread(lambda: worker.request(asked))
    until(begun.exists, "begun")
    stopping, ended = in_thread(worker.stop)
    until(lambda: worker.status()["state"] != "busy", "leaving")

    go.touch()
    thread.join(DEADLINE_S)
    stopping.join(DEADLINE_S)

    assert results[0]["ok"] is True
    assert ended[0] == [results[0]["pid"]]


def test_what_waits_as_a_worker_is_stopped_goes_to_the_next_one(
    make: Make, tmp_path: Path
) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    worker = make("finishes")
    asked = {"begun": str(begun), "until": str(go), "name": "a"}
    first, in_hand = in_thread(lambda: worker.request(asked))
    until(begun.exists, "begun")
    second, waited = in_thread(lambda: worker.request({"name": "b"}))
    until(lambda: worker.ping()["queue"] == 1, "queued")
    other = ResidentWorker(worker.manifest, admit=None)
    stopping, ended = in_thread(other.stop)
    until(lambda: not worker.is_running(), "leaving")

    go.touch()
    for thread in (first, second, stopping):
        thread.join(DEADLINE_S)

    assert in_hand[0]["order"] == ["a"]
    assert waited[0]["order"] == ["b"]
    assert ended[0] == [in_hand[0]["pid"]]


def test_a_stop_waits_for_no_load_and_is_no_crash(make: Make, tmp_path: Path) -> None:
    worker = make("slow_load", runtime=told_to(str(tmp_path / "never")))
    thread, results = in_thread(worker.ensure_started)
    until((tmp_path / "never.begun").exists, "loading")
    began = time.monotonic()

    worker.stop()
    thread.join(DEADLINE_S)

    assert time.monotonic() - began < 3
    assert results[0].reason == "stopping"
    assert not places.crash_path(worker.slug, worker.manifest.tree).exists()


def test_a_stop_of_nothing_is_nothing(make: Make) -> None:
    assert make("echo").stop() == []


# --- what is on the socket's path


def test_a_stale_socket_is_taken_over(make: Make) -> None:
    worker = make("echo")
    places.ensure(worker.socket_path.parent)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(worker.socket_path))

    assert worker.request({"x": 1})["echo"] == 1


@pytest.mark.parametrize("what", ["file", "symlink"])
def test_what_is_no_socket_is_refused_and_left_alone(make: Make, what: str) -> None:
    worker = make("echo")
    path = worker.socket_path
    places.ensure(path.parent)
    target = path.with_name("target")
    target.write_text("mine")
    path.write_text("mine") if what == "file" else path.symlink_to(target)
    uid = os.geteuid()

    error = refused(worker.ensure_started)
    found = path.read_text()
    path.unlink()

    assert error.reason == "socket_path"
    assert str(error) == (
        f"{path}: a {what} of uid {uid} found, nothing or a socket of uid {uid} wanted"
    )
    assert found == "mine"


def test_somebody_else_on_the_socket_is_refused(make: Make) -> None:
    worker = make("echo")
    worker.ensure_started()
    stranger = provider(Path(worker.tree), "echo", slug="other")
    other = ResidentWorker(stranger, socket_path=worker.socket_path, admit=None)

    error = refused(other.ensure_started)

    assert error.reason == "socket_path"
    assert f"answered by tiny of {worker.tree}, other of" in str(error)
    assert worker.is_running()


def test_a_runtime_directory_open_to_others_is_refused(home: Path, make: Make) -> None:
    (home / "run").mkdir(mode=0o777)
    (home / "run").chmod(0o777)

    with pytest.raises(ProviderError) as caught:
        make("echo")

    assert caught.value.reason == "socket_path"


def test_a_path_too_long_for_a_socket_is_shortened_or_named(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slug = "a" * 60
    worker = ResidentWorker(provider(tree, "echo", slug=slug), admit=None)
    reply = worker.request({"x": 1})
    worker.stop()
    monkeypatch.setenv("TU_REMOTE_HOME", str(tmp_path / ("d" * 100)))

    error = refused(lambda: ResidentWorker(worker.manifest))

    assert reply["echo"] == 1
    assert len(os.fsencode(worker.socket_path)) <= 107
    assert error.reason == "socket_path"


def test_a_user_with_nothing_yet_gets_private_places(
    tree: Path, tmp_path: Path
) -> None:
    """Neither a cache nor a runtime directory, as under cron or in a fresh image."""
    path = write(tree, "echo")
    bare, place = tmp_path / "nobody's home", Path(tempfile.mkdtemp())
    bare.mkdir()
    program = "import sys; from remote_resident.cli import main; sys.exit(main())"
    words = ["remote", "--json", "--tree", str(tree), "call", path.parent.name]
    try:
        called, stopped = (
            subprocess.run(
                [sys.executable, "-c", program, *more],
                env={"PATH": os.defpath, "HOME": str(bare), "TMPDIR": str(place)},
                capture_output=True,
                text=True,
                check=False,
            )
            for more in ([*words, '{"x": 7}'], [*words[:-2], "stop", path.parent.name])
        )
        assert called.returncode == 0, called.stderr
        made = next(place.iterdir())
        mode = made.stat().st_mode & 0o777
    finally:
        shutil.rmtree(place)

    assert json.loads(called.stdout)["echo"] == 7
    assert len(json.loads(stopped.stdout)["stopped"]) == 1
    assert mode == 0o700
    assert [entry.name for entry in bare.iterdir()] == [".cache"]


def test_two_sockets_of_one_provider_are_two_workers(
    make: Make, tmp_path: Path
) -> None:
    one = make("counts", runtime=told_to("/dev/null"))
    two = ResidentWorker(one.manifest, socket_path=tmp_path / "s", admit=None)

    first, second = one.request({})["pid"], two.request({})["pid"]

    assert first != second
    assert one.request({})["pid"] == first
    assert two.stop() == [second]
    assert one.is_running()


# --- the environment


def test_no_secret_of_the_caller_reaches_the_worker(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_TOKEN", "canary-secret")
    monkeypatch.setenv("PYTHONPATH", "/canary-secret")
    monkeypatch.setenv("GIVEN", "passed on")
    declared = {"pass_env": ["GIVEN"], "vars": {"DECLARED": "1"}}
    worker = make("says_environment", env=declared)

    reply = worker.request({})

    assert "canary-secret" not in repr(reply)
    assert reply["environ"]["GIVEN"] == "passed on"
    assert reply["environ"]["DECLARED"] == "1"
    assert reply["environ"]["TU_RESIDENT_INSTANCE"] == worker.instance


LAUNCH = """
import absent_from_the_launcher  # MISSING
def build(worker):
    return [worker.environment.inner_python, *worker.script], {"DECLARED": None}
"""


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    monkeypatch.syspath_prepend(str(tmp_path))

    def launcher(text: str) -> str:
        name = f"launcher_{tmp_path.name}".replace("-", "_")
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return launcher


def test_a_launcher_removes_a_name(make: Make, launcher: Callable[[str], str]) -> None:
    name = launcher("\n".join(x for x in LAUNCH.splitlines() if "MISSING" not in x))
    worker = make(
        "says_environment",
        env={"vars": {"DECLARED": "1"}},
        runtime={"launch": f"{name}:build"},
    )

    assert "DECLARED" not in worker.request({})["environ"]


def test_a_launch_that_names_nothing_is_blamed(
    make: Make, launcher: Callable[[str], str]
) -> None:
    name = launcher("")

    no_module = not_started(make("echo", runtime={"launch": "no_such.thing:build"}))
    no_function = not_started(make("echo", runtime={"launch": f"{name}:build"}))

    assert str(no_module) == (
        "tiny: [runtime] launch = 'no_such.thing:build': no module no_such, "
        "module:function wanted"
    )
    assert f"no function build in {name}" in str(no_function)


def test_a_module_missing_inside_the_launcher_is_not_blamed_on_the_launch(
    make: Make, launcher: Callable[[str], str]
) -> None:
    worker = make("echo", runtime={"launch": f"{launcher(LAUNCH)}:build"})

    with pytest.raises(ModuleNotFoundError, match="absent_from_the_launcher"):
        worker.ensure_started()


# --- a container, whose program is a stand-in that runs what it is given


DOCKER = """#!/bin/sh
echo "$1" >> "$(dirname "$0")/asked"
test "$1" = run || exit 0
while test "$1" != an-image; do shift; done
shift
exec "$@"
"""


@pytest.fixture
def contained(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ResidentWorker:
    program = tmp_path / "docker"
    program.write_text(DOCKER)
    program.chmod(0o755)
    monkeypatch.setenv("TU_CONTAINER_CLI", str(program))
    image = {"image": "an-image", "container_python": sys.executable}
    worker = make(
        "says_environment",
        env={"kind": "docker", "python": None, **image},
        runtime={"orphan_grace_s": 0.1},
    )
    places.ensure(worker.socket_path.parent)
    return worker


def test_a_contained_worker_answers_and_is_stopped_by_its_label(
    contained: ResidentWorker, tmp_path: Path
) -> None:
    reply = contained.request({})
    contained.stop()

    asked = (tmp_path / "asked").read_text().split()
    assert reply["argv"][reply["argv"].index("--lifeline-fd") + 1] == "0"
    assert "--ready-fd" not in reply["argv"]
    assert asked[:2] == ["run", "ps"]
    assert processes.members(str(contained.instance)) == []


def test_a_contained_worker_notices_its_owner_s_end_on_standard_input(
    contained: ResidentWorker, run: Run
) -> None:
    child = run(IDLE, str(contained.manifest.path), "")
    instance = line_of(child)

    child.kill()

    gone(instance)


def test_a_stale_socket_does_not_say_ready_for_a_container(
    contained: ResidentWorker,
) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(contained.socket_path))

    assert contained.request({})["ok"] is True


# --- a fresh process


def test_a_fresh_process_answers_in_the_same_shape_and_carries_the_marks(
    make: Make,
) -> None:
    worker = make("says_environment")

    reply, seconds = run_once(worker.manifest, {}, timeout_s=20, admit=None)

    instance = reply["environ"]["TU_RESIDENT_INSTANCE"]
    assert set(reply) == set(worker.request({}))
    assert reply["argv"][reply["argv"].index("--resident-instance") + 1] == instance
    assert processes.members(instance) == []
    assert 0 < seconds < 20


def test_a_fresh_process_fails_as_a_resident_one_does(
    tree: Path, tmp_path: Path
) -> None:
    dies = provider(tree, "dies")
    hangs = provider(tree, "hangs", slug="hangs")
    lacks = provider(tree, "fails_at_import", slug="lacks")

    died = refused(lambda: run_once(dies, {"how": "SIGSEGV"}, admit=None))
    late = refused(lambda: run_once(hangs, {}, timeout_s=0.5, admit=None))
    lost = refused(lambda: run_once(lacks, {}, admit=None))

    assert (died.reason, late.reason, lost.reason) == (
        "worker_died",
        "request_timeout",
        "worker_died",
    )
    assert "SIGSEGV, a crash in compiled code" in str(died)
    assert "exit status 1" in str(lost)
    assert "a_stack_that_is_not_there" in str(lost)
    assert processes.instances("hangs", str(tree)) == []


def test_inputs_are_all_that_a_worker_is_made_from(tree: Path) -> None:
    first = provider(tree, "echo")
    before = supervisor.inputs_digest(first)
    again = supervisor.inputs_digest(provider(tree, "echo"))
    script = first.resolve("worker.py")
    script.write_text(script.read_text() + "\n")
    edited = supervisor.inputs_digest(first)
    declared = supervisor.inputs_digest(
        provider(tree, "echo", host={"ram_budget_gb": 2})
    )

    assert before == again
    assert len({before, edited, declared}) == 3


def test_a_connection_of_another_user_s_worker_is_never_used(make: Make) -> None:
    worker = make("echo")
    worker.ensure_started()

    channel = client.connect(worker.socket_path)
    peer = channel.peer
    channel.close()

    assert peer == worker.ensure_started().pid
