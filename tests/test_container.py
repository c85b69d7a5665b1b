"""Providers in real containers: what runs, what is seen inside, and what is left."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from container_image import PYTHON, Image
from small_provider import DEADLINE_S, provider, until, write

from remote_resident import exec_env, manifest, places, processes
from remote_resident.errors import ProviderError, WorkerRequestError
from remote_resident.exec_env import Bind, ExecEnvironment
from remote_resident.manifest import ProviderManifest
from remote_resident.supervisor import ResidentWorker, run_once
from tasks import environment

pytestmark = pytest.mark.container

CANARY = "canary-5d2f"
PASSED = "passed-81c0"
FRESH = {"mode": "subprocess", "mode_reason": "a fresh process each"}
OWNER = """
import json, sys
from remote_resident import manifest
from remote_resident.supervisor import ResidentWorker
worker = ResidentWorker(manifest.load(sys.argv[1]), admit=None)
worker.ensure_started()
print(worker.instance, flush=True)
if len(sys.argv) > 2:
    worker.request(json.loads(sys.argv[2]))
sys.stdin.read()
"""

Run = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(autouse=True)
def image(base_image: Image, monkeypatch: pytest.MonkeyPatch) -> Image:
    """Use the program that has the image, and give the image."""
    monkeypatch.setenv("TU_CONTAINER_CLI", base_image.program)
    return base_image


@pytest.fixture
def tree(tmp_path: Path, image: Image) -> Iterator[Path]:
    """Give a tree whose path is hard to pass on; its containers end with the test."""
    path = tmp_path / "a tree, of mine"
    path.mkdir()
    yield path
    if left := containers(image, path):
        subprocess.run([image.program, "rm", "--force", *left], check=True)
        pytest.fail(f"containers left: {left}")


def declare(
    tree: Path, image: Image, script: str = "does", **tables: Any
) -> ProviderManifest:
    """Write a provider whose worker runs in the image."""
    env = {"kind": "docker", "python": None, "container_python": PYTHON}
    env = {**env, "image": image.by_digest, **tables.pop("env", {})}
    runtime = {"orphan_grace_s": 0.2, **tables.pop("runtime", {})}
    return provider(tree, script, env=env, runtime=runtime, **tables)


@pytest.fixture
def make(tree: Path, image: Image) -> Iterator[Callable[..., ResidentWorker]]:
    """Make workers; what is left of them ends with the test."""
    made: list[ResidentWorker] = []

    def make(script: str = "does", **tables: Any) -> ResidentWorker:
        declared = declare(tree, image, script, **tables)
        made.append(ResidentWorker(declared, admit=None))
        return made[-1]

    yield make
    for worker in made:
        worker.stop(grace_s=0.1)


Make = Callable[..., ResidentWorker]


def containers(image: Image, tree: Path) -> list[str]:
    """List a tree's containers, ended ones too."""
    asked = [image.program, "ps", "--all", "--quiet", "--filter"]
    found = subprocess.check_output([*asked, "label=tu-remote.slug=tiny"], text=True)
    # not by the label of the tree: a filter with a comma is two
    label = '{{index .Config.Labels "tu-remote.tree"}}'
    inspect = [image.program, "inspect", "--format", label]
    trees = {
        name: subprocess.run(
            [*inspect, name], capture_output=True, text=True, check=False
        ).stdout.strip()
        for name in found.split()
    }
    return [name for name, of_it in trees.items() if of_it == str(tree)]


def tu(tree: Path, *words: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "remote_resident", "remote", "--tree", str(tree)]
    return subprocess.run(
        [*command, *words], capture_output=True, text=True, check=False, **options
    )


def nothing_left(image: Image, tree: Path, instance: str) -> None:
    until(lambda: not processes.members(instance), f"no process of {instance}")
    until(lambda: not containers(image, tree), "no container")


def line_of(child: "subprocess.Popen[str]") -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


# --- set up and asked as an operator does it


def test_a_provider_in_a_container_is_set_up_called_and_stopped(
    tree: Path, image: Image
) -> None:
    declare(tree, image, "echo", runtime={"idle_timeout_s": 60.0})

    setup = tu(tree, "--json", "setup", "tiny")
    steps = json.loads(setup.stdout)["results"][0]["steps"]
    called = [
        json.loads(tu(tree, "call", "tiny", '{"about": 1}').stdout) for _ in range(2)
    ]
    stopped = json.loads(tu(tree, "--json", "stop", "tiny").stdout)

    verdicts = {step["step"]: step["verdict"] for step in steps}
    assert (verdicts["preflight"], verdicts["environment"]) == ("present", "present")
    assert verdicts["smoke"] == "done", setup.stdout
    # the second call found the worker that the first one had started
    assert called[0]["instance"] == called[1]["instance"]
    assert stopped["stopped"]
    assert containers(image, tree) == []


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.long),
        signal.SIGTERM,
        signal.SIGKILL,
    ],
)
def test_a_smoke_that_is_cut_leaves_no_container(
    tree: Path, image: Image, run: Run, number: signal.Signals
) -> None:
    declare(
        tree,
        image,
        env={"vars": {"LOAD": "hangs"}},
        runtime={"start_timeout_s": 600.0},
    )
    argv = ("-m", "remote_resident", "remote", "--tree", str(tree), "setup", "tiny")
    setup = run(*argv, stderr=subprocess.DEVNULL)
    until(lambda: containers(image, tree), "a container")

    setup.send_signal(number)
    setup.wait(DEADLINE_S)

    until(lambda: not containers(image, tree), "no container")


# --- ended by whatever ends


@pytest.mark.parametrize("busy", [False, True])
def test_no_container_outlives_an_owner_that_was_killed(
    tree: Path, image: Image, tmp_path: Path, run: Run, busy: bool
) -> None:
    declared = declare(tree, image, runtime={"request_timeout_s": 1.0})
    asked = [json.dumps({"hangs": "python"})] if busy else []
    owner = run("-c", OWNER, str(declared.path), *asked)
    instance = line_of(owner)
    assert containers(image, tree)

    owner.kill()

    nothing_left(image, tree, instance)


def test_a_container_does_not_outlive_its_client(
    tree: Path, image: Image, make: Make
) -> None:
    worker = make()
    client = worker.ensure_started()

    os.kill(client.pid, signal.SIGKILL)

    nothing_left(image, tree, client.instance)


def test_a_prediction_over_its_time_ends_the_container(
    tree: Path, image: Image, make: Make
) -> None:
    worker = make(runtime={"request_timeout_s": 0.5})

    with pytest.raises(WorkerRequestError) as caught:
        worker.request({"hangs": "python"})

    assert caught.value.reason == "request_timeout"
    assert "does.py" not in str(caught.value)
    assert "in predict" in worker.log_path.read_text()
    nothing_left(image, tree, str(worker.instance))
    assert worker.request({"x": 2})["echo"] == 2


def test_a_worker_that_dies_in_its_container_is_named_and_replaced(make: Make) -> None:
    worker = make("dies")

    with pytest.raises(WorkerRequestError) as caught:
        worker.request({"how": "SIGSEGV"})

    assert caught.value.reason == "worker_died"
    assert "exit status 139: SIGSEGV" in str(caught.value)
    with pytest.raises(WorkerRequestError):
        worker.request({"how": "exit"})


# --- what is seen inside and outside


def test_a_container_gets_what_is_declared_and_nothing_of_the_shell(
    tree: Path, image: Image, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", CANARY)
    monkeypatch.setenv("LC_CANARY", CANARY)
    monkeypatch.setenv("PASSED_TOKEN", PASSED)
    declared = {"vars": {"DECLARED": "as declared"}, "pass_env": ["PASSED_TOKEN"]}
    worker = make(env=declared)

    environ = worker.request({})["environ"]

    [name] = containers(image, tree)
    shown = subprocess.check_output([image.program, "inspect", name], text=True)
    argv = [
        Path(f"/proc/{pid}/cmdline").read_bytes()
        for pid in processes.members(str(worker.instance))
    ]
    assert environ["DECLARED"] == "as declared"
    assert CANARY not in "".join(environ.values())
    assert CANARY not in shown
    assert not any(CANARY.encode() in words for words in argv)
    # what the manifest asks for gets in, and is in nobody's argv and in no log
    assert environ["PASSED_TOKEN"] == PASSED
    assert not any(PASSED.encode() in words for words in argv)
    assert PASSED not in worker.log_path.read_text()
    # its own caches, not the operator's home
    assert environ["HOME"] == str(exec_env.from_manifest(worker.manifest).cache_dir())


def test_files_belong_to_the_caller(make: Make, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    worker = make(runtime={"work_root": str(work)})

    reply = worker.request({})

    written = Path(reply["output_dir"], "out.txt")
    assert written.read_text() == "written"
    assert (written.stat().st_uid, reply["uid"]) == (os.geteuid(), os.geteuid())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give away a directory")
def test_files_belong_to_who_is_asked_for(tmp_path: Path, image: Image) -> None:
    place = tmp_path / "place"
    place.mkdir()
    os.chown(place, 1234, 1234)
    environment = ExecEnvironment(
        slug="tiny",
        tree=tmp_path,
        kind="docker",
        image=image.by_digest,
        container_python=PYTHON,
        binds=(Bind(path=place, writable=True),),
        user=(1234, 1234),
    )

    argv, env = environment.argv(["-c", f"open({str(place / 'a')!r}, 'w')"], {})
    subprocess.run(argv, env=env, check=True, stdin=subprocess.DEVNULL)

    found = (place / "a").stat()
    assert (found.st_uid, found.st_gid) == (1234, 1234)


def test_a_fresh_process_sees_the_directory_that_it_is_to_write_to(
    tree: Path, image: Image, tmp_path: Path
) -> None:
    declared = declare(tree, image, runtime=FRESH)
    out = tmp_path / "not there yet" / "out"

    reply, _ = run_once(declared, {"output_dir": str(out)}, admit=None)

    assert reply["output_dir"] == str(out)
    assert (out / "out.txt").read_text() == "written"
    assert containers(image, tree) == []


def test_an_output_directory_that_the_container_does_not_see_is_refused(
    make: Make, tmp_path: Path
) -> None:
    worker = make()

    with pytest.raises(WorkerRequestError) as caught:
        worker.request({"output_dir": str(tmp_path / "out")})

    assert caught.value.reason == "bad_request"
    assert str(caught.value) == (
        f"tiny: output_dir: {tmp_path}/out found, which its container does not see; "
        "a directory below [runtime] work_root wanted"
    )
    assert worker.instance is None


def test_a_large_request_and_reply_pass_through_a_fresh_container(
    tree: Path, image: Image
) -> None:
    declared = declare(tree, image, runtime=FRESH)
    large = "x" * 2_000_000

    assert run_once(declared, {"x": large}, admit=None)[0]["echo"] == large


def test_a_fresh_container_ends_with_a_caller_that_was_killed(
    tree: Path, image: Image, run: Run
) -> None:
    declared = declare(tree, image, runtime=FRESH)
    words = ("call", "tiny", '{"hangs": "python"}')
    argv = ("-m", "remote_resident", "remote", "--tree", str(tree), *words)
    caller = run(*argv, stderr=subprocess.DEVNULL)
    until(lambda: containers(image, tree), "a container")
    [left] = wait_instances(declared)

    caller.kill()

    nothing_left(image, tree, left)


def wait_instances(declared: ProviderManifest) -> list[str]:
    found: list[str] = []

    def there() -> bool:
        seen = processes.instances(declared.slug, str(declared.tree))
        found[:] = [one.instance for one in seen]
        return bool(found)

    until(there, "an instance")
    return found


# --- images


@pytest.mark.parametrize(
    ("image_of", "reason"),
    [
        (lambda image: "localhost/tu-test-none:1", "image_missing"),
        (
            lambda image: f"{image.name}@sha256:{'0' * 64}",
            "image_digest",
        ),
    ],
)
def test_an_image_that_is_not_the_declared_one_is_named(
    tree: Path, image: Image, image_of: Callable[[Image], str], reason: str
) -> None:
    declared = declare(tree, image, env={"image": image_of(image)})

    [problem] = environment.problems(declared)
    setup = json.loads(tu(tree, "--json", "setup", "tiny").stdout)

    assert problem.reason == reason
    steps = {step["step"]: step for step in setup["results"][0]["steps"]}
    assert steps["environment"]["reason"] == reason


# --- kits


LAUNCHER = """
import runpy, sys

def resolve(mode):
    return {"route": mode, "row": {"ROW": "set"}}

if __name__ == "__main__":
    cut = sys.argv.index("--")
    words = sys.argv[cut + 1 :]
    import os
    os.environ["LAUNCHED"] = " ".join(sys.argv[1:cut])
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")
"""
AUTOLOAD = """
import os

def resolve(mode):
    if mode == "exact":
        print("NOT ACTIVE", flush=True)
        raise SystemExit(3)
    return {"row": {"ROW": "set by itself"}}

os.environ.setdefault("ENGAGED", os.environ.get("TINY_OPT", ""))
"""


def kit(
    tree: Path, image: Image, module: str, text: str, mode: str
) -> ProviderManifest:
    """Declare a provider whose kit is beside it, as an image would have it installed."""
    path = write(
        tree,
        "does",
        env={
            "kind": "docker",
            "python": None,
            "image": image.by_digest,
            "container_python": PYTHON,
            "vars": {"PYTHONPATH": str(tree / "manifests" / "tiny")},
        },
        runtime={"orphan_grace_s": 0.2},
        kit={"name": "tiny", "package": "tiny_opt", "mode": mode},
    )
    (tree / "kits").mkdir()
    (tree / "kits" / "tiny.toml").write_text(
        'repository = "https://example.org/k.git"\n'
        f'commit = "{"0" * 40}"\nlicense = "MIT"\ndescription = "Tiny."\n'
    )
    places.ensure(places.kit_dir("0" * 40))
    package = path.parent / "tiny_opt"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / f"{module}.py").write_text(text)
    if module == "_autoload":
        # what the kit's .pth does where it is installed
        (path.parent / "sitecustomize.py").write_text("import tiny_opt._autoload")
    return manifest.load(path)


@pytest.mark.parametrize(
    ("module", "text", "seen"),
    [
        ("worker_launch", LAUNCHER, {"ROW": "set", "LAUNCHED": "--route fast"}),
        ("_autoload", AUTOLOAD, {"ROW": "set by itself", "ENGAGED": "fast"}),
    ],
)
def test_a_kit_in_a_container_is_asked_there_and_engages(
    tree: Path, image: Image, module: str, text: str, seen: dict[str, str]
) -> None:
    declared = kit(tree, image, module, text, "fast")
    worker = ResidentWorker(declared, admit=None)
    try:
        environ = worker.request({})["environ"]
    finally:
        worker.stop(0.1)

    assert {name: environ.get(name) for name in seen} == seen
    assert containers(image, tree) == []


def test_a_kit_that_refuses_in_its_container_starts_nothing(
    tree: Path, image: Image
) -> None:
    declared = kit(tree, image, "_autoload", AUTOLOAD, "exact")

    with pytest.raises(ProviderError) as caught:
        ResidentWorker(declared, admit=None).ensure_started()

    assert caught.value.reason == "kit_unavailable"
    assert "exit status 3" in str(caught.value)
    assert containers(image, tree) == []
