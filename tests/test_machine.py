"""Readings of trees that stand in for /proc, of small programs that stand in for
nvidia-smi, and of real processes of this machine."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from seconds import within

from remote_resident import machine
from remote_resident.admission import UNKNOWN, Gpu, GpuProcess, Holder, Memory

PROGRAMS = Path(__file__).parent / "nvidia"
GIB = 2**30
MEMINFO = """\
MemTotal:       33554432 kB
MemFree:         8388608 kB
MemAvailable:   16777216 kB
Cached:          4194304 kB
SwapTotal:       2097152 kB
SwapFree:        1048576 kB
HugePages_Total:       0
"""


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


# memory


def memory(tmp_path: Path, cgroup: str, files: dict[str, str]) -> Memory:
    proc = tree(tmp_path / "proc", {"meminfo": MEMINFO, "self/cgroup": cgroup})
    return machine.meminfo(proc, tree(tmp_path / "cg", files))


def test_meminfo_is_the_kernels_where_no_cgroup_limits(tmp_path: Path) -> None:
    assert memory(tmp_path, "0::/\n", {"cgroup.controllers": ""}) == Memory(
        total_gb=32,
        free_gb=8,
        available_gb=16,
        cached_gb=4,
        swap_total_gb=2,
        swap_free_gb=1,
        source="MemTotal",
    )


def test_a_cgroup_lowers_what_there_is_of_swap(tmp_path: Path) -> None:
    files = {"memory.swap.max": f"{GIB}\n", "memory.swap.current": f"{GIB // 4}\n"}
    none = {"job/memory.swap.max": "0\n", "job/memory.swap.current": "0\n"}

    found = memory(tmp_path, "0::/\n", files)
    without = memory(tmp_path, "0::/job\n", none)

    assert (found.swap_total_gb, found.swap_free_gb) == (1, 0.75)
    assert (without.swap_total_gb, without.swap_free_gb) == (0, 0)


def v2(
    limit: int | str, current: int, inactive: int = 0, at: str = ""
) -> dict[str, str]:
    return {
        f"{at}memory.max": f"{limit}\n",
        f"{at}memory.current": f"{current}\n",
        f"{at}memory.stat": f"anon 1\ninactive_file {inactive}\nfile {inactive}\n",
    }


def three(found: Memory) -> tuple[float | None, float | None, float | None]:
    return found.total_gb, found.free_gb, found.available_gb


def test_a_cgroup_of_version_2_lowers_what_there_is(tmp_path: Path) -> None:
    files = v2(12 * GIB, 9 * GIB, 2 * GIB, at="user/job/")

    found = memory(tmp_path, "0::/user/job\n", files)

    assert three(found) == (12, 3, 5)
    assert found.source == f"cgroup {tmp_path}/cg/user/job"


def test_a_cgroup_of_version_1_lowers_what_there_is(tmp_path: Path) -> None:
    files = {
        "memory/job/memory.limit_in_bytes": f"{12 * GIB}",
        "memory/job/memory.usage_in_bytes": f"{9 * GIB}",
        "memory/job/memory.stat": f"total_inactive_file {GIB}\ntotal_cache {GIB}\n",
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/memory.usage_in_bytes": "0",
    }

    found = memory(tmp_path, "4:cpu,memory:/job\n0::/\n", files)

    assert three(found) == (12, 3, 4)


def test_an_enclosing_cgroup_that_others_filled_counts(tmp_path: Path) -> None:
    files = v2(8 * GIB, 0, at="a/b/") | v2(16 * GIB, 15 * GIB, at="a/")

    assert three(memory(tmp_path, "0::/a/b\n", files)) == (8, 1, 1)


def test_a_container_is_limited_by_the_top_of_what_it_sees(tmp_path: Path) -> None:
    found = memory(tmp_path, "0::/../../docker/17\n", v2(4 * GIB, GIB))

    assert three(found) == (4, 3, 3)


def test_an_unlimited_cgroup_changes_nothing(tmp_path: Path) -> None:
    assert three(memory(tmp_path, "0::/\n", v2("max", 9 * GIB))) == (32, 8, 16)


def test_a_limit_whose_use_cannot_be_read_leaves_nothing_known_free(
    tmp_path: Path,
) -> None:
    found = memory(tmp_path, "0::/\n", {"memory.max": f"{12 * GIB}"})

    assert three(found) == (12, None, None)


def test_what_the_kernel_does_not_say_is_unknown_not_zero(tmp_path: Path) -> None:
    proc = tree(tmp_path, {"meminfo": "MemTotal: 1048576 kB\n"})

    assert three(machine.meminfo(proc, tmp_path)) == (1, None, None)
    assert three(machine.meminfo(tmp_path / "none", tmp_path)) == (None, None, None)


def test_this_machine_has_memory_and_a_name() -> None:
    found = machine.meminfo()
    facts = machine.facts()

    assert found.total_gb is not None
    assert found.available_gb is not None
    assert 0 < found.available_gb <= found.total_gb
    assert facts["hostname"] == socket.gethostname()
    assert facts["memory_bytes"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf(
        "SC_PAGE_SIZE"
    )


def test_facts_are_those_of_the_files(tmp_path: Path) -> None:
    proc = tree(tmp_path / "proc", {"cpuinfo": "processor: 0\nmodel name\t: A Chip\n"})
    etc = tree(tmp_path / "etc", {"os-release": 'PRETTY_NAME="An OS 12"\nID=os\n'})

    facts = machine.facts(proc, etc)

    assert (facts["os"], facts["cpu_model"]) == ("An OS 12", "A Chip")
    assert facts["memory_bytes"] is None


# devices

OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build"
    "  (dvs-builder@U22)\nGCC version:  gcc version 13.3.0\n"
)
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15\n"
    "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
)


def driver(tmp_path: Path, *uuids: str) -> Path:
    files = {"version": CLOSED}
    for number, uuid in enumerate(uuids, 1):
        files[f"gpus/0000:0{number}:00.0/information"] = (
            f"Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ:   \t\t 42\nGPU UUID: \t {uuid}\n"
        )
    return tree(tmp_path / "nvidia", files)


def gpus(root: Path, name: str) -> list[Gpu]:
    return machine.gpus(root, program=str(PROGRAMS / name / "nvidia-smi"))


@pytest.mark.parametrize(
    ("text", "version"), [(OPEN, "580.95.05"), (CLOSED, "535.104.05"), ("", None)]
)
def test_the_drivers_version_is_read_from_its_own_file(
    tmp_path: Path, text: str, version: str | None
) -> None:
    assert machine.driver_version(tree(tmp_path, {"version": text})) == version


def test_without_a_driver_there_is_no_device(tmp_path: Path) -> None:
    root = tmp_path / "none"

    assert machine.driver_version(root) is None
    assert machine.device_count(root) == 0
    assert machine.gpus(root, program="no-such-nvidia-smi") == []
    assert gpus(root, "no-driver") == []


def test_a_card_has_the_memory_and_the_processes_that_the_driver_says(
    tmp_path: Path,
) -> None:
    assert gpus(driver(tmp_path, "GPU-aaaa"), "discrete") == [
        Gpu(
            index=0,
            uuid="GPU-aaaa",
            name="NVIDIA H200",
            driver="580.95.05",
            compute_capability="9.0",
            total_gb=143771 / 1024,
            free_gb=142747 / 1024,
            unified=False,
            mig=False,
            processes=(GpuProcess(pid=4242, used_gb=1.0),),
        )
    ]


def test_two_cards_each_have_their_own(tmp_path: Path) -> None:
    first, second = gpus(tmp_path, "two")

    assert (first.free_gb, second.free_gb) == (39.5, 1)
    assert first.processes == ()
    assert second.processes == (GpuProcess(pid=17, used_gb=None),)


def test_memory_that_is_not_applicable_is_the_hosts(tmp_path: Path) -> None:
    [gpu] = gpus(tmp_path, "unified")

    assert (gpu.unified, gpu.total_gb, gpu.free_gb) == (True, None, None)
    assert gpu.processes == (GpuProcess(pid=31, used_gb=12.0),)
    assert gpu.unknown == {
        "total_gb": "nvidia-smi: memory.total: [N/A]",
        "free_gb": "nvidia-smi: memory.free: [N/A]",
    }


def test_one_broken_line_does_not_hide_the_other_device(tmp_path: Path) -> None:
    whole, broken = gpus(driver(tmp_path, "GPU-aaaa", "GPU-bbbb"), "broken")

    assert (whole.uuid, whole.free_gb, whole.processes) == ("GPU-bbbb", 39.5, ())
    assert (broken.uuid, broken.total_gb, broken.unified) == ("GPU-aaaa", None, None)
    assert "GPU0000:01:00.0: Unknown Error" in broken.unknown["total_gb"]


def test_a_broken_line_is_a_device_also_where_the_driver_lists_none(
    tmp_path: Path,
) -> None:
    whole, broken = gpus(tmp_path, "broken")

    assert (whole.uuid, broken.uuid, broken.total_gb) == ("GPU-bbbb", None, None)


def test_each_field_is_unknown_by_itself(tmp_path: Path) -> None:
    first, second = gpus(tmp_path, "field")

    assert (first.total_gb, first.free_gb, first.unified) == (23034 / 1024, None, False)
    assert first.unknown["free_gb"] == "nvidia-smi: memory.free: [Unknown Error]"
    assert (second.compute_capability, second.free_gb) == (None, 22)
    assert first.processes is None
    assert "Insufficient Permissions" in first.unknown["processes"]


def test_an_older_driver_is_asked_for_what_it_knows(tmp_path: Path) -> None:
    [gpu] = gpus(tmp_path, "old")

    assert (gpu.total_gb, gpu.compute_capability, gpu.processes) == (
        16160 / 1024,
        None,
        (),
    )
    assert gpu.unknown == {
        "compute_capability": "nvidia-smi: compute_cap: not a field of this driver"
    }


def test_each_mig_instance_is_a_device_in_the_place_of_the_card(tmp_path: Path) -> None:
    first, second, whole = gpus(tmp_path, "mig")

    assert (first.uuid, first.parent, first.mig) == ("MIG-1111", "GPU-aaaa", True)
    assert (first.total_gb, first.free_gb) == (19.5, 19949 / 1024)
    assert first.processes == (GpuProcess(pid=5, used_gb=1.0),)
    assert first.name == "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    assert (second.uuid, second.total_gb, second.free_gb) == ("MIG-2222", 4.75, None)
    assert (whole.uuid, whole.mig, whole.total_gb) == ("GPU-bbbb", False, 40)


def test_an_error_text_is_a_device_of_which_nothing_is_known(tmp_path: Path) -> None:
    why = (
        "nvidia-smi: exit status 18: "
        "Failed to initialize NVML: Driver/library version mismatch"
    )

    [there] = gpus(driver(tmp_path, "GPU-aaaa"), "error")
    [nameless] = gpus(tmp_path / "none", "error")

    assert (there.uuid, there.name) == ("GPU-aaaa", "NVIDIA A100-SXM4-40GB")
    assert (there.driver, there.total_gb) == ("535.104.05", None)
    assert there.unknown["total_gb"] == nameless.unknown["total_gb"] == why


def test_a_driver_without_its_program_is_a_device_of_unknown_memory(
    tmp_path: Path,
) -> None:
    [gpu] = machine.gpus(driver(tmp_path, "GPU-aaaa"), program="no-such-nvidia-smi")

    assert gpu.unknown["free_gb"] == "no-such-nvidia-smi: not on the path"


def _running(program: Path) -> list[bytes]:
    """List the command lines that name a program; what ends meanwhile is left out."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes())
    return [argv for argv in found if str(program).encode() in argv]


def test_a_program_that_hangs_is_left_at_its_limit_with_all_it_started(
    tmp_path: Path,
) -> None:
    program = PROGRAMS / "hang/nvidia-smi"
    began = time.monotonic()

    [gpu] = machine.gpus(
        driver(tmp_path, "GPU-aaaa"), program=str(program), limit_s=0.3
    )

    within(3.0, time.monotonic() - began)
    assert gpu.total_gb is None
    assert gpu.unknown["total_gb"] == "nvidia-smi: no answer within 0.3 s"
    # a SIGKILL is sent to all at once, and each dies when it is next scheduled
    while (left := _running(program)) and time.monotonic() - began < 3:
        os.sched_yield()
    assert not left


# the process table

HOLD = """
import os, socket, sys
if "fork" in sys.argv:
    if os.fork() == 0:
        sys.stdin.buffer.read()
        os._exit(0)
if "bind" in sys.argv:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(sys.argv[sys.argv.index("--socket") + 1])
    sock.listen()
print("there", flush=True)
sys.stdin.buffer.read()
"""
"""A program that stays until its standard input ends."""

Hold = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Hold]:
    started: list[subprocess.Popen[str]] = []

    def start(
        *words: str, script: str = "hold.py", **env: str
    ) -> subprocess.Popen[str]:
        path = tmp_path / script
        path.write_text(HOLD)
        child = subprocess.Popen(
            [sys.executable, str(path), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "there\n"
        return child

    yield start
    for child in started:
        child.communicate()


def marks(instance: str, slug: str = "echo", where: str = "/a tree") -> list[str]:
    return [
        *("--resident-slug", slug),
        *("--resident-tree", where),
        *("--resident-instance", instance),
    ]


def held(instance: str) -> list[Holder]:
    return [one for one in machine.holdings() if one.instance == instance]


def test_a_worker_is_found_by_the_markers_in_its_argv(
    hold: Hold, tmp_path: Path
) -> None:
    path = str(tmp_path / "s.sock")
    began = time.time()
    child = hold(*marks("i-1"), "--socket", path, CUDA_VISIBLE_DEVICES="GPU-z")

    [found] = held("i-1")

    assert (found.slug, found.tree, found.pids) == ("echo", "/a tree", (child.pid,))
    assert (found.uid, found.device, found.socket) == (os.geteuid(), "GPU-z", path)
    assert found.budget == UNKNOWN
    assert found.resident_gb is not None
    assert 0 < found.resident_gb < 1
    assert found.started == pytest.approx(began, abs=3)


def test_forks_and_launchers_of_one_instance_are_one_holder(hold: Hold) -> None:
    worker = hold(*marks("i-2"), "fork")
    launcher = hold("run", "--rm", "image", "python", "worker.py", *marks("i-2"))

    [found] = held("i-2")

    assert len(found.pids) == 3
    assert found.pids[0] == worker.pid
    assert launcher.pid in found.pids


def test_two_instances_of_one_provider_are_two_holders(hold: Hold) -> None:
    hold(*marks("i-3"))
    hold(*marks("i-4"))

    assert len(held("i-3")) == len(held("i-4")) == 1


def test_a_worker_loads_until_its_socket_accepts(hold: Hold, tmp_path: Path) -> None:
    hold(*marks("i-5"), "--socket", str(tmp_path / "none"))
    hold(*marks("i-6"), "--socket", str(tmp_path / "s"), "bind")
    hold(*marks("i-7"), "--once")

    assert [held(f"i-{n}")[0].loading for n in (5, 6, 7)] == [True, False, True]


def test_a_socket_that_an_earlier_instance_left_does_not_say_loaded(
    hold: Hold, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "s"))
    hold(*marks("i-8"), "--socket", str(tmp_path / "s"))

    assert held("i-8")[0].loading is True


def test_a_socket_without_a_process_is_not_a_holder(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as alone:
        alone.bind(str(tmp_path / "s"))
        alone.listen()

        assert not [h for h in machine.holdings() if h.socket == str(tmp_path / "s")]


def test_a_foreign_worker_is_a_holder_of_unknown_instance(
    hold: Hold, tmp_path: Path
) -> None:
    path = str(tmp_path / "foreign.sock")
    child = hold("--socket", path, "fork", script="boltz_resident_worker.py")

    [found] = [one for one in machine.holdings() if one.socket == path]

    assert (found.slug, found.tree, found.instance) == ("boltz", None, None)
    assert found.budget == UNKNOWN
    assert len(found.pids) == 2
    assert found.pids[0] == child.pid


def claims(tmp_path: Path, *argvs: str) -> list[Holder]:
    """Read a process table of these command lines; a blank parts two words."""
    files = {"stat": "cpu 0\nbtime 1000\n"}
    for pid, argv in enumerate(argvs, 100):
        stat = f"{pid} (a ) b) S 1 1 1 " + "0 " * 15 + "250 0 0"
        files[f"{pid}/stat"] = stat
        files[f"{pid}/cmdline"] = argv.replace(" ", "\0") + "\0"
        files[f"{pid}/statm"] = "9 5 1 1 0 1 0"
        files[f"{pid}/status"] = "Name: x\nUid:\t7\t7\t7\t7\n"
    return machine.holdings(tree(tmp_path, files))


M = "--resident-slug s --resident-tree /t --resident-instance i"


@pytest.mark.parametrize(
    "argv",
    [
        "vim boltz_resident_worker.py",
        "vim boltz_resident_worker.py --socket /s",
        "grep --socket boltz_resident_worker.py",
        "python -m pytest boltz_resident_worker.py",
        "python tool.py --resident-slug s",
        "pgrep -f --resident-instance",
        "sh -c python\u00a0w.py\u00a0--resident-slug\u00a0s --resident-instance",
        "",
    ],
)
def test_an_editor_a_search_and_a_shell_are_not_holders(
    tmp_path: Path, argv: str
) -> None:
    assert claims(tmp_path, argv) == []


@pytest.mark.parametrize(
    "argv",
    [
        "python3.11 /x/boltz_resident_worker.py --socket /no/s",
        "/opt/env/bin/python -u boltz_resident_worker.py --size 3 --socket=/no/s",
        "docker run --rm image python boltz_resident_worker.py --socket /no/s",
    ],
)
def test_a_foreign_worker_is_told_by_its_script_and_its_socket(
    tmp_path: Path, argv: str
) -> None:
    [found] = claims(tmp_path, argv)

    assert (found.slug, found.socket, found.loading) == ("boltz", "/no/s", True)


def test_what_a_provider_passes_to_itself_is_not_read_as_ours(tmp_path: Path) -> None:
    [found] = claims(
        tmp_path, f"python w.py {M} --script w -- --device cuda --socket x"
    )

    assert (found.device, found.socket) == (None, None)


def test_a_holder_is_described_by_the_kernels_own_files(tmp_path: Path) -> None:
    [found] = claims(tmp_path, f"python w.py {M} --device GPU-1 --manifest-dir /m")

    assert found == Holder(
        slug="s",
        tree="/t",
        instance="i",
        pids=(100,),
        uid=7,
        device="GPU-1",
        budget=UNKNOWN,
        loading=True,
        resident_gb=5 * os.sysconf("SC_PAGE_SIZE") / GIB,
        started=1000 + 250 / os.sysconf("SC_CLK_TCK"),
        manifest_dir="/m",
    )


def test_a_zombie_holds_nothing(tmp_path: Path) -> None:
    claims(tmp_path, f"python w.py {M}")
    stat = tmp_path / "100/stat"
    stat.write_text(stat.read_text().replace(") S ", ") Z "))

    assert machine.holdings(tmp_path) == []


# is the table whole


def namespace(tmp_path: Path, link: str, mounts: str = "") -> Path:
    root = tree(tmp_path, {"self/mountinfo": mounts})
    (root / "self/ns").mkdir()
    (root / "self/ns/pid").symlink_to(link)
    return root


def test_the_table_is_whole_in_the_machines_own_namespace(tmp_path: Path) -> None:
    assert machine.partial_table(namespace(tmp_path, "pid:[4026531836]")) is None


def test_in_a_pid_namespace_the_table_is_partial(tmp_path: Path) -> None:
    why = machine.partial_table(namespace(tmp_path, "pid:[4026532281]"))

    assert why == "this is the PID namespace pid:[4026532281], not the machine's"


def test_a_namespace_that_cannot_be_read_is_not_taken_for_the_machines(
    tmp_path: Path,
) -> None:
    why = machine.partial_table(tmp_path)

    assert why == "the PID namespace cannot be read (No such file or directory)"


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is hidden from root")
def test_hidden_processes_of_others_make_the_table_partial(tmp_path: Path) -> None:
    mounts = "23 1 0:22 / /proc rw - proc proc rw,hidepid=invisible\n"

    why = machine.partial_table(namespace(tmp_path, "pid:[4026531836]", mounts))

    assert why == "/proc is mounted with hidepid=invisible"


# small functions on the readings


def test_a_pool_is_the_devices_own_or_the_hosts() -> None:
    own = Gpu(index=0, uuid="GPU-0", total_gb=80, free_gb=70)
    shared = Gpu(index=0, uuid="GPU-0", unified=True)
    host = Memory(total_gb=121, free_gb=5, available_gb=60.4)

    assert machine.capacity(own, host) == 80
    assert machine.capacity(shared, host) == machine.capacity(None, host) == 121
    assert machine.pool_free(own, host) == 70
    assert machine.pool_free(shared, host, co_tenants=True) == 5
    assert machine.pool_free(shared, host) == 60.4
    assert machine.pool_free(None, host, co_tenants=True) == 60.4


def test_a_declared_budget_is_the_manifests_and_unknown_without_one(
    tmp_path: Path,
) -> None:
    text = 'slug = "echo"\n[runtime]\nworker = "w.py"\n[host]\nram_budget_gb = 0.5\n'
    text += '[env]\npython = "$P"\n[smoke]\nrequest = { a = 1 }\n'
    where = tree(tmp_path, {"manifests/echo/provider.toml": text})
    tree(where, {"manifests/echo/w.py": ""})

    budget = machine.declared_budget("echo", where)

    assert (budget.vram_gb, budget.ram_gb, budget.source) == (0.0, 0.5, "declared")
    assert machine.declares_resident_worker("echo", where)
    assert machine.declared_budget("nobody", where) == UNKNOWN
    assert not machine.declares_resident_worker("nobody", where)
