"""Jobs that are cancelled, and jobs whose worker is lost: each ends as it should."""

import errno
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_job_host import Site, events, sites, until

from remote_resident import processes
from remote_resident.jobs import running, watch
from remote_resident.jobs.job import Event
from remote_resident.jobs.lane import Lane


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with sites(tmp_path) as made:
        yield made


def test_a_worker_that_sends_no_event_is_lost_and_replaced(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.provider()
    host = site.host()
    with monkeypatch.context() as patch:
        patch.setattr(running, "_DEEPEST", 0)
        job = host.submit("tiny", {}, tree=site.tree)
        got = events(host, job)
    instance = host.job(job.job_id).instance
    until(lambda: site.lane(host, "tiny").in_hand is None, "the next one's turn")

    assert host.job(job.job_id).state == "lost"
    assert "levels, fewer wanted" in got[-1]["message"]
    left = processes.instances("tiny", str(site.tree))
    assert instance not in {one.instance for one in left}


def test_a_worker_that_cannot_be_ended_keeps_no_job_from_its_turn(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.provider()
    host = site.host()
    tried: list[Lane] = []

    def end(lane: Lane) -> None:
        tried.append(lane)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(running, "_DEEPEST", 0)
        patch.setattr(Lane, "end", end)
        host.submit("tiny", {}, tree=site.tree)
        until(lambda: tried, "its worker is to end")
    following = host.submit("tiny", {}, tree=site.tree)

    assert events(host, following)[-1]["status"] == "completed"


def test_a_cancel_ends_queued_and_running_jobs_and_the_queue_goes_on(
    site: Site,
) -> None:
    site.provider()
    host = site.host()
    running = site.submit(host, "tiny", "running")
    queued = site.submit(host, "tiny", "queued")
    last = host.submit("tiny", {}, tree=site.tree)
    site.began("running")

    assert host.place("queued")["position"] == 1
    assert host.cancel("queued").state == "cancelled"
    assert host.place(last.job_id)["position"] == 1
    host.cancel("running")

    assert events(host, queued)[-1]["status"] == "cancelled"
    assert events(host, running)[-1]["status"] == "cancelled"
    assert host.job("running").state == "cancelled"
    assert not site.file("queued.began").exists()
    assert events(host, last)[-1]["status"] == "completed"
    # once more: it has ended
    assert host.cancel("running").state == "cancelled"


def test_a_cancel_during_the_start_ends_job_and_start(site: Site) -> None:
    site.provider()
    folder = site.tree / "manifests/tiny"
    (folder / "slow").touch()
    host = site.host()
    job = site.submit(host, "tiny", "one")
    until((folder / "loading").exists, "the worker loads")

    host.cancel("one")

    assert events(host, job)[-1] == {
        "event": "done",
        "job_id": "one",
        "status": "cancelled",
    }
    tree = str(site.tree)
    until(lambda: not processes.instances("tiny", tree), "the start is ended")
    (folder / "slow").unlink()
    again = host.submit("tiny", {}, tree=site.tree)
    assert events(host, again)[-1]["status"] == "completed"


def test_a_cancel_that_is_ignored_ends_the_worker_and_the_job_is_cancelled(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TU_JOB_CANCEL_GRACE_S", "0.3")
    site.provider()
    host = site.host()
    job = site.submit(host, "tiny", "one", "ignores")
    pid = site.began("one")

    host.cancel("one")
    got = events(host, job)

    assert got[-1]["message"] == "cancel ignored for 0.3 s; worker ended"
    assert host.job("one").state == "cancelled"
    until(lambda: not Path(f"/proc/{pid}").exists(), "the worker is gone")
    again = host.submit("tiny", {}, tree=site.tree)
    assert events(host, again)[-1]["status"] == "completed"


def test_a_stopped_worker_behind_the_process_that_was_started_is_lost(
    site: Site,
) -> None:
    # as a container's client stands before its worker
    client = site.tmp / "python"
    client.write_text(f'#!/bin/sh\n"{sys.executable}" "$@"\nexit $?\n')
    client.chmod(0o755)
    site.provider(env={"python": str(client)})
    host = site.host()
    site.submit(host, "tiny", "one")
    pid = site.began("one")
    assert site.lane(host, "tiny").pid != pid

    os.kill(pid, signal.SIGSTOP)
    got = events(host, "one")

    assert "is stopped (state T)" in got[-1]["message"]
    assert host.job("one").state == "lost"
    again = host.submit("tiny", {}, tree=site.tree)
    assert events(host, again)[-1]["status"] == "completed"


@pytest.mark.parametrize(
    ("signum", "said"),
    [
        (signal.SIGKILL, "exit status -9: SIGKILL, often the out-of-memory killer"),
        pytest.param(
            signal.SIGSEGV,
            "exit status -11: SIGSEGV, a crash in compiled code",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_killed_worker_is_lost_with_the_reason_and_replaced(
    site: Site, signum: signal.Signals, said: str
) -> None:
    site.provider()
    host = site.host()
    site.submit(host, "tiny", "one")
    pid = site.began("one")

    os.kill(pid, signum)
    got = events(host, "one")
    again = host.submit("tiny", {}, tree=site.tree)

    log = host.job("one").log
    assert got[-1]["message"] == (
        f"tiny: job one: its worker {pid} ended: {said}; log {log}, "
        "the job's last lines:\n    job one does waits"
    )
    assert got[-1]["next"] == host.job("one").next == "tu remote job logs one"
    assert host.job("one").state == "lost"
    assert host.job("one").reason == "lost"
    assert events(host, again)[-1]["status"] == "completed"
    assert host.job(again.job_id).instance != host.job("one").instance


def test_a_stopped_worker_is_lost_and_replaced_and_nobody_else_waits(
    site: Site,
) -> None:
    site.provider()
    site.provider("other")
    host = site.host()
    site.submit(host, "tiny", "one")
    pid = site.began("one")

    os.kill(pid, signal.SIGSTOP)
    beside = host.submit("other", {}, tree=site.tree)
    got = events(host, "one")
    again = host.submit("tiny", {}, tree=site.tree)

    assert f"its worker {pid} is stopped (state T)" in got[-1]["message"]
    assert host.job("one").state == "lost"
    assert events(host, beside)[-1]["status"] == "completed"
    assert events(host, again)[-1]["status"] == "completed"
    assert not Path(f"/proc/{pid}").exists()


def test_a_silent_worker_is_lost_after_the_time_and_not_before(site: Site) -> None:
    site.provider()
    host = site.host(liveness_s=3.0)

    def held(name: str, seconds: int) -> list[Event]:
        params = {**site.steered(name, "holds"), "seconds": seconds}
        return events(host, host.submit("tiny", params, name, tree=site.tree))

    assert held("short", 0)[-1]["status"] == "completed"
    got = held("long", 120)

    assert "gave no sign of life for" in got[-1]["message"]
    assert "one within 3.0 s wanted" in got[-1]["message"]
    assert host.job("long").state == "lost"


@pytest.mark.long
def test_a_quiet_job_of_a_worker_that_answers_is_not_lost(site: Site) -> None:
    site.provider()
    host = site.host(liveness_s=1.0)
    site.submit(host, "tiny", "one")
    site.began("one")
    live = host._board.live["one"]

    # silent on the stream for longer than it may, and alive by its health
    heard = live.heard
    until(lambda: live.heard > heard + 2.0, "its health counts")
    site.go("one")

    assert events(host, "one")[-1]["status"] == "completed"


def test_a_cancel_that_no_worker_can_heed_ends_it_a_little_later(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TU_JOB_CANCEL_GRACE_S", "0.3")
    monkeypatch.setattr(watch, "_HOST_GRACE_S", 0.4)
    site.provider()
    host = site.host()
    # the worker's own clock stands still: one call holds its interpreter
    params = {**site.steered("one", "holds"), "seconds": 120}
    host.submit("tiny", params, "one", tree=site.tree)
    site.began("one")

    host.cancel("one")
    got = events(host, "one")

    assert got[-1]["status"] == "cancelled"
    assert got[-1]["message"] == "tiny: job one: its cancel was ignored for 0.3 s"
    assert host.job("one").state == "cancelled"
    again = host.submit("tiny", {}, tree=site.tree)
    assert events(host, again)[-1]["status"] == "completed"
