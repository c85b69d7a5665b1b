"""One request to a fresh process."""

import sys
import tempfile
import threading
import traceback
from pathlib import Path

import pytest
from small_provider import DEADLINE_S, provider, until
from small_worker import Make, in_thread, not_started, open_descriptors, refused

from remote_resident import processes
from remote_resident.errors import ProviderError
from remote_resident.supervisor import run_once


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


FRESH = {"mode": "subprocess", "mode_reason": "it leaks"}


def test_the_requests_own_deadline_ends_the_waiting_for_a_fresh_process_too(
    tree: Path,
) -> None:
    hangs = provider(tree, "hangs")

    late = refused(lambda: run_once(hangs, {"deadline": 0.2}, timeout_s=60, admit=None))
    at_once = refused(lambda: run_once(hangs, {"deadline": 0}, admit=None))

    assert late.reason == at_once.reason == "request_timeout"
    assert "no reply after 0.2 s, at most so long wanted" in str(late)
    assert late.next == "tu remote logs " + hangs.named


def test_a_fresh_process_needs_no_temporary_directory(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tree / "nowhere"))

    reply, _ = run_once(provider(tree, "says_environment"), {}, admit=None)

    assert reply["ok"] is True


@pytest.mark.parametrize("mode", [{}, FRESH], ids=["held", "fresh"])
def test_a_log_that_cannot_be_written_is_named_and_no_program(
    make: Make, mode: dict[str, str]
) -> None:
    worker = make("says_environment", runtime=mode)
    worker.log_path.mkdir(parents=True)
    before = open_descriptors()

    with pytest.raises(ProviderError) as caught:
        worker.request({})

    assert str(caught.value).startswith(f"{worker.log_path}: Is a directory, a log ")
    assert caught.value.reason == "unreadable"
    assert open_descriptors() == before


def test_a_provider_of_fresh_processes_is_held_by_nobody(make: Make) -> None:
    worker = make("says_environment", runtime=FRESH)

    replies = [worker.request({}) for _ in range(2)]
    held = not_started(worker)

    assert len({reply["environ"]["TU_RESIDENT_INSTANCE"] for reply in replies}) == 2
    assert not worker.is_running()
    assert held.reason == "bad_request"
    assert held.next == f"tu remote call {worker.manifest.named} '{{}}'"


def test_room_is_made_for_a_fresh_process_where_that_was_asked(tree: Path) -> None:
    asked: list[object] = []

    def admit(candidate: object) -> None:
        asked.append(getattr(candidate, "make_room", None))

    for make_room in (False, True):
        fresh = provider(tree, "says_environment", runtime=FRESH)
        run_once(fresh, {}, admit=admit, make_room=make_room)

    assert asked == [False, True]


def test_a_stop_waits_for_a_fresh_process_and_then_ends_it(
    make: Make, tmp_path: Path
) -> None:
    worker = make("waits", runtime=FRESH)
    begun, until_ = tmp_path / "begun", tmp_path / "until"
    asked = {"begun": str(begun), "until": str(until_)}

    _, answered = in_thread(lambda: worker.request(asked))
    until(begun.exists, "predicts")
    stopping, stopped = in_thread(worker.stop)
    until(lambda: waits_for_its_end(stopping), "the stop waits")
    until_.touch()
    stopping.join(DEADLINE_S)
    until(lambda: answered, "answered")
    until_.unlink()
    begun.unlink()
    _, died = in_thread(lambda: worker.request(asked))
    until(begun.exists, "predicts again")
    ended = worker.stop(grace_s=0)
    until(lambda: died, "ended")

    assert answered == [{"order": [None], **answered[0]}]
    assert len(stopped[0]) == len(ended) == 1
    assert died[0].reason == "worker_died"
    assert worker.stop() == []


def waits_for_its_end(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    stack = traceback.extract_stack(frame) if frame else []
    return any(line.name == "wait_pid" for line in stack)
