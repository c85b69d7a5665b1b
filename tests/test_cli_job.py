"""`tu remote job`, with a real daemon, as people and programs use it."""

import json
import os
import pty
import select
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
from remote_resident.daemon.client import connect
from remote_resident.errors import ProviderError
from remote_resident.processes import end_all

WAIT_S = 60.0


def until(true: Callable[[], object], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, f"not within {WAIT_S} s: {what}"
        time.sleep(0.01)


class Site:
    """A tree with a small provider, and the command line beside it."""

    def __init__(self, tmp: Path) -> None:
        self.tmp = tmp
        self.tree = tmp / "a tree"
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


def kill_daemon() -> None:
    with suppress(ProviderError):
        pid = connect(start=False).call("GET", "/v1/health")["pid"]
        pidfd = os.pidfd_open(pid)
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll(WAIT_S * 1000)
        os.close(pidfd)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    kill_daemon()
    for holder in machine.holdings():
        if holder.tree == str(made.tree) and holder.instance:
            end_all(holder.instance, grace_s=0.0)


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_run_shows_what_comes_and_ends_with_the_result(site: Site) -> None:
    told = site.tu("job", "run", "tiny", "--params", '{"x": 3}', "--id", "one")

    assert (told.returncode, told.stdout) == (0, "file:///3\n")
    assert told.stderr.splitlines() == [
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
    assert [event["event"] for event in got] == [
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
    assert told.stderr.splitlines() == ["starting", "tu: a: ValueError: of the job"]
    logs = site.tu("job", "logs", "a", "--json")
    assert json.loads(logs.stdout)["lines"][0] == "job a does raises"


@pytest.mark.parametrize(
    "words", [("attach", "a"), ("list",), ("logs", "a")], ids=lambda words: words[0]
)
def test_what_a_job_says_steers_no_terminal(site: Site, words: tuple[str, ...]) -> None:
    site.tu("job", "run", "tiny", "--params", '{"does": "steers"}', "--id", "a")

    told = site.tu("job", *words)

    shown = told.stdout.replace("\n", "") + told.stderr.replace("\n", "")
    assert "]0;titleab" in shown
    assert shown.isprintable()


def test_a_job_of_many_results_is_listed_in_one_line(site: Site) -> None:
    site.tu("job", "run", "tiny", "--params", '{"does": "steers"}', "--id", "a")

    _, row = site.tu("job", "list").stdout.splitlines()

    assert row.endswith("ab2, 2 more")


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


def test_params_nested_too_deeply_are_refused_in_one_line(site: Site) -> None:
    (site.tmp / "deep.json").write_text('{"x":' + "[" * 100_000 + "]" * 100_000 + "}")

    told = site.tu("job", "run", "tiny", "--params", "@deep.json")

    assert told.returncode == 3
    assert "no JSON found" in told.stderr
    assert len(told.stderr.splitlines()) == 1


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
    (listed,) = json.loads(site.tu("job", "list", "--json").stdout)["jobs"]
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
    while "cancelling" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=WAIT_S)

    assert process.returncode == 130
    assert said == "tu: job one runs on\nnext: tu remote job attach one\n"
    (listed,) = json.loads(site.tu("job", "list", "--json").stdout)["jobs"]
    assert (listed["state"], listed["cancelling"]) == ("running", True)
    site.go("one")
    assert site.tu("job", "attach", "one").returncode == 1


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


def test_a_killed_daemon_costs_no_job(site: Site) -> None:
    process = site.run("one")
    site.tu(
        *["job", "run", "tiny", "--id", "two", "--detach"],
        *["--params", site.steered("two")],
    )
    worker = site.began("one")

    kill_daemon()
    _, said = process.communicate(timeout=WAIT_S)
    attached = site.start("job", "attach", "one", "--json")
    site.go("one")
    site.go("two")
    out, _ = attached.communicate(timeout=WAIT_S)
    second = site.tu("job", "attach", "two", "--json")

    assert process.returncode == 1
    assert "the job runs on" in said
    assert "next: tu remote job attach one" in said
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
    assert site.began("two") == worker


@pytest.mark.long
def test_sigterm_ends_the_daemon_and_leaves_the_job_for_the_next(site: Site) -> None:
    process = site.run("one")
    pid = connect(start=False).call("GET", "/v1/health")["pid"]

    os.kill(pid, signal.SIGTERM)
    process.communicate(timeout=WAIT_S)
    site.go("one")
    attached = site.tu("job", "attach", "one")

    assert attached.returncode == 0
    assert connect(start=False).call("GET", "/v1/health")["pid"] != pid


def test_a_worker_that_is_stopped_from_outside_is_told_as_such(site: Site) -> None:
    process = site.run("one")
    worker = site.began("one")

    told = site.tu("stop", "tiny", "--json")
    _, said = process.communicate(timeout=WAIT_S)

    assert worker in json.loads(told.stdout)["stopped"]
    # a worker that is told to leave cancels its jobs
    assert process.returncode == 1
    assert said.splitlines()[-1] == "one: cancelled"
    assert not processes.instances("tiny", str(site.tree))


@pytest.mark.long
def test_the_document_of_a_workers_routes_is_printed(site: Site) -> None:
    told = site.tu("job", "openapi", "tiny")

    assert told.returncode == 0
    assert "/jobs/{job_id}/run" in json.loads(told.stdout)["paths"]


def test_a_value_that_the_daemon_was_not_started_with_is_refused(site: Site) -> None:
    small_jobs.write(site.tree, env={"python": "$TINY_PYTHON"})
    here = {**os.environ, "TINY_PYTHON": sys.executable}
    site.tu("job", "list")

    told = site.tu("job", "run", "tiny", "--json", env=here)
    pid = connect(start=False).call("GET", "/v1/health")["pid"]
    document = json.loads(told.stdout)
    kill_daemon()
    again = site.tu("job", "run", "tiny", env=here)

    assert (told.returncode, document["reason"]) == (3, "environment_names")
    assert document["error"] == (
        f"tiny: TINY_PYTHON: another value found than the host daemon (pid {pid}) "
        "was started with, the same wanted"
    )
    assert document["next"] == f"kill {pid}"
    assert again.returncode == 0
