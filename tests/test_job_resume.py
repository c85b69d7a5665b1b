"""What a host leaves and the next one takes up: jobs, workers, records."""

import os
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_job_host import Site, events, sites, until

from remote_resident import processes, room
from remote_resident.errors import ProviderError
from remote_resident.jobs.asking import state_of
from remote_resident.jobs.host import JobHost
from remote_resident.jobs.records import Records
from remote_resident.processes import end_all


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with sites(tmp_path) as made:
        yield made


def leave(host: JobHost) -> None:
    """Have a host do no more, as one that was killed."""
    host._board.over.set()
    for live in host._board.live.values():
        host._board.save(live)


def test_a_second_host_takes_up_what_the_first_had_in_hand(site: Site) -> None:
    site.provider()
    first = site.host()
    site.submit(first, "tiny", "one")
    site.submit(first, "tiny", "two")
    site.began("one")
    leave(first)

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


def test_a_job_that_is_submitted_before_the_host_begins_runs_once(site: Site) -> None:
    site.provider()
    host = JobHost(admit=None)
    site.hosts.append(host)
    job = host.submit("tiny", {}, tree=site.tree)

    host.begin()

    assert [event["event"] for event in events(host, job)].count("starting") == 1
    again = host.submit("tiny", {}, tree=site.tree)
    assert events(host, again)[-1]["status"] == "completed"


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


def test_what_ended_on_a_full_disk_is_recorded_at_the_latest_at_the_hosts_end(
    site: Site,
) -> None:
    site.provider()
    host = site.host()
    site.submit(host, "tiny", "one")
    site.began("one")
    records = host._board.records
    (pages,) = records._db.execute("PRAGMA page_count").fetchone()
    records._db.execute(f"PRAGMA max_page_count = {pages}")
    for number in range(400):
        host._board.live["one"].feed.add({"event": "log", "message": f"{number:0500}"})
    site.go("one")
    events(host, "one")
    records._db.execute("PRAGMA max_page_count = 100000")

    host.end(stop_services=False)

    found = Records(records.path)
    recorded = found.get("one")
    found.close()
    assert recorded is not None
    assert recorded.state == "completed"


def test_a_running_job_outlives_its_manifest_and_its_worker_goes_with_it(
    site: Site,
) -> None:
    site.provider()
    first = site.host()
    site.submit(first, "tiny", "one")
    site.submit(first, "tiny", "two")
    pid = site.began("one")
    leave(first)
    shutil.rmtree(site.tree / "manifests/tiny")

    second = site.host()
    running, waiting = second.job("one"), second.job("two")
    alive = state_of(pid)
    site.go("one")

    assert (running.state, alive not in (None, "Z")) == ("running", True)
    assert (waiting.state, waiting.reason) == ("failed", "file_missing")
    assert waiting.next == "tu remote check"
    assert events(second, "one")[-1]["status"] == "completed"
    tree = str(site.tree)
    until(lambda: not processes.instances("tiny", tree), "the worker is ended")


def test_a_job_without_its_manifest_is_cancelled_as_any(site: Site) -> None:
    site.provider()
    first = site.host()
    site.submit(first, "tiny", "one")
    site.began("one")
    leave(first)
    shutil.rmtree(site.tree / "manifests/tiny")

    second = site.host()
    second.cancel("one")

    assert events(second, "one")[-1]["status"] == "cancelled"
    assert second.job("one").state == "cancelled"
    tree = str(site.tree)
    until(lambda: not processes.instances("tiny", tree), "the worker is ended")


def test_an_idle_worker_without_its_manifest_is_ended_by_the_next_host(
    site: Site,
) -> None:
    site.provider()
    first = site.host()
    events(first, first.submit("tiny", {}, tree=site.tree))
    leave(first)
    assert processes.instances("tiny", str(site.tree))
    shutil.rmtree(site.tree / "manifests/tiny")

    site.host()

    tree = str(site.tree)
    until(lambda: not processes.instances("tiny", tree), "the worker is ended")


def test_a_manifest_that_is_mended_while_its_job_runs_keeps_the_worker(
    site: Site,
) -> None:
    site.provider()
    first = site.host()
    site.submit(first, "tiny", "one")
    site.began("one")
    leave(first)
    path = site.tree / "manifests/tiny/provider.toml"
    text = path.read_text()
    path.write_text("no manifest")
    second = site.host()
    path.write_text(text)

    after = second.submit("tiny", {}, tree=site.tree)
    site.go("one")

    assert events(second, after)[-1]["status"] == "completed"
    assert second.job(after.job_id).instance == second.job("one").instance
