"""What is typed after `tu remote endpoint`, with a real daemon and a real service."""

import io
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from endpoint_daemon import end_daemon
from small_endpoint import CANARY, STOP, start_script
from small_provider import DEADLINE_S, until

from remote_resident.cli import main
from remote_resident.endpoints import client, credentials
from remote_resident.endpoints.record import Endpoint
from remote_resident.endpoints.store import Store

NAME = "tiny-service"
TU = [sys.executable, "-m", "remote_resident", "remote", "endpoint"]


@pytest.fixture
def place(tmp_path: Path, home: Path) -> Iterator[Path]:
    """Give a directory with scripts; end the daemon and all that it started."""
    (tmp_path / "start.sh").write_text(start_script())
    (tmp_path / "stop.sh").write_text(STOP)
    (tmp_path / "key").write_text(f"{CANARY}\n")
    yield tmp_path
    end_daemon()


@pytest.fixture
def enabled(place: Path) -> Path:
    """Give the same, endpoints of this host enabled."""
    credentials.save("NVIDIA_API_KEY", CANARY)
    client.connect("local")
    return place


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a command came to."""

    returncode: int
    stdout: bytes
    stderr: bytes


Typed = Callable[..., Ended]


@pytest.fixture
def tu(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any
) -> Callable[..., Ended]:
    """Type a command in this process: a new one costs more than all it does."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "stdin", io.StringIO())

    def typed(*words: str) -> Ended:
        capfdbinary.readouterr()
        code = main(["remote", "endpoint", *words])
        said = capfdbinary.readouterr()
        return Ended(returncode=code, stdout=said.out, stderr=said.err)

    return typed


def document(ended: Ended) -> dict[str, Any]:
    found = json.loads(ended.stdout)
    assert isinstance(found, dict)
    return found


def words_of(port: int) -> list[str]:
    url = f"http://127.0.0.1:{port}"
    scripts = ["--start", "start.sh", "--stop", "stop.sh", "--live", "/ready"]
    who = ["--credential", "NVIDIA_API_KEY", "--skill", "tiny-runbook"]
    return ["register", NAME, "--url", url, *who, *scripts]


@pytest.fixture
def registered(enabled: Path) -> Path:
    """Give the same, with the small service registered."""
    fields = {
        "name": NAME,
        "url": f"http://127.0.0.1:{client.free_port()}",
        "credential": "NVIDIA_API_KEY",
        "skill": "tiny-runbook",
        "start": start_script(),
        "stop": STOP,
        "live": "/ready",
    }
    client.register(fields, approve=Endpoint.from_dict(fields).digest)
    return enabled


def test_without_a_terminal_the_card_is_shown_and_its_next_command_registers(
    enabled: Path, tu: Typed
) -> None:
    words = words_of(client.free_port())

    refused = tu(*words)

    said = refused.stderr.decode()
    assert refused.returncode == 1
    assert refused.stdout == b""
    for line in (*start_script().splitlines(), *STOP.splitlines()):
        assert f" | {line}\n" in said
    (typed,) = re.findall(r"^next: tu remote endpoint (.*)$", said, re.MULTILINE)
    assert tu(*shlex.split(typed)).returncode == 0
    silent = tu(*words)
    assert (silent.returncode, silent.stderr) == (0, b"")
    (row,) = document(tu("list", "--json"))["endpoints"]
    assert (row["name"], row["state"], row["location"]) == (NAME, "stopped", "local")
    assert row["digest"] == typed.split()[-1]


def test_one_changed_byte_asks_again(registered: Path, tu: Typed) -> None:
    row = client.show(NAME)
    script = registered / "start.sh"
    script.write_text(f"{script.read_text()}# one more\n")

    refused = tu(*words_of(row["port"]), "--json")

    found = document(refused)
    assert (refused.returncode, found["reason"]) == (1, "not_approved")
    assert "# one more" in found["problems"][0]["text"]
    assert client.show(NAME)["digest"] == row["digest"]


def test_a_mistake_of_a_script_is_refused_with_its_line(
    enabled: Path, tu: Typed
) -> None:
    (enabled / "stop.sh").write_text(f"{STOP}docker rm x\n")

    refused = tu(*words_of(client.free_port()))

    assert refused.returncode == 1
    assert (
        f"stop:{STOP.count(chr(10)) + 1}: rm in a stop script"
        in refused.stderr.decode()
    )


def at_terminal(place: Path, words: list[str], answer: bytes) -> tuple[int, str]:
    """Type a command at a terminal, answer its question, give its status and the screen."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*TU, *words], cwd=place, stdin=theirs, stderr=theirs, stdout=subprocess.DEVNULL
    )
    os.close(theirs)
    screen = b""
    end = time.monotonic() + DEADLINE_S
    with suppress(OSError):  # the terminal's other end is closed
        while time.monotonic() < end:
            if select.select([ours], [], [], 1.0)[0]:
                screen += os.read(ours, 65536)
            if answer and screen.endswith(b"[y/N] "):
                os.write(ours, answer)
                answer = b""
    status = process.wait(DEADLINE_S)
    os.close(ours)
    return status, screen.decode()


@pytest.mark.parametrize(("answer", "status"), [(b"y\n", 0), (b"n\n", 1), (b"\x04", 1)])
def test_at_a_terminal_a_person_is_asked(
    enabled: Path, answer: bytes, status: int
) -> None:
    words = words_of(client.free_port())

    ended, screen = at_terminal(enabled, words, answer)

    assert ended == status, screen
    assert "Approve exactly this? [y/N] " in screen
    assert screen.count("digest             ") == 1
    assert [row["name"] for row in client.rows()] == ([NAME] if status == 0 else [])


def test_a_cell_runs_with_its_own_streams_and_status(
    registered: Path, tu: Typed
) -> None:
    code = r'printf "a\377 $BASE_URL"; echo err >&2; pwd >&2; exit 7'

    ended = tu("run", NAME, "--", "sh", "-c", code)

    url = client.show(NAME)["url"]
    assert ended.returncode == 7
    assert ended.stdout == b"a\xff " + url.encode()
    lines = ended.stderr.decode().splitlines()
    assert [line for line in lines if not line.startswith(NAME)] == [
        "err",
        str(registered),
    ]
    assert f"{NAME}: starting {NAME}" in lines
    assert f"{NAME}: ready" in lines
    assert client.show(NAME)["state"] == "ready"


def test_what_follows_the_dashes_is_the_cells_own(registered: Path, tu: Typed) -> None:
    show = "import sys; print(sys.argv[1:])"
    words = ["--json", "--quiet", "--", "--help", "-h"]

    ended = tu("run", "--quiet", NAME, "--", "python3", "-c", show, *words)

    assert ended.stdout.decode() == f"{words}\n"
    assert ended.stderr == b""


def test_for_programs_each_line_is_a_document_and_the_last_the_result(
    registered: Path, tu: Typed
) -> None:
    ended = tu("run", NAME, "--json", "--", "sh", "-c", "echo a; exit 3")

    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert ended.returncode == 3
    assert ended.stderr == b""
    assert {line["type"] for line in lines[:-1]} == {"phase", "stdout"}
    assert (lines[-1]["type"], lines[-1]["exit_code"]) == ("result", 3)


def test_a_cell_that_takes_too_long_is_ended_and_refused(
    registered: Path, tu: Typed
) -> None:
    ended = tu("run", NAME, "--timeout", "0.5", "--", "sleep", "1000")

    assert ended.returncode == 1
    assert "no end within 0.5 s" in ended.stderr.decode()


def test_ctrl_c_ends_the_cell(registered: Path) -> None:
    mark = registered / "pid"
    words = ["run", NAME, "--", "sh", "-c", f"echo $$ > '{mark}'; exec sleep 1000"]
    process = subprocess.Popen([*TU, *words], stderr=subprocess.PIPE)
    until(lambda: mark.exists() and mark.read_text().strip(), "the cell")
    pid = int(mark.read_text())

    process.send_signal(signal.SIGINT)

    with process:
        assert process.wait(DEADLINE_S) == 130
    until(lambda: not Path(f"/proc/{pid}").exists(), "the cell's end")
    assert client.show(NAME)["state"] == "ready"


def test_the_credential_is_nowhere_to_be_seen(
    registered: Path, home: Path, tu: Typed
) -> None:
    script = registered / "start.sh"
    shown = 'echo "key $NVIDIA_API_KEY"; env\n'
    script.write_text(f"#!/bin/sh\n{shown}{start_script().partition(chr(10))[2]}")
    words = words_of(client.show(NAME)["port"])
    digest = document(tu(*words, "--json"))["problems"][0]["wanted"]
    assert tu(*words, "--approve", digest).returncode == 0

    ran = tu("run", NAME, "--", "env")
    logs = logged(tu, b"key [credential]")

    said = ran.stdout + ran.stderr + logs.stdout + logs.stderr
    assert CANARY.encode() not in said
    keeping = {
        str(path.relative_to(home))
        for path in home.rglob("*")
        if path.is_file() and CANARY.encode() in content(path)
    }
    assert keeping == {"state/endpoints/credentials/NVIDIA_API_KEY"}


def logged(tu: Typed, text: bytes) -> Ended:
    """Type `logs` until something was written down: that is done by a process of its own."""
    seen: list[Ended] = []

    def is_there() -> bool:
        seen.append(tu("logs", NAME))
        return text in seen[-1].stdout

    until(is_there, text.decode())
    return seen[-1]


def content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        # a note that was being written stands under its own name by now
        return b""


def test_a_transcript_cannot_act_on_the_terminal(registered: Path, tu: Typed) -> None:
    script = registered / "start.sh"
    script.write_text(script.read_text() + "printf '\\033[2J\\n'\n")
    words = words_of(client.show(NAME)["port"])
    digest = document(tu(*words, "--json"))["problems"][0]["wanted"]
    tu(*words, "--approve", digest)
    tu("run", NAME, "--", "true")

    shown = logged(tu, rb"\x1b[2J").stdout

    assert b"\x1b" not in shown


def test_stopping_removing_and_disconnecting(registered: Path, tu: Typed) -> None:
    assert tu("run", NAME, "--", "true").returncode == 0
    assert tu("stop", NAME).stdout.decode() == f"{NAME}: stopped\n"

    asked = tu("remove", NAME)
    assert (asked.returncode, len(client.rows())) == (3, 1)
    assert f"next: tu remote endpoint remove {NAME} --yes" in asked.stderr.decode()
    assert tu("remove", NAME, "--yes").returncode == 0
    assert client.rows() == []

    assert tu("disconnect").returncode == 3
    assert Store().settings().mode == "local"
    gone = document(tu("disconnect", "--yes", "--json"))
    assert gone["ok"] is True
    assert Store().settings().mode is None
    assert credentials.load("NVIDIA_API_KEY") is None


@pytest.mark.parametrize(("answer", "status", "left"), [(b"n\n", 1, 1), (b"y\n", 0, 0)])
def test_removing_at_a_terminal_asks(
    registered: Path, answer: bytes, status: int, left: int
) -> None:
    ended, screen = at_terminal(registered, ["remove", NAME], answer)

    assert (ended, len(client.rows())) == (status, left), screen


def test_a_disconnect_stops_what_runs_by_its_own_script(
    registered: Path, tu: Typed
) -> None:
    assert tu("run", NAME, "--", "true").returncode == 0
    pid = int((Path(client.show(NAME)["service_dir"]) / "pid").read_text())

    assert tu("disconnect", "--yes").returncode == 0

    # the daemon, its reaper, may take a moment
    until(lambda: not Path(f"/proc/{pid}").exists(), "the service's end")
    assert client.rows() == []


def test_connecting_needs_a_credential_and_a_host_that_fits(
    place: Path, tu: Typed
) -> None:
    none = tu("connect", "--mode", "local")
    assert none.returncode == 3
    assert "NVIDIA_API_KEY: no credential found" in none.stderr.decode()

    url = tu("connect", "--mode", "url", "--credential-file", "key")
    assert url.returncode == 3
    assert url.stderr.decode().startswith("tu: host: missing, wanted in mode url\n")
    assert credentials.load("NVIDIA_API_KEY") is None

    kept = tu("connect", "--mode", "local", "--credential-file", "key")
    assert (kept.returncode, kept.stdout) == (0, b"connected: mode local\n")
    assert credentials.load("NVIDIA_API_KEY") == CANARY
    other = tu("connect", "--mode", "url", "--host", "models.example")
    assert other.returncode == 0
    wrong = tu(*words_of(20123), "--json")
    assert document(wrong)["reason"] == "wrong_mode"


def test_a_disconnect_names_what_ends_each_that_it_could_not_stop(
    enabled: Path, tu: Typed
) -> None:
    (enabled / "stop.sh").write_text("#!/bin/sh\nexit 4\n")
    refused = document(tu(*(words := words_of(client.free_port())), "--json"))
    assert tu(*words, "--approve", refused["problems"][0]["wanted"]).returncode == 0
    assert tu("run", NAME, "--", "true").returncode == 0
    pid = int((Path(client.show(NAME)["service_dir"]) / "pid").read_text())

    ended = tu("disconnect", "--yes")
    os.kill(pid, signal.SIGKILL)

    assert ended.returncode == 1
    assert f"{NAME}: stop returned 4" in ended.stderr.decode()
    assert f"\nnext: kill {pid}\n" in ended.stderr.decode()


def test_show_says_all_of_it(registered: Path, tu: Typed) -> None:
    shown = tu("show", NAME).stdout.decode()

    assert f"digest             {client.show(NAME)['digest']}" in shown
    for line in start_script().splitlines():
        assert f" | {line}\n" in shown


def test_a_name_that_is_none_is_wrong_usage(registered: Path, tu: Typed) -> None:
    for words in ("show N", "stop N", "logs N", "remove N --yes", "run N -- true"):
        ended = tu("--json", *words.replace("N", "tiny-servise").split())

        assert ended.returncode == 3, words
        assert document(ended)["reason"] == "unknown_name"


def test_compose_writes_nothing_where_both_scripts_are_one_file(
    enabled: Path, tu: Typed
) -> None:
    files = ["--start", "one.sh", "--stop", "./one.sh"]
    ended = tu("compose", "--image", "i", "--port", "8000", "--name", NAME, *files)

    assert ended.returncode == 3
    assert b"one.sh found, which is --start's" in ended.stderr
    assert not (enabled / "one.sh").exists()


def test_compose_writes_scripts_that_register(enabled: Path, tu: Typed) -> None:
    words = [
        "--image",
        "registry.example/m:1",
        "--port",
        "8000",
        "--cache",
        "/opt/cache",
    ]
    files = ["--start", "composed-start.sh", "--stop", "composed-stop.sh"]

    ended = tu("compose", *words, "--user", "auto", *files)

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.decode().splitlines() == [
        "composed-start.sh: written",
        "composed-stop.sh: written",
    ]
    asked = [*words_of(client.free_port())[:-6], *files, "--live", "/v1/health/ready"]
    refused = document(tu(*asked, "--json"))
    assert refused["reason"] == "not_approved"
    assert "findings           none" in refused["problems"][0]["text"]
