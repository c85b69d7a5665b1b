"""Room that is made: who is idle, who is retired, and memory that returns in its time."""

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_room import held_in, other, provider

from remote_resident import admission, room
from remote_resident.admission import Budget, Holder, Memory, Readings, Verdict
from remote_resident.worker_side import worker_base


class Machine:
    """A host whose workers are retired by word, and whose memory returns in its time."""

    def __init__(self, *held: Holder, late: int = 0) -> None:
        self.held = list(held)
        self.free = 110.0 - sum(h.resident_gb or 0.0 for h in held)
        self.late = late
        self.asked: list[str] = []
        self.retired: list[str] = []

    def decide(self) -> Verdict:
        if self.retired and self.late:
            self.late -= 1
        gone = 0.0 if self.late else 110.0 - self.free
        left = sum(h.resident_gb or 0.0 for h in self.held)
        free = self.free + max(0.0, gone - left)
        mem = Memory(total_gb=128, free_gb=free, available_gb=free)
        budget = Budget(0.0, 60.0, "declared")
        return admission.decide("mine", budget, self.held, readings=Readings(mem, []))

    def retire(self, holder: Holder) -> None:
        self.held.remove(holder)
        self.retired.append(holder.slug)

    def make_room(
        self, idle: dict[str, float | None], wait_s: float = 10.0
    ) -> tuple[Verdict, list[Holder]]:
        def idle_s(holder: Holder) -> float | None:
            self.asked.append(holder.slug)
            return idle[holder.slug]

        return room.make_room(
            self.decide(), self.decide, idle_s=idle_s, retire=self.retire, wait_s=wait_s
        )


def many(*slugs: str, ram: float = 20) -> list[Holder]:
    return [other(ram, slug=slug, instance=slug) for slug in slugs]


def test_the_least_recently_used_are_retired_and_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = Machine(*many("a", "b", "c", "d"))

    verdict, gone = host.make_room({"a": 5.0, "b": 50.0, "c": 500.0, "d": 1.0})

    assert verdict.admit
    assert host.retired == [one.slug for one in gone] == ["c", "b"]
    told = "retired to make room: c (/b, pid 11), b (/b, pid 11)"
    assert verdict.text.endswith(told)
    # whoever is admitted sees no verdict
    assert f"{verdict.slug}: {told}" in caplog.messages


def test_the_busy_are_never_retired() -> None:
    host = Machine(*many("a", "b", "c", "d"))

    verdict, gone = host.make_room(dict.fromkeys("abcd", None) | {"d": 1.0})

    assert (verdict.admit, gone, host.retired) == (False, [], [])


def test_another_users_workers_are_not_even_asked() -> None:
    host = Machine(*many("a", "b"), other(40, slug="theirs", uid=os.geteuid() + 1))

    verdict, gone = host.make_room({"a": 1.0, "b": 2.0})

    assert verdict.admit
    assert [one.slug for one in gone] == ["b", "a"]
    assert host.asked == ["a", "b"]


def test_memory_that_comes_back_late_is_waited_for() -> None:
    host = Machine(*many("a", "b", "c", "d"), late=4)

    verdict, gone = host.make_room(dict.fromkeys("abcd", 1.0))

    assert verdict.admit
    assert len(gone) == 2
    assert host.late == 0


def test_memory_that_does_not_come_back_is_not_waited_for_for_ever() -> None:
    host = Machine(*many("a", "b", "c", "d"), late=10**9)

    verdict, gone = host.make_room(dict.fromkeys("abcd", 1.0), wait_s=0.2)

    assert (verdict.admit, len(gone)) == (False, 2)
    assert "retired to make room" in verdict.text


@pytest.fixture
def worker(tree: Path, tmp_path: Path) -> Iterator[Holder]:
    """A real worker of the tree that answers slowly when asked to wait."""
    provider(tree)
    script = tmp_path / "slow.py"
    script.write_text(
        "def build(config):\n    return None\n"
        "def predict(model, request):\n    open(request['fifo']).read()\n    return {}\n"
    )
    path = tmp_path / "w.sock"
    ready, write = os.pipe()
    argv = [sys.executable, worker_base.__file__, "--resident-slug", "echo"]
    argv += ["--resident-tree", str(tree), "--resident-instance", f"w-{os.getpid()}"]
    argv += ["--socket", str(path), "--ready-fd", str(write), "--script", str(script)]
    child = subprocess.Popen(argv, pass_fds=[write], start_new_session=True)
    os.close(write)
    assert select.select([ready], [], [], 60)[0]
    os.close(ready)
    [found] = held_in(tree)
    yield found
    room.end(found)
    child.wait(30)


def test_an_idle_worker_is_asked_and_ended(worker: Holder) -> None:
    idle = room.ask_idle_s(worker)

    assert worker.loading is False
    assert idle is not None
    assert 0 <= idle < 60
    room.end(worker)
    assert worker.tree is not None
    assert held_in(Path(worker.tree)) == []


def test_a_busy_worker_is_not_idle(worker: Holder, tmp_path: Path) -> None:
    from remote_resident import client

    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert worker.socket is not None
    channel = client.connect(Path(worker.socket))
    channel.send({"op": "predict", "fifo": str(fifo), "events": True}, 5)
    while (event := channel.next(30)) is not None and event["event"] != "started":
        pass

    idle = room.ask_idle_s(worker)
    fifo.write_text("")
    channel.next(30)
    channel.close()

    assert idle is None


def test_a_worker_that_cannot_be_asked_is_not_idle(tmp_path: Path) -> None:
    assert room.ask_idle_s(other(1, socket=str(tmp_path / "none"))) is None
    assert room.ask_idle_s(other(1, socket=None)) is None
