"""The resident runtime as a caller has it: `ResidentWorker`, its starts, its memory.

Each row is the ratio of two medians taken interleaved and shuffled in one run. `--quick`:
fewer rounds, the rows are then only an indication. The providers whose environment is set
up in TU_REMOTE_HOME are asked held and fresh.
"""

import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench_socket import SMALL, echoing
from interleaved import medians, show

from remote_resident import manifest, places
from remote_resident.errors import ProviderError
from remote_resident.manifest import ProviderManifest
from remote_resident.supervisor import ResidentWorker, run_once
from remote_resident.worker_side import protocol

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import small_provider  # noqa: E402  (from the folder that was just added)

X = {"x": SMALL["x"]}


def main(quick: bool) -> None:
    """Print the rows of the runtime."""
    with small_home() as place:
        small_request(place, quick)
        start_beside_a_gibibyte(place, quick)
        ten_thousand(place, 1_000 if quick else 10_000)
    for provider in set_up():
        held_and_fresh(provider, quick)


def small_request(place: Path, quick: bool) -> None:
    """One small dict in flight, through the class that a caller uses."""
    with echoing(place / "raw.sock") as raw, held(tiny(place)) as worker:
        message = protocol.encode_line(SMALL)

        def echo() -> None:
            raw.sendall(message)
            raw.recv(65536)

        taken = medians(
            {"echo": echo, "request": lambda: worker.request(X)},
            rounds=10 if quick else 60,
            calls=100,
        )
    show("ResidentWorker.request", taken["request"], taken["echo"], "<= 2.4")


def start_beside_a_gibibyte(place: Path, quick: bool) -> None:
    """A start to its first answer, by a process that holds 1 GiB and by one that does not."""
    ballast: list[bytearray] = []
    spent: list[float] = []

    def start() -> None:
        with held(tiny(place)) as worker:
            worker.request(X)
            spent.append(time.perf_counter())

    rounds = 5 if quick else 15
    times: dict[str, list[float]] = {"light": [], "heavy": []}
    for number in range(2 * rounds):
        name = ("light", "heavy")[number % 2]
        if name == "heavy":
            ballast.append(bytearray(os.urandom(4096) * (2**30 // 4096)))
        begun = time.perf_counter()
        start()
        times[name].append(spent[-1] - begun)
        ballast.clear()
    light, heavy = (statistics.median(times[name]) for name in ("light", "heavy"))
    show("start with 1 GiB in the caller", heavy, light, "<= 1.5")


def ten_thousand(place: Path, count: int) -> None:
    """What so many requests add to the worker's memory and descriptors."""
    with held(tiny(place, "counts", runtime={"worker_args": ["/dev/null"]})) as worker:
        for _ in range(100):
            worker.request({})
        before = worker.request({})
        for _ in range(count):
            worker.request({})
        after = worker.request({})
    grown = after["_meter"]["rss_bytes"] - before["_meter"]["rss_bytes"]
    print(
        f"{f'{count} requests':40} {grown:10d} B of memory more "
        f"{after['fds'] - before['fds']:4d} descriptors more   goal 0"
    )


def held_and_fresh(provider: ProviderManifest, quick: bool) -> None:
    """One provider's own smoke request, held and by a process of its own."""
    request = dict(provider.smoke_request or {})
    with held(provider) as worker:
        worker.request(request)
        asked = medians(
            {
                "held": lambda: worker.request(request),
                "fresh": lambda: run_once(provider, request, admit=None),
            },
            rounds=2 if quick else 5,
        )
    held_s, fresh_s = asked["held"], asked["fresh"]
    print(
        f"{f'{provider.slug}: held against fresh':40} {held_s * 1e3:10.3f} ms "
        f"{fresh_s * 1e3:10.3f} ms {held_s / fresh_s:8.3f}  reported"
    )


def set_up() -> Iterator[ProviderManifest]:
    """Give the resident providers of this tree whose environment and weights are here."""
    for slug, found in manifest.catalog(ROOT).items():
        if isinstance(found, Exception) or found.runtime_mode != "resident":
            continue
        measured = places.measured_path(slug, found.tree)
        try:
            is_there = measured.exists() and not found.verify_weights()
        except ProviderError:
            is_there = False
        if is_there:
            yield found
        else:
            print(f"{f'{slug}: held against fresh':40} not set up here")


def tiny(place: Path, script: str = "echo", **tables: object) -> ProviderManifest:
    """Give a provider around one of tests/workers."""
    return small_provider.provider(place / f"tree of {script}", script, **tables)


@contextlib.contextmanager
def held(provider: ProviderManifest) -> Iterator[ResidentWorker]:
    """Hold a provider's worker."""
    worker = ResidentWorker(provider, admit=None)
    try:
        worker.ensure_started()
        yield worker
    finally:
        worker.stop()


@contextlib.contextmanager
def small_home() -> Iterator[Path]:
    """Keep what the small workers leave out of the user's own places."""
    before = os.environ.get("TU_REMOTE_HOME")
    place = Path(tempfile.mkdtemp())
    os.environ["TU_REMOTE_HOME"] = str(place)
    try:
        yield place
    finally:
        if before is None:
            del os.environ["TU_REMOTE_HOME"]
        else:
            os.environ["TU_REMOTE_HOME"] = before
        shutil.rmtree(place)


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
