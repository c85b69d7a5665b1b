"""Real job workers for tests: started by path, asked over a socket, always ended."""

import contextlib
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).parents[1] / "remote_resident/jobs/worker"
JOBS = Path(__file__).with_name("jobs")
TOKEN = "a-token-of-these-tests"
DEADLINE_S = 60.0
SHORT = {"TU_JOB_CANCEL_GRACE_S": "0.5"}
IGNORED = "cancel ignored for 0.5 s; worker ended"

Event = dict[str, Any]


class Answer:
    """What came back for one request."""

    def __init__(self, response: http.client.HTTPResponse, body: bytes) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Event]:
        return [json.loads(line) for line in self.body.splitlines()]


class Stream:
    """A response that is read event by event; closing it is leaving."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self._response = connection.getresponse()
        self.status = self._response.status
        self.headers = self._response.headers

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        line = self._response.readline()
        if not line:
            raise StopIteration
        event: Event = json.loads(line)
        return event

    def until(self, name: str, **fields: object) -> Event:
        """Read on to an event of that name and with these fields."""
        wanted = {"event": name, **fields}
        for event in self:
            if wanted.items() <= event.items():
                return event
        raise AssertionError(f"the stream ended without {wanted}")

    def close(self) -> None:
        self._response.close()
        self._connection.close()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _OnPath(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=DEADLINE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(DEADLINE_S)
        self.sock.connect(str(self._path))


class JobWorker:
    """One worker process that listens."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process = process
        self.log_path = log
        self.socket: Path | None = None
        self.port = 0
        self.pidfd: int | None = None
        """Of the worker itself; None: it is the process, or not ready yet."""
        self.token: str | None = None

    def end_itself(self) -> None:
        """End the worker where another process stands before it."""
        if self.pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            os.close(self.pidfd)
            self.pidfd = None

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def connect(self) -> http.client.HTTPConnection:
        """Make a connection of its own."""
        if self.socket is not None:
            return _OnPath(self.socket)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)

    def send(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: dict[str, str] | None = None,
    ) -> http.client.HTTPConnection:
        """Send a request; a body that is not bytes goes as JSON."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if headers is None:
            headers = self.authorization
        connection = self.connect()
        connection.request(method, path, body, headers)
        return connection

    @property
    def authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Send a request and read its whole answer."""
        connection = self.send(method, path, body, headers)
        with contextlib.closing(connection):
            response = connection.getresponse()
            return Answer(response, response.read())

    def get(self, path: str) -> Any:
        """Ask for JSON."""
        return self.ask("GET", path).json

    def run(self, job_id: str, job: str = "returns", **params: object) -> Stream:
        """Start a job of tests/jobs and read its stream."""
        path = f"/jobs/{job_id}/run"
        return Stream(self.send("POST", path, {"job": job, **params}))

    def events(self, job_id: str, job: str, **params: object) -> list[Event]:
        """Run a job to its end and give its events."""
        with self.run(job_id, job, **params) as stream:
            assert stream.status == 201, stream.status
            return list(stream)

    def attach(self, job_id: str, after: int = 0) -> Stream:
        """Read the events of a job that was started before."""
        return Stream(self.send("GET", f"/jobs/{job_id}/events?after={after}"))

    def cancel(self, job_id: str) -> Answer:
        return self.ask("POST", f"/jobs/{job_id}/cancel")

    def wait(self) -> int:
        """Wait for the process to end by itself; its exit status."""
        return self.process.wait(DEADLINE_S)

    def resident(self) -> int:
        """Read how many bytes of it are in memory."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


Start = Callable[..., JobWorker]


@contextlib.contextmanager
def job_workers(place: Path) -> Iterator[Start]:
    """Give a function that starts workers; all are ended with the block.

    `start(entry, *options, transport="unix", env=None, python=..., fds=(), cwd=...)`.
    """
    started: list[JobWorker] = []

    def start(entry: str = "chooses:Chooses", *options: str, **how: Any) -> JobWorker:
        worker = _start(place / f"worker-{len(started)}", entry, options, how)
        started.append(worker)
        _wait_until_ready(worker)
        return worker

    try:
        yield start
    finally:
        for worker in started:
            worker.process.kill()
            worker.process.wait()
            worker.end_itself()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Give what starts workers; all of them end with the test."""
    with job_workers(tmp_path) as start:
        yield start


def ready_at(worker: JobWorker) -> Path:
    """Give the path of its socket."""
    assert worker.socket is not None
    return worker.socket


def command(
    entry: str, *options: str, plugin_id: str = "plugin", python: str = sys.executable
) -> list[str]:
    """Give the command line of a worker that is run by path."""
    return [python, str(WORKER), "--entry", entry, "--id", plugin_id, *options]


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


def _start(
    folder: Path, entry: str, options: tuple[str, ...], how: dict[str, Any]
) -> JobWorker:
    folder.mkdir()
    tcp = how.get("transport") == "tcp"
    path = folder / "w.sock"
    where = ("--host", "127.0.0.1", "--port", "0") if tcp else ("--socket", str(path))
    environ = {**os.environ, **how.get("env", {})}
    if tcp:
        environ.setdefault("TU_JOB_TOKEN", TOKEN)
    ready, said = os.pipe()
    argv = command(entry, *where, "--state-root", str(folder / "state"), *options)
    argv = [*how.get("prefix", ()), *argv, "--ready-fd", str(said)]
    argv = how["argv"](argv) if "argv" in how else argv
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            argv,
            cwd=how.get("cwd", JOBS),
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[said, *how.get("fds", ())],
        )
    os.close(said)
    worker = JobWorker(process, folder / "log")
    worker.socket = None if tcp else path
    worker.token = environ.get("TU_JOB_TOKEN")
    worker.ready = ready  # type: ignore[attr-defined]  # until it is ready
    return worker


def _wait_until_ready(worker: JobWorker) -> None:
    ready: int = worker.ready  # type: ignore[attr-defined]  # until it is ready
    with os.fdopen(ready, "rb") as pipe:
        found, _, _ = select.select([pipe], [], [], DEADLINE_S)
        line = pipe.readline() if found else b""
    assert line, f"no worker: {worker.process.poll()}\n{worker.log}"
    said = json.loads(line)
    worker.port = said["port"] or 0
    if said["pid"] != worker.process.pid:
        worker.pidfd = os.pidfd_open(said["pid"])


def until(true: Callable[[], object], what: str) -> None:
    """Wait for what cannot be waited for otherwise, with a deadline."""
    end = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < end, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.01)


def terminal(events: list[Event]) -> Event:
    """Give the terminal event, having made sure that there is one and that it is last."""
    names = [event["event"] for event in events]
    assert [name for name in names if name in ("done", "error")] == names[-1:], names
    numbers = [event["seq"] for event in events if event["event"] != "ping"]
    assert numbers == sorted(set(numbers)), numbers
    return events[-1]
