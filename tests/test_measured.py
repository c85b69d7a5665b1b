"""The measured report: written whole, read strictly, and stale for each thing that changed."""

import hashlib
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from small_tree import look_alike, pin
from small_tree import provider as load
from small_tree import tree as small_tree

from remote_resident.errors import ProviderError
from remote_resident.manifest import ProviderManifest
from tasks import history, measured, smoke
from tasks.gpus import Device
from tasks.measured import Report

ROOT = Path(__file__).parents[1]
WEIGHT = b"weights"
TOML = f"""\
slug = "m"
operations = ["m"]
[runtime]
worker = "worker.py"
start_timeout_s = 10
[host]
ram_budget_gb = 0.5
[env]
python = "$M_PYTHON"
lock = "m"
[weights]
root_env = "M_WEIGHTS"
[[weights.file]]
name = "w.bin"
size = {len(WEIGHT)}
sha256 = "{hashlib.sha256(WEIGHT).hexdigest()}"
[smoke]
request = {{ op = "m", pdb = "a.pdb" }}
"""
CARD = Device(
    name="NVIDIA H200",
    driver="580.95.05",
    memory_gb=140.0,
    compute_capability="9.0",
)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a tree, what looks like its environment, and its weights."""
    root = small_tree(tmp_path / "a tree", pin("a", "1.0"), toml=TOML)
    (root / "manifests/m/a.pdb").write_text("ATOM")
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "w.bin").write_bytes(WEIGHT)
    monkeypatch.setenv("M_WEIGHTS", str(weights))
    monkeypatch.setenv("M_PYTHON", str(look_alike(tmp_path / "env", "a-1.0")))
    return root


def compose(provider: ProviderManifest, **tables: dict[str, object]) -> Report:
    blank: dict[str, dict[str, object]] = {"timing": {}, "memory": {}, "answer": {}}
    return measured.compose(
        provider, inputs=measured.inputs_now(provider), **{**blank, **tables}
    )


def certified(provider: ProviderManifest) -> Report:
    """Write a report of what is there now, and read it back."""
    path = measured.report_path(provider)
    measured.write(path, compose(provider))
    report = measured.read(path)
    assert report is not None
    return report


def left(path: Path) -> list[str]:
    """List the files beside a report."""
    return [entry.name for entry in path.parent.iterdir() if entry.is_file()]


def test_a_report_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "below" / "m.toml"
    report = Report(
        slug="m",
        machine={"os": 'a "quoted" name', "gpus": [{"name": "x"}]},
        inputs={"weights": {"a/b.pt": "00"}},
        timing={"held_s": [0.5, 1.0]},
        memory={"growth_mib": 0.0},
        answer={"values": {"scores[0].total": 1.5}, "identical": True},
        certified={"at": "2026-11-29T12:00:00+00:00"},
    )

    measured.write(path, report)

    assert measured.read(path) == report
    assert left(path) == ["m.toml"]


def test_what_is_not_known_is_left_out_and_a_known_zero_is_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "m.toml"
    blank: dict[str, object] = {}
    memory = {"growth_mib": 0.0, "device_peak_bytes": None}
    measured.write(
        path,
        Report(
            slug="m",
            memory=memory,
            machine=blank,
            inputs=blank,
            timing=blank,
            answer=blank,
            certified=blank,
        ),
    )

    report = measured.read(path)
    assert report is not None
    assert report.memory == {"growth_mib": 0.0}


def test_a_reader_sees_a_whole_report_at_any_moment(tree: Path) -> None:
    provider = load(tree)
    path = measured.report_path(provider)
    report = certified(provider)
    over = threading.Event()

    def write() -> None:
        for _ in range(50):
            measured.write(path, report)
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    reads = 0
    while not over.is_set() or not reads:
        assert measured.read(path) == report
        reads += 1
    writer.join()


def test_a_report_that_cannot_be_written_leaves_the_last_one(tree: Path) -> None:
    provider = load(tree)
    report = certified(provider)
    path = measured.report_path(provider)
    unwritable = replace(report, answer={"values": {"x": object()}})

    with pytest.raises(TypeError):
        measured.write(path, unwritable)
    assert measured.read(path) == report
    assert left(path) == ["m.toml"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("schema = 2\n", "schema 2 found"),
        ("slug = 'm'\n", "schema None found"),
        ("schema = 1\n[machine]\n[inputs]\n[timing]\n[memory]\n[answer]\n",
         "no table certified found"),
    ],
)  # fmt: skip
def test_what_is_no_report_of_this_schema_is_refused_not_guessed(
    tmp_path: Path, text: str, found: str
) -> None:
    path = tmp_path / "m.toml"
    path.write_text(text)

    with pytest.raises(ProviderError) as refused:
        measured.read(path)
    assert str(refused.value) == (
        f"{path}: {found}, a measured report of schema 1 wanted"
    )
    assert (refused.value.reason, refused.value.next) == ("stale", "doit setup:m")


def test_half_a_report_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text("schema = 1\n[mach")

    with pytest.raises(ProviderError, match="no TOML found"):
        measured.read(path)


def test_no_report_is_none(tmp_path: Path) -> None:
    assert measured.read(tmp_path / "m.toml") is None


# -- what makes it stale


def test_what_did_not_change_is_current(tree: Path) -> None:
    provider = load(tree)

    assert measured.differs(provider, certified(provider)) == []


def test_the_authors_claims_and_comments_do_not_make_it_stale(tree: Path) -> None:
    report = certified(load(tree))
    path = tree / "manifests/m/provider.toml"
    claims = 'description = "Better."\nstatus = "verified"\nverified_on = "today"\n'
    path.write_text(f"# note\n{claims}{path.read_text()}")

    assert measured.differs(load(tree), report) == []


def test_a_touched_weight_of_the_same_bytes_is_still_the_same(tree: Path) -> None:
    report = certified(load(tree))
    os.utime(Path(os.environ["M_WEIGHTS"]) / "w.bin", (1, 1))

    assert measured.differs(load(tree), report) == []


EDITS = {
    "manifest": ("manifests/m/provider.toml", TOML.replace("0.5", "0.6")),
    "lock": ("locks/m.lock", "# other\n"),
    "worker": ("manifests/m/worker.py", "import os\n"),
    "smoke": ("manifests/m/a.pdb", "HETATM"),
}


@pytest.mark.parametrize("key", EDITS)
def test_each_file_that_a_report_rests_on_makes_it_stale(tree: Path, key: str) -> None:
    report = certified(load(tree))
    name, content = EDITS[key]
    (tree / name).write_text(content)

    [text] = measured.differs(load(tree), report)
    before, _, after = text.removeprefix(f"{key} ").partition(" -> ")
    assert len(before) == len(after) == 12
    assert before != after


def test_a_module_beside_the_worker_makes_it_stale(tree: Path) -> None:
    report = certified(load(tree))
    (tree / "manifests/m/parts.py").write_text("x = 1\n")

    [text] = measured.differs(load(tree), report)
    assert text.startswith("worker ")


def test_a_changed_weight_makes_it_stale(tree: Path) -> None:
    report = certified(load(tree))
    (Path(os.environ["M_WEIGHTS"]) / "w.bin").write_bytes(WEIGHT[::-1])
    changed = hashlib.sha256(WEIGHT[::-1]).hexdigest()[:12]

    [text] = measured.differs(load(tree), report)
    was = hashlib.sha256(WEIGHT).hexdigest()[:12]
    assert text == f"weights.w.bin {was} -> {changed}"


def test_a_missing_weight_makes_it_stale(tree: Path) -> None:
    report = certified(load(tree))
    (Path(os.environ["M_WEIGHTS"]) / "w.bin").unlink()

    [text] = measured.differs(load(tree), report)
    assert text == f"weights.w.bin {hashlib.sha256(WEIGHT).hexdigest()[:12]} -> none"


def test_a_changed_package_is_named_with_both_versions(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = certified(load(tree))
    other = look_alike(tmp_path / "other", "a-1.1", "B_b-2.0")
    monkeypatch.setenv("M_PYTHON", str(other))

    assert measured.differs(load(tree), report) == ["a 1.0 -> 1.1", "b-b none -> 2.0"]


def test_another_interpreter_is_named_with_both_versions(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = certified(load(tree))
    other = look_alike(tmp_path / "other", "a-1.0", settings="version = 3.8.20\n")
    monkeypatch.setenv("M_PYTHON", str(other))

    [text] = measured.differs(load(tree), report)
    assert text.startswith("interpreter 3.")
    assert text.endswith(" -> 3.8.20")


def test_an_environment_that_is_gone_makes_it_stale(tree: Path, tmp_path: Path) -> None:
    report = certified(load(tree))
    shutil.rmtree(tmp_path / "env")

    assert measured.differs(load(tree), report)


@pytest.mark.parametrize(
    ("now", "texts"),
    [
        ([CARD], []),
        ([replace(CARD, driver="590.10")], ["driver 580.95.05 -> 590.10"]),
        ([replace(CARD, name="NVIDIA GB10")], ["gpu NVIDIA H200 -> NVIDIA GB10"]),
        ([], ["gpu NVIDIA H200 -> none"]),
        ([CARD, CARD], ["gpu 1 none -> NVIDIA H200"]),
        # memory that another process holds is no other device
        ([replace(CARD, memory_gb=None)], []),
    ],
)
def test_another_device_or_driver_is_named(
    tree: Path, now: list[Device], texts: list[str]
) -> None:
    provider = load(tree)
    report = replace(compose(provider), machine=measured.machine_table([CARD]))

    assert measured.differs(provider, report, lambda: now) == texts


# -- what is kept of earlier runs


def at(report: Report, minute: int) -> Report:
    when = f"2026-11-29T12:{minute:02}:00+00:00"
    return replace(report, certified={"at": when, "by": "test"})


def minutes(path: Path) -> list[int]:
    reports, damaged = history.read(path)
    assert damaged == []
    return [moment.minute for one in reports if (moment := history.moment(one))]


def test_each_certification_is_kept_beside_the_current_report(tree: Path) -> None:
    report = certified(load(tree))
    path = measured.report_path(load(tree))
    shutil.rmtree(history.directory(path))
    path.unlink()
    for minute in (1, 2, 3):
        measured.write(path, at(report, minute))

    assert minutes(path) == [1, 2, 3]
    assert [file.name for file in sorted(history.directory(path).iterdir())] == [
        f"20261129T120{minute}00Z.toml" for minute in (1, 2, 3)
    ]
    assert measured.read(path) == at(report, 3)


def test_a_report_that_was_there_before_histories_were_is_kept_too(tree: Path) -> None:
    report = compose(load(tree))
    path = measured.report_path(load(tree))
    measured.write(path, at(report, 1))
    shutil.rmtree(history.directory(path))

    measured.write(path, at(report, 2))
    assert minutes(path) == [1, 2]


def test_two_reports_of_one_second_are_both_kept_and_one_twice_is_once(
    tree: Path,
) -> None:
    report = at(compose(load(tree)), 1)
    path = measured.report_path(load(tree))
    for growth in (1.0, 2.0, 2.0):
        measured.write(path, replace(report, memory={"growth_mib": growth}))

    reports, _ = history.read(path)
    assert [one.memory["growth_mib"] for one in reports] == [1.0, 2.0]


def test_a_history_is_bounded_and_the_oldest_go(tree: Path) -> None:
    report = compose(load(tree))
    path = measured.report_path(load(tree))
    for minute in range(history.KEPT + 2):
        measured.write(path, at(report, minute))

    assert minutes(path) == list(range(2, history.KEPT + 2))
    assert len(list(history.directory(path).iterdir())) == history.KEPT


def test_a_damaged_report_of_a_history_is_named_and_the_others_are_read(
    tree: Path,
) -> None:
    path = measured.report_path(load(tree))
    measured.write(path, at(compose(load(tree)), 2))
    torn = history.directory(path) / "20261129T120100Z.toml"
    torn.write_text("schema = 1\n[mach")
    (torn.parent / "notes.toml").write_text("not ours")

    reports, damaged = history.read(path)
    assert len(reports) == 1
    [text] = damaged
    assert text.startswith(f"{torn}: no TOML found")


def test_a_history_makes_no_step_count_as_done(tree: Path) -> None:
    path = measured.report_path(load(tree))
    measured.write(path, at(compose(load(tree)), 1))
    path.unlink()

    [problem] = smoke.problems(load(tree))
    assert problem.reason == "stale"


def test_what_cannot_be_kept_is_not_certified_and_says_why(tree: Path) -> None:
    path = measured.report_path(load(tree))
    report = certified(load(tree))
    shutil.rmtree(history.directory(path))
    history.directory(path).write_text("a file in its place")

    with pytest.raises(ProviderError) as refused:
        measured.write(path, at(report, 1))
    assert refused.value.reason == "unreadable"
    assert measured.read(path) == report


IN_TMPFS = 'mount -t tmpfs -o size=64k none "$1" && exec "$2" -c "$3" "$1/m.toml"'
FULL = """
import sys; from pathlib import Path; from remote_resident import whole_file
from remote_resident.errors import ProviderError
path = Path(sys.argv[1])
path.with_name("filler").write_bytes(bytes(60 << 10))
try:
    whole_file.write(path, b"x" * (60 << 10))
except ProviderError as exc:
    print(exc.reason, exc, exc.next, [p.name for p in path.parent.iterdir()], sep="|")
"""


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    words = ("unshare", "-rm", "sh", "-c", IN_TMPFS, "sh", str(tmp_path))
    ran = subprocess.run(
        [*words, sys.executable, FULL], capture_output=True, text=True, cwd=ROOT
    )
    if ran.returncode:
        pytest.skip(f"no file system of one's own here: {ran.stderr.strip()}")

    path = tmp_path / "m.toml"
    assert ran.stdout.strip() == (
        f"disk_full|{path}: No space left on device, space for a file wanted|"
        f"df -h {tmp_path}|['filler']"
    )
