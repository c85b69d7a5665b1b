"""What stays of a smoke that is interrupted, left alone or killed: nothing."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_smoke import (
    HANGS,
    LEAVES_A_CHILD,
    SCRIPTS,
    assert_nothing_left,
    corners,
    made,
    provider,
    runs,
)

from remote_resident import places, processes, supervisor
from remote_resident.errors import AdmissionRefused
from tasks import smoke
from tasks.step import Progress


def test_a_smoke_that_is_interrupted_leaves_no_worker(tmp_path: Path) -> None:
    tiny = provider(tmp_path, HANGS)
    making = smoke.make(tiny, admit=None)
    _until(making, "first request")
    assert processes.instances(tiny.slug, str(tiny.tree)) != []
    with pytest.raises(KeyboardInterrupt):
        making.throw(KeyboardInterrupt())
    assert_nothing_left(tiny)
    assert corners() == []


@pytest.mark.parametrize("kind", ["request", "script"])
def test_a_smoke_that_is_left_alone_keeps_no_directory(
    tmp_path: Path, kind: str
) -> None:
    tiny = provider(tmp_path, HANGS)
    if kind == "script":
        (tiny.directory / "smoke.py").write_text(SCRIPTS["hangs"][0])
        tiny = provider(tmp_path, whole={"smoke": {"script": "smoke.py"}})
    making = smoke.make(tiny, admit=None)
    if kind == "request":
        _until(making, "first request")
    else:
        next(making)
    assert len(corners()) == 1
    making.close()
    assert_nothing_left(tiny)
    assert corners() == []


SMOKES = """
import sys
from pathlib import Path
from remote_resident import manifest
from tasks import smoke
for _ in smoke.make(manifest.load(Path(sys.argv[1])), admit=None):
    pass
"""


def test_what_a_killed_smoke_left_ends_with_the_next_one(tmp_path: Path) -> None:
    asked = {"op": "answer", "hang": True}
    slow = {"request": asked, "timeout_s": 600.0}
    tiny = provider(tmp_path, LEAVES_A_CHILD, smoke=slow)
    argv = [sys.executable, "-c", SMOKES, str(tiny.path)]
    with subprocess.Popen(argv, cwd=Path(smoke.__file__).parents[1]) as killed:
        try:
            pids = _first_pids(places.cache_dir() / "pids")
        finally:
            killed.kill()
    (left,) = processes.instances(tiny.slug, str(tiny.tree))
    assert left.leader is not None
    pids.append(str(left.leader.pid))
    assert all(map(runs, pids))

    # a refusal to start is enough: nothing of the next smoke ends it
    def admit(candidate: object) -> object:
        raise AdmissionRefused("no room", verdict=None, reason="no_room")

    _, said = made(smoke.make(tiny, admit=admit))
    assert not [pid for pid in pids if runs(pid)]
    (told,) = [line for line in said if isinstance(line, str)]
    ended = "ended what an earlier smoke left: process "
    assert told.startswith(ended)
    assert set(told.removeprefix(ended).split(", ")) >= set(pids)
    assert_nothing_left(tiny)


@pytest.mark.parametrize("own_work_root", [False, True])
def test_the_places_of_a_killed_smoke_go_with_the_next_one(
    tmp_path: Path, own_work_root: bool
) -> None:
    asked = {"op": "answer", "hang": True}
    base = tmp_path / "work" if own_work_root else places.cache_dir() / "smoke"
    tiny = provider(
        tmp_path,
        LEAVES_A_CHILD,
        smoke={"request": asked, "timeout_s": 600.0},
        runtime={"work_root": str(base)} if own_work_root else {},
    )
    argv = [sys.executable, "-c", SMOKES, str(tiny.path)]
    with subprocess.Popen(argv, cwd=Path(smoke.__file__).parents[1]) as killed:
        try:
            _first_pids(base.parent / "pids")
        finally:
            killed.kill()
            for left in processes.instances(tiny.slug, str(tiny.tree)):
                processes.end_all(left.instance, grace_s=0.0)
    (corner,) = base.iterdir()
    (room,) = places.runtime_dir().glob("s-*")

    def admit(candidate: object) -> object:
        raise AdmissionRefused("no room", verdict=None, reason="no_room")

    # the same name in another tree is another provider
    made(smoke.make(provider(tmp_path / "another tree"), admit=admit))
    assert corner.exists() and room.exists()

    made(smoke.make(tiny, admit=admit))
    assert not corner.exists()
    assert_nothing_left(tiny)


def test_a_worker_that_is_no_smokes_outlives_one(tmp_path: Path) -> None:
    tiny = provider(tmp_path)
    worker = supervisor.ResidentWorker(tiny, admit=None)
    started = worker.ensure_started()
    try:
        assert made(smoke.make(tiny, admit=None))[0].verdict == "done"
        assert runs(str(started.pid))
    finally:
        worker.stop()


def _first_pids(path: Path) -> list[str]:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if path.exists() and (pids := path.read_text()).endswith(" "):
            return pids.split()
        time.sleep(0.02)
    raise AssertionError(f"{path}: not written")


def _until(making: Iterator[str | Progress], text: str) -> None:
    for said in making:
        if isinstance(said, Progress) and said.text == text:
            return
    raise AssertionError(f"over before {text}")
