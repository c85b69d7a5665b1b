"""A host that cannot do it says so at once, with all that it lacks."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from small_tree import (
    HEADER,
    MANIFEST,
    drive,
    lock_text,
    look_alike,
    pin,
    provider,
    tree,
)

from remote_resident.admission import Gpu, Memory
from remote_resident.errors import Problem
from tasks import preflight
from tasks.preflight import Host

HERE = ".".join(map(str, sys.version_info[:3]))
ROOMY = Memory(total_gb=64.0, free_gb=64.0, available_gb=64.0)
CARD = Gpu(index=0, uuid="GPU-1", driver="580.95.05", total_gb=24.0, free_gb=24.0)
GPU = MANIFEST.replace(
    "[host]",
    '[gpu]\npolicy = "required"\nvram_budget_gb = 16.0\ndriver_min = "580.65"\n'
    'driver_min_reason = "CUDA 13"\n[host]',
)


def host(
    *,
    gpus: Sequence[Gpu] = (),
    system: str = "Linux",
    arch: str = "x86_64",
    environ: dict[str, str] | None = None,
    memory: Memory = ROOMY,
    free_bytes: Callable[[Path], int] = lambda path: 10**15,
) -> Host:
    return Host(
        system=system,
        arch=arch,
        environ={"PATH": "/nowhere"} if environ is None else environ,
        driver=gpus[0].driver if gpus else None,
        devices=len(gpus),
        memory=memory,
        gpus=lambda: gpus,
        contained=False,
        free_bytes=free_bytes,
    )


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Declare an interpreter whose environment has what the lock pins."""
    place = tmp_path / "env"
    look_alike(place, "a-1.0")
    monkeypatch.setenv("M_PYTHON", str(place / "bin/python"))
    return place


def found(root: Path, at: Host | None = None) -> list[tuple[str, str]]:
    problems = preflight.problems(provider(root), at or host())
    assert {p.step for p in problems} <= {"preflight"}
    return [(p.reason, p.text) for p in problems]


def reasons(root: Path, at: Host | None = None) -> list[str]:
    return [reason for reason, _ in found(root, at)]


def test_a_host_that_has_everything_is_present(tmp_path: Path, made: Path) -> None:
    lines, result = drive(preflight.make(provider(tree(tmp_path)), host()))

    assert (result.verdict, result.detail, lines) == (
        "present",
        str(made / "bin/python"),
        [],
    )


def test_an_unset_interpreter_shows_the_recipe_word_for_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("M_PYTHON", raising=False)

    _, result = drive(preflight.make(provider(tree(tmp_path)), host()))

    assert (result.verdict, result.reason) == ("refused", "python_unset")
    recipe = [line[4:] for line in HEADER.splitlines()[2:]]
    assert result.lines[1:] == [
        "recipe:",
        *(f"  {line}" for line in recipe),
        "next: doit env:m",
    ]


def test_all_that_a_host_lacks_is_named_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("M_PYTHON", "/no/python")
    root = tree(tmp_path, toml=GPU.replace("ram_budget_gb = 0.1", "ram_budget_gb = 9"))
    (root / "manifests/m/worker.py").unlink()
    (root / "locks/m.lock").write_text(HEADER + "a\n")

    assert reasons(root, host(system="Darwin", arch="arm64")) == [
        "os_unsupported",
        "file_missing",
        "lock_invalid",
        "python_missing",
        "no_gpu",
    ]


def test_the_lock_says_which_platforms_it_is_for(tmp_path: Path, made: Path) -> None:
    root = tree(tmp_path)
    header = HEADER.replace("# recipe", "# platforms: linux-x86_64\n# recipe")
    (root / "locks/m.lock").write_text(lock_text(pin("a", "1.0"), header=header))

    assert reasons(root, host()) == []
    assert found(root, host(arch="riscv64")) == [
        ("os_unsupported", "m: linux-riscv64 found, linux-x86_64 wanted by m")
    ]


@pytest.mark.parametrize(
    ("requires", "wrong"),
    [(">=3.8,<3.9", True), (">=3.99", True), (f"=={HERE}", False), ("~=3.8", False)],
)
def test_the_version_is_read_without_starting_the_interpreter(
    tmp_path: Path, made: Path, requires: str, wrong: bool
) -> None:
    python = made / "bin/python"
    python.unlink()
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    root = tree(tmp_path)
    header = HEADER.replace(HEADER.split("\n")[0], f"# requires-python: {requires}")
    (root / "locks/m.lock").write_text(lock_text(pin("a", "1.0"), header=header))

    text = f"m: {python}: Python {HERE} found, {requires} wanted by locks/m.lock"
    assert found(root) == ([("python_version", text)] if wrong else [])


def test_an_interpreter_that_states_no_version_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "interpreter"
    python.write_text("#!/bin/sh\necho 3.4.1\n")
    python.chmod(0o755)
    monkeypatch.setenv("M_PYTHON", str(python))

    assert "python_version" in reasons(tree(tmp_path))
    python.write_text("#!/bin/sh\necho broken; exit 3\n")
    assert found(tree(tmp_path))[0] == (
        "python_missing",
        f"{python}: exit 3 (broken) found, an answer wanted",
    )


def test_a_path_to_a_directory_or_to_what_cannot_be_run_is_no_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path)
    (tmp_path / "plain").write_text("")
    for place in (tmp_path, tmp_path / "plain"):
        monkeypatch.setenv("M_PYTHON", str(place))
        assert found(root) == [
            (
                "python_missing",
                f"m: [env] python = '$M_PYTHON': {place}: a file that cannot be run "
                "found, an interpreter wanted",
            )
        ]


def test_the_tools_own_interpreter_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("M_PYTHON", sys.executable)

    assert reasons(tree(tmp_path)) == ["python_is_ours"]


def test_a_device_that_is_required_must_be_there(tmp_path: Path, made: Path) -> None:
    root = tree(tmp_path, toml=GPU)

    assert found(root, host(gpus=[CARD])) == []
    assert found(root) == [("no_gpu", "m: 0 GPUs (no NVIDIA driver) found, 1 wanted")]


@pytest.mark.parametrize(
    ("driver", "old"),
    [("580.65", False), ("580.65.06", False), ("590.1", False), ("580.9", True)],
)
def test_a_driver_is_compared_part_by_part_and_the_reason_is_said(
    tmp_path: Path, made: Path, driver: str, old: bool
) -> None:
    card = Gpu(index=0, uuid="GPU-1", driver=driver, total_gb=24.0, free_gb=24.0)
    text = f"m: driver {driver} found, 580.65 or newer wanted: CUDA 13"

    assert found(tree(tmp_path, toml=GPU), host(gpus=[card])) == (
        [("driver_too_old", text)] if old else []
    )


def test_a_probe_that_hangs_is_named(tmp_path: Path, made: Path) -> None:
    why = "nvidia-smi: no answer within 15.0 s"
    card = Gpu(
        index=0, uuid="GPU-1", driver="580.95", unknown={"total_gb": why, "name": why}
    )

    assert ("probe_timeout", f"m: {why} found, an answer wanted") in found(
        tree(tmp_path, toml=GPU), host(gpus=[card])
    )


@pytest.mark.parametrize("claim", ["container", "mig"])
def test_an_isolation_that_the_host_does_not_give_is_refused(
    tmp_path: Path, made: Path, claim: str
) -> None:
    toml = GPU.replace('"required"', f'"required"\nisolation = "{claim}"')

    assert reasons(tree(tmp_path, toml=toml), host(gpus=[CARD])) == [
        "isolation_not_backed"
    ]


@pytest.mark.parametrize("spare", [-0.001, 0.0])
def test_a_budget_that_could_never_fit_is_refused_with_its_numbers(
    tmp_path: Path, made: Path, spare: float
) -> None:
    # 4 GiB are kept in reserve
    memory = Memory(total_gb=16 + spare, free_gb=1.0, available_gb=1.0)
    root = tree(tmp_path, toml=MANIFEST.replace("= 0.1", "= 12.0"))

    problems = found(root, host(memory=memory))

    assert [reason for reason, _ in problems] == (
        ["capacity_too_small"] if spare < 0 else []
    )
    assert all("15.999" in text and "12.0" in text for _, text in problems)


def test_a_card_that_is_too_small_is_refused_and_a_full_one_is_not(
    tmp_path: Path, made: Path
) -> None:
    small = Gpu(index=0, uuid="GPU-1", driver="580.95", total_gb=8.0, free_gb=8.0)
    full = Gpu(index=0, uuid="GPU-1", driver="580.95", total_gb=24.0, free_gb=0.1)
    root = tree(tmp_path, toml=GPU)

    assert reasons(root, host(gpus=[small])) == ["capacity_too_small"]
    assert reasons(root, host(gpus=[full])) == []


WEIGHTS = """
[weights]
root_default = "{root}"
[[weights.file]]
name = "w1"
size = 700
sha256 = "{pin}"
[[weights.file]]
name = "w2"
size = 300
sha256 = "{pin}"
"""


def test_the_disk_holds_what_is_missing_of_weights_and_environment(
    tmp_path: Path, made: Path
) -> None:
    weights = tmp_path / "w"
    weights.mkdir()
    (weights / "w2").write_bytes(b"")
    toml = MANIFEST + WEIGHTS.format(root=weights, pin="a" * 64)
    root = tree(tmp_path, pin("a", "2.0"), toml=toml)
    header = HEADER.replace("# recipe", "# installed-bytes: 5000\n# recipe")
    (root / "locks/m.lock").write_text(lock_text(pin("a", "2.0"), header=header))

    problems = preflight.problems(provider(root), host(free_bytes=lambda path: 5699))

    assert [(p.reason, p.found, p.wanted, p.text) for p in problems] == [
        (
            "disk_full",
            5699,
            5700,
            f"m: {weights}: 5699 bytes free found, 5700 wanted for 1 weight files and "
            "the environment",
        )
    ]
    assert found(root, host(free_bytes=lambda path: 5700)) == []


def test_a_git_is_wanted_only_for_a_kit_that_is_not_there(
    tmp_path: Path, made: Path, home: Path
) -> None:
    commit = "c" * 40
    toml = (
        MANIFEST + '[kit]\nname = "k"\npackage = "k_opt"\nenv_absent = ["K_*", "L"]\n'
    )
    root = tree(tmp_path, toml=toml)
    (root / "kits/k.toml").write_text(f'commit = "{commit}"\n')

    assert found(root) == [
        ("git_missing", "m: no git on PATH found, one wanted to fetch the kit k")
    ]
    (home / "cache/kits" / commit).mkdir(parents=True)
    assert found(root) == []


def test_names_that_the_kit_refuses_are_named_each(
    tmp_path: Path, made: Path, home: Path
) -> None:
    toml = (
        MANIFEST + '[kit]\nname = "k"\npackage = "k_opt"\nenv_absent = ["K_*", "L"]\n'
    )
    root = tree(tmp_path, toml=toml)
    (root / "kits/k.toml").write_text(f'commit = "{"c" * 40}"\n')
    (home / "cache/kits" / ("c" * 40)).mkdir(parents=True)
    environ = {"K_ONE": "1", "L": "", "L_2": "", "OK": ""}

    assert found(root, host(environ=environ)) == [
        (
            "environment_names",
            f"m: [kit] env_absent {rule!r}: {name} in the environment found, none wanted",
        )
        for rule, name in (("K_*", "K_ONE"), ("L", "L"))
    ]


@pytest.mark.parametrize(
    ("kind", "image"), [("docker", 'image = "i"'), ("apptainer", 'sif = "/i.sif"')]
)
def test_the_container_program_must_be_there(
    tmp_path: Path, kind: str, image: str
) -> None:
    toml = MANIFEST.replace(
        'python = "$M_PYTHON"\nlock = "m"', f'kind = "{kind}"\n{image}'
    )

    assert reasons(tree(tmp_path, toml=toml)) == ["container_missing"]


def test_a_directory_too_deep_for_sockets_is_named(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path)
    monkeypatch.setenv("TU_REMOTE_HOME", f"/{'d' * 120}")
    monkeypatch.setenv("HOME", str(tmp_path))

    (problem,) = preflight.problems(provider(root), host())
    assert problem.reason == "socket_path"
    assert problem.next == 'export TU_REMOTE_HOME="$HOME/.tu-remote"'


def test_this_host_is_looked_at_without_asking_any_program(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    problems: list[Problem] = preflight.problems(provider(tree(tmp_path)))

    assert [p for p in problems if p.reason != "capacity_too_small"] == []
