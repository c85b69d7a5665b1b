"""An environment is made by the lock's recipe, whole or not at all."""

import hashlib
import os
import random
import re
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from small_tree import HEADER, MANIFEST, drive, lock_text, pin, provider, tree, wheel

from tasks import env, environment, lock

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
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return output


def holds(root: Path) -> bool:
    """Say whether the environment has what the lock pins, by running it."""
    python = provider(root).python_executable()
    assert python is not None
    code = "import small, pip; print(small.__file__)"
    ran = subprocess.run([python, "-I", "-c", code], capture_output=True, timeout=60)
    return ran.returncode == 0 and environment.problems(provider(root)) == []


def test_an_environment_is_made_where_a_path_has_a_blank_and_found_afterwards(
    root: Path, tmp_path: Path
) -> None:
    lines, result = drive(env.make(provider(root)))

    assert result.verdict == "done", result
    python = Path(result.detail)
    assert python == provider(root).python_executable()
    assert re.fullmatch(
        rf"{tmp_path}/home dir/cache/envs/m-[0-9a-f]{{16}}/bin/python", str(python)
    )
    assert any("Successfully installed small-1.0" in line for line in lines)
    assert holds(root)

    # nothing that could be started would answer
    python.unlink()
    python.touch(mode=0o755)
    lines, result = drive(env.make(provider(root)))
    assert (lines, result.verdict) == ([], "present")


def test_one_that_was_killed_half_way_is_gone_on_with(root: Path) -> None:
    process = started(root)
    assert process.stdout is not None
    assert "-m venv" in process.stdout.readline()
    process.kill()
    process.communicate(timeout=60)

    output = finished(started(root))

    assert "RESULT done" in output
    assert holds(root)


def test_two_at_once_make_one(root: Path) -> None:
    both = [started(root), started(root)]

    verdicts = sorted(finished(one).split("RESULT ")[1].split()[0] for one in both)

    assert verdicts == ["done", "present"]
    assert holds(root)


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
    before = env.python_path(environment.read_lock(provider(root))[0])
    text = (root / "locks/m.lock").read_text()
    (root / "locks/m.lock").write_text(text + pin("other", "1.0") + "\n")

    after = env.python_path(environment.read_lock(provider(root))[0])

    assert before != after


def test_no_fitting_interpreter_is_refused_and_nothing_is_made(
    root: Path, tmp_path: Path
) -> None:
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


def test_an_interpreter_on_the_path_is_asked_for_its_version(tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\necho 3.9.18\n")
    shim = tmp_path / "python3.8"
    shim.write_text("#!/bin/sh\nexit 127\n")
    for program in (old, shim):
        program.chmod(0o755)

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
    tmp_path: Path, wheels: Path, pinned: bool
) -> None:
    backend = wheel(wheels, "flit_core", "9.0", build_backend("9.0"))
    # what isolation would choose
    wheel(wheels, "flit_core", "9.1", build_backend("9.1"))
    pins = [pin("fromsource", "1.0", source(wheels))]
    pins += [pin("flit-core", "9.0", backend)] if pinned else []

    _, result = drive(env.make(provider(tree(tmp_path / "t", *pins))))

    assert result.verdict == ("done" if pinned else "failed"), result
    (built,) = [p.read_text() for p in tmp_path.rglob("fromsource.py")] or [None]
    assert built == ("BUILT_BY = '9.0'\n" if pinned else None)
