"""A worker's process around tests/workers, and who calls it."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from remote_resident.worker_side import protocol

BASE = Path(protocol.__file__).with_name("worker_base.py")
WORKERS = Path(__file__).with_name("workers")
DEADLINE_S = 60.0
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


def until_refused(held: Held) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            held.connect()
        except ConnectionRefusedError:
            return
    pytest.fail("the socket still accepts")


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
