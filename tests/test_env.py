"""An environment is made by the lock's recipe, whole or not at all."""

import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from small_provider import until
from small_tree import HEADER, MANIFEST, drive, lock_text, pin, provider, tree, wheel

from tasks import env, environment, installed, lock

DRIVER = """\
import sys
from pathlib import Path
from small_tree import provider
from tasks import env
making = env.make(provider(Path(sys.argv[1])))
while True:
    try:
        print(next(making), flush=True)
    except StopIteration as stop:
        print("RESULT", stop.value.verdict, stop.value.detail, flush=True)
        break
"""


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let pip see only one directory of wheels; put the host's places under a blank."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    place = tmp_path / "home dir"
    place.mkdir(mode=0o700)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("TU_REMOTE_HOME", str(place))
    monkeypatch.delenv("M_PYTHON", raising=False)
    return folder


@pytest.fixture
def blank_home(tmp_path: Path, wheels: Path) -> Path:
    """Give the directory of the host's places."""
    return tmp_path / "home dir"


@pytest.fixture
def root(tmp_path: Path, wheels: Path) -> Path:
    """Make a tree whose lock pins one small wheel."""
    return tree(tmp_path / "a tree", pin("small", "1.0", wheel(wheels, "small", "1.0")))


def started(root: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )


def finished(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def holds(root: Path) -> bool:
    """Say whether the environment has what the lock pins, by running it."""
    python = provider(root).python_executable()
    assert python is not None
    code = "import small, pip; print(small.__file__)"
    ran = subprocess.run([python, "-I", "-c", code], capture_output=True, timeout=60)
    return ran.returncode == 0 and environment.problems(provider(root)) == []


def test_what_a_killed_maker_left_is_gone_on_with_by_one_of_two_at_once(
    root: Path, blank_home: Path
) -> None:
    killed = started(root)
    until(lambda: list(blank_home.rglob("pyvenv.cfg")), "the environment is begun")
    (orphan,) = map(
        int, Path(f"/proc/{killed.pid}/task/{killed.pid}/children").read_text().split()
    )
    os.kill(orphan, signal.SIGSTOP)
    try:
        killed.kill()
        killed.communicate(timeout=60)
        both = [started(root), started(root)]
        waits = f"waiting for process {killed.pid}: it makes this\n"
        assert [one.stdout and one.stdout.readline() for one in both] == [waits] * 2
    finally:
        os.kill(orphan, signal.SIGCONT)

    said = [finished(one).split("RESULT ") for one in both]

    said.sort(key=lambda one: one[1])
    assert [result.split()[0] for _, result in said] == ["done", "present"]
    assert "Successfully installed small-1.0" in said[0][0]
    assert holds(root)

    # found where a path has a blank, and not started for that: it could not answer
    python = provider(root).python_executable()
    assert python is not None
    place = rf"{blank_home}/cache/envs/m-[0-9a-f]{{16}}/bin/python"
    assert re.fullmatch(place, str(python))
    python.unlink()
    python.touch(mode=0o755)
    lines, result = drive(env.make(provider(root)))
    assert (lines, result.verdict, result.detail) == ([], "present", str(python))


@pytest.mark.long
def test_killed_at_any_moment_it_ends_well(root: Path) -> None:
    chance = random.Random(16)
    for _ in range(20):
        process = started(root)
        try:
            process.communicate(timeout=chance.uniform(0.05, 5.0))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
    finished(started(root))

    assert holds(root)


def test_an_edited_lock_gets_an_environment_of_its_own(root: Path) -> None:
    before = env.python_path(installed.read_lock(provider(root))[0])
    text = (root / "locks/m.lock").read_text()
    (root / "locks/m.lock").write_text(text + pin("other", "1.0") + "\n")

    after = env.python_path(installed.read_lock(provider(root))[0])

    assert before != after


def test_no_fitting_interpreter_is_refused_and_nothing_is_made(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = program(tmp_path / "python3.9", "echo 3.9.18")
    monkeypatch.setenv("PATH", str(other.parent))
    header = HEADER.replace(HEADER.split("\n")[0], "# requires-python: >=3.99")
    (root / "locks/m.lock").write_text(lock_text(pin("a", "1"), header=header))

    _, result = drive(env.make(provider(root)))

    own = ".".join(map(str, sys.version_info[:3]))
    assert (result.verdict, result.reason, result.detail) == (
        "refused",
        "python_version",
        f"m: no interpreter for requires-python >=3.99 on PATH ({own} is this tool's "
        "own) found, one wanted",
    )
    assert not list(tmp_path.rglob("pyvenv.cfg"))


def program(path: Path, line: str) -> Path:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return path


def test_an_interpreter_on_the_path_is_asked_for_its_version(tmp_path: Path) -> None:
    old = program(tmp_path / "python3.9", "echo 3.9.18")
    program(tmp_path / "python3.8", "exit 127")

    def which(name: str) -> str | None:
        path = tmp_path / name
        return str(path) if path.exists() else None

    assert env.find_python(">=3.9,<3.10", which) == str(old)
    assert env.find_python(">=3.8,<3.9", which) is None
    assert env.find_python(">=3.11", which) == sys._base_executable


def test_without_a_lock_there_is_nothing_to_make(root: Path) -> None:
    toml = MANIFEST.replace('lock = "m"\n', "")
    (root / "manifests/m/provider.toml").write_text(toml)

    _, result = drive(env.make(provider(root)))

    assert (result.verdict, result.reason, result.detail) == (
        "refused",
        "lock_missing",
        "m: [env] lock: none declared found, one wanted",
    )


def test_the_callers_pip_settings_say_where_from_and_never_where_to() -> None:
    asked = {
        "PATH": "/bin",
        "PIP_INDEX_URL": "file:///here",
        "HTTPS_PROXY": "p",
        "PIP_TARGET": "/elsewhere",
        "PIP_USER": "1",
        "CFLAGS": "-O2",
        "NETRC": "/mine",
        "CANARY_TOKEN": "secret",
        "PYTHONPATH": "/elsewhere",
        "VIRTUAL_ENV": "/elsewhere",
    }

    assert env.pip_environment(asked) == {
        "PATH": "/bin",
        "PIP_INDEX_URL": "file:///here",
        "HTTPS_PROXY": "p",
        "CFLAGS": "-O2",
        "NETRC": "/mine",
        "PIP_USER": "0",
    }


def test_pip_sees_nothing_of_the_caller_that_is_not_listed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, seen = tmp_path / "python", tmp_path / "seen"
    fake.write_text(f'#!/bin/sh\nenv > "{seen}"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("CANARY_TOKEN", "secret")
    monkeypatch.setenv("https_proxy", "http://proxy")
    pins = lock.parse(root / "locks/m.lock")

    list(env.install(provider(root), fake, pins))

    names = {line.partition("=")[0] for line in seen.read_text().splitlines()}
    assert "CANARY_TOKEN" not in names
    assert {"PATH", "PIP_NO_INDEX", "https_proxy"} <= names


def test_no_environment_is_begun_where_it_has_no_room(
    root: Path, blank_home: Path
) -> None:
    header = HEADER.replace("# recipe", "# installed-bytes: 5000\n# recipe")
    (root / "locks/m.lock").write_text(lock_text(pin("a", "1"), header=header))

    _, result = drive(env.make(provider(root), free_bytes=lambda _: 4999))

    assert (result.verdict, result.reason, result.detail) == (
        "refused",
        "disk_full",
        f"m: {blank_home}/cache/envs: 4999 bytes free found, 5000 wanted for the "
        "environment",
    )
    assert not list(blank_home.rglob("pyvenv.cfg"))


def test_what_fails_on_a_full_disk_is_put_down_to_it(
    root: Path, blank_home: Path
) -> None:
    pins = lock.parse(root / "locks/m.lock")
    place = env.python_path(pins).parent.parent
    place.parent.mkdir(parents=True, mode=0o700)
    place.touch()  # no venv can be made there

    for free, reason in ((0, "disk_full"), (10**12, "install_failed")):
        _, result = drive(env.make(provider(root), free_bytes=lambda _, n=free: n))
        assert (result.verdict, result.reason) == ("failed", reason)
        says = f"; {place.parent}: 0 bytes free found, more wanted"
        assert result.detail.endswith(says) == (free == 0)

    broken = root / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    _, result = drive(env.install(provider(root), broken, pins, lambda _: 7))
    assert (result.reason, result.detail) == (
        "disk_full",
        f"m: pip install -r locks/m.lock: exit 3 found, exit 0 wanted; {root}: 7 bytes "
        "free found, more wanted",
    )


def test_a_guard_that_cannot_be_opened_is_refused(root: Path) -> None:
    python = env.python_path(lock.parse(root / "locks/m.lock"))
    place = python.parent.parent
    guard = place.parent / f".{place.name}.lock"
    guard.mkdir(parents=True, mode=0o700)

    _, result = drive(env.make(provider(root)))

    assert (result.verdict, result.reason, result.detail) == (
        "refused",
        "locked",
        f"{guard}: Is a directory, a lock file that uid {os.geteuid()} can write wanted",
    )


BACKEND = """\
import sys
from pathlib import Path
sys.path[:0] = {paths!r}
from small_tree import wheel
def build_wheel(directory, settings=None, metadata=None):
    wheel(Path(directory), "fromsource", "1.0", "BUILT_BY = '{version}'\\n")
    return "fromsource-1.0-py3-none-any.whl"
"""


def build_backend(version: str) -> str:
    """Write a backend that builds one wheel, which says by what it was built."""
    here, root = Path(__file__).parent, Path(__file__).parents[1]
    return BACKEND.format(paths=[str(here), str(root)], version=version)


def source(folder: Path) -> str:
    """Write a source distribution that names a build backend; gives its digest."""
    inner = folder / "fromsource-1.0"
    inner.mkdir()
    (inner / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["flit_core"]\nbuild-backend = "flit_core"\n'
    )
    (inner / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: fromsource\n")
    path = folder / "fromsource-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(inner, inner.name)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("pinned", [True, False])
def test_source_is_built_with_the_pinned_tools_or_not_at_all(
    tmp_path: Path, wheels: Path, model_env: Path, pinned: bool
) -> None:
    backend = wheel(wheels, "flit_core", "9.0", build_backend("9.0"))
    # what isolation would choose
    wheel(wheels, "flit_core", "9.1", build_backend("9.1"))
    pins = [pin("fromsource", "1.0", source(wheels))]
    pins += [pin("flit-core", "9.0", backend)] if pinned else []

    root = tree(tmp_path / "t", *pins)
    making = env.install(
        provider(root), model_env / "bin/python", lock.parse(root / "locks/m.lock")
    )
    (site,) = model_env.glob("lib/python3*/site-packages")
    before = set(site.iterdir())
    try:
        _, fault = drive(making)
        built = [path.read_text() for path in site.glob("fromsource.py")]
    finally:
        for path in set(site.iterdir()) - before:
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    assert built == (["BUILT_BY = '9.0'\n"] if pinned else [])
    assert (fault is None) == pinned, fault
