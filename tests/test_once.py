"""One request to a fresh process."""

from pathlib import Path

from small_provider import provider
from small_worker import Make, refused

from remote_resident import processes
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
