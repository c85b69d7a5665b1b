"""Whose turn it is: providers side by side, room, idle workers."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from seconds import within
from small_job_host import Site, events, sites, until

from remote_resident import admission, machine, processes, room
from remote_resident.admission import Budget, Holder, Memory, Readings, Verdict
from remote_resident.errors import AdmissionRefused
from remote_resident.jobs.asking import state_of
from remote_resident.jobs.host import JobHost
from remote_resident.jobs.lane import Lane
from remote_resident.jobs.running import hand_over
from remote_resident.manifest import load


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with sites(tmp_path) as made:
        yield made


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
    within(8.0, took)


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

    until(lambda: room.ask_idle_s(holder) is not None, "its last job is over")
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
