"""The interpreter has exactly what the lock pins, seen without starting it."""

import os
import sys
import venv
from pathlib import Path

import pytest
from small_tree import MANIFEST, drive, look_alike, pin, provider, tree, wheel

from tasks import environment, installed

SITE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Name the place of the declared interpreter's environment."""
    place = tmp_path / "an env"
    monkeypatch.setenv("M_PYTHON", str(place / "bin/python"))
    return place


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make one real environment with pip, for all that install."""
    place = tmp_path_factory.mktemp("real") / "an env"
    venv.create(place, with_pip=True)
    return place


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let pip see only the wheels in one directory."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def files_in(place: Path) -> list[str]:
    return sorted(str(path) for path in place.rglob("*"))


def unstartable(python: Path) -> Path:
    """Put a program in the interpreter's place that says when it is started."""
    started = python.with_name("started")
    python.unlink()
    python.write_text(f"#!/bin/sh\ntouch '{started}'\n")
    python.chmod(0o755)
    return started


def test_all_that_is_missing_or_wrong_is_in_one_report_and_nothing_is_installed(
    tmp_path: Path, made: Path
) -> None:
    look_alike(made, "a-1.1", "c-3.0")
    root = tree(tmp_path, pin("a", "1.0"), pin("b", "2.0"), pin("c", "3.0"))
    before = files_in(made)

    problems = environment.problems(provider(root))

    assert [(p.reason, p.text) for p in problems] == [
        ("lock_unsatisfied", f"{made / SITE}: a: 1.1 found, 1.0 wanted"),
        ("lock_unsatisfied", f"{made / SITE}: b: nothing found, 2.0 wanted"),
    ]
    assert [(p.name, p.wanted, p.found) for p in problems] == [
        ("a", "1.0", "1.1"),
        ("b", "2.0", None),
    ]
    assert files_in(made) == before


def test_a_satisfied_environment_is_seen_without_starting_its_python(
    tmp_path: Path, made: Path
) -> None:
    python = look_alike(made, "Typing_Extensions-4.1", "torch-2.13.0+cpu", "pip-23.2")
    started = unstartable(python)
    root = tree(tmp_path, pin("typing-extensions", "4.1"), pin("torch", "2.13.0"))

    lines, result = drive(environment.make(provider(root)))

    assert (result.verdict, lines) == ("present", [])
    assert result.detail == "2 distributions at their pins; not in the lock: pip 23.2"
    assert not started.exists()


@pytest.mark.parametrize(
    ("wanted", "found", "same"),
    [
        ("1.0", "1.0.0", True),
        ("2.13.0", "2.13.0+cpu", True),
        ("2.13.0+cpu", "2.13.0", False),
        ("2.13", "2.13.0+cpu", True),
        ("1.0rc1", "1.0.rc1", True),
        ("1.0", "1.0.post1", False),
        ("1.0", "nonsense", False),
    ],
)
def test_versions_are_compared_as_pep_440_compares(
    wanted: str, found: str, same: bool
) -> None:
    assert installed.same_version(wanted, found) is same


def test_of_two_pythons_in_one_venv_the_stated_one_is_looked_at(
    tmp_path: Path, made: Path
) -> None:
    look_alike(made, "a-1.0")
    (made / "lib/python3.1/site-packages").mkdir(parents=True)

    assert environment.problems(provider(tree(tmp_path, pin("a", "1.0")))) == []


def test_two_versions_beside_each_other_and_a_cut_off_install_are_not_the_pin(
    tmp_path: Path, made: Path
) -> None:
    look_alike(made, "a-1.0", "a-1.1", "b-2.0")
    (made / SITE / "b-2.0.dist-info/INSTALLER").unlink()
    root = tree(tmp_path, pin("a", "1.0"), pin("b", "2.0"))

    assert [p.text for p in environment.problems(provider(root))] == [
        f"{made / SITE}: a: 1.0 and 1.1 found, 1.0 wanted",
        f"{made / SITE}: b: 2.0 half installed found, 2.0 wanted",
    ]


def test_a_pin_for_another_platform_is_not_missed(tmp_path: Path, made: Path) -> None:
    look_alike(made, "a-1.0")
    other = pin("w", "1.0").replace(" --hash", " ; sys_platform == 'win32' --hash")
    root = tree(tmp_path, pin("a", "1.0"), other)

    assert environment.problems(provider(root)) == []


def test_what_the_directory_does_not_show_is_asked(tmp_path: Path, made: Path) -> None:
    python = look_alike(made, settings="include-system-site-packages = true\n")
    python.unlink()
    python.write_text("#!/bin/sh\necho a==1.0\n")
    python.chmod(0o755)
    root = tree(tmp_path, pin("a", "1.0"))

    assert environment.problems(provider(root)) == []


def test_an_interpreter_that_hangs_is_a_named_problem(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)

    found = installed.ask([str(program)], limit_s=0.2)
    problem = installed.probe_problem("preflight", "x", str(found), "python_missing")

    assert (problem.reason, problem.text) == (
        "probe_timeout",
        "x: no answer in 0.2 s found, an answer wanted",
    )


def test_an_interpreter_that_is_not_there_is_told_from_one_that_is_not_named(
    tmp_path: Path, made: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path)
    (missing,) = environment.problems(provider(root))
    monkeypatch.delenv("M_PYTHON")
    (unset,) = environment.problems(provider(root))

    where = "m: [env] python = '$M_PYTHON'"
    assert (missing.reason, missing.text) == (
        "python_missing",
        f"{where}: {made}/bin/python: no file found, an interpreter wanted",
    )
    assert unset.reason == "python_unset"
    assert unset.text.startswith(f"{where}: not set and no environment at {home}/")
    assert missing.next == unset.next == "doit env:m"


@pytest.mark.parametrize("through_a_link", [False, True])
def test_the_tools_own_interpreter_is_refused_where_a_lock_would_be_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, through_a_link: bool
) -> None:
    own = Path(sys.executable)
    if through_a_link:
        (tmp_path / "link").symlink_to(sys.prefix)
        own = tmp_path / "link/bin/python"
    monkeypatch.setenv("M_PYTHON", str(own))
    root = tree(tmp_path)

    _, result = drive(environment.make(provider(root)))

    assert (result.verdict, result.reason) == ("refused", "python_is_ours")


def test_a_venv_made_from_the_tools_python_is_not_the_tools_own(tmp_path: Path) -> None:
    python = tmp_path / "e/bin/python"
    look_alike(tmp_path / "e")

    assert not installed.is_ours(python)


def test_without_a_lock_the_interpreter_is_used_as_it_is(tmp_path: Path) -> None:
    root = tree(tmp_path, toml=MANIFEST.replace('lock = "m"\n', ""))

    _, result = drive(environment.make(provider(root)))

    assert result.verdict == "skipped"
    assert environment.problems(provider(root)) == []


def test_the_lock_is_installed_with_its_hashes_and_then_verified(
    tmp_path: Path, real: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = wheel(wheels, "good", "1.0", "VALUE = 7\n")
    monkeypatch.setenv("M_PYTHON", str(real / "bin/python"))
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    check = 'verify = ["-c", "import good; assert good.VALUE == 7"]\n[smoke]'
    root = tree(
        tmp_path,
        pin("good", "1.0", digest),
        toml=MANIFEST.replace("[smoke]", check),
    )

    lines, result = drive(environment.make(provider(root)))

    assert result.verdict == "done", result
    assert lines[0] == f"{real / SITE}: good: nothing found, 1.0 wanted"
    assert any("Successfully installed good-1.0" in line for line in lines)
    assert drive(environment.make(provider(root)))[1].verdict == "present"


def test_another_build_than_the_locked_one_is_said_to_be_one(
    tmp_path: Path, real: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = wheel(wheels, "built", "1.0")
    monkeypatch.setenv("M_PYTHON", str(real / "bin/python"))
    root = tree(tmp_path, pin("built", "1.0", "a" * 64, "b" * 64))

    _, result = drive(environment.make(provider(root)))

    assert (result.verdict, result.reason) == ("failed", "install_failed")
    assert result.detail == (
        f"locks/m.lock: built==1.0: SHA-256 {digest} found, one of the lock's wanted: "
        "another build than the locked one was offered"
    )
    assert not list((real / SITE).glob("built*"))


def test_an_install_that_fails_shows_the_installers_last_lines(
    tmp_path: Path, real: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("M_PYTHON", str(real / "bin/python"))
    root = tree(tmp_path, pin("nowhere", "1.0"))

    _, result = drive(environment.make(provider(root)))

    assert (result.verdict, result.reason) == ("failed", "install_failed")
    assert (
        result.detail == "m: pip install -r locks/m.lock: exit 1 found, exit 0 wanted"
    )
    assert any("nowhere==1.0" in line for line in result.lines)


def test_an_import_check_that_fails_is_not_an_install_that_is_done(
    tmp_path: Path, real: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = wheel(wheels, "broken", "1.0", "import not_there\n")
    monkeypatch.setenv("M_PYTHON", str(real / "bin/python"))
    toml = MANIFEST.replace("[smoke]", 'verify = ["-c", "import broken"]\n[smoke]')
    root = tree(tmp_path, pin("broken", "1.0", digest), toml=toml)

    _, result = drive(environment.make(provider(root)))

    assert (result.verdict, result.reason) == ("failed", "verify_failed")
    assert result.detail == (
        "m: [env] verify: -c import broken: exit 1 found, exit 0 wanted"
    )
    assert any("not_there" in line for line in result.lines)


def test_what_an_installer_was_cut_off_in_is_installed_again(
    tmp_path: Path, real: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = wheel(wheels, "torn", "1.0", "WHOLE = True\n")
    monkeypatch.setenv("M_PYTHON", str(real / "bin/python"))
    root = tree(tmp_path, pin("torn", "1.0", digest))
    drive(environment.make(provider(root)))
    (real / SITE / "torn-1.0.dist-info/INSTALLER").unlink()
    (real / SITE / "torn.py").unlink()

    _, result = drive(environment.make(provider(root)))

    assert result.verdict == "done", result
    assert (real / SITE / "torn.py").read_text() == "WHOLE = True\n"


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a container program on the path that has the images listed in a file."""
    images = tmp_path / "images"
    program = tmp_path / "bin/docker"
    program.parent.mkdir()
    program.write_text(
        f"""#!/bin/sh
[ "$1" = ps ] && [ -e "{images}" ] && exit 0
[ -e "{images}" ] || {{ echo "cannot connect to the daemon" >&2; exit 1; }}
for image; do :; done
while read name digests; do
  [ "$name" = "$image" ] && echo "$digests" && exit 0
done <"{images}"
echo "no such image: $image" >&2; exit 1
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TU_CONTAINER_CLI", "docker")
    return images


WANTED, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
DOCKER = MANIFEST.replace('python = "$M_PYTHON"\nlock = "m"', 'kind = "docker"\nIMAGE')


@pytest.mark.parametrize(
    ("there", "reason"),
    [
        (f"box@{WANTED} []\n", None),
        (f'box ["box@{OTHER}"]\n', "image_digest"),
        ("", "image_missing"),
    ],
)
def test_an_image_is_there_and_at_its_digest(
    tmp_path: Path, docker: Path, there: str, reason: str | None
) -> None:
    docker.write_text(there)
    image = f'image = "box@{WANTED}"'
    root = tree(tmp_path / "t", toml=DOCKER.replace("IMAGE", image))

    problems = environment.problems(provider(root))

    assert [p.reason for p in problems] == ([reason] if reason else [])
    if reason == "image_digest":
        assert problems[0].text == (
            f"m: [env] image = 'box@{WANTED}': digest {OTHER} found, {WANTED} wanted"
        )


def test_an_engine_that_cannot_be_used_is_not_an_image_that_is_missing(
    tmp_path: Path, docker: Path
) -> None:
    assert not docker.exists()
    root = tree(tmp_path / "t", toml=DOCKER.replace("IMAGE", 'image = "box"'))

    (problem,) = environment.problems(provider(root))

    assert problem.reason == "container_missing"
    assert problem.text.endswith(
        "docker ps: exit 1 (cannot connect to the daemon) found, an answer wanted"
    )


def test_an_apptainer_image_that_is_not_there_is_named(tmp_path: Path) -> None:
    toml = MANIFEST.replace(
        'python = "$M_PYTHON"\nlock = "m"', 'kind = "apptainer"\nsif = "/no/m.sif"'
    )
    (problem,) = environment.problems(provider(tree(tmp_path, toml=toml)))

    assert (problem.reason, problem.text) == (
        "image_missing",
        "m: [env] sif: /no/m.sif: no file found, an image wanted",
    )
