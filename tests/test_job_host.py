"""The host of jobs: what it takes, what it refuses, what it remembers."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import small_provider
from small_job_host import Site, events, sites

from remote_resident.daemon.tenant import Request
from remote_resident.errors import ProviderError, UsageError
from remote_resident.jobs import running
from remote_resident.jobs.host import JobHost
from remote_resident.jobs.job import MOST_RESULTS
from remote_resident.jobs.tenant import Jobs


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with sites(tmp_path) as made:
        yield made


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


@pytest.mark.long
def test_a_job_on_the_processor_sees_no_device(site: Site) -> None:
    site.provider(gpu={"policy": "optional", "vram_budget_gb": 1.0})
    host = site.host()

    job = host.submit("tiny", {"does": "device"}, device="cpu", tree=site.tree)
    events(host, job)

    assert host.job(job.job_id).results == ("",)


def test_a_device_that_is_not_there_is_refused_by_name(site: Site) -> None:
    site.provider()
    host = site.host()

    with pytest.raises(UsageError) as caught:
        host.submit("tiny", {}, device="GPU-none", tree=site.tree)

    assert str(caught.value) == (
        "tiny: device 'GPU-none' found, one of auto, cpu wanted"
    )


def test_a_name_with_a_nul_is_refused_and_is_no_fault_of_ours() -> None:
    body = {"slug": "tiny", "tree": "/a\0b"}
    request = Request(method="POST", path="/v1/jobs", names={}, query={}, body=body)

    with pytest.raises(UsageError) as caught:
        Jobs().submit(request)

    assert caught.value.reason == "bad_request"


def listed(host: JobHost, **query: str) -> Any:
    request = Request(method="GET", path="/v1/jobs", names={}, query=query, body={})
    return Jobs(host).list(request)


def test_the_newest_of_many_results_are_kept_and_the_rest_is_counted(
    site: Site,
) -> None:
    site.provider()
    host = site.host()
    number = MOST_RESULTS + 5

    job = host.submit("tiny", {"does": "gives", "number": number}, tree=site.tree)
    got = events(host, job)
    (short,) = listed(host)["jobs"]
    (bare,) = listed(host, results="0")["jobs"]
    whole = host.job(job.job_id).as_dict()

    # who watches sees each
    told = [event["run_url"] for event in got if event["event"] == "result"]
    assert told == list(range(number))
    assert (whole["results"], whole["results_left_out"]) == (told[5:], 5)
    assert (short["results"], short["results_left_out"]) == (told[-20:], number - 20)
    assert (bare["results"], bare["results_left_out"]) == ([], number)


def test_a_list_with_a_limit_has_those_that_live_and_counts_the_others(
    site: Site,
) -> None:
    site.provider()
    host = site.host()
    site.submit(host, "tiny", "lives")
    site.began("lives")
    for name in ("a", "b", "c"):
        host.submit("tiny", {}, name, tree=site.tree)
        host.cancel(name)

    whole, two = listed(host), listed(host, limit="2")

    assert [job["job_id"] for job in whole["jobs"]] == ["c", "b", "a", "lives"]
    assert whole["left_out"] == 0
    assert [job["job_id"] for job in two["jobs"]] == ["c", "lives"]
    assert two["left_out"] == 2


@pytest.mark.parametrize("value", ["-1", "x", "", "1.5", "9" * 10, "\u0663"])
def test_a_limit_that_is_no_number_is_refused(site: Site, value: str) -> None:
    with pytest.raises(UsageError) as caught:
        listed(site.host(), limit=value)

    assert caught.value.reason == "bad_request"
    assert str(caught.value) == (
        f"limit: {value!r} found, an integer from 0 of at most 9 digits wanted"
    )


def test_a_worker_is_told_where_its_weights_are(site: Site) -> None:
    root = site.tmp / "weights"
    root.mkdir()
    site.provider(weights={"root_env": "TINY_ROOT", "root_default": str(root)})
    host = site.host()
    names = ["TU_WEIGHTS_ROOT", "TINY_ROOT"]

    job = host.submit("tiny", {"does": "says", "names": names}, tree=site.tree)
    got = events(host, job)

    assert got[-1].get("status") == "completed", got[-1]
    assert host.job(job.job_id).results == (str(root), str(root))


def test_the_last_four_hundred_lines_of_a_job_are_kept(site: Site) -> None:
    site.provider()
    host = site.host()

    job = host.submit("tiny", {"does": "prints", "lines": 500}, tree=site.tree)
    events(host, job)

    wanted = [f"line {number}" for number in range(100, 500)]
    assert host._board.records.stderr(job.job_id) == wanted
    assert host.stderr(job.job_id) == wanted
