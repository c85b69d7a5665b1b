"""The start and the stop of one resident worker: real processes, real sockets."""

import contextlib
import os
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from seconds import within
from small_provider import DEADLINE_S, provider, until
from small_worker import (
    HELD,
    OWNER,
    Make,
    Run,
    in_thread,
    line_of,
    not_started,
    refused,
    told_to,
)

from remote_resident import kit_launch, places, processes, room, start_lock, supervisor
from remote_resident.admission import Budget, Holder
from remote_resident.caller_side.starter import Stage
from remote_resident.errors import AdmissionRefused, WorkerStartError
from remote_resident.spawn import Log
from remote_resident.supervisor import ResidentWorker

# --- start


def test_a_start_is_a_question_first(make: Make) -> None:
    first, second = make("counts", runtime=told_to("/dev/null")), None
    started = first.ensure_started()
    second = ResidentWorker(first.manifest, admit=None)

    adopted = second.ensure_started()

    assert (started.adopted, adopted.adopted) == (False, True)
    assert (adopted.pid, adopted.instance) == (started.pid, started.instance)


def test_a_worker_says_what_it_is_started_from_and_how_long_what_may_take(
    make: Make,
) -> None:
    limits = {"start_timeout_s": 7, "request_timeout_s": 8, "idle_timeout_s": 9}
    worker = make("counts", runtime=told_to("/dev/null", **limits))
    built = worker.child_env(
        {"PATH": None}, {"PATH": "/bin", "LANG": "C", "STRAY": "1"}
    )

    assert {name: getattr(worker, name) for name in limits} == limits
    assert worker.build_command is kit_launch.build_command
    assert worker.budgets == Budget(0.0, 0.1, "declared")
    assert worker.lock is None
    assert built["LANG"] == "C"
    assert not {"PATH", "STRAY"} & built.keys()
    assert worker.end_all("no-such-instance") == []


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

    children = [run("-c", program, str(worker.manifest.path), "") for _ in range(4)]
    pids = {line_of(child) for child in children}

    assert loads.read_text().split() == [*pids]


def test_all_who_wait_for_a_start_get_its_failure(make: Make, tmp_path: Path) -> None:
    worker = make("slow_load", runtime=told_to(str(tmp_path / "never")))
    waiting = [in_thread(worker.ensure_started) for _ in range(8)]
    until((tmp_path / "never.begun").exists, "loading")
    for thread, _ in waiting[1:]:
        until(lambda one=thread: shares(one), "waits for the start")

    os.kill(worker.status()["pid"], signal.SIGKILL)
    for thread, _ in waiting:
        thread.join(DEADLINE_S)

    (error,) = {str(results[0]) for _, results in waiting}
    assert "SIGKILL" in error


def shares(thread: threading.Thread) -> bool:
    """Say whether a thread waits for a start, its own or another's."""
    frame = sys._current_frames().get(thread.ident or 0)
    stack = traceback.extract_stack(frame) if frame else []
    return any(line.name in ("result", "_start_for") for line in stack)


def test_a_missing_stack_fails_the_start_at_once_with_its_last_words(
    make: Make,
) -> None:
    worker = make("fails_at_import", runtime={"start_timeout_s": 600})
    began = time.monotonic()

    error = not_started(worker)

    within(2.0, time.monotonic() - began)
    assert error.reason == "start_failed"
    assert "exit status 1: an exception ended it" in str(error)
    assert str(error).endswith("No module named 'a_stack_that_is_not_there'")
    assert f"log {worker.log_path}" in str(error)


def test_a_load_over_its_time_is_named_and_nothing_of_it_is_left(
    make: Make, tmp_path: Path
) -> None:
    go = str(tmp_path / "go")
    # begun by then, on any machine that the tests are for
    worker = make("slow_load", runtime=told_to(go, start_timeout_s=1.0))

    error = not_started(worker)

    assert error.reason == "start_timeout"
    assert f'{worker.manifest.resolve("worker.py")}", line' in str(error)
    assert "at most 1.0 wanted" in str(error)
    assert processes.members(str(worker.instance)) == []


def test_a_worker_that_cannot_say_why_it_ended_is_told_with_its_full_disk(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make("fails_in_build")
    monkeypatch.setattr(Log, "tail", lambda *asked: [])
    silent = str(not_started(worker))
    none_free = os.statvfs_result((4096, 4096, 16, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: none_free)
    full = str(not_started(worker))

    assert silent.endswith(f"log {worker.log_path}, to which it wrote nothing")
    assert full.endswith(f"log {worker.log_path}, whose disk is full")


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


# --- what is said of a worker


def test_who_waits_no_longer_is_told_what_it_waited_for(
    make: Make, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    worker = make("slow_load", runtime=told_to(str(go)))
    places.ensure(worker.socket_path.parent)
    lock = start_lock.path_of(worker.socket_path)

    with start_lock.taken(lock):
        locked = late(worker)
        asked = refused(lambda: worker.request({}, deadline_s=0.1))
    until(lambda: worker._starter.stage is Stage.LOAD, "it goes on")
    until(Path(f"{go}.begun").exists, "it loads")
    other = ResidentWorker(worker.manifest, admit=None)
    loads = [late(worker), late(other)]
    pid = worker.status()["pid"]
    os.kill(pid, signal.SIGSTOP)
    until(lambda: processes.stopped(str(worker.instance)), "stopped")
    stopped = [late(worker), late(other)]
    os.kill(pid, signal.SIGCONT)
    go.touch()

    assert other.ensure_started().pid == worker.ensure_started().pid == pid
    waits = (
        "tiny: not started after 0.1 s, at most so long wanted by the caller; it waits"
    )
    assert (
        str(locked)
        == str(asked)
        == (f"{waits} for its turn among the starts of it, the lock {lock}")
    )
    assert locked.next == asked.next == f"fuser -v {shlex.quote(str(lock))}"
    assert {str(one) for one in loads} == {f"{waits} for its load, which goes on"}
    assert {(str(one), one.next) for one in stopped} == {
        (
            f"{waits} for worker {pid}, which loads and is stopped (state T)",
            f"kill -CONT {pid}",
        )
    }


def late(worker: ResidentWorker) -> WorkerStartError:
    with pytest.raises(WorkerStartError) as caught:
        worker.ensure_started(deadline_s=0.1)
    assert caught.value.reason == "request_timeout"
    return caught.value


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
    other.ping_s = 0.1
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

    within(3.0, time.monotonic() - began)
    assert results[0].reason == "stopping"
    assert not places.crash_path(worker.slug, worker.manifest.tree).exists()


@pytest.mark.parametrize("how", ["stop", "room"])
def test_a_load_that_somebody_else_stops_is_said_to_be_stopped(
    make: Make, tmp_path: Path, how: str
) -> None:
    worker = make("slow_load", runtime=told_to(str(tmp_path / "never")))
    thread, results = in_thread(worker.ensure_started)
    until((tmp_path / "never.begun").exists, "loading")
    holder = Holder(
        slug="tiny",
        tree=worker.tree,
        instance=worker.instance,
        pids=(worker.status()["pid"],),
        uid=os.geteuid(),
        device=None,
        budget=Budget(None, None, "declared"),
        loading=True,
        resident_gb=None,
        socket=str(worker.socket_path),
    )

    if how == "stop":
        ResidentWorker(worker.manifest, admit=None).stop()
    else:
        room.end(holder)
    thread.join(DEADLINE_S)

    assert str(results[0]) == (
        "tiny: a stop or a restart of it ended the load; "
        "what is asked again starts a new one"
    )
    assert (results[0].reason, results[0].next) == ("stopping", "tu remote ps")
    assert not places.crash_path(worker.slug, worker.manifest.tree).exists()


def test_a_stop_of_nothing_is_nothing(make: Make) -> None:
    assert make("echo").stop() == []
