"""The kit step: one checkout of exactly the pinned commit, installed from it."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from remote_resident import manifest, places
from remote_resident.manifest import ProviderManifest
from tasks import kit
from tests import small_kit
from tests.small_tree import drive

MANIFEST = """\
slug = "{slug}"
operations = ["{slug}"]
[runtime]
worker = "worker.py"
[host]
ram_budget_gb = 0.1
[env]
python = "{python}"
[kit]
name = "tiny"
subdir = "tiny"
package = "tiny_opt"
[smoke]
request = {{ op = "{slug}" }}
"""

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="no git here")


@pytest.fixture(scope="module")
def python(model_env: Path) -> Path:
    return model_env / "bin/python"


@pytest.fixture(autouse=True)
def _nothing_installed(python: Path) -> Iterator[None]:
    """Take out again what a test installs."""
    yield
    for site in python.parent.parent.glob("lib/python3*/site-packages"):
        for left in site.glob("tiny_opt*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """Make the kit's repository."""
    place = tmp_path / "origin of it"
    small_kit.commit(place, small_kit.FILES)
    return place


def provider(
    tree: Path, origin: Path, python: Path, commit: str = "", slug: str = "m"
) -> ProviderManifest:
    commit = commit or small_kit.git(origin, "rev-parse", "HEAD")
    small_kit.declare(tree, "tiny", f"file://{origin}", commit)
    path = tree / "manifests" / slug / "provider.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(MANIFEST.format(slug=slug, python=python))
    (path.parent / "worker.py").write_text("")
    return manifest.load(path, tree)


def in_a_container(one: ProviderManifest) -> ProviderManifest:
    """Give the provider with an image, of which only the checkout is made."""
    lines = one.path.read_text().splitlines()
    image = 'kind = "docker"\nimage = "none"'
    text = "\n".join(image if line.startswith("python") else line for line in lines)
    one.path.write_text(text)
    return manifest.load(one.path, one.tree)


def reasons(one: ProviderManifest) -> list[str]:
    return [problem.reason for problem in kit.problems(one)]


def checkout(one: ProviderManifest) -> Path:
    (place,) = [p for p in kit_places() if not p.name.startswith(".")]
    return place


def planted(one: ProviderManifest, origin: Path) -> Path:
    """Put a checkout where a setup has it; nothing is installed."""
    commit = small_kit.git(origin, "rev-parse", "HEAD")
    place = places.ensure(places.cache_dir() / "kits") / commit
    small_kit.git(origin, "clone", "-q", str(origin), str(place))
    assert reasons(one) == ["kit_not_installed"]
    return place


def kit_places() -> list[Path]:
    return sorted((places.cache_dir() / "kits").iterdir())


def test_a_kit_is_fetched_and_installed_from_its_commit(
    tmp_path: Path, origin: Path, python: Path
) -> None:
    one = provider(tmp_path / "tree", origin, python)
    assert reasons(one) == ["kit_unreachable", "kit_not_installed"]
    commit = small_kit.git(origin, "rev-parse", "HEAD")
    # of a setup that was cut off
    for left in ("part", "build"):
        old = places.cache_dir() / f"kits/.{commit}.{left}/tiny/tiny_opt/old.py"
        old.parent.mkdir(parents=True)
        old.touch()

    _, result = drive(kit.make(one))

    assert (result.verdict, result.detail) == ("done", f"tiny at {commit}")
    assert kit.problems(one) == []
    # no build product, no copy and no part of a fetch is left
    assert [path.name for path in kit_places()] == [f".{commit}.lock", commit]
    assert sorted(p.name for p in (checkout(one) / "tiny").iterdir()) == [
        "backend.py",
        "pyproject.toml",
        "tiny_opt",
    ]
    shown = subprocess.check_output(
        [python, "-I", "-c", "import tiny_opt; print(tiny_opt.FACTOR)"], text=True
    )
    assert shown == "1\n"
    assert not list(python.parent.parent.rglob("tiny_opt/old.py"))
    assert drive(kit.make(one))[1].verdict == "present"


def test_a_force_push_changes_nothing_and_a_newer_commit_lands_beside(
    tmp_path: Path, origin: Path, python: Path
) -> None:
    one = provider(tmp_path / "tree", origin, python)
    drive(kit.make(one))
    (origin / "tiny/tiny_opt/__init__.py").write_text("FACTOR = 666\n")
    small_kit.git(origin, "commit", "-q", "-a", "--amend", "-m", "other")

    assert kit.problems(one) == []
    assert drive(kit.make(one))[1].verdict == "present"
    text = (checkout(one) / "tiny/tiny_opt/__init__.py").read_text()
    assert text == "FACTOR = 1\n"

    newer = {"tiny/tiny_opt/__init__.py": "FACTOR = 2\n"}
    commit = small_kit.commit(origin, newer)
    other = provider(tmp_path / "tree", origin, python, commit)

    assert drive(kit.make(other))[1].verdict == "done"

    assert len([p for p in kit_places() if not p.name.startswith(".")]) == 2
    command = [str(python), "-I", "-c", "import tiny_opt; print(tiny_opt.FACTOR)"]
    assert subprocess.check_output(command, text=True) == "2\n"


@pytest.mark.parametrize(
    ("name", "shown"),
    [("tiny/backend.py", " M tiny/backend.py"), ("new.py", "?? new.py")],
)
def test_a_dirty_checkout_is_refused_and_left(
    tmp_path: Path, origin: Path, python: Path, name: str, shown: str
) -> None:
    one = provider(tmp_path / "tree", origin, python)
    place = planted(one, origin)
    (place / name).write_text("edited\n")

    _, result = drive(kit.make(one))

    assert (result.verdict, result.reason) == ("refused", "kit_dirty")
    assert result.detail == f"m: {place}: {shown} found, a clean work tree wanted"
    assert (place / name).read_text() == "edited\n"


def test_a_checkout_of_another_commit_is_refused_and_left(
    tmp_path: Path, origin: Path, python: Path
) -> None:
    one = provider(tmp_path / "tree", origin, python)
    commit = small_kit.git(origin, "rev-parse", "HEAD")
    place = planted(one, origin)
    moved = small_kit.commit(place, {"more": "x"})

    _, result = drive(kit.make(one))

    assert (result.verdict, result.reason) == ("refused", "kit_wrong_commit")
    assert result.detail == f"m: {place}: HEAD: {moved} found, {commit} wanted"
    assert (place / "more").exists()


def test_a_directory_that_is_no_checkout_is_not_taken_for_one_above_it(
    tmp_path: Path, origin: Path, python: Path
) -> None:
    one = provider(tmp_path / "tree", origin, python)
    commit = small_kit.git(origin, "rev-parse", "HEAD")
    above = places.cache_dir()
    small_kit.git(tmp_path, "clone", "-q", str(origin), str(above))
    (above / ".git/info/exclude").write_text("kits\n")
    (above / "kits" / commit).mkdir(parents=True)

    assert reasons(one) == ["kit_wrong_commit"]


def test_without_a_git_nothing_is_said_of_the_checkout(
    tmp_path: Path, origin: Path, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = provider(tmp_path / "tree", origin, python)
    planted(one, origin)
    monkeypatch.setenv("PATH", str(tmp_path))

    (problem,) = kit.problems(one)

    text = "m: no git on PATH found, one wanted for the kit tiny"
    assert (problem.reason, problem.text) == ("git_missing", text)


def test_a_commit_that_cannot_be_had_is_named_with_what_git_said(
    tmp_path: Path, origin: Path, python: Path
) -> None:
    one = provider(tmp_path / "tree", tmp_path / "gone", python, "a" * 40)

    _, result = drive(kit.make(one))

    assert (result.verdict, result.reason) == ("failed", "kit_unreachable")
    assert "does not appear to be a git repository" in "\n".join(result.lines)
    other = provider(tmp_path / "tree", origin, python, "a" * 40)
    assert drive(kit.make(other))[1].reason == "kit_unreachable"
    assert [p.name for p in kit_places()] == [f".{'a' * 40}.lock"]


def test_a_program_named_as_a_repository_is_never_run(
    tmp_path: Path, origin: Path, python: Path
) -> None:
    one = provider(tmp_path / "tree", origin, python)
    ran = tmp_path / "ran"
    commit = small_kit.git(origin, "rev-parse", "HEAD")
    small_kit.declare(tmp_path / "tree", "tiny", f"ext::touch {ran}", commit)

    assert drive(kit.make(one))[1].reason == "kit_unreachable"
    assert not ran.exists()


def test_hooks_of_the_caller_are_never_run(
    tmp_path: Path, origin: Path, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, hooks = tmp_path / "ran", tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "post-checkout").write_text(f"#!/bin/sh\ntouch '{ran}'\n")
    (hooks / "post-checkout").chmod(0o755)
    config = tmp_path / "gitconfig"
    config.write_text(f'[core]\n\thooksPath = "{hooks}"\n')
    monkeypatch.setenv("HOME", str(tmp_path))
    config.rename(tmp_path / ".gitconfig")
    one = in_a_container(provider(tmp_path / "tree", origin, python))

    assert drive(kit.make(one))[1].verdict == "done"
    assert not ran.exists()


def test_two_providers_of_one_commit_share_one_checkout_also_at_once(
    tmp_path: Path, origin: Path, python: Path
) -> None:
    tree = tmp_path / "tree"
    both = [provider(tree, origin, python, slug=slug) for slug in ("m", "n")]

    # processes of their own: a lock is between those
    command = (
        "import sys; from pathlib import Path; from remote_resident import manifest;"
        "from tasks import kit; from tests.small_tree import drive;"
        "print(drive(kit.make(manifest.load(Path(sys.argv[1]), Path(sys.argv[2]))))"
        "[1].verdict)"
    )
    root = Path(__file__).parents[1]

    def run(one: ProviderManifest) -> str:
        argv = [sys.executable, "-c", command, str(one.path), str(tree)]
        return subprocess.check_output(argv, cwd=root, text=True, timeout=120).strip()

    with ThreadPoolExecutor(2) as pool:
        verdicts = sorted(pool.map(run, both))

    assert verdicts == ["done", "present"]
    assert [kit.problems(one) for one in both] == [[], []]
    assert len([p for p in kit_places() if not p.name.startswith(".")]) == 1


SETUP = """\
import sys
from pathlib import Path
from remote_resident import manifest
from tasks import kit
for line in kit.make(manifest.load(Path(sys.argv[1]), Path(sys.argv[2]))):
    print(line, flush=True)
"""


@pytest.mark.parametrize("lines", range(1, 4))
def test_a_setup_killed_half_way_leaves_nothing_that_looks_done(
    tmp_path: Path, origin: Path, python: Path, lines: int
) -> None:
    one = provider(tmp_path / "tree", origin, python)
    setup = started(one)
    assert setup.stdout is not None
    for _ in range(lines):
        setup.stdout.readline()
    setup.kill()
    setup.communicate(timeout=60)

    whole_after_all(one)


@pytest.mark.long
@pytest.mark.parametrize("tenths", range(20))
def test_a_setup_killed_at_any_moment_leaves_nothing_that_looks_done(
    tmp_path: Path, origin: Path, python: Path, tenths: int
) -> None:
    one = provider(tmp_path / "tree", origin, python)
    setup = started(one)
    with suppress(subprocess.TimeoutExpired):
        setup.communicate(timeout=0.2 + tenths / 10)
    setup.kill()
    setup.communicate(timeout=60)

    whole_after_all(one)


def started(one: ProviderManifest) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", SETUP, str(one.path), str(one.tree)]
    root = Path(__file__).parents[1]
    return subprocess.Popen(argv, cwd=root, stdout=subprocess.PIPE, text=True)


def whole_after_all(one: ProviderManifest) -> None:
    """Hold what a killed setup left, and that the same again ends well."""
    there = places.cache_dir() / "kits"
    for place in there.glob("[!.]*"):
        assert small_kit.git(place, "status", "--porcelain") == ""
    _, result = drive(kit.make(one))
    assert result.verdict in ("done", "present"), result.lines
    assert kit.problems(one) == []
    assert [p.name for p in there.glob(".*") if p.suffix != ".lock"] == []


def test_a_build_that_fails_is_named_with_its_words(
    tmp_path: Path, origin: Path, python: Path
) -> None:
    broken = {"tiny/backend.py": "raise SystemExit('no compiler')\n"}
    one = provider(tmp_path / "tree", origin, python, small_kit.commit(origin, broken))

    _, result = drive(kit.make(one))

    assert (result.verdict, result.reason) == ("failed", "kit_not_installed")
    assert "no compiler" in "\n".join(result.lines)
    assert reasons(one) == ["kit_not_installed"]


def test_the_tools_own_interpreter_gets_no_kit(tmp_path: Path, origin: Path) -> None:
    one = provider(tmp_path / "tree", origin, Path(sys.executable))

    _, result = drive(kit.make(one))

    assert (result.verdict, result.reason) == ("refused", "python_is_ours")
