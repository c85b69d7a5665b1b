"""A job's stream: its rate, its first event, and what a reader that is slow or gone costs.

The rate is that of JSON encoding the same events in one process over that of a job that
emits them, seen by a client of the worker's socket. The first event is compared with a
bare ASGI application on the same server that hands one line from a thread to a stream.
With `--quick` fewer rounds: the rows are then only an indication.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from interleaved import medians, show

ROOT = Path(__file__).parents[1]
WORKER = ROOT / "remote_resident/jobs/worker"
EVENTS = 20_000

PLUGIN = """
import time

class Emits:
    def run_job(self, ctx):
        for number in range(ctx.params.get("events", 0) // 2):
            ctx.progress(number * 0.005, "step")
            ctx.metric("loss", 1 / (number + 1))

class Chatters:
    def run_job(self, ctx):
        text = "x" * 80
        until = time.monotonic() + ctx.params["seconds"]
        while time.monotonic() < until:
            for _ in range(100):
                ctx.progress(1, text)
                ctx.log(text)
            time.sleep(0.001)
"""

RAW = """
import asyncio, socket, sys, threading
import uvicorn

async def app(scope, receive, send):
    await receive()
    loop, queue = asyncio.get_running_loop(), asyncio.Queue()
    line = b'{"event":"done","job_id":"raw","seq":1,"status":"completed"}\\n'
    run = lambda: loop.call_soon_threadsafe(queue.put_nowait, line)
    threading.Thread(target=run).start()
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": await queue.get(), "more_body": True})
    await send({"type": "http.response.body", "body": b""})

uvicorn.run(app, uds=sys.argv[1], http="h11", loop="asyncio", lifespan="off",
            ws="none", log_level="critical", access_log=False)
"""


def main(quick: bool) -> None:
    """Print the rows of the jobs."""
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "bench_plugin.py").write_text(PLUGIN)
        for row in (rate, first_event, memory):
            row(Path(place), quick)


def rate(place: Path, quick: bool) -> None:
    """20,000 events to their terminal one, against encoding them."""
    events = [
        fields | {"job_id": "job-1", "seq": number}
        for number in range(EVENTS // 2)
        for fields in (
            {
                "event": "progress",
                "percent": number * 0.005,
                "label": "step",
                "timing": None,
            },
            {"event": "metric", "label": "loss", "value": 1 / (number + 1)},
        )
    ]

    def encode() -> None:
        b"".join(f"{json.dumps(event)}\n".encode() for event in events)

    with working(place, "Emits") as worker:

        def stream() -> None:
            run(worker, {"events": EVENTS})
            while not worker.ended:
                worker.read()

        taken = medians({"json": encode, "job": stream}, rounds=5 if quick else 25)
    show("stream of 20,000 events", taken["json"], taken["job"], ">= 0.5")


def first_event(place: Path, quick: bool) -> None:
    """From the request to the first event, against a bare application."""
    with working(place, "Emits") as worker, bare(place) as raw:

        def first(client: "Client") -> Callable[[], None]:
            def ask() -> None:
                run(client, {})
                spent.append(time.perf_counter())
                while not client.ended:
                    client.read()

            return ask

        spent: list[float] = []
        cases = {"job": first(worker), "raw": first(raw)}
        taken = medians(cases, rounds=50 if quick else 400, spent=spent)
    show("first event", taken["job"], taken["raw"], "<= 4")


def memory(place: Path, quick: bool) -> None:
    """Resident bytes that a job adds which emits all the time and is not read."""
    for what, leave in (("slow reader", False), ("abandoned chatty job", True)):
        with working(place, "Chatters") as worker:
            # what any job costs once is no part of it
            run(worker, {"seconds": 0.01})
            while not worker.ended:
                worker.read()
            before = resident(worker.pid)
            worker.send_run({"seconds": 2 if quick else 8})
            if leave:
                worker.sock.close()
            most = before
            until = time.monotonic() + (2 if quick else 8)
            while time.monotonic() < until:
                most = max(most, resident(worker.pid))
                time.sleep(0.05)
        print(f"{what:40} {(most - before) / 1e6:+10.1f} MB  goal < +30")


class Client:
    """A kept connection that reads one chunked response after the other."""

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self.sock = sock
        self.pid = pid
        self.ended = True
        self._jobs = 0
        self._end = b""

    def send_run(self, params: dict[str, object]) -> None:
        """Ask for a job."""
        self._jobs += 1
        body = json.dumps(params).encode()
        head = f"POST /jobs/job-{self._jobs}/run HTTP/1.1\r\nhost: x\r\n"
        self.sock.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.ended, self._end = False, b""

    def read(self) -> bytes:
        """Read what has come; `ended` once the last chunk has."""
        data = self.sock.recv(1 << 20)
        assert data, "the worker closed the connection"
        self._end = (self._end + data)[-5:]
        # what precedes each newline is a brace, but for the length of the last chunk
        self.ended = self._end == b"0\r\n\r\n"
        return data


def run(client: Client, params: dict[str, object]) -> bytes:
    """Ask for a job and read up to the first of its events."""
    client.send_run(params)
    body = b""
    while b'"event"' not in body:
        body += client.read()
    return body


def resident(pid: int) -> int:
    """Read how many bytes of a process are in memory."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def working(place: Path, name: str) -> Iterator[Client]:
    """Run a job worker and connect to it."""
    path = place / f"{name}.sock"
    argv = [sys.executable, str(WORKER), "--entry", f"bench_plugin:{name}"]
    argv += ["--id", name, "--socket", str(path)]
    with served(argv, path, place) as client:
        yield client


@contextlib.contextmanager
def bare(place: Path) -> Iterator[Client]:
    """Run the bare application and connect to it."""
    path = place / "raw.sock"
    with served([sys.executable, "-c", RAW, str(path)], path, place) as client:
        yield client


@contextlib.contextmanager
def served(argv: list[str], path: Path, place: Path) -> Iterator[Client]:
    """Start a server and connect to its socket once it listens."""
    child = subprocess.Popen(argv, cwd=place, stderr=subprocess.DEVNULL)
    try:
        yield Client(connected(path, child), child.pid)
    finally:
        child.kill()
        child.wait()
        path.unlink(missing_ok=True)


def connected(path: Path, child: "subprocess.Popen[bytes]") -> socket.socket:
    """Connect to a Unix socket as soon as somebody listens on it."""
    while child.poll() is None:
        sock = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            sock.connect(str(path))
            return sock
        sock.close()
        time.sleep(0.02)
    raise RuntimeError(f"no server: exit status {child.returncode}")


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
