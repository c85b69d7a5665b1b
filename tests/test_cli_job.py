"""`tu remote job`, with a real daemon, as people and programs use it."""

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import small_jobs

from remote_resident import machine, processes
from remote_resident.cli.answer import Asked
from remote_resident.cli.job import run, watching
from remote_resident.cli.signals import Cut
from remote_resident.daemon.client import connect
from remote_resident.errors import ProviderError
from remote_resident.jobs.client import JobClient
from remote_resident.processes import end_all

WAIT_S = 60.0


def until(true: Callable[[], object], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, f"not within {WAIT_S} s: {what}"
        time.sleep(0.01)


class Site:
    """A tree with a small provider, and the command line beside it."""

    def __init__(self, tmp: Path, tree: Path) -> None:
        self.tmp = tmp
        self.tree = tree
        small_jobs.write(self.tree)

    def argv(self, *words: str) -> list[str]:
        command = [sys.executable, "-m", "remote_resident", "remote"]
        return [*command, *words, "--tree", str(self.tree)]

    def tu(self, *words: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.argv(*words),
            cwd=self.tmp,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
            **options,
        )

    def start(self, *words: str, **options: Any) -> "subprocess.Popen[str]":
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen(self.argv(*words), cwd=self.tmp, text=True, **pipes)

    def steered(self, name: str, does: str = "waits") -> str:
        files = {key: str(self.tmp / f"{name}.{key}") for key in ("began", "go")}
        return json.dumps({"does": does, **files})

    def began(self, name: str) -> int:
        path = self.tmp / f"{name}.began"
        until(lambda: path.exists() and path.read_text(), f"{name} runs")
        return int(path.read_text())

    def go(self, name: str) -> None:
        (self.tmp / f"{name}.go").touch()

    def run(self, name: str, **options: Any) -> "subprocess.Popen[str]":
        params = self.steered(name)
        process = self.start(
            "job", "run", "tiny", "--id", name, "--params", params, **options
        )
        self.began(name)
        return process

    def end_jobs(self) -> None:
        """Cancel what a test has left running."""
        jobs = JobClient(connect(start=False))
        for job in jobs.listed()["jobs"]:
            if job["ended"] is None:
                (self.tmp / f"{job['job_id']}.go").touch()
                jobs.cancel(job["job_id"])
                list(jobs.events(job["job_id"]))


def kill_daemon() -> None:
    with suppress(ProviderError):
        pid = connect(start=False).call("GET", "/v1/health")["pid"]
        pidfd = os.pidfd_open(pid)
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll(WAIT_S * 1000)
        os.close(pidfd)


def kill_workers(tree: Path) -> None:
    for holder in machine.holdings():
        if holder.tree == str(tree) and holder.instance:
            end_all(holder.instance, grace_s=0.0)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """Give the home of one daemon, and one tree, for tests that end neither."""
    home = tmp_path_factory.mktemp("home")
    home.chmod(0o700)
    tree = tmp_path_factory.mktemp("shared") / "a tree"
    yield home, tree
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TU_REMOTE_HOME", str(home))
        kill_daemon()
        kill_workers(tree)


@pytest.fixture
def site(
    tmp_path: Path, shared: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    home, tree = shared
    monkeypatch.setenv("TU_REMOTE_HOME", str(home))
    made = Site(tmp_path, tree)
    yield made
    with suppress(ProviderError):
        made.end_jobs()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Site]:
    """Give a site whose daemon and worker are this test's alone."""
    made = Site(tmp_path, tmp_path / "a tree")
    yield made
    kill_daemon()
    kill_workers(made.tree)


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_python_of_the_page_runs_a_job(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[1] / "docs/jobs.md").read_text()
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[-1]
    code = code.replace("/srv/models", str(site.tree)).replace('"anneal"', '"tiny"')

    exec(code, {})

    assert "'status': 'completed'" in capsys.readouterr().out.splitlines()[-1]


def test_a_program_submits_by_slug(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TU_REMOTE_TREE", str(site.tree))
    jobs = JobClient()

    job = jobs.submit("tiny", {"x": 1}, "by-slug")

    assert (job["job_id"], job["slug"]) == ("by-slug", "tiny")
    assert list(jobs.events("by-slug"))[-1]["status"] == "completed"


@pytest.mark.parametrize(
    ("full", "code"), [("stdout", 1), ("stderr", 0)], ids=["results", "progress"]
)
def test_a_full_disk_under_the_output_ends_no_watch(
    site: Site, full: str, code: int
) -> None:
    with Path("/dev/full").open("wb") as nowhere:
        process = site.start("job", "run", "tiny", "--json", **{full: nowhere})
        out, said = process.communicate(timeout=WAIT_S)

    assert process.returncode == code
    if full == "stdout":
        lost = "standard output: No space left on device: what follows is lost"
        assert said.splitlines() == [lost]
    else:
        assert lines(out)[-1]["status"] == "completed"


def test_a_daemon_whose_ready_line_finds_a_full_disk_serves(own: Site) -> None:
    with Path("/dev/full").open("wb") as nowhere:
        daemon = own.start("daemon", "--json", stdout=nowhere)
        assert daemon.stderr is not None
        accepts, lost = daemon.stderr.readline(), daemon.stderr.readline()
        ran = own.tu("job", "run", "tiny")
        daemon.terminate()
        _, said = daemon.communicate(timeout=WAIT_S)

    assert f"pid {daemon.pid} accepts on" in accepts
    assert "No space left on device" in lost
    assert (ran.returncode, said) == (0, "")


def in_turn(said: str) -> list[str]:
    """Give the lines but those of a wait for the job of the test before."""
    return [line for line in said.splitlines() if not line.startswith("queued")]


def test_a_run_shows_what_comes_and_ends_with_the_result(site: Site) -> None:
    told = site.tu("job", "run", "tiny", "--params", '{"x": 3}', "--id", "one")

    assert (told.returncode, told.stdout) == (0, "file:///3\n"), told.stderr
    assert in_turn(told.stderr) == [
        "starting",
        "50 % half way",
        "loss = 0.25",
        "a line",
        "one: completed",
    ]


def test_with_json_the_events_are_lines_and_the_last_is_terminal(site: Site) -> None:
    told = site.tu("job", "run", "tiny", "--json")
    got = lines(told.stdout)

    assert told.returncode == 0
    assert [event["event"] for event in got if event["event"] != "queued"] == [
        "starting",
        "progress",
        "metric",
        "log",
        "result",
        "done",
    ]
    assert told.stderr == ""
    # what ended can still be seen
    again = site.tu("job", "attach", got[0]["job_id"], "--json")
    assert (again.returncode, lines(again.stdout)) == (0, got)


def test_a_failed_job_exits_with_1_and_its_own_words(site: Site) -> None:
    told = site.tu("job", "run", "tiny", "--params", '{"does": "raises"}', "--id", "a")

    assert (told.returncode, told.stdout) == (1, "")
    assert in_turn(told.stderr) == ["starting", "tu: a: ValueError: of the job"]
    logs = site.tu("job", "logs", "a", "--json")
    assert json.loads(logs.stdout)["lines"][0] == "job a does raises"


@pytest.mark.parametrize(
    "words", [("attach", "a"), ("list",), ("logs", "a")], ids=lambda words: words[0]
)
def test_what_a_job_says_steers_no_terminal(site: Site, words: tuple[str, ...]) -> None:
    site.tu("job", "run", "tiny", "--params", '{"does": "steers"}', "--id", "a")

    told = site.tu("job", *words)

    shown = told.stdout.replace("\n", "") + told.stderr.replace("\n", "")
    assert "\\u202ea\\rb" in shown
    assert shown.isprintable()


STEERS = r"\x1b[2J\x1b]0;title\x07\u202ea\rb\n"


def test_a_job_of_many_results_is_listed_in_one_line(site: Site) -> None:
    site.tu("job", "run", "tiny", "--params", '{"does": "steers"}', "--id", "a")

    told = site.tu("job", "list")
    _, row, *_ = told.stdout.splitlines()
    whole = site.tu("job", "list", "--results", "5", "--limit", "1")

    assert row.split()[0] == "a"
    assert row.endswith(f"  2 earlier, {STEERS}2, {STEERS}3, {STEERS}4")
    assert "more results of a job: --results N shows its last N" in told.stderr
    assert whole.stdout.splitlines()[1].count(STEERS) == 5


@pytest.mark.long
def test_params_come_from_a_file_or_standard_input(site: Site) -> None:
    (site.tmp / "p.json").write_text('{"x": 4}')
    told = site.tu("job", "run", "tiny", "--params", "@p.json")
    piped = site.tu("job", "run", "tiny", "--params", "-", input='{"x": 6}')

    assert (told.stdout, piped.stdout) == ("file:///4\n", "file:///6\n")


@pytest.mark.parametrize(
    ("words", "reason", "error"),
    [
        (
            ["job", "run", "tinny"],
            "unknown_name",
            "no provider 'tinny' among the 1 of {tree}; near: tiny",
        ),
        (
            ["job", "run", "tiny", "--params", "[]"],
            "bad_request",
            "request: a JSON list found, an object wanted",
        ),
        (
            ["job", "run", "tiny", "--id", "a b"],
            "bad_job_id",
            "job id: 'a b' found, 1 to 64 of A-Z a-z 0-9 _ - wanted",
        ),
        (
            ["job", "run", "tiny", "--params", '{"x": NaN}'],
            "bad_request",
            "params: NaN or an infinity found, JSON wanted",
        ),
        (["job", "attach", "no"], "unknown_name", "job no: none found of that id"),
        (["job", "cancel", "no"], "unknown_name", "job no: none found of that id"),
        (["job", "logs", ""], "bad_job_id", "job id: none found, one wanted"),
        (
            ["job", "rum"],
            "unknown_name",
            "tu remote job rum: no such command; near: tu remote job run",
        ),
    ],
)
def test_what_is_typed_wrongly_is_refused_in_one_document(
    site: Site, words: list[str], reason: str, error: str
) -> None:
    told = site.tu(*words, "--json")
    document = json.loads(told.stdout)

    assert told.returncode == 3
    assert document["reason"] == reason
    assert document["error"] == error.format(tree=site.tree)


def test_params_nested_too_deeply_are_refused_as_such(site: Site) -> None:
    (site.tmp / "deep.json").write_text('{"x":' + "[" * 100_000 + "]" * 100_000 + "}")

    told = site.tu("job", "run", "tiny", "--params", "@deep.json")

    assert told.returncode == 3
    refusal, next_ = told.stderr.splitlines()
    assert "no JSON found" in refusal
    assert next_.startswith("next: tu remote ")


def test_a_group_without_a_command_shows_its_help(site: Site) -> None:
    bare = subprocess.run(
        [sys.executable, "-m", "remote_resident", "remote", "job"],
        capture_output=True,
        text=True,
        check=False,
    )
    helped = site.tu("job", "--help")

    assert (bare.returncode, helped.returncode) == (3, 0)
    for text in (bare.stderr, helped.stdout):
        assert text.startswith("usage: tu remote job COMMAND")
        assert "  attach   watch a job that runs" in text


def test_a_job_is_listed_detached_and_cancelled(site: Site) -> None:
    params = site.steered("one")
    told = site.tu(
        "job", "run", "tiny", "--id", "one", "--params", params, "--detach", "--json"
    )
    site.began("one")
    listed = json.loads(site.tu("job", "list", "--json").stdout)["jobs"][0]
    text = site.tu("job", "list").stdout.splitlines()
    cancelled = site.tu("job", "cancel", "one", "--json")
    ended = site.tu("job", "attach", "one", "--json")

    assert json.loads(told.stdout)["job_id"] == "one"
    assert (listed["job_id"], listed["state"]) == ("one", "running")
    assert text[1].split()[:3] == ["one", "tiny", "running"]
    assert json.loads(cancelled.stdout) == {
        "cancelling": True,
        "job_id": "one",
        "state": "running",
    }
    assert ended.returncode == 1
    assert lines(ended.stdout)[-1]["status"] == "cancelled"


def test_ctrl_c_cancels(site: Site) -> None:
    process = site.run("one")

    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=WAIT_S)

    assert process.returncode == 1
    assert "cancelling one; Ctrl-C again leaves it running" in said
    assert said.endswith("one: cancelled\n")


def test_ctrl_c_twice_leaves_it_running_and_says_how_to_come_back(site: Site) -> None:
    params = site.steered("one", "ignores")
    process = site.start("job", "run", "tiny", "--id", "one", "--params", params)
    site.began("one")
    assert process.stderr is not None

    process.send_signal(signal.SIGINT)
    assert any("cancelling" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=WAIT_S)

    assert process.returncode == 130
    assert said == "tu: job one runs on\nnext: tu remote job attach one\n"
    listed = json.loads(site.tu("job", "list", "--json").stdout)["jobs"][0]
    assert (listed["state"], listed["cancelling"]) == ("running", True)
    site.go("one")
    assert site.tu("job", "attach", "one").returncode == 1


@pytest.mark.parametrize(
    ("signum", "words"),
    [(signal.SIGTERM, ()), (signal.SIGHUP, ("--json",))],
    ids=["term", "hup"],
)
def test_a_run_that_is_told_to_end_says_that_the_job_runs_on(
    site: Site, signum: signal.Signals, words: tuple[str, ...]
) -> None:
    params = ("--params", site.steered("one"))
    process = site.start("job", "run", "tiny", "--id", "one", *params, *words)
    shown = process.stdout if words else process.stderr
    assert shown is not None
    shown.readline()
    site.began("one")

    process.send_signal(signum)
    out, said = process.communicate(timeout=WAIT_S)
    listed = json.loads(site.tu("job", "list", "--json").stdout)["jobs"][0]

    assert process.returncode == 128 + signum
    told = f"cut by {signum.name}: job one"
    assert f"tu: {told} runs on\nnext: tu remote job attach one\n" in said
    if words:
        assert lines(out)[-1] == {
            "ok": False,
            "reason": "interrupted",
            "error": f"{told} was left running",
            "problems": [],
            "next": "tu remote job attach one",
        }
    assert (listed["state"], listed["cancelling"]) == ("running", False)


def test_a_run_that_ends_while_its_job_is_handed_over_says_what_is_not_known() -> None:
    asked = Asked(id="one")

    told = run._cut_before(asked, Cut(signal.SIGTERM))

    assert told.code == 143
    assert told.notes == (
        "tu: cut by SIGTERM: if the host daemon took the job it runs on\n"
        "next: tu remote job attach one"
    )


def test_ctrl_c_while_a_job_is_handed_over_is_kept_and_a_second_one_leaves() -> None:
    told = watching.Told()

    with watching.interrupts_kept(told):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Cut) as caught:
            signal.raise_signal(signal.SIGINT)

    assert (told.get_nowait(), told.empty()) == (None, True)
    assert caught.value.exit_code == 130


def test_a_run_whose_terminal_is_closed_leaves_the_job_running(site: Site) -> None:
    master, slave = pty.openpty()
    process = site.run("one", stderr=slave)
    os.close(slave)

    os.close(master)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=WAIT_S)
    site.go("one")

    assert process.returncode == 128 + signal.SIGHUP
    assert site.tu("job", "attach", "one").returncode == 0


def test_a_list_shows_the_last_ones_and_counts_the_others(site: Site) -> None:
    site.tu("job", "run", "tiny", "--id", "a", "--quiet")
    site.tu("job", "run", "tiny", "--id", "b", "--quiet")

    told = site.tu("job", "list", "--limit", "1")
    document = json.loads(site.tu("job", "list", "--limit", "1", "--json").stdout)
    whole = json.loads(site.tu("job", "list", "--json").stdout)

    others = len(whole["jobs"]) - 1
    assert [row.split()[0] for row in told.stdout.splitlines()] == ["job", "b"]
    assert told.stderr == f"{others} more jobs: --limit {others + 1} shows them\n"
    assert ([job["job_id"] for job in document["jobs"]], document["left_out"]) == (
        ["b"],
        others,
    )
    assert whole["left_out"] == 0


@pytest.mark.long
def test_ctrl_c_leaves_a_job_that_was_only_attached_to(site: Site) -> None:
    process = site.run("one")
    attached = site.start("job", "attach", "one")
    assert attached.stderr is not None
    attached.stderr.readline()

    attached.send_signal(signal.SIGINT)
    attached.communicate(timeout=WAIT_S)
    site.go("one")

    assert attached.returncode == 130
    assert process.wait(WAIT_S) == 0
    process.communicate()


def test_a_terminal_gets_a_bar_and_a_pipe_no_control_codes(site: Site) -> None:
    master, slave = pty.openpty()
    process = site.run("one", stderr=slave)
    os.close(slave)
    seen = b""
    while b"waits" not in seen or b"1%" not in seen:
        seen += os.read(master, 65536)
    site.go("one")
    with suppress(OSError):
        while more := os.read(master, 65536):
            seen += more
    os.close(master)
    process.communicate(timeout=WAIT_S)

    assert process.returncode == 0
    assert "━".encode() in seen
    plain = site.tu("job", "run", "tiny", "--params", "{}")
    assert "\x1b" not in plain.stderr


def test_a_killed_daemon_costs_no_job(own: Site) -> None:
    process = own.run("one")
    own.tu(
        *["job", "run", "tiny", "--id", "two", "--detach"],
        *["--params", own.steered("two")],
    )
    worker = own.began("one")

    kill_daemon()
    _, said = process.communicate(timeout=WAIT_S)
    attached = own.start("job", "attach", "one", "--json")
    own.go("one")
    own.go("two")
    out, _ = attached.communicate(timeout=WAIT_S)
    second = own.tu("job", "attach", "two", "--json")

    assert process.returncode == 1
    assert "the job runs on" in said
    tree = shlex.quote(str(own.tree))
    assert f"next: tu remote --tree {tree} job attach one" in said
    assert attached.returncode == 0
    assert lines(out)[-1] == {
        "event": "done",
        "job_id": "one",
        "seq": 2,
        "status": "completed",
    }
    # what came before is there too, and once
    assert [e["event"] for e in lines(out)].count("progress") == 1
    assert second.returncode == 0
    assert own.began("two") == worker


@pytest.mark.long
def test_sigterm_ends_the_daemon_and_leaves_the_job_for_the_next(own: Site) -> None:
    process = own.run("one")
    pid = connect(start=False).call("GET", "/v1/health")["pid"]

    os.kill(pid, signal.SIGTERM)
    process.communicate(timeout=WAIT_S)
    own.go("one")
    attached = own.tu("job", "attach", "one")

    assert attached.returncode == 0
    assert connect(start=False).call("GET", "/v1/health")["pid"] != pid


def test_a_worker_that_is_stopped_from_outside_is_told_as_such(own: Site) -> None:
    process = own.run("one")
    worker = own.began("one")

    told = own.tu("stop", "tiny", "--json")
    _, said = process.communicate(timeout=WAIT_S)

    assert worker in json.loads(told.stdout)["stopped"]
    # a worker that is told to leave cancels its jobs
    assert process.returncode == 1
    assert said.splitlines()[-1] == "one: cancelled"
    assert not processes.instances("tiny", str(own.tree))


def test_a_job_that_a_daemon_left_is_ended_without_another_one_to_wait_for(
    own: Site,
) -> None:
    process = own.run("one")
    process.kill()
    process.communicate()
    kill_daemon()

    ended = own.tu("daemon", "--stop-services")

    assert ended.returncode == 0
    assert not processes.instances("tiny", str(own.tree))
    assert JobClient().job("one")["state"] == "cancelled"


@pytest.mark.long
def test_the_document_of_a_workers_routes_is_printed(site: Site) -> None:
    told = site.tu("job", "openapi", "tiny")

    assert told.returncode == 0
    assert "/jobs/{job_id}/run" in json.loads(told.stdout)["paths"]


def test_a_value_that_the_daemon_was_not_started_with_is_refused(own: Site) -> None:
    small_jobs.write(own.tree, env={"python": "$TINY_PYTHON"})
    here = {**os.environ, "TINY_PYTHON": sys.executable}
    own.tu("job", "list")

    told = own.tu("job", "run", "tiny", "--json", env=here)
    pid = connect(start=False).call("GET", "/v1/health")["pid"]
    document = json.loads(told.stdout)
    kill_daemon()
    again = own.tu("job", "run", "tiny", env=here)

    assert (told.returncode, document["reason"]) == (3, "environment_names")
    assert document["error"] == (
        f"tiny: TINY_PYTHON: another value found than the host daemon (pid {pid}) "
        "was started with, the same wanted"
    )
    assert document["next"] == f"kill {pid}"
    assert again.returncode == 0
