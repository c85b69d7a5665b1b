"""The host of jobs: every job ends as it should, whatever its worker does."""

import os
import shlex
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import small_jobs
import small_provider

from remote_resident import admission, machine, processes, room, spawn
from remote_resident.admission import Budget, Holder, Memory, Readings, Verdict
from remote_resident.daemon.tenant import Request
from remote_resident.errors import AdmissionRefused, ProviderError, UsageError
from remote_resident.jobs import running
from remote_resident.jobs.asking import state_of
from remote_resident.jobs.host import JobHost
from remote_resident.jobs.job import Event, Job
from remote_resident.jobs.lane import Lane
from remote_resident.jobs.running import hand_over
from remote_resident.jobs.tenant import Jobs
from remote_resident.manifest import load
from remote_resident.processes import end_all

WAIT_S = 60.0


def until(true: Callable[[], object], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, f"not within {WAIT_S} s: {what}"
        time.sleep(0.01)


def events(host: JobHost, job: Job | str) -> list[Event]:
    """Read a job's events to the terminal one."""
    end = time.monotonic() + WAIT_S
    found: list[Event] = []
    for event in host.events(job if isinstance(job, str) else job.job_id):
        assert time.monotonic() < end, found
        if event is not None:
            found.append(event)
    return found


class Site:
    """A host, a tree of small providers, and files by which jobs are steered."""

    def __init__(self, tmp: Path) -> None:
        self.tmp = tmp
        self.tree = tmp / "a tree"
        self.hosts: list[JobHost] = []

    def provider(self, slug: str = "tiny", **tables: Any) -> str:
        small_jobs.write(self.tree, slug, **tables)
        return slug

    def host(self, **options: Any) -> JobHost:
        host = JobHost(**{"admit": None, **options})
        self.hosts.append(host)
        host.begin()
        return host

    def file(self, name: str) -> Path:
        return self.tmp / name

    def steered(self, name: str, does: str = "waits") -> dict[str, Any]:
        """Give the params of a job that says when it began and waits to be let go."""
        return {
            "does": does,
            "began": str(self.file(f"{name}.began")),
            "go": str(self.file(f"{name}.go")),
        }

    def submit(self, host: JobHost, slug: str, name: str, does: str = "waits") -> Job:
        params = self.steered(name, does)
        return host.submit(slug, params, name, tree=self.tree)

    def began(self, name: str) -> int:
        """Wait until a job runs; give its worker's pid."""
        path = self.file(f"{name}.began")
        until(lambda: path.exists() and path.read_text(), f"{name} runs")
        return int(path.read_text())

    def go(self, name: str) -> None:
        self.file(f"{name}.go").touch()

    def lane(self, host: JobHost, slug: str) -> Lane:
        return host._board.lanes[(str(self.tree), slug)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    for host in made.hosts:
        host._board.over.set()
    mine = [h for h in machine.holdings() if h.tree == str(made.tree)]
    for holder in mine:
        assert holder.instance is not None
        end_all(holder.instance, grace_s=0.0)
    for child in spawn._CHILDREN:
        child.poll()


def test_a_job_runs_and_is_remembered(site: Site) -> None:
    site.provider()
    host = site.host()

    job = host.submit("tiny", {"x": 5}, tree=site.tree)
    got = events(host, job)
    ended = host.job(job.job_id)

    names = [event["event"] for event in got]
    assert names == ["starting", "progress", "metric", "log", "result", "done"]
    assert ended.state == "completed"
    assert ended.results == ("file:///5",)
    assert ended.progress == {"percent": 50, "label": "half way", "timing": None}
    assert events(host, job) == got
    assert [job.job_id for job in host.jobs()[0]] == [job.job_id]


def test_a_failed_job_costs_no_worker_and_nobody_elses_error(site: Site) -> None:
    site.provider()
    host = site.host()

    bad = host.submit("tiny", {"does": "raises"}, tree=site.tree)
    good = host.submit("tiny", {}, tree=site.tree)
    events(host, good)

    failed = host.job(bad.job_id)
    assert (failed.state, failed.message) == ("failed", "ValueError: of the job")
    assert host.job(good.job_id).instance == failed.instance
    assert host.stderr(good.job_id) == [f"job {good.job_id} does results"]
    assert host.stderr(bad.job_id)[0] == f"job {bad.job_id} does raises"
    assert host.stderr(bad.job_id)[-1] == "ValueError: of the job"


def test_an_id_is_taken_while_its_job_lives_and_free_after(site: Site) -> None:
    site.provider()
    host = site.host()
    site.submit(host, "tiny", "one")

    with pytest.raises(ProviderError) as caught:
        host.submit("tiny", {}, "one", tree=site.tree)
    site.began("one")
    site.go("one")
    events(host, "one")
    host.submit("tiny", {"x": 2}, "one", tree=site.tree)

    assert caught.value.reason == "job_exists"
    assert events(host, "one")[-1]["status"] == "completed"
    assert host.job("one").results == ("file:///2",)


@pytest.mark.parametrize("job_id", ["", "a b", "x" * 65, "a\n", "run", "ä"])
def test_an_id_that_is_none_is_refused_and_nothing_begins(
    site: Site, job_id: str
) -> None:
    site.provider()
    host = site.host()

    with pytest.raises(UsageError) as caught:
        host.submit("tiny", {}, job_id, tree=site.tree)

    assert caught.value.reason == "bad_job_id"
    assert host.jobs() == ([], 0)


def deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize(
    "value", [deep(900), float("nan"), [float("inf")]], ids=["deep", "nan", "inf"]
)
def test_params_that_no_worker_takes_are_refused_and_nothing_begins(
    site: Site, value: object
) -> None:
    site.provider()
    host = site.host()

    with pytest.raises(UsageError) as caught:
        host.submit("tiny", {"x": value}, tree=site.tree)

    assert caught.value.reason == "bad_request"
    assert host.jobs() == ([], 0)


def test_a_result_of_any_shape_ends_its_job_and_keeps_nobody(site: Site) -> None:
    site.provider()
    host = site.host()

    job = host.submit("tiny", {"does": "nests"}, tree=site.tree)

    assert events(host, job)[-1]["status"] == "completed"
    assert events(host, host.submit("tiny", {}, tree=site.tree))[-1]["event"] == "done"


@pytest.mark.parametrize(
    "line", [b"{", b"[1]", b'{"a":' + b"[" * 900 + b"]" * 900 + b"}"]
)
def test_a_line_that_is_no_event_is_told_as_such(line: bytes) -> None:
    with pytest.raises(running.NoEvent, match="event"):
        running._event_of(line)


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


def test_an_end_that_cannot_be_recorded_is_told_all_the_same(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.provider()
    host = site.host()

    def break_down(*_: object) -> bool:
        raise RuntimeError("of the records")

    job = site.submit(host, "tiny", "one")
    site.began("one")
    with monkeypatch.context() as patch:
        patch.setattr(host._board.records, "save", break_down)
        site.go("one")
        got = events(host, job)

    assert got[-1]["status"] == "completed"
    assert events(host, host.submit("tiny", {}, tree=site.tree))[-1]["event"] == "done"


def test_only_a_provider_of_mode_jobs_takes_one(site: Site) -> None:
    small_provider.write(site.tree, "echo", "held")
    host = site.host()

    with pytest.raises(UsageError) as caught:
        host.submit("held", {}, tree=site.tree)

    assert str(caught.value) == "held: mode resident found, jobs wanted"
    folder = site.tree / "manifests" / "held"
    assert caught.value.next == f"tu remote call {shlex.quote(str(folder))} -"


@pytest.mark.long
def test_what_the_worker_refuses_is_that_jobs_failure(site: Site) -> None:
    site.provider()
    host = site.host()

    # more than the worker's own limit, which is the daemon's too
    job = host.submit("tiny", {"x": "y" * (10 << 20)}, tree=site.tree)
    got = events(host, job)

    assert got[-1]["event"] == "error"
    assert got[-1]["reason"] == "too_large"
    assert host.job(job.job_id).state == "failed"


def test_a_start_that_is_refused_is_that_jobs_failure(site: Site) -> None:
    site.provider(env={"python": "$NO_SUCH_VARIABLE"})
    host = site.host()

    job = host.submit("tiny", {}, tree=site.tree)
    got = events(host, job)

    assert got[-1]["reason"] == "python_unset"
    assert host.job(job.job_id).next == "export NO_SUCH_VARIABLE=/path/to/python"


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

    assert held("short", 1)[-1]["status"] == "completed"
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


def test_hand_over_asks_all_at_once_and_waits_for_none(site: Site) -> None:
    site.provider()
    manifest = load(site.tree / "manifests/tiny/provider.toml", site.tree)
    host = site.host()
    lane = host._board.lane_of(manifest)
    silent = []
    lanes = []
    for number in range(6):
        listener = socket.socket(socket.AF_UNIX)
        path = site.tmp / f"{number}.sock"
        listener.bind(str(path))
        listener.listen()
        silent.append(listener)
        mute = Lane.of(manifest, lane.starter)
        mute.starter = type(lane.starter)(
            manifest=manifest,
            socket_path=path,
            log=lane.starter.log,
            owned=False,
            admit=None,
            state_root=site.tmp,
        )
        lanes.append(mute)

    began = time.monotonic()
    unanswered = hand_over(lanes)
    took = time.monotonic() - began
    for listener in silent:
        listener.close()

    # one after the other they would take twelve
    assert unanswered == lanes
    assert took < 8.0


class OneSlot:
    """Refuses a start while a job of another provider runs."""

    def __init__(self) -> None:
        self.host: JobHost | None = None

    @contextmanager
    def __call__(self, candidate: Any) -> Iterator[None]:
        assert self.host is not None
        for live in list(self.host._board.live.values()):
            slug = live.job.slug
            if slug != candidate.manifest.slug and live.job.state == "running":
                raise AdmissionRefused(f"{slug} holds", verdict=None, reason="no_room")
        yield


def test_one_slot_goes_round_the_providers_and_nobody_starves(site: Site) -> None:
    for slug in ("a", "b"):
        site.provider(slug)
    admit = OneSlot()
    host = admit.host = site.host(admit=admit)
    for name in ("a1", "a2", "a3"):
        site.submit(host, "a", name)
    site.began("a1")
    site.submit(host, "b", "b1")
    until(lambda: site.lane(host, "b").blocked, "b waits for room")

    for name in ("a1", "b1", "a2", "a3"):
        site.began(name)
        site.go(name)
        events(host, name)

    said = [event for event in events(host, "b1") if event["event"] == "queued"]
    assert said[-1]["waits_for"] == "no_room"
    started = {name: host.job(name).started for name in ("a1", "b1", "a2", "a3")}
    assert sorted(started, key=lambda name: started[name] or 0.0) == [
        "a1",
        "b1",
        "a2",
        "a3",
    ]


def test_no_room_with_nobody_to_wait_for_is_a_refusal(site: Site) -> None:
    site.provider()

    @contextmanager
    def full(candidate: Any) -> Iterator[None]:
        raise AdmissionRefused("it is full", verdict=None, reason="no_room")
        yield

    host = site.host(admit=full)
    got = events(host, host.submit("tiny", {}, tree=site.tree))

    assert (got[-1]["reason"], got[-1]["message"]) == ("no_room", "it is full")
    assert got[-1]["next"] == "tu remote room"


def test_a_slow_start_delays_no_other_provider(site: Site) -> None:
    site.provider()
    site.provider("other")
    folder = site.tree / "manifests/tiny"
    (folder / "slow").touch()
    host = site.host()
    slow = host.submit("tiny", {}, tree=site.tree)
    until((folder / "loading").exists, "the worker loads")

    quick = host.submit("other", {}, tree=site.tree)

    assert events(host, quick)[-1]["status"] == "completed"
    assert host.job(slow.job_id).state == "starting"
    (folder / "slow").unlink()
    assert events(host, slow)[-1]["status"] == "completed"


@pytest.mark.long
def test_the_expected_wait_is_known_once_a_job_has_completed(site: Site) -> None:
    site.provider()
    host = site.host()
    site.submit(host, "tiny", "one")
    site.submit(host, "tiny", "two")
    site.began("one")
    unknown = host.place("two")
    site.go("one")
    site.began("two")
    third = site.submit(host, "tiny", "three")
    known = host.place(third.job_id)
    site.go("two")
    site.go("three")
    events(host, "three")

    assert unknown == {"position": 1, "expected_wait_s": None}
    assert known["position"] == 1
    assert isinstance(known["expected_wait_s"], float)
    assert host.place("three") == {"position": None, "expected_wait_s": None}


def test_an_idle_worker_is_let_go_and_the_next_job_has_a_new_one(site: Site) -> None:
    site.provider(runtime={"idle_timeout_s": 0.3})
    host = site.host()
    first = host.submit("tiny", {}, tree=site.tree)
    events(host, first)

    until(lambda: not processes.instances("tiny", str(site.tree)), "it is let go")
    second = host.submit("tiny", {}, tree=site.tree)
    events(host, second)

    assert host.job(first.job_id).instance != host.job(second.job_id).instance


@pytest.mark.long
def test_a_changed_plugin_has_a_new_worker(site: Site) -> None:
    site.provider()
    host = site.host()
    first = host.submit("tiny", {}, tree=site.tree)
    events(host, first)
    plugin = site.tree / "manifests/tiny/plugin.py"
    plugin.write_text(plugin.read_text().replace("a line", "another line"))

    second = host.submit("tiny", {}, tree=site.tree)
    got = events(host, second)

    assert "another line" in [event.get("message") for event in got]


def test_a_second_host_takes_up_what_the_first_had_in_hand(site: Site) -> None:
    site.provider()
    first = site.host()
    site.submit(first, "tiny", "one")
    site.submit(first, "tiny", "two")
    site.began("one")
    first._board.over.set()
    for live in first._board.live.values():
        first._board.save(live)

    second = site.host()
    site.go("one")
    site.go("two")

    assert events(second, "one")[-1]["status"] == "completed"
    assert events(second, "two")[-1]["status"] == "completed"
    assert second.job("one").instance == second.job("two").instance


def test_what_ended_while_no_host_watched_is_lost_or_told(site: Site) -> None:
    site.provider()
    first = site.host()
    site.submit(first, "tiny", "one")
    pid = site.began("one")
    first._board.over.set()
    first._board.lanes.clear()
    with sqlite3.connect(first._board.records.path) as copy:
        rows = list(copy.execute("SELECT id, state FROM jobs"))
    first._board.records.close()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not processes.instances("tiny", str(site.tree)), "it is gone")

    second = site.host()
    got = events(second, "one")

    assert rows == [("one", "running")]
    assert "its worker ended while no host watched" in got[-1]["message"]
    assert second.job("one").state == "lost"


def test_the_end_leaves_jobs_running_and_no_idle_worker(site: Site) -> None:
    site.provider()
    site.provider("other")
    host = site.host()
    site.submit(host, "tiny", "one")
    events(host, host.submit("other", {}, tree=site.tree))
    pid = site.began("one")

    host.end(stop_services=False)

    assert Path(f"/proc/{pid}").exists()
    assert not processes.instances("other", str(site.tree))
    with pytest.raises(ProviderError) as caught:
        host.submit("tiny", {}, tree=site.tree)
    assert caught.value.reason == "stopping"


@pytest.mark.long
def test_the_end_with_services_cancels_all(site: Site) -> None:
    site.provider()
    host = site.host()
    site.submit(host, "tiny", "one")
    site.submit(host, "tiny", "two")
    site.began("one")

    host.end(stop_services=True)

    assert not processes.instances("tiny", str(site.tree))
    assert {host.job("one").state, host.job("two").state} == {"cancelled"}


def test_a_damaged_history_is_set_aside_and_stops_nothing(
    site: Site, home: Path
) -> None:
    site.provider()
    (home / "state").mkdir(0o700)
    (home / "state/jobs.sqlite").write_bytes(b"no database" * 1000)
    host = site.host()

    job = host.submit("tiny", {}, tree=site.tree)

    assert events(host, job)[-1]["status"] == "completed"
    aside = list((home / "state").glob("jobs.sqlite.damaged-*"))
    assert [path.read_bytes()[:11] for path in aside] == [b"no database"]


def test_records_are_for_their_owner_alone(site: Site, home: Path) -> None:
    site.provider()
    site.host()

    modes = {p.name: p.stat().st_mode & 0o777 for p in (home / "state").glob("jobs*")}
    assert set(modes.values()) == {0o600}


@pytest.mark.long
def test_a_job_on_the_processor_sees_no_device(site: Site) -> None:
    site.provider(gpu={"policy": "optional", "vram_budget_gb": 1.0})
    host = site.host()

    job = host.submit("tiny", {"does": "device"}, device="cpu", tree=site.tree)
    events(host, job)

    assert host.job(job.job_id).results == ("",)


@pytest.fixture
def alone(site: Site) -> Iterator[Path]:
    """Write a provider that lies in no tree; its worker is ended."""
    folder = site.tmp / "alone"
    site.provider()
    (site.tree / "manifests/tiny").rename(folder)
    file = folder / "provider.toml"
    file.write_text(file.read_text().replace('"tiny"', '"alone"'))
    yield folder
    for left in processes.instances("alone", str(folder)):
        end_all(left.instance, grace_s=0.0)


def test_a_provider_outside_of_a_tree_takes_jobs_too(site: Site, alone: Path) -> None:
    host = site.host()

    job = host.submit(str(alone), {}, tree=site.tree)

    assert events(host, job)[-1]["status"] == "completed"


def test_a_worker_outside_of_a_tree_holds_what_its_manifest_declares(
    site: Site, alone: Path
) -> None:
    host = site.host()
    job = host.submit(str(alone), {}, tree=site.tree)
    events(host, job)
    instance = host.job(job.job_id).instance

    [holder] = [one for one in room.holders() if one.instance == instance]

    assert holder.budget.ram_gb == 0.25


def test_an_idle_worker_outside_of_a_tree_is_let_go_by_the_next_host(
    site: Site, alone: Path
) -> None:
    first = site.host()
    events(first, first.submit(str(alone), {}, tree=site.tree))
    first._board.over.set()

    site.host().end(stop_services=False)

    assert not processes.instances("alone", str(alone))


def refused(holder: Holder) -> Verdict:
    """Give a verdict that a holder's budget is in the way of."""
    budget = Budget(0.0, 60.0, "declared")
    mem = Memory(total_gb=100, free_gb=100, available_gb=100)
    held = replace(holder, budget=Budget(0.0, 50.0, "declared"), loading=False)
    return admission.decide("mine", budget, [held], readings=Readings(mem, []))


def test_room_is_made_by_reclaim_first_and_never_of_a_busy_worker(site: Site) -> None:
    site.provider()
    host = site.host()
    emptied = site.file("emptied")
    params = {"does": "caches", "emptied": str(emptied)}
    events(host, host.submit("tiny", params, tree=site.tree))
    emptied.unlink(missing_ok=True)
    (holder,) = [h for h in machine.holdings() if h.tree == str(site.tree)]
    before = refused(holder)

    idle_s = room.ask_idle_s(holder)
    # what came back is enough: the worker stays
    admitted = replace(before, admit=True)
    verdict, gone = room.make_room(before, lambda: admitted)

    assert not before.admit
    assert idle_s is not None and idle_s >= 0
    assert (verdict, gone) == (admitted, [])
    assert emptied.exists()
    site.submit(host, "tiny", "one")
    pid = site.began("one")
    assert room.ask_idle_s(holder) is None
    assert room.make_room(before, lambda: before)[1] == []
    site.go("one")
    events(host, "one")
    # it was not enough: the idle worker goes
    until(
        lambda: room.make_room(before, lambda: before, wait_s=0.0)[1],
        "it is retired",
    )
    assert state_of(pid) in (None, "Z")
    again = host.submit("tiny", {}, tree=site.tree)
    assert events(host, again)[-1]["status"] == "completed"


def test_a_device_that_is_not_there_is_refused_by_name(site: Site) -> None:
    site.provider()
    host = site.host()

    with pytest.raises(UsageError) as caught:
        host.submit("tiny", {}, device="GPU-none", tree=site.tree)

    assert str(caught.value) == (
        "tiny: device 'GPU-none' found, one of auto, cpu wanted"
    )


def test_a_full_disk_ends_no_job_and_refuses_the_next(site: Site) -> None:
    site.provider()
    host = site.host()
    site.submit(host, "tiny", "one")
    site.began("one")
    records = host._board.records
    (pages,) = records._db.execute("PRAGMA page_count").fetchone()
    records._db.execute(f"PRAGMA max_page_count = {pages}")

    with pytest.raises(ProviderError) as caught:
        host.submit("tiny", {"x": "y" * 100_000}, tree=site.tree)
    site.go("one")
    got = events(host, "one")
    # what the file may not have taken is known all the same
    known = host.job("one")
    records._db.execute("PRAGMA max_page_count = 100000")
    again = host.submit("tiny", {}, tree=site.tree)

    assert caught.value.reason == "disk_full"
    assert got[-1]["status"] == "completed"
    assert known.state == "completed"
    assert events(host, again)[-1]["status"] == "completed"


def test_a_name_with_a_nul_is_refused_and_is_no_fault_of_ours() -> None:
    body = {"slug": "tiny", "tree": "/a\0b"}
    request = Request(method="POST", path="/v1/jobs", names={}, query={}, body=body)

    with pytest.raises(UsageError) as caught:
        Jobs().submit(request)

    assert caught.value.reason == "bad_request"
