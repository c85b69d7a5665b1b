"""Budgets from manifests and reports, holders of real processes, room made and shared."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from remote_resident import admission, places, room
from remote_resident.admission import (
    UNKNOWN,
    Budget,
    Gpu,
    GpuProcess,
    Holder,
    Memory,
    Readings,
    Verdict,
)
from remote_resident.errors import AdmissionRefused, UsageError
from remote_resident.manifest import ProviderManifest, effective_digest, load
from remote_resident.reservation import reserved
from remote_resident.start_command import size_of
from remote_resident.supervisor import ResidentWorker, run_once
from remote_resident.worker_side import worker_base

GIB = 2**30
HOST = Memory(total_gb=128, free_gb=100, available_gb=110)
CARD = Gpu(index=0, uuid="GPU-0", name="Card", total_gb=80, free_gb=80)
NO_CARD = Readings(HOST, [])
ONE_CARD = Readings(HOST, [CARD])

GPU = '[gpu]\npolicy = "required"\nvram_budget_gb = 20\n'
UNMEASURED = '[gpu]\npolicy = "required"\nbudget_unmeasured = true\n'
LADDER = "".join(
    f"[[gpu.ladder]]\nsize = {size}\npeak_gb = {peak}\n"
    for size, peak in ((256, 6), (512, 11), (1024, 19))
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "a tree"
    (root / "manifests").mkdir(parents=True)
    return root


def provider(
    tree: Path, gpu: str = "", *, ram: str = "ram_budget_gb = 1", slug: str = "echo"
) -> ProviderManifest:
    folder = tree / "manifests" / slug
    folder.mkdir()
    (folder / "w.py").write_text("")
    (folder / "provider.toml").write_text(
        f'slug = "{slug}"\n[runtime]\nworker = "w.py"\n{gpu}[host]\n{ram}\n'
        '[env]\npython = "$P"\n[smoke]\nrequest = { a = 1 }\n'
    )
    return load(folder / "provider.toml", tree)


def report(manifest: ProviderManifest, *, digest: str = "", **memory: int) -> None:
    path = places.measured_path(manifest.slug, manifest.tree)
    path.parent.mkdir(parents=True)
    lines = [f"{name} = {value}" for name, value in memory.items()]
    made_by = digest or effective_digest(manifest)
    path.write_text("\n".join([f'[inputs]\nmanifest = "{made_by}"\n[memory]', *lines]))


def numbers(budget: Budget) -> tuple[float | None, float | None, str]:
    return budget.vram_gb, budget.ram_gb, budget.source


# budgets


def test_a_budget_is_what_is_declared(tree: Path) -> None:
    assert numbers(room.budget_of(provider(tree, GPU))) == (20, 1, "declared")


def test_a_provider_without_a_device_wants_none(tree: Path) -> None:
    assert numbers(room.budget_of(provider(tree))) == (0, 1, "declared")


def test_a_peak_measured_above_the_declared_budget_stands_for_it(tree: Path) -> None:
    manifest = provider(tree, GPU)
    report(manifest, device_peak_bytes=25 * GIB, rss_peak_bytes=GIB // 2)

    found = numbers(room.budget_of(manifest))

    assert found == (25, 1, "VRAM measured, RAM declared")


def test_a_report_supplies_the_budget_that_nobody_declared(tree: Path) -> None:
    manifest = provider(tree, UNMEASURED, ram="ram_budget_unmeasured = true")
    assert numbers(room.budget_of(manifest)) == (None, None, "not declared")

    report(manifest, device_peak_bytes=25 * GIB, rss_peak_bytes=2 * GIB)

    assert numbers(room.budget_of(manifest)) == (25, 2, "measured")


def test_a_report_of_another_manifest_may_raise_a_budget_not_supply_one(
    tree: Path,
) -> None:
    unmeasured = provider(tree, UNMEASURED)
    report(unmeasured, digest="0" * 64, device_peak_bytes=GIB, rss_peak_bytes=3 * GIB)

    found = numbers(room.budget_of(unmeasured))

    assert found == (None, 3, "VRAM not declared, RAM measured")


@pytest.mark.parametrize(
    "text",
    ["", "not toml [", "memory = 3", "[memory]\nx = 1", "a = " + "[" * 9999],
    ids=lambda text: text[:12],
)
def test_a_damaged_report_is_none(tree: Path, text: str) -> None:
    manifest = provider(tree, GPU)
    path = places.measured_path("echo", tree)
    path.parent.mkdir(parents=True)
    path.write_text(text)

    assert numbers(room.budget_of(manifest)) == (20, 1, "declared")


@pytest.mark.parametrize("peak", [-GIB, 2**63, 2**4000])
def test_a_peak_that_no_machine_has_is_not_known(tree: Path, peak: int) -> None:
    manifest = provider(tree, UNMEASURED)
    report(manifest, device_peak_bytes=peak, rss_peak_bytes=peak)

    assert numbers(room.budget_of(manifest)) == (
        None,
        1,
        "VRAM not declared, RAM declared",
    )


@pytest.mark.parametrize(
    ("size", "vram", "source"),
    [
        (None, 20, "declared"),
        (1, 6, "VRAM ladder at 256, RAM declared"),
        (256, 6, "VRAM ladder at 256, RAM declared"),
        (257, 11, "VRAM ladder at 512, RAM declared"),
        (1025, 20, "declared"),
    ],
)
def test_a_request_is_budgeted_by_the_ladders_next_step_up(
    tree: Path, size: int | None, vram: float, source: str
) -> None:
    budget = room.budget_of(provider(tree, GPU + LADDER), size=size)

    assert numbers(budget) == (vram, 1, source)


# the decision on this provider


def test_the_smoke_of_an_unmeasured_provider_runs_and_nothing_else_does(
    tree: Path,
) -> None:
    manifest = provider(tree, UNMEASURED)

    plain = room.room_for(manifest, readings=ONE_CARD, held=[])
    smoke = room.room_for(manifest, readings=ONE_CARD, held=[], smoke=True)

    assert (plain.admit, plain.reason) == (False, "budget_unknown")
    assert (smoke.admit, smoke.device) == (True, "GPU-0")


def test_an_optional_device_is_done_without_where_there_is_none(tree: Path) -> None:
    manifest = provider(tree, '[gpu]\npolicy = "optional"\nvram_budget_gb = 20\n')

    assert room.room_for(manifest, readings=NO_CARD, held=[]).admit
    assert room.room_for(manifest, readings=ONE_CARD, held=[]).device == "GPU-0"


def test_an_optional_device_that_the_operator_hides_is_done_without(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = provider(tree, '[gpu]\npolicy = "optional"\nvram_budget_gb = 20\n')
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    verdict = room.room_for(manifest, readings=ONE_CARD, held=[])

    assert (verdict.admit, verdict.device) == (True, None)


def test_the_manifests_pin_is_above_the_operators(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = provider(tree, GPU)
    pinned = replace(manifest, env_vars={"CUDA_VISIBLE_DEVICES": "GPU-1"})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-0")
    two = Readings(HOST, [CARD, replace(CARD, index=1, uuid="GPU-1")])

    assert room.room_for(manifest, readings=two, held=[]).device == "GPU-0"
    assert room.room_for(pinned, readings=two, held=[]).device == "GPU-1"


def other(ram: float, **more: object) -> Holder:
    said: dict[str, object] = {
        "slug": "other",
        "tree": "/b",
        "instance": "i",
        "pids": (11,),
        "uid": os.geteuid(),
        "device": None,
        "budget": Budget(0.0, ram, "declared"),
        "loading": False,
        "resident_gb": ram,
    }
    return Holder(**{**said, **more})  # type: ignore[arg-type]


def test_only_the_instance_that_is_replaced_is_left_out(tree: Path) -> None:
    manifest = provider(tree, ram="ram_budget_gb = 70")
    held = [other(70, instance="mine"), other(70, instance="theirs")]

    def admits(held: list[Holder], own: str | None) -> bool:
        found = room.room_for(manifest, own_instance=own, readings=NO_CARD, held=held)
        return found.admit

    assert admits(held[:1], "mine")
    assert not admits(held[:1], "none")
    assert not admits(held, "mine")


def test_the_processes_of_who_is_replaced_are_no_co_tenants(tree: Path) -> None:
    manifest = provider(tree, GPU)
    gpu = replace(CARD, unified=True, processes=(GpuProcess(pid=11),))
    mem = Memory(total_gb=121, free_gb=5, available_gb=60.4)
    held = [other(1, instance="mine", pids=(11,))]

    verdict = room.room_for(
        manifest, own_instance="mine", readings=Readings(mem, [gpu]), held=held
    )

    assert verdict.admit, verdict.text
    assert verdict.as_dict()["co_tenants"] == []


def test_a_slug_is_looked_up_in_the_tree_in_force(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider(tree)
    monkeypatch.setenv("TU_REMOTE_TREE", str(tree))

    assert room.room_for("echo", readings=NO_CARD, held=[]).admit
    with pytest.raises(UsageError):
        room.room_for("ehco", readings=NO_CARD, held=[])


# who holds, from real processes

SIT = """\
#!/bin/sh
echo there
read -r over
"""

Sit = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def sit(tmp_path: Path) -> Iterator[Sit]:
    script = tmp_path / "sit.sh"
    script.write_text(SIT)
    started: list[subprocess.Popen[bytes]] = []

    def start(tree: Path, slug: str, *more: str) -> subprocess.Popen[bytes]:
        argv = [
            "sh",
            str(script),
            "--resident-slug",
            slug,
            "--resident-tree",
            str(tree),
        ]
        argv += ["--resident-instance", f"{slug}-{len(started)}", *more]
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"there\n"
        return child

    yield start
    for child in started:
        child.communicate()


def held_in(tree: Path) -> list[Holder]:
    return [holder for holder in room.holders() if holder.tree == str(tree)]


def test_another_checkouts_worker_counts_by_its_own_manifest(
    tree: Path, sit: Sit, tmp_path: Path
) -> None:
    mine = provider(tree, ram="ram_budget_gb = 28")
    elsewhere = tmp_path / "elsewhere"
    provider(elsewhere_made(elsewhere), ram="ram_budget_gb = 12")
    sit(elsewhere, "echo")
    forty = Readings(Memory(total_gb=40, free_gb=38, available_gb=38), [])

    verdict = room.room_for(mine, readings=forty, held=held_in(elsewhere))

    assert (verdict.admit, verdict.reason) == (False, "no_room")
    assert "44.0 GiB of host memory would be declared, 40 GiB are there" in verdict.text
    assert f"echo ({elsewhere}, pid " in verdict.text


def elsewhere_made(path: Path) -> Path:
    (path / "manifests").mkdir(parents=True)
    return path


def test_a_holder_outside_of_any_tree_is_found_by_its_manifests_directory(
    tree: Path, sit: Sit
) -> None:
    provider(tree, ram="ram_budget_gb = 3")
    where = tree / "manifests/echo"
    sit(where, "echo", "--manifest-dir", str(where))

    assert [holder.budget.ram_gb for holder in held_in(where)] == [3]


def test_a_holder_is_not_believed_to_be_another_provider(tree: Path, sit: Sit) -> None:
    provider(tree)
    sit(tree, "another", "--manifest-dir", str(tree / "manifests/echo"))

    assert [holder.budget for holder in held_in(tree)] == [UNKNOWN]


def test_many_providers_are_judged_on_one_reading(tree: Path) -> None:
    small = provider(tree)
    large = provider(tree, ram="ram_budget_gb = 1000000", slug="large")

    verdicts = room.rooms_for([small, large])

    assert [verdict.slug for verdict in verdicts] == ["echo", "large"]
    assert not verdicts[1].admit
    assert verdicts[0].readings == verdicts[1].readings


@pytest.mark.parametrize("text", [None, "slug = 3", 'slug = "another"'])
def test_a_holder_whose_manifest_cannot_be_read_is_unknown_and_refuses_by_name(
    tree: Path, sit: Sit, text: str | None
) -> None:
    mine = provider(tree)
    child = sit(tree, "gone")
    if text is not None:
        (tree / "manifests/gone").mkdir()
        (tree / "manifests/gone/provider.toml").write_text(text)

    held = held_in(tree)
    verdict = room.room_for(mine, readings=NO_CARD, held=held)

    assert [holder.budget for holder in held] == [UNKNOWN]
    assert (verdict.admit, verdict.reason) == (False, "budget_unknown")
    assert f"held by gone ({tree}, pid {child.pid})" in verdict.text


def test_who_is_older_than_a_load_may_last_has_loaded(tree: Path) -> None:
    manifest = provider(tree)
    young = other(1, loading=None, started=2**40)
    old = replace(young, started=1.0)

    assert room._budgeted(young, manifest).loading is True
    assert room._budgeted(old, manifest).loading is False


# the daemon's records


def test_a_service_of_the_daemon_is_a_holder_by_its_record(tmp_path: Path) -> None:
    record = {
        "slug": "boltz2-service",
        "tree": None,
        "instance": "i",
        "pids": [5, 6],
        "device": "GPU-0",
        "vram_gb": 12,
        "ram_gb": None,
        "loading": False,
        "boot_id": room.boot_id(),
    }
    (tmp_path / "boltz2-service.json").write_text(json.dumps(record))

    [found] = room.recorded(tmp_path)

    assert (found.slug, found.pids, found.loading) == ("boltz2-service", (5, 6), False)
    assert found.budget == Budget(12.0, None, "registered")


def test_a_record_of_an_earlier_boot_is_of_nobody(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"slug": "a", "boot_id": "another"}')

    assert room.recorded(tmp_path) == []
    assert room.recorded(tmp_path / "none") == []


@pytest.mark.parametrize("text", ["{", "[" * 99999], ids=["cut", "deep"])
def test_a_record_that_cannot_be_read_is_somebodys(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)

    [found] = room.recorded(tmp_path)

    assert (found.slug, found.budget.vram_gb, found.budget.ram_gb) == ("a", None, None)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "-5", "9" * 400])
def test_a_recorded_budget_that_is_no_amount_is_unknown(
    tmp_path: Path, number: str
) -> None:
    (tmp_path / "a.json").write_text(f'{{"vram_gb": {number}, "ram_gb": {number}}}')

    [found] = room.recorded(tmp_path)

    assert (found.budget.vram_gb, found.budget.ram_gb) == (None, None)


def test_a_manifest_is_not_looked_for_where_the_reader_stands(
    tree: Path, sit: Sit, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider(tree, ram="ram_budget_gb = 3")
    monkeypatch.chdir(tree.parent)
    beside = Path(tree.name)
    sit(beside, "echo")
    sit(beside, "echo", "--manifest-dir", "manifests/echo")
    monkeypatch.chdir(tree)
    sit(beside, "echo", "--manifest-dir", "manifests/echo")

    assert [holder.budget for holder in held_in(beside)] == [UNKNOWN] * 3


def test_what_is_no_regular_file_is_not_waited_for(tree: Path, tmp_path: Path) -> None:
    manifest = provider(tree, GPU)
    path = places.measured_path("echo", tree)
    for fifo in (path, tmp_path / "held/a.json"):
        fifo.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(fifo)

    assert numbers(room.budget_of(manifest)) == (20, 1, "declared")
    assert [holder.slug for holder in room.recorded(tmp_path / "held")] == ["a"]


# making room


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


def test_the_least_recently_used_are_retired_and_said() -> None:
    host = Machine(*many("a", "b", "c", "d"))

    verdict, gone = host.make_room({"a": 5.0, "b": 50.0, "c": 500.0, "d": 1.0})

    assert verdict.admit
    assert host.retired == [one.slug for one in gone] == ["c", "b"]
    assert verdict.text.endswith("retired to make room: c (/b, pid 11), b (/b, pid 11)")


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
    assert select.select([ready], [], [], 30)[0]
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


# two starts at once

STARTER = """
import subprocess, sys
from pathlib import Path
from remote_resident import admission, reservation, room
from remote_resident.admission import Memory, Readings
from remote_resident.manifest import load
tree, lock, sit, slug = map(Path, sys.argv[1:5])
manifest = load(tree / "manifests" / slug / "provider.toml", tree)
# 10 GiB beside the reserve, of which each of the two wants 6
readings = Readings(Memory(total_gb=14, free_gb=14, available_gb=14), [])
worker = None
print("ready", flush=True)
for number, _ in enumerate(sys.stdin):
    if worker:
        worker.communicate()
        worker = None
        print("ended", flush=True)
        continue
    argv = ["sh", str(sit), "--resident-slug", str(slug), "--resident-tree", str(tree)]
    argv += ["--resident-instance", f"{slug}-{number}"]
    with reservation.reserve(places=[lock]):
        held = [h for h in room.holders() if h.tree == str(tree)]
        verdict = room.room_for(manifest, readings=readings, held=held)
        if verdict.admit:
            worker = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
    print("started" if worker else verdict.reason, flush=True)
"""


def test_of_two_starts_at_once_that_fit_only_singly_exactly_one_starts(
    tree: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    lock = tmp_path / "lock"
    lock.mkdir()
    lock.chmod(0o1777)
    (tmp_path / "sit.sh").write_text(SIT)
    starters = []
    for slug in ("one", "two"):
        provider(tree, ram="ram_budget_gb = 6", slug=slug)
        argv = [str(tree), str(lock), str(tmp_path / "sit.sh"), slug]
        starters.append(
            subprocess.Popen(
                [sys.executable, "-c", STARTER, *argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
        )
    assert said(starters) == ["ready", "ready"]
    for _ in range(200 if pytestconfig.getoption("--long") else 20):
        tell(starters)
        answers = said(starters)
        assert sorted(answers) == ["no_room", "started"]
        winner = [starters[answers.index("started")]]
        tell(winner)
        assert said(winner) == ["ended"]
    for starter in starters:
        starter.communicate()


def tell(starters: list[subprocess.Popen[str]]) -> None:
    for starter in starters:
        assert starter.stdin is not None
        starter.stdin.write("go\n")


def said(starters: list[subprocess.Popen[str]]) -> list[str]:
    return [starter.stdout.readline().strip() for starter in starters if starter.stdout]


def test_a_start_that_is_refused_leaves_the_reservation_free(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    too_much = provider(tree, ram="ram_budget_gb = 1000000")
    for _ in range(2):
        with pytest.raises(AdmissionRefused), reserved(too_much, wait_s=30):
            raise AssertionError("admitted")


def test_a_request_that_says_its_size_is_admitted_by_the_ladder(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("P", sys.executable)
    steps = "[[host.ladder]]\nsize = 100\npeak_gb = 1000000\n"
    stepped = provider(tree, ram=f"ram_budget_gb = 1\n{steps}")
    asked = {"size": 50}
    held = ResidentWorker(stepped)
    for ask in (lambda: run_once(stepped, asked), lambda: held.request(asked)):
        with pytest.raises(AdmissionRefused) as caught:
            ask()
        verdict = caught.value.verdict
        assert isinstance(verdict, Verdict)
        assert verdict.budget.source == "ladder at 100"
    assert size_of({"size": "50"}) is size_of({"size": True}) is size_of({}) is None
