"""Small endpoints of real scripts, ports and processes, for the tests of the daemon."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remote_resident import processes
from remote_resident.daemon.client import DaemonClient
from remote_resident.daemon.server import Places
from remote_resident.endpoints import credentials, dispatch, listener, panel
from remote_resident.endpoints.cell import Line, Work
from remote_resident.endpoints.changes import Changes
from remote_resident.endpoints.owner import Owner
from remote_resident.endpoints.record import Endpoint
from remote_resident.endpoints.service import Patience, Service
from remote_resident.endpoints.store import Settings, Store
from remote_resident.errors import ProviderError

DEADLINE_S = 60.0
CANARY = "nvapi-canary-7f3a91c2"
_DAEMON = (sys.executable, "-m", "remote_resident.daemon")
PROGRAM = Path(__file__).parent / "services/small.py"
STOP = """#!/bin/sh
kill "$(cat "$SERVICE_DIR/pid")"
"""
SOON = Patience(settle_s=0.2, dead_s=0.5, dying_s=0.2, swept_s=0.2)
HOLDS = "import os, time\nwhile not os.path.exists({!r}): time.sleep(0.01)\n"


def start_script(**options: object) -> str:
    """Give a script that leaves the small service behind."""
    words = " ".join(f"'{name}={value}'" for name, value in options.items())
    return f"""#!/bin/sh
echo starting on $HOST_PORT
setsid '{sys.executable}' -I -S '{PROGRAM}' "$HOST_PORT" {words} &
echo $! > "$SERVICE_DIR/pid"
"""


_PORTS = random.sample(range(20000, 30000), 10000)


def free_port() -> int:
    """Find a port in the endpoints' range that nobody has, and never the same again."""
    while True:
        port = _PORTS.pop()
        with socket.socket() as trial:
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
        # a container that was killed may have left a rule that passes it on
        if not listener.is_open(port):
            return port


def endpoint(name: str = "a", **fields: Any) -> Endpoint:
    """Build an endpoint that starts the small service; the name gets its suffix."""
    given = {
        "name": f"{name}-service",
        "url": f"http://127.0.0.1:{free_port()}",
        "credential": "NVIDIA_API_KEY",
        "start": start_script(),
        "stop": STOP,
        "live": "/ready",
        "start_timeout_s": DEADLINE_S,
        "stop_timeout_s": DEADLINE_S,
    }
    return Endpoint.from_dict({**given, **fields})


class Host:
    """An owner of endpoints in this process, as the daemon has it."""

    def __init__(self, *endpoints: Endpoint, **options: Any) -> None:
        self.store = registered(*endpoints)
        self.owner = Owner(self.store, **{"overtake_s": 30.0, **options})
        self.changes = Changes(self.owner)
        self.owner.begin()

    def register(self, one: Endpoint) -> None:
        """Approve and register."""
        self.store.approve(one.name, one.digest)
        with self.changes.turn(one.name):
            self.changes.register(one)

    def run(self, name: str, code: str = "", **options: Any) -> list[Line]:
        """Run a cell and give its lines."""
        return list(self.lines(name, code, **options))

    def lines(self, name: str, code: str = "", **options: Any) -> Iterator[Line]:
        """Run a cell and yield its lines."""
        argv = None if code or "argv" in options else ["true"]
        work = Work(
            argv=argv, code=code or None, cwd=Path("/"), env={}, timeout_s=DEADLINE_S
        )
        one = self.changes.known(f"{name}-service")
        assert one is not None
        wanted = replace(work, **options)
        for line in dispatch.on_local(self.owner, one, wanted):
            if line is not None:
                yield line

    def call(self, name: str, code: str = "", **options: Any) -> "Call":
        """Run a cell on a thread."""
        return Call(lambda: self.lines(name, code, **options))

    def state(self, name: str = "a") -> str:
        """Give an endpoint's state."""
        return self.owner.state(f"{name}-service")[0].state.value

    def failure(self, name: str = "a") -> Any:
        """Give why an endpoint is failed."""
        return self.owner.state(f"{name}-service")[0].failure

    def service(self, name: str = "a") -> Service:
        """Give the last run of an endpoint."""
        with self.owner.lock:
            return self.owner.services[f"{name}-service"]

    def until(self, state: str, name: str = "a") -> None:
        """Wait until an endpoint is in a state."""
        wait_for(lambda: self.state(name) == state, f"{name} {state}")

    def close(self) -> None:
        """End every cell, every service and what a test's scripts left."""
        self.owner.end(stop_services=False)
        with self.owner.lock:
            services = list(self.owner.services.values())
        for one in services:
            processes.end_all(one.instance, grace_s=0.0)
            _end_hidden(one.endpoint)
            if one.run is not None:
                one.run.end()
        for writer in panel.writers:
            writer.wait(DEADLINE_S)


@pytest.fixture
def host() -> Iterator[Any]:
    """Give what makes a host of some endpoints; all of it ends with the test."""
    made: list[Host] = []

    def make(*endpoints: Any, **options: Any) -> Host:
        made.append(Host(*endpoints, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def refused(host: Host, name: str = "a", **options: Any) -> ProviderError:
    """Give why a cell is refused."""
    with pytest.raises(ProviderError) as caught:
        host.run(name, **options)
    return caught.value


def _end_hidden(one: Endpoint) -> None:
    """End a small service that a test hid from its instance, by the pid it wrote."""
    with suppress(OSError, ValueError):
        pid = int((Path(one.service_dir or "/nowhere") / "pid").read_text())
        if str(PROGRAM).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


class Call:
    """A cell that runs on a thread: its lines so far, and how it ended."""

    def __init__(self, lines: Callable[[], Iterator[Line]]) -> None:
        self.lines: list[Line] = []
        self.error: ProviderError | None = None
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, args=[lines], daemon=True)
        self._thread.start()

    def _run(self, lines: Callable[[], Iterator[Line]]) -> None:
        iterator = lines()
        try:
            for line in iterator:
                self.lines.append(line)
                if self._leaving.is_set():
                    break
        except ProviderError as exc:
            self.error = exc
        finally:
            iterator.close()  # type: ignore[attr-defined]

    def phases(self) -> list[str]:
        """Give the phases so far."""
        return [line["text"] for line in self.lines if line["type"] == "phase"]

    def until(self, text: str) -> "Call":
        """Wait until something was said or printed."""
        wait_for(
            lambda: (
                any(text in str(line.get("text")) for line in self.lines)
                or not self._thread.is_alive()
            ),
            text,
        )
        return self

    def end(self) -> "Call":
        """Wait for its end."""
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), self.lines
        return self

    @property
    def alive(self) -> bool:
        """Say whether it still runs."""
        return self._thread.is_alive()


def wait_for(done: Callable[[], Any], what: str = "it") -> Any:
    """Wait until something is so; the deadline is one of a broken test."""
    until = time.monotonic() + DEADLINE_S
    while not (found := done()):
        assert time.monotonic() < until, f"waited for {what}"
        time.sleep(0.005)
    return found


def get(port: int | None, path: str = "/") -> str:
    """Ask a service."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as reply:
        text: str = reply.read().decode()
        return text


def phases(lines: list[Line]) -> list[str]:
    """Give the phases among lines."""
    return [line["text"] for line in lines if line["type"] == "phase"]


class Daemon:
    """A host daemon in a process of its own, and its client."""

    def __init__(self, *words: str) -> None:
        read_fd, write_fd = os.pipe()
        self.process = subprocess.Popen(
            [*_DAEMON, "--ready-fd", f"{write_fd}", *words],
            pass_fds=[write_fd],
            cwd="/",
            start_new_session=True,
        )
        os.close(write_fd)
        with os.fdopen(read_fd, "rb") as said:
            answer = json.loads(said.readline() or b"{}")
        assert answer.get("ready"), answer
        self.client = DaemonClient(Places.of_host().socket)

    def end(self, number: int = signal.SIGKILL) -> None:
        """End it by a signal; what it started runs on."""
        self.process.send_signal(number)
        self.process.wait(DEADLINE_S)

    def run(self, name: str, code: str = "", **options: Any) -> list[Line]:
        """Run a cell and give its lines."""
        return list(self.lines(name, code, **options))

    def lines(self, name: str, code: str = "", **options: Any) -> Iterator[Line]:
        """Run a cell and yield its lines."""
        work: dict[str, Any] = {"code": code} if code else {"argv": ["true"]}
        body = {"endpoint": f"{name}-service", "cwd": "/", **work, **options}
        yield from self.client.stream("POST", "/v1/dispatch", body)

    def call(self, name: str, code: str = "", **options: Any) -> Call:
        """Run a cell on a thread."""
        return Call(lambda: self.lines(name, code, **options))

    def row(self, name: str = "a") -> dict[str, Any]:
        """Give an endpoint's row."""
        return self.client.call("GET", f"/v1/endpoints/{name}-service")

    def until(self, state: str, name: str = "a") -> None:
        """Wait until an endpoint is in a state."""
        wait_for(lambda: self.row(name)["state"] == state, f"{name} {state}")


def registered(*endpoints: Endpoint) -> Store:
    """Register endpoints for a daemon that does not run yet."""
    credentials.save("NVIDIA_API_KEY", CANARY)
    store = Store()
    store.connect(Settings(mode="local"))
    for one in endpoints:
        store.approve(one.name, one.digest)
        store.register(one)
    return store


def end_noted(store: Store) -> None:
    """End every service that a daemon noted."""
    for path in (store.root / "notes").glob("*.json"):
        note = store.note(path.stem) or {}
        if instance := note.get("instance"):
            processes.end_all(instance, grace_s=0.0)
