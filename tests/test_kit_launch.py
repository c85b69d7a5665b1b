"""A kit is asked how it engages, under the worker's own conditions, and is believed."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from remote_resident import exec_env, kit_launch, machine
from remote_resident.caller_side.once import run_once
from remote_resident.errors import KitUnavailable
from remote_resident.kit_launch import KitAnswer
from remote_resident.manifest import ProviderManifest
from remote_resident.supervisor import ResidentWorker
from tests import small_kit, small_provider

MODES = """\
import os, sys

def resolve(mode):
    if mode == "turbo":
        print("NOT ACTIVE: turbo wants a newer card", file=sys.stderr)
        sys.exit(3)
    if mode == "silent":
        os._exit(0)
    if mode == "hang":
        child = os.fork()
        with open(os.environ["PIDS"], "a") as pids:
            pids.write("%%d\\n" %% os.getpid())
        import signal
        signal.pause()
    for name in os.environ:
        if name.startswith("POLICED_") or name.startswith("%(stray)s"):
            sys.exit("%(package)s: refuses " + name)
    off = os.environ.get("MODEL_OPT_LEVERS_OFF", "").split(",")
    fused = "0" if "fuse" in off else "1"
    print("the kit greets")
    return {"route": "graph", "attach": ["a", "b"], "row": {"ROW_FUSE": fused},
            "absent": ["PINNED_*"]}
"""
AUTOLOAD = """
import importlib.abc, importlib.machinery

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "tiny_model":
            return None
        sys.meta_path.remove(self)
        import importlib.util
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def patched(module):
            run(module)
            module.speed = "fast" + os.environ.get("ROW_FUSE", "")
        spec.loader.exec_module = patched
        return spec

if os.environ.get("AUTO_OPT") == "quick":
    sys.meta_path.insert(0, Finder())
"""
LAUNCHER = """
if __name__ == "__main__":
    import runpy
    at = sys.argv.index("--")
    options, sys.argv = sys.argv[1:at], sys.argv[at + 1:]
    import tiny_model
    tiny_model.speed = " ".join(options)
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
WORKER = """\
def build(config):
    import os
    import tiny_model
    names = sorted(n for n in os.environ if n.isupper())
    return tiny_model.speed, names

def predict(model, request):
    return {"echo": 1, "speed": model[0], "names": model[1]}
"""


def modes(package: str) -> str:
    return MODES % {"package": package, "stray": f"{package.upper()}_"}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment with a model and a kit of each way of engaging."""
    place = tmp_path_factory.mktemp("env") / "with space"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    (site,) = place.glob("lib/python3*/site-packages")
    (site / "tiny_model.py").write_text("speed = 'plain'\n")
    for name, text in {
        "auto_opt/__init__.py": "",
        "auto_opt/_autoload.py": modes("auto_opt") + AUTOLOAD,
        "auto_opt.pth": "import auto_opt._autoload\n",
        "launch_opt/__init__.py": "",
        "launch_opt/worker_launch.py": modes("launch_opt") + LAUNCHER,
        "empty_opt/__init__.py": "",
    }.items():
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text(text)
    return place / "bin/python"


def provider(tree: Path, python: Path, package: str, **kit: Any) -> ProviderManifest:
    small_kit.declare(tree, "k", "file:///nowhere", "c" * 40)
    declared = {"name": "k", "package": package, "mode": "quick", **kit}
    env = {"python": str(python), "vars": declared.pop("vars", {})}
    env["pass_env"] = declared.pop("pass_env", [])
    path = small_provider.write(tree, "echo", env=env, kit=declared)
    (path.parent / "worker.py").write_text(WORKER)
    from remote_resident import manifest

    return manifest.load(path, tree)


def _lives(process: Path) -> bool:
    """Say whether it is more than an entry that its parent has not collected."""
    try:
        return bool((process / "cmdline").read_bytes())
    except OSError:
        return False


def answer(one: ProviderManifest) -> dict[str, Any]:
    """Start a process of the provider's and ask it once."""
    return run_once(one, {"x": 1}, admit=None, timeout_s=60)[0]


def test_a_kit_that_loads_itself_patches_a_plain_worker(
    tmp_path: Path, python: Path
) -> None:
    reply = answer(provider(tmp_path, python, "auto_opt"))

    assert reply["speed"] == "fast1"
    assert {"AUTO_OPT", "ROW_FUSE"} <= set(reply["names"])


def test_a_kit_with_a_launcher_runs_the_worker_with_its_own_options(
    tmp_path: Path, python: Path
) -> None:
    reply = answer(provider(tmp_path, python, "launch_opt"))

    assert reply["speed"] == "--route graph --attach a b"


def test_a_worker_behind_a_launcher_is_held_and_ended_like_any_other(
    tmp_path: Path, python: Path
) -> None:
    worker = ResidentWorker(provider(tmp_path, python, "launch_opt"), admit=None)
    try:
        started = worker.ensure_started()
        assert worker.request({"x": 1})["speed"] == "--route graph --attach a b"
        held = {holder.instance: holder for holder in machine.holdings()}
        assert started.pid in held[started.instance].pids
    finally:
        worker.stop()
    assert not _lives(Path("/proc", str(started.pid)))


def test_a_lever_that_is_off_is_off_for_the_question_and_the_worker(
    tmp_path: Path, python: Path
) -> None:
    one = provider(tmp_path, python, "auto_opt", levers_off=["fuse", "other"])

    assert answer(one)["speed"] == "fast0"


def test_a_mode_that_is_refused_carries_the_status_and_the_kits_words(
    tmp_path: Path, python: Path
) -> None:
    with pytest.raises(KitUnavailable) as caught:
        answer(provider(tmp_path, python, "auto_opt", mode="turbo"))

    assert str(caught.value) == (
        "tiny: kit auto_opt, mode turbo: exit status 3 found, an answer wanted, "
        "its last words:\n    NOT ACTIVE: turbo wants a newer card"
    )
    assert caught.value.reason == "kit_unavailable"


@pytest.mark.parametrize(
    ("package", "mode", "told"),
    [
        ("auto_opt", "silent", "exit status 0 and no answer found"),
        ("gone_opt", "quick", "No module named 'gone_opt'"),
        ("empty_opt", "quick", "neither worker_launch nor _autoload in it"),
    ],
)
def test_a_kit_that_gives_no_answer_is_never_taken_for_an_absent_one(
    tmp_path: Path, python: Path, package: str, mode: str, told: str
) -> None:
    with pytest.raises(KitUnavailable, match=told):
        answer(provider(tmp_path, python, package, mode=mode))


def test_names_that_the_kit_refuses_reach_neither_question_nor_worker(
    tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stray = ["AUTO_OPT_DEBUG", "POLICED_X", "PINNED_Y", "MODEL_OPT_LEVERS_OFF"]
    for name in [*stray, "OTHER"]:
        monkeypatch.setenv(name, "fuse")
    one = provider(
        tmp_path,
        python,
        "auto_opt",
        env_absent=["POLICED_*"],
        pass_env=[*stray, "OTHER"],
    )

    reply = answer(one)

    assert not set(stray) & set(reply["names"])
    assert "OTHER" in reply["names"]
    # the caller's levers are not the provider's
    assert reply["speed"] == "fast1"


def test_without_a_policy_the_stray_name_would_be_refused(
    tmp_path: Path, python: Path
) -> None:
    one = provider(tmp_path, python, "auto_opt", vars={"POLICED_X": "1"})

    with pytest.raises(KitUnavailable, match="auto_opt: refuses POLICED_X"):
        answer(one)


def test_what_the_manifest_sets_for_the_kit_is_stronger_than_its_row(
    tmp_path: Path, python: Path
) -> None:
    one = provider(tmp_path, python, "auto_opt", env={"ROW_FUSE": "7"})

    assert answer(one)["speed"] == "fast7"


def test_what_a_kit_leaves_running_ends_with_the_question(
    tmp_path: Path, python: Path
) -> None:
    env = exec_env.from_manifest(provider(tmp_path, python, "auto_opt"))
    under = {**os.environ, "PIDS": str(tmp_path / "pids")}

    with pytest.raises(KitUnavailable) as caught:
        kit_launch.ask_kit(env, "auto_opt", "hang", under=under, limit_s=1.0)

    assert str(caught.value).startswith(
        "tiny: kit auto_opt, mode hang: no end within 1.0 s found, an answer wanted"
    )
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 2
    assert not [pid for pid in pids if _lives(Path("/proc", pid))]


def test_a_kit_says_its_options_and_its_row_in_one_question(
    tmp_path: Path, python: Path
) -> None:
    env = exec_env.from_manifest(provider(tmp_path, python, "launch_opt"))

    told = kit_launch.ask_kit(env, "launch_opt", "quick")

    assert told == KitAnswer(
        options=("--route", "graph", "--attach", "a", "b"),
        row={"ROW_FUSE": "1"},
        launcher="launch_opt.worker_launch",
        absent=("PINNED_*",),
    )
