"""The worker as a process: how it starts, refuses to, is told to stop, and leaves."""

import concurrent.futures
import fcntl
import functools
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import stacks
from small_job_worker import (
    DEADLINE_S,
    JOBS,
    TOKEN,
    JobWorker,
    Start,
    command,
    job_workers,
    terminal,
    until,
)

from remote_resident.jobs.worker import argv, binding, entry
from remote_resident.jobs.worker.app import Parts, application
from remote_resident.jobs.worker.runner import Runner
from remote_resident.jobs.worker.runtime import Runtime

SHORT = {"TU_JOB_CANCEL_GRACE_S": "0.5"}
IGNORED = "cancel ignored for 0.5 s; worker ended"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with job_workers(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobWorker]:
    marks = (
        "--resident-slug",
        "s",
        "--resident-tree",
        "/t",
        "--resident-instance",
        "i",
    )
    with job_workers(tmp_path_factory.mktemp("marked")) as start:
        yield start("chooses:Chooses", *marks)


@pytest.fixture
def jobs_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(JOBS))


def refused(
    words: list[str], env: dict[str, str] | None = None
) -> tuple[int, list[str], str]:
    """Run a worker that does not come up: its status and its lines."""
    ended = subprocess.run(
        words,
        cwd=JOBS,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    return ended.returncode, ended.stderr.splitlines(), ended.stdout


def ready_at(worker: JobWorker) -> Path:
    assert worker.socket is not None
    return worker.socket


# --- what is refused ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("returns", "--entry: 'returns' found, module:Class wanted"),
        (":Job", "--entry: ':Job' found, module:Class wanted"),
        ("nowhere.at_all:Job", "--entry {}: no module nowhere in {cwd} or installed"),
        (
            "imports_missing:Job",
            "--entry {}: no module a_module_that_nobody_has, "
            "which imports_missing imports",
        ),
        ("has_little:Nope", "--entry {}: no Nope in has_little"),
        ("has_little:NoRun", "--entry {}: no run_job(ctx) in NoRun"),
    ],
)
def test_an_entry_that_is_none_is_told_by_what_is_missing(
    jobs_importable: None, name: str, line: str
) -> None:
    with pytest.raises(entry.BadEntry) as refusal:
        entry.load(name)

    assert str(refusal.value) == line.format(name, cwd=Path.cwd())


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("TakesHealth", "/health found, /health is the worker's"),
        ("TakesAJob", "/jobs/mine found, /jobs is the worker's"),
        ("TakesBelowUi", "/ui/more found, /ui is the worker's"),
    ],
)
def test_a_handler_on_a_route_of_ours_is_refused_by_name(
    jobs_importable: None, tmp_path: Path, name: str, line: str
) -> None:
    plugin = entry.load(f"has_routes:{name}")
    parts = Parts("x", plugin, Runner(plugin, tmp_path), Runtime(plugin))
    with pytest.raises(entry.BadEntry) as refusal:
        application(parts)

    assert str(refusal.value) == f"{name}.get_route_handlers: {line}"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "nowhere:Job",
            f"--entry nowhere:Job: no module nowhere in {JOBS} or installed",
        ),
        (
            "has_routes:TakesHealth",
            "TakesHealth.get_route_handlers: /health found, /health is the worker's",
        ),
    ],
)
def test_what_cannot_be_served_ends_the_process_with_one_line(
    tmp_path: Path, name: str, line: str
) -> None:
    status, lines, _ = refused(command(name, "--socket", str(tmp_path / "s")))

    assert (status, lines) == (1, [f"job worker: {line}"])
    assert not (tmp_path / "s").exists()


def test_what_a_plugin_raises_at_import_keeps_its_traceback(tmp_path: Path) -> None:
    words = command("breaks_at_import:Job", "--socket", str(tmp_path / "s"))
    status, lines, _ = refused(words)

    assert status == 1
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "RuntimeError: broken on purpose"


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("--socket s", "no --entry found, module:Class wanted"),
        (
            "--entry m:C --id a",
            "--socket, --host and --port: neither found, one transport wanted",
        ),
        (
            "--entry m:C --id a --socket s --host h --port 1",
            "--socket, --host and --port: both found, one transport wanted",
        ),
        (
            "--entry m:C --id a --host h",
            "--host and --port: one of them found, both wanted",
        ),
        (
            "--entry m:C --id a --port 1",
            "--host and --port: one of them found, both wanted",
        ),
        (
            "--entry m:C --id a --host h --port 0",
            "--host: no token found, TU_JOB_TOKEN or --token-file wanted",
        ),
        (
            "--entry m:C --id a --host h --port 65536",
            "--port: 65536 found, 0 to 65535 wanted",
        ),
        ("--entry m:C --id a --sock s", "unrecognized arguments: --sock s"),
        (
            "--entry m:C --id ../a --socket s",
            "--id: '../a' found, 1 to 64 of A-Z a-z 0-9 _ - wanted",
        ),
        (
            "--entry m:C --socket s",
            "--id: '' found, 1 to 64 of A-Z a-z 0-9 _ - wanted",
        ),
    ],
)
def test_a_command_line_that_is_none_is_one_line_and_2(
    capfd: pytest.CaptureFixture[str], typed: str, line: str
) -> None:
    with pytest.raises(SystemExit) as refusal:
        argv.parse(typed.split(), {})

    assert refusal.value.code == 2
    assert capfd.readouterr().err == f"job worker: {line}\n"


@pytest.mark.parametrize(
    ("text", "grace_s", "warned"),
    [
        ("", 60.0, False),
        ("2.5", 2.5, False),
        ("0", None, False),
        ("-3", None, False),
        ("soon", 60.0, True),
        ("nan", 60.0, True),
        ("inf", 60.0, True),
    ],
)
def test_a_setting_is_read_or_falls_back_with_a_warning(
    capfd: pytest.CaptureFixture[str], text: str, grace_s: float | None, warned: bool
) -> None:
    words = ["--entry", "m:C", "--id", "a", "--socket", "s"]
    options = argv.parse(words, {"TU_JOB_CANCEL_GRACE_S": text})

    assert (options.grace_s, options.keepalive_s) == (grace_s, None)
    assert bool(capfd.readouterr().err) == warned


# --- the token ----------------------------------------------------------------------


def test_the_token_can_come_from_a_file(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    worker = start("chooses:Chooses", "--token-file", str(file))

    assert worker.ask("GET", "/health").status == 401
    worker.token = TOKEN
    assert worker.ask("GET", "/health").status == 200
    assert "job worker: " not in worker.log.replace("job worker plugin", "")


def test_a_token_that_others_can_read_is_taken_and_warned_of(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o644)
    rest = "--entry m:C --id a --socket s".split()

    assert argv.parse([*rest, "--token-file", str(file)], {}).token == TOKEN
    assert argv.parse([*rest, "--token", TOKEN], {}).token == TOKEN
    assert capfd.readouterr().err.splitlines() == [
        f"job worker: {file}: others may read or write it, mode 0600 wanted",
        "job worker: --token: every user can read it there, "
        "TU_JOB_TOKEN or --token-file wanted",
    ]


def test_a_token_file_that_is_not_there_or_empty_is_refused(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.touch(0o600)
    for file in (tmp_path / "gone", empty):
        words = f"--entry m:C --id a --socket s --token-file {file}".split()
        with pytest.raises(SystemExit):
            argv.parse(words, {})

    gone, nothing = capfd.readouterr().err.splitlines()
    assert "No such file" in gone
    assert nothing == (
        "job worker: --token-file: no token of printable ASCII characters found"
    )


def test_no_job_sees_the_token(start: Start) -> None:
    worker = start(env={"TU_JOB_TOKEN": TOKEN})
    events = worker.events("sees", "says_environment", names=["TU_JOB_TOKEN"])

    assert events[0]["payload"] == {"TU_JOB_TOKEN": None}
    assert TOKEN not in worker.log


# --- the socket ---------------------------------------------------------------------


def test_the_socket_is_the_users_alone_and_gone_at_the_end(start: Start) -> None:
    worker = start()
    path = ready_at(worker)
    mode = path.stat().st_mode
    worker.process.terminate()

    assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)
    assert worker.wait() == 0
    assert not path.exists()


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "worker-0/w.sock"
    with job_workers(tmp_path) as start:
        worker = start()
        worker.process.kill()
        worker.wait()
    assert path.exists()
    for file in path.parent.iterdir():
        if file != path:
            file.unlink() if file.is_file() else file.rmdir()

    child = subprocess.Popen(command("returns:Job", "--socket", str(path)), cwd=JOBS)
    try:
        until(lambda: accepts(path), "a stale socket is replaced")
    finally:
        child.kill()
        child.wait()


def accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        return sock.connect_ex(str(path)) == 0


def test_a_live_socket_is_not_stolen(start: Start) -> None:
    worker = start()
    path = ready_at(worker)
    status, lines, _ = refused(command("returns:Job", "--socket", str(path)))

    assert status == 1
    assert lines == [
        f"job worker: socket_path: {path}: a socket that accepts found, "
        "nothing or a stale socket wanted"
    ]
    assert worker.get("/health")["ok"]


def test_who_looks_for_a_stale_socket_waits_for_who_looks_already(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s"
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        second = pool.submit(binding.on_path, path)
        with pytest.raises(concurrent.futures.TimeoutError):
            second.result(0.2)
        with socket.socket(socket.AF_UNIX) as first:
            first.bind(str(path))
            first.listen()
            os.close(folder)
            with pytest.raises(binding.Unusable, match="a socket that accepts"):
                second.result(DEADLINE_S)


def test_a_file_that_is_no_socket_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    status, lines, _ = refused(command("returns:Job", "--socket", str(path)))

    assert status == 1
    assert lines == [
        f"job worker: socket_path: {path}: something that is no socket found, "
        "nothing or a socket wanted"
    ]
    assert path.read_text() == "data"


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        words = command("returns:Job", "--host", "127.0.0.1", "--port", str(port))
        status, lines, _ = refused(words, {"TU_JOB_TOKEN": TOKEN})

    assert status == 1
    assert lines == [f"job worker: 127.0.0.1:{port}: Address already in use"]


# --- the runtime --------------------------------------------------------------------


def test_health_answers_while_the_runtime_comes_up_and_jobs_wait(
    start: Start, tmp_path: Path
) -> None:
    up = tmp_path / "up"
    worker = start("initialises:Job", env={"UP": str(up)})
    assert worker.get("/health")["state"] == "starting"
    with worker.run("early") as early, worker.run("dropped") as dropped:
        worker.cancel("dropped")
        assert terminal(list(dropped))["status"] == "cancelled"
        up.touch()
        events = list(early)
    worker.process.terminate()

    assert [event.get("message") for event in events] == ["up: True", None]
    assert worker.wait() == 0
    assert "coming up in MainThread" in worker.log
    assert "taken down in MainThread" in worker.log


@pytest.mark.parametrize(
    ("entry", "reason"),
    [("Raises", "OSError: weights are gone"), ("Exits", "SystemExit: no card")],
)
def test_a_runtime_that_does_not_come_up_is_told(
    start: Start, entry: str, reason: str
) -> None:
    worker = start(f"fails_to_initialise:{entry}")
    until(lambda: worker.get("/health")["state"] == "failed", "it fails")
    health = worker.get("/health")
    end = terminal(worker.events("no", "any"))
    worker.process.terminate()

    assert (health["ok"], health["detail"]) == (False, f"initialise_runtime: {reason}")
    assert (end["event"], end["message"]) == ("error", f"initialise_runtime: {reason}")
    assert worker.wait() == 0
    assert "never to be" not in worker.log


def test_what_a_class_does_not_have_is_not_found(start: Start) -> None:
    worker = start("has_little:Job")

    assert worker.ask("GET", "/ui").status == 404
    assert worker.ask("GET", "/compute").status == 404
    assert terminal(worker.events("x", "any"))["status"] == "completed"


# --- stop ---------------------------------------------------------------------------


def test_sigterm_cancels_waits_and_leaves_0(start: Start) -> None:
    worker = start()
    with worker.run("one", "waits") as one, worker.run("two", "waits") as two:
        one.until("log")
        two.until("log")
        worker.process.terminate()
        ends = [terminal([*stream]) for stream in (one, two)]

    assert [end["status"] for end in ends] == ["cancelled", "cancelled"]
    assert worker.wait() == 0


def test_sigterm_waits_no_longer_than_the_grace(start: Start) -> None:
    worker = start(env=SHORT)
    with worker.run("deaf", "ignores") as stream:
        stream.until("log")
        worker.process.terminate()
        end = terminal(list(stream))

    assert (end["event"], end["message"]) == ("error", IGNORED)
    assert worker.wait() == 0


def test_a_worker_that_is_told_to_stop_takes_no_new_job(
    start: Start, tmp_path: Path
) -> None:
    worker = start()
    go = tmp_path / "go"
    with worker.run("deaf", "ignores", until=str(go)) as stream:
        stream.until("log")
        worker.process.terminate()
        until(lambda: worker.get("/health")["state"] == "stopping", "it stops")
        refusal = worker.ask("POST", "/jobs/new/run", {"job": "returns"})
        go.touch()
        end = terminal(list(stream))

    assert (refusal.status, refusal.json["reason"]) == (503, "stopping")
    assert end["status"] == "cancelled"
    assert worker.wait() == 0


@pytest.mark.long
def test_a_reader_that_does_not_read_delays_the_end_and_no_more(start: Start) -> None:
    worker = start()
    with worker.run("unread", "chatters", lines=50_000, width=200):
        until(lambda: worker.get("/busy") == {"active_jobs": 0}, "the job's end")
        worker.process.terminate()

        assert worker.wait() == 0
    assert "Traceback" not in worker.log


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)]
)
def test_a_second_signal_leaves_now(
    start: Start, number: signal.Signals, status: int
) -> None:
    worker = start()
    with worker.run("deaf", "ignores") as stream:
        stream.until("log")
        worker.process.send_signal(number)
        until(lambda: "told to stop by" in worker.log, "the first is heard")
        worker.process.send_signal(number)

        assert worker.wait() == status
    assert not ready_at(worker).exists()


def test_a_stop_while_the_runtime_comes_up_does_not_wait_for_it(start: Start) -> None:
    worker = start("initialises:Job", env={"UP": "/nowhere/at/all"})
    worker.process.terminate()

    assert worker.wait() == 0
    assert "taken down" not in worker.log
    assert not ready_at(worker).exists()


def test_a_plugin_that_takes_the_signals_is_stopped_all_the_same(start: Start) -> None:
    worker = start("steals_signals:Job")
    until(lambda: worker.get("/health")["state"] == "ready", "it is up")
    # the main thread has taken them back before a job runs
    assert terminal(worker.events("x", "any"))["status"] == "completed"
    worker.process.send_signal(signal.SIGUSR1)
    until(lambda: stacks.are_told(worker.log), "the stacks")
    worker.process.terminate()

    assert worker.wait() == 0


def test_a_module_that_hangs_while_it_is_imported_tells_its_stacks(
    tmp_path: Path,
) -> None:
    (tmp_path / "hangs.py").write_text(
        "import pathlib, time\n"
        "pathlib.Path('here').touch()\n"
        "while True:\n    time.sleep(0.01)\n"
    )
    log = tmp_path / "log"
    with log.open("wb") as out:
        words = command("hangs:Job", "--socket", str(tmp_path / "s"))
        child = subprocess.Popen(words, cwd=tmp_path, stderr=out)
    try:
        until((tmp_path / "here").exists, "the module is imported")
        child.send_signal(signal.SIGUSR1)
        until(lambda: 'hangs.py", line' in log.read_text(), "its stacks")
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_stacks_of_threads_that_run_end_no_worker(start: Start) -> None:
    worker = start("runs_on:RunsOn")
    with worker.run("on", "any"):
        for times in range(1, 21):
            worker.process.send_signal(signal.SIGUSR1)
            told = functools.partial(has_told, worker, times)
            until(told, "the stacks")

        assert worker.get("/health")["ok"]


def has_told(worker: JobWorker, times: int) -> bool:
    assert "Fatal Python error" not in worker.log
    return worker.log.count("Current thread") >= times


def test_stacks_are_written_on_sigusr1(marked: JobWorker) -> None:
    marked.process.send_signal(signal.SIGUSR1)

    until(lambda: stacks.are_told(marked.log), "the stacks")
    assert marked.get("/health")["ok"]


# --- the owner ----------------------------------------------------------------------


def test_a_worker_whose_owner_is_gone_leaves(start: Start) -> None:
    lifeline, held = os.pipe()
    worker = start("chooses:Chooses", "--lifeline-fd", str(lifeline), fds=[lifeline])
    os.close(lifeline)
    assert worker.get("/health")["ok"]
    os.close(held)

    assert worker.wait() == 0
    assert not ready_at(worker).exists()


def test_jobs_in_hand_are_given_the_grace(start: Start, tmp_path: Path) -> None:
    lifeline, held = os.pipe()
    worker = start("chooses:Chooses", "--lifeline-fd", str(lifeline), fds=[lifeline])
    os.close(lifeline)
    go = tmp_path / "go"
    with worker.run("in-hand", "ignores", until=str(go)) as stream:
        stream.until("log")
        os.close(held)
        until(lambda: "the owner is gone" in worker.log, "it is noticed")
        go.touch()

        assert terminal(list(stream))["status"] == "completed"
    assert worker.wait() == 0


def test_jobs_that_take_longer_are_cancelled(start: Start) -> None:
    lifeline, held = os.pipe()
    options = ("--lifeline-fd", str(lifeline))
    worker = start("chooses:Chooses", *options, fds=[lifeline], env=SHORT)
    os.close(lifeline)
    with worker.run("long", "waits") as stream:
        stream.until("log")
        os.close(held)

        assert terminal(list(stream))["status"] == "cancelled"
    assert worker.wait() == 0


def test_an_owner_that_is_killed_is_gone_though_a_fork_holds_the_lifeline(
    start: Start, tmp_path: Path
) -> None:
    # the pipe stays open in this process: only the parent's end can be seen
    lifeline, held = os.pipe()
    owner = "import subprocess, sys; subprocess.run(sys.argv[1:], close_fds=False)"

    def owned(words: list[str]) -> list[str]:
        return [sys.executable, "-c", owner, *words]

    worker = start(
        "chooses:Chooses", "--lifeline-fd", str(lifeline), fds=[lifeline], argv=owned
    )
    try:
        path = ready_at(worker)
        worker.process.kill()
        worker.wait()
        until(lambda: not path.exists(), "the worker leaves")
    finally:
        os.close(lifeline)
        os.close(held)


# --- what it is made of -------------------------------------------------------------


def test_the_folder_it_is_started_in_is_importable_and_its_own_is_not(
    marked: JobWorker,
) -> None:
    events = marked.events("x", "says_environment", names=[])
    places = events[1]["payload"]

    assert places[0] == str(JOBS)
    assert not [place for place in places if place.endswith("/jobs/worker")]
    assert not [place for place in places if place.endswith("/worker_side")]


def test_it_starts_as_a_module_too(start: Start) -> None:
    def as_module(words: list[str]) -> list[str]:
        return [words[0], "-m", "remote_resident.jobs.worker", *words[2:]]

    worker = start(argv=as_module)

    assert terminal(worker.events("x", "returns"))["status"] == "completed"


def test_the_state_is_below_the_folder_it_was_started_in(
    start: Start, tmp_path: Path
) -> None:
    def without_state_root(words: list[str]) -> list[str]:
        at = words.index("--state-root")
        return [*words[:at], *words[at + 2 :]]

    (tmp_path / "returns.py").write_text((JOBS / "returns.py").read_text())
    worker = start("returns:Job", argv=without_state_root, cwd=tmp_path)
    worker.events("x", "any")

    assert (tmp_path / ".plugin-state/plugin/x").is_dir()


def test_what_a_job_starts_carries_the_instance(marked: JobWorker) -> None:
    names = ["TU_RESIDENT_INSTANCE"]
    events = marked.events("x", "says_environment", names=names)

    assert events[0]["payload"] == {"TU_RESIDENT_INSTANCE": "i"}
