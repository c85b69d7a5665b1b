"""A provider is accepted for what it does, and each defect is seen by its own phase."""

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from small_provider import until

from remote_resident import manifest, places, processes
from remote_resident.cli import main
from remote_resident.manifest import ProviderManifest
from tasks import accept, accept_hostile, accept_requests, ladder, measured, smoke
from tasks.accept_stage import LadderRow
from tasks.step import Making, StepResult

ROOT = Path(__file__).parents[1]
WORKERS = Path(__file__).with_name("workers")
PHASES = ["repeat", "shapes", "ladder", "hostile", "kill"]
LATE_S = 60.0


def provider(tree: Path, script: str, **tables: Mapping[str, Any]) -> ProviderManifest:
    """Write a provider around a script; `tables` add to what is declared."""
    folder = tree / "manifests" / "tiny"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "worker.py").write_text((WORKERS / f"{script}.py").read_text())
    declared: dict[str, dict[str, Any]] = {
        "runtime": {"worker": "worker.py"},
        "host": {"ram_budget_gb": 0.5},
        "env": {"python": sys.executable},
        "smoke": {
            "request": {"op": "answer"},
            "deterministic": True,
            "expect": {"answer": {"equals": 42}},
        },
        "accept": {
            "sizes": [1, 8, 64],
            "request": {"op": "answer", "n": "{size}"},
            "timeout_s": 120,
        },
    }
    for name, table in tables.items():
        declared[name] = {**declared.get(name, {}), **table}
    head = {"slug": "tiny", "operations": ["answer"], "outputs": ["out.txt"]}
    path = folder / "provider.toml"
    text = tomli_w.dumps({**head, **{k: v for k, v in declared.items() if v}})
    path.write_text(text)
    return manifest.load(path)


def made(making: Making) -> StepResult:
    while True:
        try:
            next(making)
        except StopIteration as end:
            assert isinstance(end.value, StepResult)
            return end.value


def accepted(
    tiny: ProviderManifest, *only: str
) -> tuple[StepResult, dict[str, StepResult]]:
    """Go through the suite, or some of it; the result, and each phase's by its name."""
    phases: list[StepResult] = []
    wanted = [phase for phase in accept.PHASES if not only or phase[0] in only]
    making = accept.make(tiny, admit=None, on_phase=phases.append, phases=wanted)
    result = made(making)
    assert [phase.step for phase in phases] == [name for name, _ in wanted]
    assert_nothing_left(tiny)
    return result, {phase.step: phase for phase in phases}


def assert_nothing_left(tiny: ProviderManifest) -> None:
    assert processes.instances(tiny.slug, str(tiny.tree)) == []
    assert list(places.runtime_dir().glob("s-*")) == []


def written(tiny: ProviderManifest) -> dict[str, Any]:
    return tomllib.loads(report(tiny).read_text())


def report(tiny: ProviderManifest) -> Path:
    return ladder.beside(measured.report_path(tiny))


def bad(phases: Mapping[str, StepResult]) -> dict[str, str]:
    return {name: phase.reason for name, phase in phases.items() if not phase.ok}


# -- what is good


def test_a_good_provider_passes_every_phase_and_it_is_written_down(
    tmp_path: Path,
) -> None:
    tiny = provider(tmp_path, "accept_good")
    before = dict(os.environ)

    result, phases = accepted(tiny)

    assert dict(os.environ) == before
    assert_it_was_hostile(phases)

    assert bad(phases) == {}
    assert (result.step, result.verdict) == ("accept", "done")
    assert result.detail == "5 phases, up to size 64"
    tables = written(tiny)
    assert list(tables) == ["accept", "phase", "ladder"]
    assert list(tables["accept"]) == ["slug", "at", "machine", "ok"]
    assert (tables["accept"]["slug"], tables["accept"]["ok"]) == ("tiny", True)
    assert tables["accept"]["machine"] == os.uname().nodename
    assert [list(phase) for phase in tables["phase"]] == 5 * [
        ["name", "ok", "reason", "text", "seconds"]
    ]
    assert [phase["name"] for phase in tables["phase"]] == PHASES
    assert [row["size"] for row in tables["ladder"]] == [1, 8, 64]
    assert {row["pool"] for row in tables["ladder"]} == {"host"}
    assert set(tables["ladder"][0]) == {
        "size",
        "peak_gb",
        "pool",
        "seconds",
        "peak_source",
    }
    read = ladder.read(report(tiny))
    assert read is not None
    assert read.ok
    # nothing else is kept
    assert list((places.cache_dir() / "smoke").iterdir()) == []
    assert [p.name for p in report(tiny).parent.iterdir()] == ["tiny.accept.toml"]


def assert_it_was_hostile(phases: Mapping[str, StepResult]) -> None:
    """Hold that the full disk was full, and the kill in a request."""
    # a tmpfs, or links to /dev/full where no namespace may be made
    assert phases["hostile"].detail.endswith(
        ("a full tmpfs answered request_failed", "to /dev/full answered request_failed")
    )
    assert phases["kill"].detail.startswith(
        "killed in a request: worker_died, SIGKILL named; next request "
    )


def test_a_process_for_each_request_is_accepted_too(tmp_path: Path) -> None:
    mode = {"mode": "subprocess", "mode_reason": "it is small"}
    tiny = provider(tmp_path, "accept_good", runtime=mode, accept={"sizes": [1, 64]})

    result, phases = accepted(tiny, "repeat", "ladder", "hostile", "kill")

    assert bad(phases) == {}
    assert result.ok
    assert phases["kill"].detail.startswith("killed in a request: ")


# -- each defect, and the one phase that sees it

DEFECTS = [
    ("accept_varies", "repeat", "not_deterministic", "reply.scores[0]: "),
    ("accept_hoards", "repeat", "grows", "16"),
    ("accept_leaks", "shapes", "not_deterministic", "reply.padded: 1 and 64"),
    ("accept_squares", "ladder", "over_budget", "size 64: host.ram_budget_gb: "),
    ("accept_reads_zone", "hostile", "not_deterministic", '"Pacific/Kiritimati"'),
    ("accept_reads_threads", "hostile", "not_deterministic", '"61"'),
    ("accept_dies_full", "hostile", "worker_died", "full disk: died answering"),
    ("accept_hides_full", "hostile", "outputs_missing", "a good answer found"),
    ("accept_leaves", "kill", "stop_failed", "2.0 s after that was killed"),
    ("accept_locks", "kill", "start_failed", "FileExistsError"),
]
LONG = {"accept_reads_zone", "accept_hides_full"}
"""Those whose like is in the default suite."""


@pytest.mark.parametrize(
    ("script", "phase", "reason", "said"),
    [
        pytest.param(*d, id=d[0], marks=pytest.mark.long if d[0] in LONG else ())
        for d in DEFECTS
    ],
)
def test_a_defect_fails_its_own_phase_and_no_other(
    script: str, phase: str, reason: str, said: str, tmp_path: Path
) -> None:
    budget = {"ram_budget_gb": 0.06 if script == "accept_squares" else 0.5}
    note = tmp_path / "note"
    tiny = provider(
        tmp_path,
        script,
        host=budget,
        runtime={"worker_args": [str(note)]},
        env={"pass_env": ["OMP_NUM_THREADS"]},
    )

    result, phases = accepted(tiny)

    assert bad(phases) == {phase: reason}
    assert said in "\n".join(phases[phase].lines)
    assert result.verdict == "failed"
    assert result.detail == f"1 of 5 phases failed: {phase} ({reason})"
    by_name = {one["name"]: one for one in written(tiny)["phase"]}
    assert [name for name in PHASES if not by_name[name]["ok"]] == [phase]
    assert by_name[phase]["reason"] == reason
    if script == "accept_leaves":
        # what it left was ended, though it fails for having left it
        helpers = {int(pid) for pid in note.read_text().split()}
        assert len(helpers) == 6
        table = processes.process_table()
        assert [pid for pid in helpers & table.keys() if table[pid].state != "Z"] == []


def test_what_hangs_is_ended_at_the_phases_deadline_and_the_next_phase_goes_on(
    tmp_path: Path,
) -> None:
    # the shortest in which this machine comes to what hangs
    for limit_s in (1.0, 6.0, 60.0):
        tiny = provider(tmp_path, "accept_hangs", accept={"timeout_s": limit_s})
        _, phases = accepted(tiny, "ladder", "kill")
        if len(written(tiny)["ladder"]) == 2 and phases["kill"].ok:
            break

    # the kill asks the largest, and what hangs is killed like anything else
    assert bad(phases) == {"ladder": "timeout"}
    (text,) = [line for line in phases["ladder"].lines if "timeout: " in line]
    assert text == (
        f"timeout: tiny: size 64 request: no end within {limit_s} s found, an end "
        "within that wanted (accept.timeout_s); all of it was ended"
    )
    assert any("predict" in line for line in phases["ladder"].lines)
    assert [row["size"] for row in written(tiny)["ladder"]] == [1, 8]


def test_starts_that_fail_in_one_phase_refuse_none_of_the_next(tmp_path: Path) -> None:
    tiny = provider(tmp_path, "fails_in_build")

    _, phases = accepted(tiny, "repeat", "shapes", "ladder", "kill")

    # three would be a crash loop, and the fourth would tell nothing
    assert bad(phases) == dict.fromkeys(phases, "start_failed")


def test_a_provider_without_sizes_has_not_shown_what_they_would_show(
    tmp_path: Path,
) -> None:
    tiny = provider(tmp_path, "accept_good")
    tiny.path.write_text(tiny.path.read_text().partition("[accept]")[0])

    _, phases = accepted(manifest.load(tiny.path), "shapes", "ladder", "kill")

    assert bad(phases) == {"shapes": "manifest_invalid", "ladder": "manifest_invalid"}


def test_a_provider_that_claims_no_determinism_is_held_to_what_is_expected(
    tmp_path: Path,
) -> None:
    smoke = {
        "deterministic": False,
        "request": {"op": "answer"},
        "expect": {"answer": {"equals": 42}},
    }
    tiny = provider(tmp_path, "accept_varies", smoke=smoke)

    _, phases = accepted(tiny, "repeat", "shapes")

    assert bad(phases) == {}


# -- the ladder


def test_the_lines_for_the_manifest_are_never_below_what_was_measured() -> None:
    assert accept.rounded_up(1.0) == 1.3
    assert accept.rounded_up(0.7812) == 1.02
    assert accept.rounded_up(0.001) == 0.01
    row = LadderRow(
        size=50, peak_gb=0.34, pool="host", seconds=1.0, peak_source="VmHWM"
    )
    assert accept.manifest_lines([row]) == [
        "for provider.toml (each peak and 30 %, rounded up to the next 0.01 GiB):",
        "[[host.ladder]]",
        "size = 50",
        "peak_gb = 0.45",
    ]


def test_a_ladder_that_is_declared_is_held_to_its_own_step(tmp_path: Path) -> None:
    steps = [{"size": 8, "peak_gb": 0.001}, {"size": 64, "peak_gb": 0.5}]
    tiny = provider(tmp_path, "accept_good", host={"ladder": steps})

    _, phases = accepted(tiny, "ladder")

    assert bad(phases) == {"ladder": "over_budget"}
    first, second, *_ = phases["ladder"].lines
    assert first.startswith(
        "over_budget: tiny: size 1: host.ladder[0].peak_gb: 0.001 GiB declared, "
    )
    assert second.startswith("over_budget: tiny: size 8: host.ladder[0].peak_gb: ")


# -- what is asked


def test_places_in_a_request_become_an_input_of_that_size() -> None:
    request = {
        "n": "{size}",
        "chain": "{residues}",
        "deep": [{"dna": ">s\n{nucleotides}"}],
        "text": "{words}.",
        "named": "length {size}",
        "other": 3,
    }

    filled = accept_requests.filled(request, 30)

    assert filled["n"] == 30
    assert len(filled["chain"]) == 30
    assert set(filled["chain"]) <= set("ACDEFGHIKLMNPQRSTVWY")
    assert len(filled["deep"][0]["dna"]) == 33
    assert len(filled["text"].split()) == 30
    assert filled["named"] == "length 30"
    assert filled["other"] == 3
    assert accept_requests.filled(request, 30) == filled


def test_a_script_that_prints_no_request_is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    asked = {"request": None, "script": "asks.py", "sizes": [1]}
    accepts = {k: v for k, v in asked.items() if v is not None}
    tiny = provider(tmp_path, "accept_good")
    text = tiny.path.read_text().partition("[accept]")[0]
    tiny.path.write_text(text + tomli_w.dumps({"accept": accepts}))
    (tiny.directory / "asks.py").write_text("import sys; sys.exit(f'no {sys.argv[1]}')")

    result = made(accept.make(manifest.load(tiny.path), admit=None))

    assert (result.verdict, result.reason) == ("refused", "request_failed")
    assert result.lines[0] == (
        "request_failed: tiny: accept.script: asks.py 1: exit status 1 found, one "
        "request as a JSON object wanted, its last lines:\n    no 1"
    )
    assert result.lines[-1] == "next: doit accept:tiny"
    assert not report(tiny).exists()
    assert_nothing_left(tiny)


def test_the_backbone_that_proteinmpnn_is_asked_is_a_right_handed_helix() -> None:
    script = ROOT / "manifests" / "proteinmpnn" / "accept_requests.py"
    said = subprocess.run(
        [sys.executable, script, "40"], capture_output=True, text=True, check=True
    ).stdout
    lines = json.loads(said)["pdb_text"].splitlines()
    ca = [_xyz(line) for line in lines if line[12:16].strip() == "CA"]

    assert len(ca) == 40
    assert math.dist(ca[0], ca[1]) == pytest.approx(3.8, abs=0.05)
    assert math.dist(ca[0], ca[36]) / 36 == pytest.approx(1.5, abs=0.1)
    assert _dihedral(*ca[10:14]) == pytest.approx(50, abs=8)


def _xyz(line: str) -> tuple[float, float, float]:
    return float(line[30:38]), float(line[38:46]), float(line[46:54])


def _dihedral(*points: tuple[float, float, float]) -> float:
    a, b, c = (
        [q - p for p, q in zip(one, two, strict=True)]
        for one, two in itertools.pairwise(points)
    )
    left, right = _cross(a, b), _cross(b, c)
    length = math.sqrt(sum(x * x for x in b))
    sine = length * sum(x * y for x, y in zip(a, right, strict=True))
    return math.degrees(
        math.atan2(sine, sum(x * y for x, y in zip(left, right, strict=True)))
    )


def _cross(a: list[float], b: list[float]) -> list[float]:
    return [
        a[1] * b[2] - a[2] * b[1],
        a[2] * b[0] - a[0] * b[2],
        a[0] * b[1] - a[1] * b[0],
    ]


# -- what is hostile


def test_a_stray_variable_that_reached_a_worker_is_named(tmp_path: Path) -> None:
    tiny = provider(tmp_path, "accept_good", env={"pass_env": ["OMP_NUM_THREADS"]})
    variables = accept_hostile.strays(tiny, tmp_path)
    env = {"PATH": os.defpath, **variables, "PYTHONHOME": "", "PYTHONPATH": ""}
    sleeper = subprocess.Popen(["sleep", "60"], env=env)
    try:
        # closed to a reader for an instant after Popen has returned
        until(Path(f"/proc/{sleeper.pid}/environ").read_bytes, "its environment")
        found = accept_hostile.reached(tiny, variables, [sleeper.pid])
    finally:
        sleeper.kill()
        sleeper.wait()

    assert "LD_PRELOAD" in found
    assert "HF_HOME" in found
    # declared to pass, and what every program is told
    assert {"OMP_NUM_THREADS", "TZ", "LC_ALL"}.isdisjoint(found)


def test_a_full_disk_lets_nothing_be_written_and_vanishes(tmp_path: Path) -> None:
    with accept_hostile.full_disk(tmp_path, ["out.txt"]) as (disk, what):
        assert disk is not None
        assert what in ("a full tmpfs", "links to /dev/full")
        with pytest.raises(OSError, match="No space left on device"):
            (disk / "out.txt").write_text("atom\n")

    assert not [
        m for m in Path("/proc/mounts").read_text().splitlines() if "full-disk" in m
    ]


def test_without_a_namespace_the_known_files_lead_to_a_full_device(
    tmp_path: Path,
) -> None:
    names = ["out.txt"]
    with accept_hostile.full_disk(tmp_path, names, contained=True) as (disk, what):
        assert disk is not None
        assert what == "links to /dev/full"
        with pytest.raises(OSError, match="No space left on device"):
            (disk / "out.txt").write_text("atom\n")


# -- how it ends


def test_what_nothing_was_written_for_is_a_refusal_and_no_earlier_ladder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    provider(tmp_path, "accept_good")
    (tmp_path / "home").mkdir(0o700)
    (tmp_path / "home/run").touch()
    monkeypatch.setenv("TU_REMOTE_HOME", str(tmp_path / "home"))
    words = ["remote", "--tree", str(tmp_path), "accept", "tiny", "--json"]

    assert main(words) == 1
    without = json.loads(capsys.readouterr().out)
    earlier = report(manifest.find(tmp_path, "tiny"))
    earlier.parent.mkdir(parents=True)
    earlier.write_text("ladder = [{ size = 8 }]")
    assert main(words) == 1
    beside = json.loads(capsys.readouterr().out)

    assert (without["ok"], without["reason"]) == (False, "socket_path")
    assert beside == without


@pytest.mark.parametrize(
    "signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_a_signal_in_the_middle_leaves_nothing_behind(
    signum: signal.Signals, tmp_path: Path, home: Path
) -> None:
    tiny = provider(tmp_path, "accept_hangs", accept={"sizes": [1, 64]})
    (tmp_path / "locks").mkdir()
    typed = [sys.executable, "-m", "remote_resident", "remote", "accept", "tiny"]
    told = {**os.environ, "TU_REMOTE_TREE": str(tmp_path), "TU_REMOTE_ROWS": "-"}
    assert made(smoke.make(tiny, admit=None)).ok
    running = subprocess.Popen(
        typed,
        env=told,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with running:
        try:
            assert running.stdout is not None
            first = json.loads(running.stdout.readline())
            # in the second phase now, or on its way there: it hangs in it
            running.send_signal(signum)
            rest = running.stdout.read()
            code = running.wait(LATE_S)
        finally:
            running.kill()

    assert (first["step"], first["verdict"]) == ("repeat", "done")
    assert code == 128 + signum
    last = json.loads(rest.splitlines()[-1])
    assert (last["step"], last["reason"]) == ("accept", "interrupted")
    assert not report(tiny).exists()
    assert_nothing_left(tiny)
    assert list((places.cache_dir() / "smoke").iterdir()) == []


# -- as it is typed


def doit(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-m", "doit", "-f", str(tree / "dodo.py"), *words],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": path, "TU_REMOTE_ROWS": "-"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_provider_that_is_not_set_up_is_sent_to_its_setup_first(
    tmp_path: Path,
) -> None:
    provider(tmp_path, "accept_good")
    (tmp_path / "dodo.py").write_text((ROOT / "dodo.py").read_text())

    ran = doit(tmp_path, "accept:tiny")

    row = json.loads(ran.stdout)
    assert ran.returncode == 1
    assert (row["step"], row["verdict"], row["reason"]) == (
        "accept",
        "refused",
        "stale",
    )
    assert row["lines"][-1] == "next: doit setup:tiny"


def test_the_suite_is_typed_like_any_other_command(tmp_path: Path) -> None:
    provider(tmp_path, "accept_good", accept={"sizes": [1, 64]})
    (tmp_path / "dodo.py").write_text((ROOT / "dodo.py").read_text())

    assert doit(tmp_path, "setup:tiny").returncode == 0
    ran = doit(tmp_path, "accept:tiny")
    unknown = doit(tmp_path, "accept:tyni")

    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    assert ran.returncode == 0
    assert [row["step"] for row in rows] == [*PHASES, "accept"]
    assert unknown.returncode == 3
    assert "near: accept:tiny" in unknown.stderr
    assert not list(tmp_path.glob(".doit*"))


def test_programs_get_the_phases_and_the_ladder_as_one_document(
    tmp_path: Path,
) -> None:
    passes = {"pass_env": ["OMP_NUM_THREADS"]}
    tiny = provider(tmp_path, "accept_reads_threads", env=passes)
    tu = [sys.executable, "-m", "remote_resident", "remote"]
    told = {**os.environ, "TU_REMOTE_TREE": str(tmp_path)}

    def ran(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*tu, *words, "--json"],
            env=told,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    refused = ran("accept", "tiny")
    assert made(smoke.make(tiny, admit=None)).ok
    failed = ran("accept", "tiny")

    assert refused.returncode == 1
    said = json.loads(refused.stdout)
    assert (said["reason"], said["next"]) == ("stale", "tu remote setup tiny")
    assert failed.returncode == 1
    found = json.loads(failed.stdout)
    assert list(found) == ["ok", "slug", "phases", "ladder", "accept"]
    assert not found["ok"]
    assert [phase["step"] for phase in found["phases"]] == PHASES
    assert [row["size"] for row in found["ladder"]] == [1, 8, 64]
    assert Path(found["accept"]).is_file()
