"""The worker's socket: a small request, a 64 MiB reply, a start to the first answer.

Each row is the ratio of two medians taken interleaved and shuffled in one run. With
`--quick` fewer rounds and smaller replies: the rows are then only an indication.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from interleaved import medians, show

from remote_resident.worker_side import protocol

ROOT = Path(__file__).parents[1]
BASE = ROOT / "remote_resident/worker_side/worker_base.py"
WORKERS = ROOT / "tests/workers"

ECHO = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("ready", flush=True)
sock, _ = listener.accept()
while data := sock.recv(65536):
    sock.sendall(data)
"""

SMALL = {"op": "predict", "x": {"name": "small", "values": [1, 2.5, 3]}}


def main(quick: bool) -> None:
    """Print the rows of the socket."""
    with tempfile.TemporaryDirectory() as place:
        for row in (small_request, large_reply, start):
            row(Path(place), quick)


def small_request(place: Path, quick: bool) -> None:
    """One small dict in flight, as our client asks: with events."""
    with echoing(place / "raw.sock") as raw, held(place, "echo") as worker:
        message = protocol.encode_line(SMALL)

        def echo() -> None:
            raw.sendall(message)
            raw.recv(65536)

        def asked() -> None:
            ask(worker, SMALL | {"events": True})

        def asked_silently() -> None:
            ask(worker, SMALL)

        taken = medians(
            {"echo": echo, "asked": asked, "silently": asked_silently},
            rounds=10 if quick else 60,
            calls=100,
        )
    show(
        "request to a held worker, with events", taken["asked"], taken["echo"], "<= 2.4"
    )
    show("the same without events", taken["silently"], taken["echo"], "<= 2.4")


def large_reply(place: Path, quick: bool) -> None:
    """A reply of 64 MiB of numbers against JSON alone, and against one of 8 MiB."""
    large, small = (8 << 20, 1 << 20) if quick else (64 << 20, 8 << 20)
    with held(place, "large") as worker:
        reply = ask(worker, {"op": "predict", "bytes": large})
        ask(worker, {"op": "predict", "bytes": small})
        taken = medians(
            {
                "json": lambda: json.loads(json.dumps(reply)),
                "large": lambda: ask(worker, {"op": "predict", "bytes": large}),
                "small": lambda: ask(worker, {"op": "predict", "bytes": small}),
            },
            rounds=3 if quick else 7,
        )
    mib = len(protocol.encode_line(reply)) / 2**20
    show(f"{mib:.1f} MiB reply", taken["large"], taken["json"], "<= 1.3")
    show(f"t({large >> 20})/t({small >> 20})", taken["large"], taken["small"], "<= 12")


def start(place: Path, quick: bool) -> None:
    """A trivial worker from its spawn to its first answer."""

    def first_answer() -> None:
        with held(place, "echo", stop=False) as worker:
            ask(worker, SMALL)
            spent.append(time.perf_counter())

    spent: list[float] = []
    # as in use: an installed package has its compiled files
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(place / "compiled")
    first_answer()
    taken = medians(
        {
            "interpreter": lambda: subprocess.run([sys.executable, "-c", "pass"]),
            "worker": first_answer,
        },
        rounds=10 if quick else 40,
        spent=spent,
    )
    show("start to the first answer", taken["worker"], taken["interpreter"], "<= 2.3")


@contextlib.contextmanager
def echoing(path: Path) -> Iterator[socket.socket]:
    """Run the raw echo and connect to it."""
    argv = [sys.executable, "-c", ECHO, str(path)]
    # in a session of its own, as a worker is: the kernel shares processors by session
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with connected(path) as sock:
            yield sock


@contextlib.contextmanager
def held(place: Path, name: str, stop: bool = True) -> Iterator[socket.socket]:
    """Run a worker and connect to it once it says that it is ready."""
    path = place / f"{name}.sock"
    ready, ready_write = os.pipe()
    argv = [sys.executable, str(BASE), "--resident-slug", name, "--socket", str(path)]
    argv += ["--ready-fd", str(ready_write), "--script", str(WORKERS / f"{name}.py")]
    child = subprocess.Popen(
        argv,
        pass_fds=[ready_write],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(ready_write)
    said = os.read(ready, 4096)
    os.close(ready)
    if not said:
        raise RuntimeError(f"{name}: no worker: exit status {child.wait()}")
    with connected(path) as sock:
        yield sock
    child.kill() if not stop else child.terminate()
    child.wait()


@contextlib.contextmanager
def connected(path: Path) -> Iterator[socket.socket]:
    """Connect to a Unix socket."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        yield sock


def ask(sock: socket.socket, payload: dict[str, object]) -> dict[str, object]:
    """Send a request and receive its reply."""
    protocol.send_line(sock, payload)
    buf = bytearray()
    while True:
        message = protocol.recv_line(sock, buf)
        assert message is not None
        if "event" not in message:
            assert message["ok"], message
            return message


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
