"""The deadline of a smoke: what hangs is ended, with its children, and shown."""

from pathlib import Path

import pytest
from small_smoke import (
    HANGS,
    LEAVES_A_CHILD,
    SCRIPTS,
    hung,
    kept,
    provider,
    runs,
    smoked,
)

from remote_resident import places
from remote_resident.manifest import ProviderManifest
from tasks import measured

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

    result = hung(declared, "half way", where)
    at = result.lines.index("its stacks at the deadline:")
    # once: nobody else that keeps a limit of the worker has them written again
    assert len([line for line in result.lines[at:] if line.endswith(where)]) == 1
    assert "  half way" in result.lines[:at]
    assert kept(result).is_dir()
    assert not measured.report_path(declared(1.0)).exists()


@pytest.mark.parametrize("hang", [True, False])
def test_a_child_in_a_session_of_its_own_that_holds_stdout_ends_too(
    tmp_path: Path, hang: bool
) -> None:
    def declared(limit_s: float) -> ProviderManifest:
        request = {"op": "answer", "hang": hang}
        smoke = {"request": request, "timeout_s": limit_s, "repeat": 1}
        return provider(tmp_path, LEAVES_A_CHILD, smoke=smoke)

    if hang:
        hung(declared, "child", deadlines_s=(1.0, 5.0, 30.0))
    else:
        assert smoked(declared(60.0)).verdict == "done"
    pids = (places.cache_dir() / "pids").read_text().split()
    assert pids
    assert not [pid for pid in pids if runs(pid)]


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
    # the held one's and the fresh one's
    expected = {"start_s": {"equals": 90.0}, "request_s": {"equals": 121.0}}
    tiny = provider(
        tmp_path,
        worker,
        runtime={"start_timeout_s": 90},
        smoke={"timeout_s": 120.0, "deterministic": False, "expect": expected},
    )

    assert smoked(tiny).verdict == "done"


def test_a_script_that_hangs_is_ended_at_the_deadline_with_what_it_started(
    tmp_path: Path,
) -> None:
    (provider(tmp_path).directory / "smoke.py").write_text(SCRIPTS["hangs"][0])

    def declared(limit_s: float) -> ProviderManifest:
        asked = {"script": "smoke.py", "timeout_s": limit_s}
        return provider(tmp_path, whole={"smoke": asked})

    hung(declared, "begun")
