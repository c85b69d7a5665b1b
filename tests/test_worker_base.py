"""The worker's process: real scripts, real sockets, real signals."""

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from small_base import (
    BASE,
    DEADLINE_S,
    WORKERS,
    Reply,
    Start,
    until,
)

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
        ("worker_died", "request_failed"),
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


def test_an_exception_that_fails_itself_is_answered_and_the_model_stays(
    start: Start,
) -> None:
    held = start("raises")

    reply = held.ask(**{"raise": "unspeakable"})

    assert (reply["error"], reply["reason"]) == ("Unspeakable", "request_failed")
    assert held.ask()["ok"]


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
