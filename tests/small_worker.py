"""Resident workers around tests/workers, what owns them, and what is asked of them."""

import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_provider import provider, until

from remote_resident import processes
from remote_resident.errors import (
    WorkerRequestError,
    WorkerStartError,
)
from remote_resident.supervisor import ResidentWorker

Make = Callable[..., ResidentWorker]

OWNER = """
import sys
from remote_resident import manifest
from remote_resident.supervisor import ResidentWorker
worker = ResidentWorker(manifest.load(sys.argv[1]), admit=None, owned="u" not in sys.argv[2])
"""
IDLE = OWNER + "print(worker.ensure_started().instance, flush=True); sys.stdin.read()"
ASKING = OWNER + (
    "import json; worker.ensure_started(); print(worker.instance, flush=True);"
    "worker.request(json.loads(sys.argv[3]))"
)
LOADING = OWNER + (
    "import threading, time\n"
    "threading.Thread(target=worker.ensure_started, daemon=True).start()\n"
    "while worker.status()['pid'] is None: time.sleep(.01)\n"
    "print(worker.instance, flush=True); sys.stdin.read()"
)
SUBREAPER = """
import ctypes, subprocess, sys
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
child = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]])
print(child.pid, flush=True)
child.wait()
sys.stdin.read()
"""


HELD = 9 * 10**7
"""A sum of so many numbers holds an interpreter for more than a second."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    path = tmp_path / "a tree"
    path.mkdir()
    return path


@pytest.fixture
def make(tree: Path) -> Iterator[Make]:
    """Make workers around tests/workers; what is left of them ends with the test."""
    made: list[ResidentWorker] = []

    def make(script: str, **tables: Any) -> ResidentWorker:
        options = {"admit": None, **tables.pop("options", {})}
        made.append(ResidentWorker(provider(tree, script, **tables), **options))
        return made[-1]

    yield make
    for worker in made:
        worker.stop(grace_s=0.1)


Run = Callable[..., "subprocess.Popen[str]"]


def open_descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def refused(ask: Callable[[], object]) -> WorkerRequestError:
    with pytest.raises(WorkerRequestError) as caught:
        ask()
    return caught.value


def not_started(worker: ResidentWorker) -> WorkerStartError:
    with pytest.raises(WorkerStartError) as caught:
        worker.ensure_started()
    return caught.value


def in_thread(call: Callable[[], Any]) -> "tuple[threading.Thread, list[Any]]":
    """Call in a thread; what it gave or raised is appended to the list."""
    results: list[Any] = []

    def target() -> None:
        try:
            results.append(call())
        except Exception as exc:
            results.append(exc)

    thread = threading.Thread(target=target)
    thread.start()
    return thread, results


def line_of(child: "subprocess.Popen[str]") -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def gone(instance: str) -> None:
    until(lambda: not processes.members(instance), f"nothing left of {instance}")


def told_to(name: str, **more: Any) -> dict[str, Any]:
    return {"worker_args": [name], **more}
