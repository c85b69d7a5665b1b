"""The worker's process: real scripts, real sockets, real signals."""

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from remote_resident.worker_side import protocol

BASE = Path(protocol.__file__).with_name("worker_base.py")
WORKERS = Path(__file__).with_name("workers")
DEADLINE_S = 20.0
NOBODY = 65534

Reply = dict[str, Any]


def until(true: Callable[[], object], what: str) -> None:
    """Wait for what cannot be waited for otherwise, with a deadline."""
    end = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < end, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.002)


@dataclass
class Caller:
    """One connection, as a caller has it."""

    sock: socket.socket
    buf: bytearray = field(default_factory=bytearray)

    def send(self, **payload: object) -> None:
        protocol.send_line(self.sock, payload)

    def receive(self) -> Reply | None:
        return protocol.recv_line(self.sock, self.buf)

    def ask(self, op: str = "predict", **payload: object) -> Reply:
        self.send(op=op, **payload)
        while True:
            reply = self.receive()
            assert reply is not None, "the connection ended without a reply"
            if "event" not in reply:
                return reply


@dataclass
class Held:
    """A worker's process."""

    child: subprocess.Popen[bytes]
    path: Path
    ready: int
    log: Path
    callers: list[Caller] = field(default_factory=list)

    def wait_ready(self) -> Reply | None:
        """Give the line of the ready pipe; None where it ended without one."""
        readable, _, _ = select.select([self.ready], [], [], DEADLINE_S)
        assert readable, "neither ready nor ended"
        line = os.read(self.ready, 4096)
        return json.loads(line) if line else None

    def connect(self) -> Caller:
        caller = Caller(socket.socket(socket.AF_UNIX))
        self.callers.append(caller)
        caller.sock.settimeout(DEADLINE_S)
        caller.sock.connect(str(self.path))
        return caller

    def ask(self, op: str = "predict", **payload: object) -> Reply:
        caller = self.connect()
        with caller.sock:
            return caller.ask(op, **payload)

    def ended(self) -> int:
        return self.child.wait(DEADLINE_S)

    def said(self) -> str:
        return self.log.read_text()

    def close(self) -> None:
        """End whatever is left of it; once."""
        if self.ready < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.communicate()
        os.close(self.ready)
        self.ready = -1
        for caller in self.callers:
            caller.sock.close()


Start = Callable[..., Held]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a worker of tests/workers; what is left of it is ended with the test."""
    started: list[Held] = []

    def start(
        script: str,
        *options: str,
        args: tuple[str, ...] = (),
        loaded: bool = True,
        **other: Any,
    ) -> Held:
        number = len(started)
        path = other.get("path") or tmp_path / f"{number}.sock"
        python = other.get("python", sys.executable)
        ready, ready_write = os.pipe()
        argv = [python, *other.get("launcher", ()), str(BASE)]
        argv += ["--resident-slug", "tiny"]
        argv += ["--resident-tree", "/a/tree", "--resident-instance", "abc"]
        argv += ["--socket", str(path), "--ready-fd", str(ready_write), *options]
        argv += ["--script", str(WORKERS / f"{script}.py"), "--", *args]
        log = tmp_path / f"{number}.log"
        with log.open("wb") as file:
            child = subprocess.Popen(
                argv,
                stdin=other.get("stdin", subprocess.DEVNULL),
                stdout=subprocess.PIPE,
                stderr=file,
                env={**os.environ, **other.get("env", {})},
                pass_fds=(ready_write, *other.get("pass_fds", ())),
                start_new_session=True,
            )
        os.close(ready_write)
        held = Held(child, path, ready, log)
        started.append(held)
        if loaded:
            assert held.wait_ready() is not None, held.said()
        return held

    yield start
    for held in started:
        held.close()


# --- loading ----------------------------------------------------------------------


def test_ready_is_never_said_while_loading(start: Start, tmp_path: Path) -> None:
    go = tmp_path / "go"
    held = start("slow_load", args=(str(go),), loaded=False)
    until(Path(f"{go}.begun").exists, "build began")

    assert select.select([held.ready], [], [], 0)[0] == []
    assert not held.path.exists()

    go.touch()
    ready = held.wait_ready()
    assert ready is not None
    assert ready["pid"] == held.child.pid
    assert ready["load_s"] > 0
    assert held.ask()["ok"]


def test_build_is_given_what_the_command_line_says(
    start: Start, tmp_path: Path
) -> None:
    held = start(
        "echo",
        *("--manifest-dir", "/m", "--weights-root", "/w", "--work-root", str(tmp_path)),
        *("--device", "GPU-1"),
        args=("--flag", "x y"),
    )

    reply = held.ask(about=True)

    assert reply["config"] == {
        "slug": "tiny",
        "manifest_dir": "/m",
        "weights_root": "/w",
        "work_root": str(tmp_path),
        "args": ["--flag", "x y"],
        "device": "GPU-1",
        "socket_path": str(held.path),
    }
    assert reply["argv"] == [str(WORKERS / "echo.py"), "--flag", "x y"]
    assert reply["instance"] == "abc"


def test_our_folder_is_off_the_path_of_the_model(start: Start) -> None:
    reply = start("echo").ask(about=True)

    assert str(BASE.parent) not in reply["path"]
    assert not {"protocol", "calls", "memory"} & set(reply["loaded"])


def test_a_start_imports_nothing_slow(start: Start) -> None:
    loaded = set(start("echo").ask(about=True)["loaded"])

    assert not loaded & {"json", "socket", "threading", "argparse", "re", "logging"}


def test_warm_up_comes_first_and_reset_before_each_prediction(start: Start) -> None:
    held = start("resets")
    held.ask()

    assert held.ask()["called"] == [
        *("build", "warm_up"),
        *("reset", "predict", "reset", "predict"),
    ]
    assert held.ask("ping")["at_ready"] == ["build", "warm_up"]


def test_a_script_may_have_the_loop_for_itself(start: Start) -> None:
    held = start("own_loop")

    assert held.ask(x=1)["mine"] == 1
    assert held.ask("ping")["own"] is True
    held.child.terminate()
    assert held.ended() == 0


LAUNCHER = """
import runpy, sys
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_launcher_may_run_the_file(start: Start, tmp_path: Path) -> None:
    launcher = tmp_path / "launcher.py"
    launcher.write_text(LAUNCHER)

    held = start("own_loop", launcher=(str(launcher),))

    assert held.ask(x=1)["mine"] == 1
    held.child.terminate()
    assert held.ended() == 0


@pytest.mark.parametrize(
    ("script", "status", "last"),
    [
        (
            "fails_at_import",
            1,
            "ModuleNotFoundError: No module named 'a_stack_that_is_not_there'",
        ),
        ("fails_in_build", 3, "NOT ACTIVE"),
        ("no_predict", 1, f"{WORKERS}/no_predict.py: no predict found, a function "),
    ],
)
def test_a_failed_load_ends_at_once_with_its_status_and_last_words(
    start: Start, script: str, status: int, last: str
) -> None:
    held = start(script, loaded=False)

    assert held.wait_ready() is None
    assert held.ended() == status
    assert held.said().splitlines()[-1].startswith(last)
    assert not held.path.exists()


def test_a_command_line_that_is_none_is_refused() -> None:
    ran = subprocess.run(
        [sys.executable, str(BASE), "--scrpt", "x"], capture_output=True, text=True
    )

    assert ran.returncode == 2
    assert ran.stderr == "worker_base.py: --scrpt: no such option\n"


# --- answering --------------------------------------------------------------------


def test_a_request_tells_its_events_and_its_meter(start: Start) -> None:
    held = start("echo")
    caller = held.connect()
    caller.send(op="predict", id=7, events=True, x=[1, "two", None])

    assert caller.receive() == {"event": "queued", "id": 7, "position": 0}
    assert caller.receive() == {"event": "started", "id": 7}
    reply = caller.receive()
    assert reply is not None
    meter = reply.pop("_meter")
    assert reply == {"ok": True, "id": 7, "echo": [1, "two", None]}
    assert set(meter) == {
        *("queued_s", "predict_s", "rss_bytes", "rss_peak_bytes"),
        *("device_bytes", "device_peak_bytes"),
    }
    assert meter["device_bytes"] is None
    assert 0 < meter["rss_bytes"] <= meter["rss_peak_bytes"]


def test_one_connection_carries_many_requests_also_sent_ahead(start: Start) -> None:
    caller = start("echo").connect()

    for n in range(50):
        caller.send(op="ping" if n % 7 == 0 else "predict", id=n, events=n % 2 == 0)
    replies = [caller.receive() for _ in range(50 + 2 * 21)]

    answered = [r["id"] for r in replies if r is not None and "event" not in r]
    assert answered == list(range(50))


def test_callers_side_by_side_are_all_answered(start: Start) -> None:
    held = start("echo")
    wrong: list[Reply] = []

    def call(caller: int) -> None:
        connection = held.connect()
        for n in range(40):
            reply = connection.ask(events=n % 2 == 0, x=[caller, n])
            if reply.get("echo") != [caller, n]:
                wrong.append(reply)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)

    assert wrong == []
    assert held.ask("ping")["requests"] == 8 * 40


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ({"op": "no"}, "op: 'no' found, one of predict, fold, ping, stop, stacks "),
        ({"op": 1}, "op: 1 found, one of predict, fold, ping, stop, stacks wanted"),
        ({}, "op: None found, one of predict, fold, ping, stop, stacks wanted"),
        (
            {"op": "predict", "output_dir": "here"},
            "output_dir: 'here' found, an absolute path wanted",
        ),
        (
            {"op": "predict", "deadline": "soon"},
            "deadline: 'soon' found, seconds from 0 to 2000000 wanted",
        ),
        (
            {"op": "predict", "deadline": 10**400},
            "deadline: 1000",
        ),
        (
            {"op": "predict", "deadline": -1},
            "deadline: -1 found, seconds from 0 to 2000000 wanted",
        ),
        (
            {"op": "predict", "output_dir": "/a\0b"},
            "output_dir: '/a\\x00b' found, an absolute path wanted",
        ),
        (
            {"op": "predict", "output_dir": "/a\ud800"},
            "output_dir: '/a\\ud800' found, an absolute path wanted",
        ),
    ],
)
def test_what_no_worker_takes_is_a_bad_request(
    start: Start, payload: dict[str, object], error: str
) -> None:
    caller = start("echo", "--operations", "fold").connect()
    caller.send(**payload)
    reply = caller.receive()

    assert reply is not None
    assert reply["reason"] == "bad_request"
    assert reply["error"].startswith(error)
    assert caller.ask("fold", x=1)["echo"] == 1


def test_an_output_directory_is_made_and_echoed(start: Start, tmp_path: Path) -> None:
    held = start("echo", "--work-root", str(tmp_path / "work"))

    made = Path(held.ask()["output_dir"])
    given = str(tmp_path / "deep" / "given")
    blocked = tmp_path / "file"
    blocked.touch()

    assert made.parent == tmp_path / "work"
    assert made.is_dir()
    assert held.ask(output_dir=given)["output_dir"] == given
    assert Path(given).is_dir()
    reply = held.ask(output_dir=f"{blocked}/x")
    assert (reply["reason"], reply["error"]) == (
        "bad_request",
        f"output_dir: {blocked}/x: Not a directory found, a directory wanted",
    )


@pytest.mark.parametrize(
    ("reason", "wanted"),
    [
        ("out_of_memory", "out_of_memory"),
        ("x9", "x9"),
        ("Not a token", "request_failed"),
        ("", "request_failed"),
        ("9x", "request_failed"),
        ("token\n", "request_failed"),
        (["token"], "request_failed"),
    ],
)
def test_an_exception_is_answered_with_its_own_reason_if_it_is_one(
    start: Start, reason: object, wanted: str
) -> None:
    reply = start("raises").ask(**{"raise": "too long"}, reason=reason)

    assert (reply["ok"], reply["error"], reply["reason"]) == (
        False,
        "ValueError: too long",
        wanted,
    )


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("nan", "reply: scores[1].plddt: NaN found, a JSON value wanted"),
        ("set", "reply: found: a set found, a JSON value wanted"),
        ("list", "TypeError: predict returned a list, a dict wanted"),
        ("none", "TypeError: predict returned a NoneType, a dict wanted"),
        ("not_ok", "TypeError: predict returned 'ok', which is the protocol's"),
        ("id", "TypeError: predict returned 'id', which is the protocol's"),
    ],
)
def test_a_reply_that_is_none_is_an_error_and_the_model_stays(
    start: Start, what: str, error: str
) -> None:
    caller = start("bad_reply").connect()
    reply = caller.ask(what=what, id="a")

    assert (reply["error"], reply["reason"], reply["id"]) == (
        *(error, "request_failed"),
        "a",
    )
    assert caller.ask(what="fine")["ok"]


def test_a_reply_over_the_limit_is_refused_and_the_model_stays(start: Start) -> None:
    caller = start("bad_reply", "--max-line-bytes", "1000000").connect()
    reply = caller.ask(what="big")

    assert reply["reason"] == "too_large"
    assert caller.ask(what="fine")["ok"]


def test_a_request_over_the_limit_is_refused_and_the_next_is_read(
    start: Start,
) -> None:
    caller = start("echo", "--max-line-bytes", "100000").connect()
    reply = caller.ask(x="x" * 1_000_000)

    assert reply["reason"] == "too_large"
    assert caller.ask(x=1)["echo"] == 1


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"GET / HTTP/1.1\r\n", "message of 16 bytes: no value at 0 found"),
        (b"\xff\n", "message of 2 bytes: byte 0xff at 0 found"),
        (b'{"op": "pred', "message: its end after 12 bytes found, a newline wanted"),
    ],
)
def test_what_is_not_the_protocol_is_named_and_costs_one_connection(
    start: Start, sent: bytes, error: str
) -> None:
    held = start("echo")
    caller = held.connect()
    caller.sock.sendall(sent)
    caller.sock.shutdown(socket.SHUT_WR)
    reply = caller.receive()

    assert reply is not None
    assert reply["reason"] == "protocol_error"
    assert reply["error"].startswith(error)
    assert caller.receive() is None
    assert held.ask(x=1)["echo"] == 1


def test_500_failing_requests_leave_no_trace_in_the_process(start: Start) -> None:
    held = start("raises")
    caller = held.connect()

    def open_files() -> int:
        return len(list(Path(f"/proc/{held.child.pid}/fd").iterdir()))

    for _ in range(100):
        assert caller.ask(**{"raise": "no"})["reason"] == "request_failed"
        held.ask(**{"raise": "no"})
    before = (open_files(), caller.ask("ping")["rss_bytes"])
    for _ in range(400):
        caller.ask(**{"raise": "no"})
        held.ask("ping")
    after = caller.ask("ping")

    assert caller.ask()["ok"]
    assert after["pid"] == held.child.pid
    until(lambda: open_files() <= before[0], "the callers' descriptors are closed")
    assert after["rss_bytes"] - before[1] < 2**20


# --- models that misbehave --------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("exit", 3),
        ("SIGKILL", -signal.SIGKILL),
        ("SIGSEGV", -signal.SIGSEGV),
        ("SIGABRT", -signal.SIGABRT),
    ],
)
def test_a_worker_that_dies_in_a_prediction_had_said_that_it_began(
    start: Start, how: str, status: int
) -> None:
    held = start("dies")
    caller = held.connect()
    caller.send(op="predict", events=True, how=how)

    events = [caller.receive(), caller.receive()]

    assert [e and e["event"] for e in events] == ["queued", "started"]
    with contextlib.suppress(ConnectionResetError):
        assert caller.receive() is None
    assert held.ended() == status


def test_a_crash_leaves_the_stack_in_the_log(start: Start) -> None:
    held = start("dies")
    with contextlib.suppress(ConnectionError, AssertionError):
        held.ask(how="SIGSEGV")
    held.ended()

    assert "Fatal Python error: Segmentation fault" in held.said()
    assert "dies.py" in held.said()


def test_system_exit_is_answered_and_then_ends_the_worker_with_its_status(
    start: Start,
) -> None:
    held = start("dies")
    reply = held.ask(how="system_exit")

    assert (reply["ok"], reply["error"], reply["reason"]) == (
        *(False, "SystemExit: 5"),
        "worker_died",
    )
    assert held.ended() == 5
    assert not held.path.exists()


def test_what_a_model_prints_goes_to_the_log_and_breaks_nothing(start: Start) -> None:
    held = start("prints_to_stdout")

    assert held.ask()["fine"]
    held.child.terminate()
    out, _ = held.child.communicate(timeout=DEADLINE_S)
    assert out == b""
    assert held.said().splitlines()[:5] == [
        *("at import", "in build", "in predict"),
        '{"ok": true, "forged": true}',
        "from a child",
    ]


def test_a_model_may_change_into_a_directory_that_is_gone(start: Start) -> None:
    held = start("changes_directory")

    assert held.ask()["fine"]
    assert held.ask()["fine"]
    held.child.terminate()
    assert held.ended() == 0
    assert not held.path.exists()


def test_a_model_may_close_the_standard_descriptors(start: Start) -> None:
    held = start("closes_descriptors")
    caller = held.connect()

    assert caller.ask()["fine"]
    assert caller.ask()["fine"]
    held.child.terminate()
    assert held.ended() == 0


def test_a_model_that_closes_ours_ends_its_worker_instead_of_hiding_it(
    start: Start,
) -> None:
    held = start("closes_descriptors")
    caller = held.connect()
    caller.send(op="predict", all=True)

    with contextlib.suppress(ConnectionResetError):
        assert caller.receive() is None
    assert held.ended() == 70
    assert not held.path.exists()
    assert "the model closed descriptors of its worker" in held.said()


def test_a_model_that_takes_the_signals_has_them_taken_back(start: Start) -> None:
    held = start("installs_signal_handlers")
    caller = held.connect()
    caller.ask()
    caller.ask("ping")

    held.child.send_signal(signal.SIGUSR1)
    until(lambda: "most recent call first" in held.said(), "the stacks are in the log")
    held.child.terminate()
    assert held.ended() == 0


def test_ending_a_forked_child_of_the_model_does_not_end_the_worker(
    start: Start,
) -> None:
    held = start("forks")
    caller = held.connect()

    assert caller.ask(child="waits")["ended"] == signal.SIGTERM
    assert caller.ask(child="raises")["ended"] == 5 << 8
    assert caller.ask(child="returns")["ended"] == 0
    assert held.path.exists()
    assert held.ask("ping")["stopping"] is False


def until_refused(held: Held) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            held.connect()
        except ConnectionRefusedError:
            return
    pytest.fail("the socket still accepts")


def test_a_forked_child_of_the_model_does_not_hold_the_callers(start: Start) -> None:
    held = start("forks")
    caller = held.connect()
    waiting = held.connect()
    assert waiting.ask("ping")["ok"]
    child = caller.ask(child="stays")["child"]

    held.child.kill()

    assert caller.receive() is None
    assert waiting.receive() is None
    # the child lets go as soon as it runs, which the kill does not wait for
    until_refused(held)
    os.kill(child, 0)


def test_a_peak_is_told_after_the_memory_is_given_back(start: Start) -> None:
    caller = start("grows_memory").connect()
    before = caller.ask("ping")
    reply = caller.ask(mib=64)

    meter = reply["_meter"]
    assert meter["rss_peak_bytes"] - before["rss_peak_bytes"] > 60 << 20
    assert meter["rss_bytes"] - before["rss_bytes"] < 8 << 20


def test_growth_is_seen_in_the_very_reply(start: Start) -> None:
    caller = start("grows_memory").connect()
    sizes = [caller.ask(mib=8, keep=True)["_meter"]["rss_bytes"] for _ in range(5)]

    grown = [(b - a) >> 20 for a, b in itertools.pairwise(sizes)]
    assert all(7 <= mib <= 9 for mib in grown), grown


def test_the_peak_is_the_workers_own_and_not_its_parents(start: Start) -> None:
    heavy = bytearray(256 << 20)
    heavy[::4096] = b"x" * len(heavy[::4096])

    assert start("echo").ask("ping")["rss_peak_bytes"] < 128 << 20


@pytest.mark.parametrize(
    ("env", "released", "device"),
    [
        ({}, [0, 8, 16], 1000),
        ({"TOOLUNIVERSE_RESIDENT_NO_CUBLAS_RELEASE": "1"}, [0, 0, 0], 1024),
        ({"CLEARING_FAILS": "1"}, [0, 8, 16], 1000),
    ],
    ids=["on", "off", "failing"],
)
def test_cublas_workspaces_are_released_after_each_prediction(
    start: Start, env: dict[str, str], released: list[int], device: int
) -> None:
    caller = start("fake_torch", env=env).connect()
    replies = [caller.ask() for _ in range(3)]

    assert [r["released_before"] for r in replies] == released
    assert replies[-1]["_meter"]["device_bytes"] == device
    assert replies[-1]["_meter"]["device_peak_bytes"] == 5000
    assert caller.ask("ping")["device_bytes"] == device


# --- waiting ----------------------------------------------------------------------


@dataclass
class Busy:
    """A worker in the midst of a prediction, which ends when told."""

    held: Held
    caller: Caller
    go: Path

    def end(self) -> Reply:
        self.go.touch()
        reply = self.caller.receive()
        assert reply is not None
        return reply


@pytest.fixture
def busy(start: Start, tmp_path: Path) -> Callable[..., Busy]:
    def busy(*options: str, pass_fds: tuple[int, ...] = (), **payload: object) -> Busy:
        held = start("waits", *options, pass_fds=pass_fds)
        begun, go = tmp_path / "begun", tmp_path / "go"
        caller = held.connect()
        caller.send(
            op="predict", name="first", begun=str(begun), until=str(go), **payload
        )
        until(begun.exists, "the prediction began")
        return Busy(held, caller, go)

    return busy


def queued(held: Held, position: int, **payload: object) -> Caller:
    """Ask, and come back once the request waits at its position."""
    caller = held.connect()
    caller.send(op="predict", events=True, **payload)
    event = caller.receive()
    assert event is not None
    assert (event["event"], event["position"]) == ("queued", position)
    return caller


def test_a_busy_worker_answers_pings_and_stacks(busy: Callable[..., Busy]) -> None:
    now = time.time()
    work = busy("--inputs", "f00d")
    queued(work.held, 1)

    pinged = work.held.ask("ping", id=[1])

    for field_, wanted in {
        "protocol": 1,
        "slug": "tiny",
        "tree": "/a/tree",
        "instance": "abc",
        "pid": work.held.child.pid,
        "inputs": "f00d",
        "requests": 1,
        "queue": 1,
        "id": [1],
    }.items():
        assert pinged[field_] == wanted
    assert now <= pinged["busy_since"] <= time.time()
    assert pinged["uptime_s"] > 0
    assert "waits.py" in work.held.ask("stacks")["stacks"]
    assert work.end()["ok"]
    assert "waits.py" in work.held.said()


def test_predictions_run_in_the_order_of_arrival(busy: Callable[..., Busy]) -> None:
    work = busy()
    waiting = [queued(work.held, n, name=n) for n in range(1, 6)]

    work.end()

    for caller in waiting:
        assert caller.receive() == {"event": "started", "id": None}
    last = waiting[-1].receive()
    assert last is not None
    assert last["order"] == ["first", 1, 2, 3, 4, 5]
    assert last["_meter"]["queued_s"] > last["_meter"]["predict_s"]


def test_one_more_than_may_wait_is_refused(busy: Callable[..., Busy]) -> None:
    work = busy("--max-queue", "2")
    for n in (1, 2):
        queued(work.held, n)

    reply = work.held.ask(events=True)

    assert (reply["reason"], reply["error"]) == (
        "queue_full",
        "2 waiting found, at most 2 wanted",
    )


def test_a_caller_that_closes_while_queued_leaves_the_queue(
    busy: Callable[..., Busy],
) -> None:
    work = busy()
    leaving = queued(work.held, 1, name="gone")
    staying = queued(work.held, 2, name="stays")

    leaving.sock.close()
    until(lambda: work.held.ask("ping")["queue"] == 1, "it left the queue")
    work.end()

    assert staying.receive() == {"event": "started", "id": None}
    reply = staying.receive()
    assert reply is not None
    assert reply["order"] == ["first", "stays"]


def test_a_caller_that_closed_only_its_sending_half_still_waits(
    busy: Callable[..., Busy],
) -> None:
    work = busy()
    caller = queued(work.held, 1, name="half")
    caller.sock.shutdown(socket.SHUT_WR)
    work.end()

    assert caller.receive() == {"event": "started", "id": None}
    reply = caller.receive()
    assert reply is not None
    assert reply["order"] == ["first", "half"]


def test_a_caller_that_closes_does_not_stop_its_prediction(
    busy: Callable[..., Busy],
) -> None:
    work = busy()
    work.caller.sock.close()
    assert work.held.ask("ping")["busy_since"] is not None
    work.go.touch()

    assert work.held.ask(name="next")["order"] == ["first", "next"]


def test_a_deadline_that_passes_while_queued_is_answered_then_and_never_run(
    busy: Callable[..., Busy],
) -> None:
    work = busy()
    late = queued(work.held, 1, name="late", deadline=0.1)
    reply = late.receive()

    assert reply is not None
    assert reply["reason"] == "request_timeout"
    assert reply["error"].endswith("s since the request found, at most 0.1 wanted")
    assert reply["_meter"]["queued_s"] >= 0.1
    work.end()
    assert late.ask(name="again")["order"] == ["first", "again"]


def test_a_deadline_that_passes_while_it_runs_ends_the_waiting_only(
    busy: Callable[..., Busy],
) -> None:
    work = busy(deadline=0.1)
    reply = work.caller.receive()

    assert reply is not None
    assert reply["reason"] == "request_timeout"
    assert work.held.ask("ping")["busy_since"] is not None
    work.go.touch()
    assert work.caller.ask(name="again")["order"] == ["first", "again"]


def test_a_silent_ping_is_not_death(start: Start) -> None:
    held = start("hangs_in_c")
    caller = held.connect()
    caller.send(op="predict", events=True, n=10**7)
    assert caller.receive()
    assert caller.receive()

    assert held.ask("ping")["pid"] == held.child.pid
    reply = caller.receive()
    assert reply is not None
    assert reply["sum"] == (10**7 - 1) * 10**7 // 2


# --- leaving ----------------------------------------------------------------------


@pytest.mark.parametrize("told", ["signal", "stop"])
def test_told_to_stop_it_finishes_what_is_in_hand_and_refuses_what_waits(
    busy: Callable[..., Busy], told: str
) -> None:
    work = busy()
    waiting = queued(work.held, 1)
    idle = work.held.connect()
    idle.ask("ping")
    if told == "signal":
        work.held.child.terminate()
    else:
        assert work.held.ask("stop")["stopping"] is True

    refused = waiting.receive()
    until(lambda: not work.held.path.exists(), "the path is gone")
    late = idle.ask()

    assert refused is not None
    assert (refused["reason"], late["reason"]) == ("stopping", "stopping")
    assert work.end()["order"] == ["first"]
    assert work.held.ended() == 0


def test_a_second_signal_ends_it_at_once(start: Start) -> None:
    held = start("hangs")
    caller = held.connect()
    caller.send(op="predict")
    until(lambda: held.ask("ping")["busy_since"], "it is busy")

    held.child.terminate()
    until(lambda: "finishing what is in hand" in held.said(), "the first was heard")
    held.child.terminate()

    assert held.ended() == 143
    assert not held.path.exists()


def test_an_idle_worker_leaves_by_itself(start: Start) -> None:
    held = start("echo", "--idle-timeout", "0.1")

    assert held.ended() == 0
    assert not held.path.exists()


def test_an_open_connection_keeps_an_idle_worker(start: Start) -> None:
    held = start("echo", "--idle-timeout", "0.05")
    caller = held.connect()
    caller.ask()

    with pytest.raises(subprocess.TimeoutExpired):
        held.child.wait(0.3)
    assert caller.ask("ping")["ok"]
    caller.sock.close()
    assert held.ended() == 0


def test_pings_do_not_count_as_use(start: Start) -> None:
    held = start("echo", "--idle-timeout", "0.3")

    def pinged() -> bool:
        with contextlib.suppress(OSError):
            held.ask("ping")
        return held.child.poll() is not None

    until(pinged, "it left although somebody pings")
    assert held.ended() == 0


def retire_under_request(start: Start, rounds: int) -> None:
    """Ask in the instant in which it retires: refused at the door, or answered."""
    answered = 0
    for n in range(rounds):
        held = start("echo", "--idle-timeout", "0.02")
        ready = time.monotonic()
        moment = 0.018 + n % 20 * 0.0002 if n % 10 else 0.0
        while time.monotonic() < ready + moment:
            pass
        try:
            caller = held.connect()
        except (FileNotFoundError, ConnectionRefusedError):
            assert held.ended() == 0
        else:
            assert caller.ask(x=n)["echo"] == n
            answered += 1
        held.close()
    assert answered


def test_who_comes_in_as_it_retires_is_answered(start: Start) -> None:
    retire_under_request(start, 20)


def test_who_is_at_the_door_when_the_time_is_up_is_answered(start: Start) -> None:
    held = start("echo", "--idle-timeout", "0.2")
    held.child.send_signal(signal.SIGSTOP)
    caller = held.connect()
    caller.send(op="predict", x=1)
    with pytest.raises(subprocess.TimeoutExpired):
        held.child.wait(0.3)

    held.child.send_signal(signal.SIGCONT)

    reply = caller.receive()
    assert reply is not None
    assert reply["echo"] == 1


@pytest.mark.long
def test_a_caller_that_never_reads_does_not_block_the_others_for_ever(
    start: Start,
) -> None:
    held = start("large")
    stalled = held.connect()
    stalled.send(op="predict", bytes=8 << 20)

    assert held.ask(bytes=100)["ok"]
    assert "a caller did not take its reply" in held.said()


@pytest.mark.long
def test_who_comes_in_as_it_retires_is_answered_1000_times(start: Start) -> None:
    retire_under_request(start, 1000)


def test_without_its_owner_it_finishes_answers_and_leaves(
    busy: Callable[..., Busy],
) -> None:
    lifeline, owner = os.pipe()
    work = busy(
        *("--lifeline-fd", str(lifeline), "--orphan-grace", "0.3"), pass_fds=(lifeline,)
    )
    os.close(lifeline)
    os.close(owner)
    until(lambda: "the owner is gone" in work.held.said(), "it noticed")

    assert work.end()["ok"]
    over = time.monotonic()
    assert work.held.ask(name="adopting")["ok"]
    assert work.held.ended() == 0
    assert time.monotonic() - over >= 0.3


def test_without_its_owner_it_does_not_load_for_ever(
    start: Start, tmp_path: Path
) -> None:
    lifeline, owner = os.pipe()
    held = start(
        "slow_load",
        *("--lifeline-fd", str(lifeline), "--orphan-grace", "0.1"),
        args=(str(tmp_path / "never"),),
        pass_fds=(lifeline,),
        loaded=False,
    )
    os.close(lifeline)
    os.close(owner)

    assert held.wait_ready() is None
    assert held.ended() == 143


def test_standard_input_may_be_the_lifeline_as_in_a_container(start: Start) -> None:
    lifeline, owner = os.pipe()
    held = start("echo", "--lifeline-fd", "0", "--orphan-grace", "0.05", stdin=lifeline)
    os.close(lifeline)

    with pytest.raises(subprocess.TimeoutExpired):
        held.child.wait(0.2)
    os.close(owner)
    assert held.ended() == 0
    assert "its end of the lifeline is closed" in held.said()


OWNER = """
import os, subprocess, sys
lifeline, end = os.pipe()
ready, ready_write = os.pipe()
if os.fork() == 0:
    # holds the lifeline open for as long as standard input is
    os.close(1)
    sys.stdin.read()
    os._exit(0)
argv = [sys.executable, sys.argv[1], "--resident-slug", "t", "--socket", sys.argv[2]]
argv += ["--lifeline-fd", str(lifeline), "--orphan-grace", "0.1"]
argv += ["--ready-fd", str(ready_write), "--script", sys.argv[3]]
child = subprocess.Popen(argv, pass_fds=(lifeline, ready_write), stdout=2)
os.read(ready, 4096)
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_a_fork_that_holds_the_lifeline_does_not_keep_an_orphan(
    tmp_path: Path,
) -> None:
    if not hasattr(os, "pidfd_open"):
        pytest.skip("no pidfd_open in this interpreter")
    argv = [sys.executable, "-c", OWNER, str(BASE), str(tmp_path / "s")]
    owner = subprocess.Popen(
        [*argv, str(WORKERS / "echo.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    pidfd = os.pidfd_open(pid)

    owner.kill()
    ended, _, _ = select.select([pidfd], [], [], DEADLINE_S)
    owner.communicate()
    os.close(pidfd)

    assert ended


# --- the door ---------------------------------------------------------------------


def test_the_socket_is_its_owners_alone_whatever_the_umask(start: Start) -> None:
    before = os.umask(0)
    try:
        held = start("echo")
    finally:
        os.umask(before)

    assert held.path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in held.path.parent.glob(".*")] == []


STRANGER = """
import os, socket, sys
sock = socket.socket(socket.AF_UNIX)
os.setuid(int(sys.argv[2]))
sock.connect(sys.argv[1])
try:
    sock.sendall(b'{"op": "ping"}\\n')
except OSError:
    pass  # it is told and shown the door before it has spoken
os.write(1, sock.recv(65536))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_peer_of_another_uid_is_refused(start: Start) -> None:
    # where another user can come near, and the socket's own mode does not stop him
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        Path(place).chmod(0o711)
        held = start("echo", path=Path(place) / "s")
        held.path.chmod(0o666)
        ran = subprocess.run(
            [sys.executable, "-c", STRANGER, str(held.path), str(NOBODY)],
            capture_output=True,
            check=True,
        )

    reply = json.loads(ran.stdout)
    assert (reply["reason"], reply["error"]) == (
        "unauthorized",
        f"uid {NOBODY} found, uid 0 wanted",
    )


def test_a_stale_socket_is_replaced(start: Start, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "s"))

    assert start("echo", path=tmp_path / "s").ask(x=1)["echo"] == 1


def test_a_path_that_is_taken_is_refused_and_left(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    alive = start("echo")

    for path, found in (
        (file, "something that is no socket found, nothing or a socket wanted"),
        (alive.path, "a socket that accepts found, nothing or a stale socket wanted"),
        (tmp_path / "no" / "s", "no directory for it found, one wanted"),
        (tmp_path / ("n" * 107), f"{len(str(tmp_path)) + 108} bytes found, at most "),
    ):
        held = start("echo", path=path, loaded=False)
        assert held.wait_ready() is None
        assert held.ended() == 1
        assert f"socket_path: {path}: {found}" in held.said()

    assert file.read_text() == "mine"
    assert alive.ask(x=1)["echo"] == 1


def test_a_path_of_exactly_107_bytes_is_taken(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path = tmp_path / ("n" * (107 - len(str(path)) + 1))

    assert len(str(path)) == 107
    assert start("echo", path=path).ask(x=1)["echo"] == 1


def test_a_path_that_another_has_taken_over_is_left(start: Start) -> None:
    first = start("echo")
    first.path.unlink()
    second = start("echo", path=first.path)

    first.child.terminate()

    assert first.ended() == 0
    assert second.ask(x=1)["echo"] == 1


# --- a fresh process per request --------------------------------------------------


def once(script: str, sent: bytes, *options: str) -> tuple[int, bytes, str]:
    argv = [sys.executable, str(BASE), "--resident-slug", "tiny", "--once", *options]
    argv += ["--script", str(WORKERS / f"{script}.py")]
    ran = subprocess.run(argv, input=sent, capture_output=True, timeout=DEADLINE_S)
    return ran.returncode, ran.stdout, ran.stderr.decode()


def test_once_answers_one_request_and_prints_nothing_else() -> None:
    status, out, said = once(
        "prints_to_stdout", b'{"op": "predict", "id": 4, "events": true}\n'
    )

    reply = json.loads(out)
    assert (status, out.count(b"\n")) == (0, 1)
    assert reply.pop("_meter")["rss_bytes"] > 0
    assert reply == {"ok": True, "fine": True, "id": 4}
    assert "in predict" in said


@pytest.mark.parametrize(
    ("script", "sent", "status", "reason"),
    [
        ("raises", b'{"op": "predict", "raise": "no"}\n', 0, "request_failed"),
        ("dies", b'{"op": "predict", "how": "system_exit"}\n', 5, "worker_died"),
        ("echo", b'{"op": "no"}\n', 0, "bad_request"),
        ("echo", b'{"op": "predict", "deadline": 0}\n', 0, "request_timeout"),
        ("echo", b'{"op": "pre', 0, "protocol_error"),
        ("echo", b"", 0, "protocol_error"),
        ("echo", b"nonsense\n", 0, "protocol_error"),
    ],
)
def test_once_refuses_and_fails_in_the_same_shape(
    script: str, sent: bytes, status: int, reason: str
) -> None:
    ended, out, _ = once(script, sent)

    assert ended == status
    assert json.loads(out)["reason"] == reason


def test_once_does_not_wait_for_the_end_of_its_input() -> None:
    with subprocess.Popen(
        [sys.executable, str(BASE), "--once", "--script", str(WORKERS / "echo.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b'{"op": "predict", "x": 1}\n')
        child.stdin.flush()

        assert json.loads(child.stdout.readline())["echo"] == 1


# --- the interpreter --------------------------------------------------------------


def oldest() -> str | None:
    """Name a Python 3.8 that runs here."""
    found = [*Path.home().glob(".pyenv/versions/3.8.*/bin/python3.8")]
    found += [Path(d) / "python3.8" for d in os.get_exec_path()]
    for path in found:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run([path, "-c", ""], check=True, capture_output=True)
            return str(path)
    return None


def test_it_runs_under_its_oldest_interpreter(start: Start) -> None:
    python = oldest()
    if python is None:
        pytest.skip("no Python 3.8 here")
    held = start("raises", python=python)
    caller = held.connect()

    assert caller.ask(events=True)["ok"]
    assert caller.ask(**{"raise": "no"})["error"] == "ValueError: no"
    assert "worker_base.py" in caller.ask("stacks")["stacks"]
    held.child.terminate()
    assert held.ended() == 0
