"""The model is run for real: what is wrong with it is named, and nothing of it stays."""

import hashlib
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from remote_resident import manifest, places, processes, supervisor
from remote_resident.errors import AdmissionRefused
from remote_resident.manifest import ProviderManifest
from tasks import measured, smoke
from tasks.step import Making, Progress, StepResult

GOOD = """
    import os
    from pathlib import Path

    def build(config):
        return {"asked": 0}

    def predict(model, request):
        model["asked"] += 1
        Path(request["output_dir"], "out.txt").write_text("CA 1.0")
        return {"answer": 42, "path": request["output_dir"] + "/out.txt"}
"""


def late_s() -> float:
    """Give how late a verdict may be: a second, unless the machine is out of breath.

    That nothing is left takes some looks at the whole process table to know.
    """
    began = time.monotonic()
    processes.process_table()
    return max(1.0, 24 * (time.monotonic() - began))


def provider(
    tree: Path, worker: str = GOOD, whole: dict[str, Any] | None = None, **tables: Any
) -> ProviderManifest:
    """Write a provider around a worker's text.

    `tables` add to what is declared, those of `whole` stand for it.
    """
    folder = tree / "manifests" / "tiny"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "worker.py").write_text(textwrap.dedent(worker))
    declared: dict[str, Any] = {
        "slug": "tiny",
        "operations": ["answer"],
        "runtime": {"worker": "worker.py"},
        "host": {"ram_budget_gb": 0.5},
        "env": {"python": sys.executable},
        "smoke": {
            "request": {"op": "answer"},
            "timeout_s": 120,
            "repeat": 2,
            "deterministic": True,
            "expect": {"answer": {"equals": 42}},
        },
    }
    for name, table in tables.items():
        adds = isinstance(table, dict) and isinstance(declared.get(name), dict)
        declared[name] = {**declared[name], **table} if adds else table
    path = folder / "provider.toml"
    path.write_text(tomli_w.dumps({**declared, **(whole or {})}))
    return manifest.load(path)


def made(making: Making) -> tuple[StepResult, list[str | Progress]]:
    said: list[str | Progress] = []
    while True:
        try:
            said.append(next(making))
        except StopIteration as end:
            return end.value, said


def smoked(tiny: ProviderManifest) -> StepResult:
    result, _ = made(smoke.make(tiny, admit=None))
    assert_nothing_left(tiny)
    return result


def timed(tiny: ProviderManifest) -> tuple[StepResult, float]:
    """Make the smoke; the seconds are those since its deadline began to run."""
    making, began = smoke.make(tiny, admit=None), time.monotonic()
    try:
        while True:
            said = next(making)
            if isinstance(said, Progress) and said.unit == "s" and said.done:
                began = time.monotonic() - said.done
    except StopIteration as end:
        result = end.value
    seconds = time.monotonic() - began
    assert_nothing_left(tiny)
    assert isinstance(result, StepResult)
    return result, seconds


def hung(
    declared: Callable[[float], ProviderManifest],
    mark: str,
    deadlines_s: tuple[float, ...] = (0.7, 3.0, 30.0),
) -> StepResult:
    """Smoke what hangs after it has written a mark, and hold it to its deadline.

    A deadline counts before which this machine comes to the mark, and whose end no other
    load of it delays: the first of these that does.
    """
    for limit_s in deadlines_s:
        result, seconds = timed(declared(limit_s))
        assert (result.verdict, result.reason) == ("failed", "timeout")
        assert limit_s < seconds
        late = seconds - limit_s
        if f"  {mark}" in result.lines and late < late_s():
            return result
    raise AssertionError(f"{late} s after {limit_s} s, {mark!r} wanted: {result.lines}")


def assert_nothing_left(tiny: ProviderManifest) -> None:
    assert processes.instances(tiny.slug, str(tiny.tree)) == []
    assert list(places.runtime_dir().glob("s-*")) == []


def kept(result: StepResult) -> Path:
    (line,) = [line for line in result.lines if line.startswith("kept: ")]
    return Path(line.removeprefix("kept: "))


def corners() -> list[Path]:
    return list((places.cache_dir() / "smoke").glob("*"))


def test_a_smoke_that_passes_leaves_a_current_report_and_nothing_else(
    tmp_path: Path,
) -> None:
    tiny = provider(tmp_path, outputs=["*.txt"], output_keys=["answer"])
    (before,) = smoke.problems(tiny)
    assert (before.reason, before.next) == ("stale", "doit setup:tiny")
    result, said = made(smoke.make(tiny, admit=None))
    assert (result.verdict, result.lines) == ("done", [])
    assert smoke.problems(tiny) == []
    assert_nothing_left(tiny)
    assert corners() == []
    waited = [one for one in said if isinstance(one, Progress)]
    assert {(one.total, one.unit) for one in waited} == {(120, "s")}
    report = measured.read(measured.report_path(tiny))
    assert report is not None
    assert len(report.timing["held_s"]) == 2  # type: ignore[arg-type]  # a list
    assert report.answer["values"] == {"answer": 42}
    assert report.answer["identical"] is True
    # the digest of "CA 1.0", by sha256sum
    assert report.answer["files"] == {
        "out.txt": {
            "size": 6,
            "sha256": "3b894a5b47a6d6ef337d814e35c41c397f27aa4a1d160f4d95c4e28563356e40",
        }
    }


HANGS = """
    import time

    def build(config):
        return None

    def predict(model, request):
        print("half way", flush=True)
        while True:
            time.sleep(0.01)
"""
HANGS_IN_BUILD = """
    import time

    def build(config):
        print("half way", flush=True)
        while True:
            time.sleep(0.01)

    def predict(model, request):
        return {}
"""
HANGS_IN_C = """
    import re

    def build(config):
        return None

    def predict(model, request):
        print("half way", flush=True)
        # one call into compiled code, which keeps the interpreter to itself
        return {"answer": bool(re.match("(a+)+$", "a" * 60 + "b"))}
"""


@pytest.mark.parametrize(
    ("worker", "mode", "where"),
    [
        (HANGS, "resident", "in predict"),
        (HANGS, "subprocess", "in predict"),
        (HANGS_IN_BUILD, "resident", "in build"),
        (HANGS_IN_C, "resident", "in predict"),
    ],
    ids=["python", "fresh-process", "build", "compiled"],
)
def test_a_hang_ends_within_a_second_of_the_deadline_and_shows_where(
    tmp_path: Path, worker: str, mode: str, where: str
) -> None:
    runtime = {"mode": mode, "mode_reason": "" if mode == "resident" else "state"}
    asked = {"repeat": 0} if mode == "subprocess" else {}

    def declared(limit_s: float) -> ProviderManifest:
        smoke = {**asked, "timeout_s": limit_s}
        return provider(tmp_path, worker, runtime=runtime, smoke=smoke)

    result = hung(declared, "half way")
    at = result.lines.index("its stacks at the deadline:")
    assert any(line.endswith(where) for line in result.lines[at:])
    assert "  half way" in result.lines[:at]
    assert kept(result).is_dir()
    assert not measured.report_path(declared(1.0)).exists()


LEAVES_A_CHILD = """
    import os, subprocess, sys
    from pathlib import Path

    CHILD = (
        "import signal, sys, time;"
        "sys.argv[1:] and signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('child', flush=True); time.sleep(600)"
    )

    def build(config):
        return None

    def predict(model, request):
        # in a session of its own, with our standard output
        hang = ["hang"] if request["hang"] else []
        argv = [sys.executable, "-c", CHILD, *hang]
        child = subprocess.Popen(argv, start_new_session=True)
        pids = Path(request["output_dir"]).parent.parent.parent / "pids"
        with pids.open("a") as file:
            file.write(f"{child.pid} ")
        if hang:
            child.wait()
        return {"answer": 42}
"""


@pytest.mark.parametrize("hang", [True, False])
def test_a_child_in_a_session_of_its_own_that_holds_stdout_ends_too(
    tmp_path: Path, hang: bool
) -> None:
    def declared(limit_s: float) -> ProviderManifest:
        request = {"op": "answer", "hang": hang}
        smoke = {"request": request, "timeout_s": limit_s, "repeat": 1}
        return provider(tmp_path, LEAVES_A_CHILD, smoke=smoke)

    if hang:
        hung(declared, "child", (2.0, 5.0, 30.0))
    else:
        assert smoked(declared(60.0)).verdict == "done"
    pids = (places.cache_dir() / "pids").read_text().split()
    assert pids
    assert not [pid for pid in pids if _runs(pid)]


def _runs(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("", "tiny: outputs: no file for '*.txt' found in {dir}/first"),
        (
            'Path(request["output_dir"], "out.txt").touch()',
            "tiny: outputs: out.txt: 0 bytes found in {dir}/first, "
            "a file with content wanted",
        ),
    ],
    ids=["none", "empty"],
)
def test_an_answer_without_its_output_files_is_none(
    tmp_path: Path, written: str, text: str
) -> None:
    worker = f"""
    from pathlib import Path

    def build(config):
        return None

    def predict(model, request):
        {written or "pass"}
        return {{"answer": 42}}
    """
    result = smoked(provider(tmp_path, worker, outputs=["*.txt"]))
    place = kept(result)
    assert (result.verdict, result.reason) == ("failed", "outputs_missing")
    assert result.lines[0] == "outputs_missing: " + text.format(dir=place)


def answering(expression: str, before: str = "pass") -> str:
    return f"""
    import itertools, os

    count = itertools.count()

    def build(config):
        return bytearray()

    def predict(model, request):
        n = next(count)
        {before}
        return {expression}
    """


@pytest.mark.parametrize(
    ("worker", "tables", "reason", "text"),
    [
        (
            answering('{"answer": 41}'),
            {},
            "answer_wrong",
            'tiny: smoke.expect."answer": 41 found, 42 wanted',
        ),
        (
            answering('{"answer": 42 if n < 2 else None}'),
            {},
            "answer_wrong",
            'tiny: held-2 request: smoke.expect."answer": null found, 42 wanted',
        ),
        (
            answering('{"answer": 42}'),
            {"output_keys": ["score"]},
            "keys_missing",
            "tiny: output_keys: no 'score' in the reply",
        ),
        (
            answering('{"answer": 42, "n": n}'),
            {},
            "not_deterministic",
            "tiny: first and held-1 request: reply.n: 0 and 1 found, "
            "identical answers wanted (smoke.deterministic)",
        ),
    ],
    ids=["nonsense", "nonsense-later", "keys", "differs"],
)
def test_a_wrong_answer_is_named_with_what_was_found_and_wanted(
    tmp_path: Path, worker: str, tables: dict[str, Any], reason: str, text: str
) -> None:
    result = smoked(provider(tmp_path, worker, **tables))
    assert (result.verdict, result.reason) == ("failed", reason)
    assert result.lines[0] == f"{reason}: {text}"
    assert not measured.report_path(provider(tmp_path, worker, **tables)).exists()


def test_a_fresh_process_that_answers_otherwise_is_not_deterministic(
    tmp_path: Path,
) -> None:
    worker = answering('{"answer": 42, "pid": os.getpid()}')
    result = smoked(provider(tmp_path, worker))
    assert result.reason == "not_deterministic"
    assert "tiny: first and fresh request: reply.pid: " in result.lines[0]


def test_a_second_identical_request_that_fails_is_caught_with_the_models_words(
    tmp_path: Path,
) -> None:
    worker = answering('{"answer": 42}', before='assert n < 1, "cache is stale"')
    result = smoked(provider(tmp_path, worker))
    assert (result.verdict, result.reason) == ("failed", "request_failed")
    assert result.lines[0] == (
        "request_failed: tiny: held-1 request: AssertionError: cache is stale "
        "(request_failed)"
    )
    assert result.lines[-1] == "next: doit setup:tiny"


def test_memory_that_every_request_adds_is_a_leak(tmp_path: Path) -> None:
    # one step of a cache is none: see test_answer
    worker = answering('{"answer": 42}', before='model.extend(b"x" * 2**25)')
    tiny = provider(tmp_path, worker, smoke={"repeat": 4})
    result = smoked(tiny)
    assert (result.verdict, result.reason) == ("failed", "grows")
    assert "(smoke.max_growth_mib)" in result.lines[0]
    found = float(result.lines[0].removeprefix("grows: tiny: ").split()[0])
    assert 28 < found < 80


def test_a_peak_that_is_over_before_the_answer_counts_against_the_budget(
    tmp_path: Path,
) -> None:
    before = 'len(b"x" * 2**27)'
    worker = answering('{"answer": 42}', before=before)
    result = smoked(provider(tmp_path, worker, host={"ram_budget_gb": 0.1}))
    assert (result.verdict, result.reason) == ("failed", "over_budget")
    assert "host.ram_budget_gb: 0.1 GiB declared, 0." in result.lines[0]
    edit, _, again = result.lines[-1].removeprefix("next: ").partition(" && ")
    subprocess.run(edit, shell=True, check=True)
    raised = manifest.load(tmp_path / "manifests/tiny/provider.toml")
    assert (raised.host_ram_budget_gb or 0) > 0.125
    assert again == "doit setup:tiny"


def test_a_childs_memory_counts_against_the_budget(tmp_path: Path) -> None:
    # long enough to be seen; in the fresh process nobody looks
    child = f"x = b'x' * 2**27; import time; time.sleep({late_s() / 2})"
    before = (
        "import subprocess, sys; request['output_dir'].endswith('first') and "
        f'subprocess.run([sys.executable, "-c", "{child}"])'
    )
    worker = answering('{"answer": 42}', before=before)
    tiny = provider(tmp_path, worker, host={"ram_budget_gb": 0.1}, smoke={"repeat": 0})
    assert smoked(tiny).reason == "over_budget"


def test_a_model_that_fails_to_load_says_why_as_often_as_it_is_asked(
    tmp_path: Path,
) -> None:
    worker = """
    def build(config):
        raise OSError("no such checkpoint")

    def predict(model, request):
        return {}
    """
    tiny = provider(tmp_path, worker)
    # more often than a crash loop takes: somebody asked, each time
    for _ in range(4):
        result = smoked(tiny)
        assert (result.verdict, result.reason) == ("failed", "start_failed")
        assert "no such checkpoint" in "\n".join(result.lines)
        # not that of a held worker's log: there is none
        assert result.lines[-1] == "next: doit setup:tiny"


def test_no_room_refuses_before_anything_is_started(tmp_path: Path) -> None:
    def admit(candidate: object) -> object:
        raise AdmissionRefused("tiny: 28 GiB wanted", verdict=None, reason="no_room")

    tiny = provider(tmp_path)
    result, _ = made(smoke.make(tiny, admit=admit))
    assert (result.verdict, result.reason) == ("refused", "no_room")
    assert result.lines == [
        "no_room: tiny: 28 GiB wanted",
        "nothing was started",
        "next: tu remote room",
    ]
    assert corners() == []


@pytest.mark.parametrize("how", ["cut", "flipped", "remembered"])
def test_a_bad_weight_is_found_in_its_bytes_before_anything_is_started(
    tmp_path: Path, how: str
) -> None:
    whole = bytes(range(256)) * 4
    # by sha256sum
    pin = "785b0751fc2c53dc14a4ce3d800e69ef9ce1009eb327ccf458afe09c242c26c9"
    flipped = b"\1" + whole[1:]
    file = tmp_path / "w" / "model.bin"
    file.parent.mkdir()
    file.write_bytes(whole[:12] if how == "cut" else flipped)
    # as old as the file that it was: the memo keeps no young ones
    hour_ago = time.time() - 3600
    os.utime(file, (hour_ago, hour_ago))
    files = [{"name": "model.bin", "size": 1024, "sha256": pin}]
    weights = {"root_default": str(file.parent), "file": files}
    tiny = provider(tmp_path, weights=weights)
    if how == "remembered":
        # what the memo says is enough for a check, and not for a certificate
        memo = tiny.weights_memo()
        memo.put(file, file.stat(), pin)
        memo.save()

    def admit(candidate: object) -> object:
        raise AssertionError("asked for room")

    result, _ = made(smoke.make(tiny, admit=admit))
    assert (result.verdict, result.reason) == (
        "refused",
        "size" if how == "cut" else "digest",
    )
    wanted, found = ("1024", "12") if how == "cut" else (pin, _sha256(flipped))
    assert wanted in result.lines[0]
    assert found in result.lines[0]
    assert "nothing was started" in result.lines
    assert file.read_bytes() == (whole[:12] if how == "cut" else flipped)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


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
    assert all(map(_runs, pids))

    # a refusal to start is enough: nothing of the next smoke ends it
    def admit(candidate: object) -> object:
        raise AdmissionRefused("no room", verdict=None, reason="no_room")

    _, said = made(smoke.make(tiny, admit=admit))
    assert not [pid for pid in pids if _runs(pid)]
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


def test_a_smokes_worker_keeps_its_deadline_too_for_when_the_smoke_is_killed(
    tmp_path: Path,
) -> None:
    worker = """
        from pathlib import Path

        def build(config):
            pass

        def predict(model, request):
            argv = Path("/proc/self/cmdline").read_text().split("\\0")
            given = dict(zip(argv, argv[1:]))
            start_s = float(given.get("--start-timeout", 90))
            return {"start_s": start_s, "request_s": float(given["--request-timeout"])}
    """
    expected = {"start_s": {"equals": 90.0}, "request_s": {"max": 180.0}}
    tiny = provider(
        tmp_path,
        worker,
        runtime={"start_timeout_s": 90},
        smoke={"deterministic": False, "expect": expected},
    )

    assert smoked(tiny).verdict == "done"


def test_a_worker_that_is_no_smokes_outlives_one(tmp_path: Path) -> None:
    tiny = provider(tmp_path)
    worker = supervisor.ResidentWorker(tiny, admit=None)
    started = worker.ensure_started()
    try:
        assert made(smoke.make(tiny, admit=None))[0].verdict == "done"
        assert _runs(str(started.pid))
    finally:
        worker.stop()


def _first_pids(path: Path) -> list[str]:
    until = time.monotonic() + 30
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


def test_a_fresh_process_per_request_is_run_once_and_reported(tmp_path: Path) -> None:
    runtime = {"mode": "subprocess", "mode_reason": "keeps state"}
    tiny = provider(tmp_path, runtime=runtime, smoke={"repeat": 0})
    assert smoked(tiny).verdict == "done"
    report = measured.read(measured.report_path(tiny))
    assert report is not None
    assert {"fresh_s", "total_s"} <= set(report.timing)
    assert not {"first_s", "held_median_s"} & set(report.timing)
    assert isinstance(report.memory["rss_peak_bytes"], int)


SCRIPTS = {
    "passes": ('print(\'{"answer": 42}\'); open("out.txt", "w").write("x")', ""),
    "fails": ("print('the second call failed'); raise SystemExit(3)", "request_failed"),
    "wrong": ("print('{\"answer\": 41}')", "answer_wrong"),
    "hangs": (
        "import subprocess, sys; print('begun', flush=True);"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
        "start_new_session=True).wait()",
        "timeout",
    ),
}


@pytest.mark.parametrize("kind", [kind for kind in SCRIPTS if kind != "hangs"])
def test_a_script_stands_for_a_request(tmp_path: Path, kind: str) -> None:
    text, reason = SCRIPTS[kind]
    asked = {"script": "smoke.py", "expect": {"answer": {"equals": 42}}}
    (provider(tmp_path).directory / "smoke.py").write_text(text)
    tiny = provider(tmp_path, whole={"smoke": asked})
    result = smoked(tiny)
    assert result.reason == reason
    if kind == "passes":
        assert smoke.problems(tiny) == []


def test_a_script_that_hangs_is_ended_at_the_deadline_with_what_it_started(
    tmp_path: Path,
) -> None:
    (provider(tmp_path).directory / "smoke.py").write_text(SCRIPTS["hangs"][0])

    def declared(limit_s: float) -> ProviderManifest:
        asked = {"script": "smoke.py", "timeout_s": limit_s}
        return provider(tmp_path, whole={"smoke": asked})

    hung(declared, "begun")


def test_what_changed_since_the_report_is_named(tmp_path: Path) -> None:
    tiny = provider(tmp_path)
    assert smoked(tiny).verdict == "done"
    (tiny.directory / "worker.py").write_text(textwrap.dedent(GOOD) + "# edited\n")
    (problem,) = smoke.problems(tiny)
    assert (problem.step, problem.reason) == ("smoke", "stale")
    assert problem.next == "doit setup:tiny"
    assert problem.text.startswith("tiny: worker ")
    assert " -> " in problem.text


def test_what_changes_while_the_smoke_runs_is_not_certified(tmp_path: Path) -> None:
    edits = "Path(__file__).with_name('more.py').touch(); return {\"answer\""
    tiny = provider(tmp_path, GOOD.replace('return {"answer"', edits))
    result = smoked(tiny)
    assert (result.verdict, result.reason) == ("failed", "stale")
    assert result.lines[0].startswith(
        "stale: tiny: changed while the smoke ran: worker "
    )
    assert not measured.report_path(tiny).exists()


def test_two_fresh_processes_that_answer_otherwise_are_not_deterministic(
    tmp_path: Path,
) -> None:
    runtime = {"mode": "subprocess", "mode_reason": "keeps state"}
    asked = {"repeat": 0, "deterministic": True}
    worker = answering('{"answer": 42, "pid": os.getpid()}')

    result = smoked(provider(tmp_path, worker, runtime=runtime, smoke=asked))

    assert result.reason == "not_deterministic"
    assert "tiny: first and second request: reply.pid: " in result.lines[0]
