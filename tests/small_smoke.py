"""A provider around a worker that is written down in a test, and its smoke."""

import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w

from remote_resident import manifest, places, processes
from remote_resident.manifest import ProviderManifest
from tasks import smoke
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
    *marks: str,
    deadlines_s: tuple[float, ...] = (0.7, 3.0, 30.0),
) -> StepResult:
    """Smoke what hangs, and hold it to its deadline.

    A deadline counts before which this machine comes to all that is to be shown, lines by
    their ends, and whose end no other load of it delays: the first of these that does.
    """
    for limit_s in deadlines_s:
        result, seconds = timed(declared(limit_s))
        assert (result.verdict, result.reason) == ("failed", "timeout")
        assert limit_s < seconds
        late = seconds - limit_s
        shown = [any(line.endswith(mark) for line in result.lines) for mark in marks]
        if all(shown) and late < late_s():
            return result
    raise AssertionError(f"{late} s after {limit_s} s, {marks} wanted: {result.lines}")


def assert_nothing_left(tiny: ProviderManifest) -> None:
    assert processes.instances(tiny.slug, str(tiny.tree)) == []
    assert list(places.runtime_dir().glob("s-*")) == []


def kept(result: StepResult) -> Path:
    (line,) = [line for line in result.lines if line.startswith("kept: ")]
    return Path(line.removeprefix("kept: "))


def corners() -> list[Path]:
    return list((places.cache_dir() / "smoke").glob("*"))


HANGS = """
    import time

    def build(config):
        return None

    def predict(model, request):
        print("half way", flush=True)
        while True:
            time.sleep(0.01)
"""


LEAVES_A_CHILD = """
    import os, subprocess, sys
    from pathlib import Path

    CHILD = (
        "import signal, sys, time;"
        "sys.argv[1:] and signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "sys.stdin.readline(); print('child', flush=True); time.sleep(600)"
    )

    def build(config):
        return None

    def predict(model, request):
        # in a session of its own, with our standard output
        hang = ["hang"] if request["hang"] else []
        argv = [sys.executable, "-c", CHILD, *hang]
        child = subprocess.Popen(argv, start_new_session=True, stdin=subprocess.PIPE)
        pids = Path(request["output_dir"]).parent.parent.parent / "pids"
        with pids.open("a") as file:
            file.write(f"{child.pid} ")
        # it speaks when it is noted
        child.stdin.write(b"\\n")
        child.stdin.flush()
        if hang:
            child.wait()
        return {"answer": 42}
"""


def runs(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


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
