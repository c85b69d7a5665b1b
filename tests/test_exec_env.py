"""The command of a provider's code is exactly what is declared, and holds no secret."""

import os
import shlex
import sys
from pathlib import Path

import pytest

from remote_resident import exec_env, manifest, places
from remote_resident.errors import ExecEnvironmentError
from remote_resident.exec_env import Bind, ExecEnvironment
from remote_resident.processes import INSTANCE_VARIABLE

USER = f"{os.geteuid()}:{os.getegid()}"
GPU = "GPU-5a9d2c31"
ENV = {"PATH": "/caller", "HOME": "/caller", "LC_ALL": "C", "XDG_DATA_HOME": "/caller"}


def program(directory: Path, name: str) -> Path:
    """Put a program that does nothing into a directory."""
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def container(tmp_path: Path, **fields: object) -> ExecEnvironment:
    given = {"kind": "docker", "image": "model@sha256:00", "tree": tmp_path, **fields}
    return ExecEnvironment(slug="tiny", **given)  # type: ignore[arg-type]


def loaded(
    tree: Path, env: str, *, gpu: str = "none", rest: str = ""
) -> manifest.ProviderManifest:
    """Load a provider with this [env] table."""
    folder = tree / "manifests" / "tiny"
    folder.mkdir(parents=True)
    (folder / "worker.py").write_text("")
    budget = "" if gpu == "none" else "\nvram_budget_gb = 1.0"
    (folder / "provider.toml").write_text(
        'slug = "tiny"\n[runtime]\nworker = "worker.py"\n[host]\nram_budget_gb = 0.1\n'
        f'[gpu]\npolicy = "{gpu}"{budget}\n[env]\n{env}\n'
        f"[smoke]\nrequest = {{ x = 1 }}\n{rest}"
    )
    return manifest.load(folder / "provider.toml")


def test_an_interpreter_runs_under_its_own_path_though_it_is_a_symlink(
    tmp_path: Path,
) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    made = exec_env.from_manifest(loaded(tmp_path, f'python = "{python}"'))

    assert made.argv(["-c", "pass"], {"A": "1"}) == (
        [str(python), "-c", "pass"],
        {"A": "1"},
    )
    assert made.describe() == str(python)


def test_a_container_gets_names_in_argv_and_values_in_the_environment(
    tmp_path: Path,
) -> None:
    docker = program(tmp_path / "bin", "docker")
    weights = tmp_path / "weights, and more"
    weights.mkdir()
    made = container(
        tmp_path,
        binds=(Bind(path=weights), Bind(path=tmp_path, writable=True)),
    )
    environ = {"PATH": str(docker.parent), "HOME": "/me", "SECRET": "s", "SHELL": "/sh"}

    argv, env = made.argv(
        ["w.py", "-x"],
        {**ENV, "TOKEN": "hunter2", INSTANCE_VARIABLE: "i1"},
        environ,
    )

    assert argv == [
        *(str(docker), "run", "--rm", "-i", "--init", "--user", USER),
        *("--network", "none"),
        *("--label=tu-remote.slug=tiny", f"--label=tu-remote.tree={tmp_path}"),
        "--label=tu-remote.instance=i1",
        "--mount",
        f'type=bind,"source={weights}","target={weights}",readonly',
        *("--mount", f"type=bind,source={tmp_path},target={tmp_path}"),
        *("-e", "TOKEN", "-e", INSTANCE_VARIABLE),
        *("model@sha256:00", "python", "w.py", "-x"),
    ]
    assert env == {
        "PATH": str(docker.parent),
        "HOME": "/me",
        "TOKEN": "hunter2",
        INSTANCE_VARIABLE: "i1",
    }


def test_a_declared_home_reaches_the_container_and_not_its_client(
    tmp_path: Path,
) -> None:
    docker = program(tmp_path / "bin", "docker")
    made = container(tmp_path, declared=frozenset({"HOME"}))
    login = tmp_path / ".docker" / "config.json"
    login.parent.mkdir()
    login.write_text("{}")
    environ = {"PATH": str(docker.parent), "HOME": str(tmp_path)}

    argv, env = made.argv([], {"HOME": "/inside"}, environ)

    assert argv[-4:] == ["-e", "HOME", "model@sha256:00", "python"]
    assert env["HOME"] == "/inside"
    assert env["DOCKER_CONFIG"] == str(login.parent)
    assert env["XDG_DATA_HOME"] == f"{tmp_path}/.local/share"
    login.unlink()
    # podman takes a named one that is not there for an error
    assert "DOCKER_CONFIG" not in made.argv([], {"HOME": "/inside"}, environ)[1]


def test_a_name_that_the_client_lives_by_is_refused(tmp_path: Path) -> None:
    docker = program(tmp_path / "bin", "docker")
    made = container(tmp_path, declared=frozenset({"PATH"}))

    with pytest.raises(ExecEnvironmentError) as caught:
        made.argv([], {"PATH": "/inside"}, {"PATH": str(docker.parent)})

    assert str(caught.value) == (
        "tiny: [env] vars: PATH found, "
        "a name that the container's client does not need itself wanted"
    )
    assert caught.value.reason == "environment_names"


@pytest.mark.parametrize(
    ("cli", "visible", "options", "still_named"),
    [
        ("docker", GPU, ["--gpus", f"device={GPU}"], True),
        ("docker", "1", ["--gpus", "device=1"], False),
        ("docker", "0,1", ["--gpus", '"device=0,1"'], False),
        ("docker", None, ["--gpus", "all"], False),
        ("podman", GPU, [f"--device=nvidia.com/gpu={GPU}"], True),
        ("podman", None, ["--device=nvidia.com/gpu=all"], False),
    ],
)
def test_the_admitted_device_gets_in_and_no_other(
    tmp_path: Path,
    cli: str,
    visible: str | None,
    options: list[str],
    still_named: bool,
) -> None:
    found = program(tmp_path / "bin", cli)
    env = {"NVIDIA_VISIBLE_DEVICES": "all"}
    if visible is not None:
        env["CUDA_VISIBLE_DEVICES"] = visible

    made = container(tmp_path, gpu="required")
    argv, passed = made.argv([], env, {"PATH": str(found.parent)})

    assert [word for word in argv if word in options] == options
    assert ("CUDA_VISIBLE_DEVICES" in argv) == still_named
    assert "NVIDIA_VISIBLE_DEVICES" not in passed


@pytest.mark.parametrize(("gpu", "visible"), [("none", GPU), ("optional", None)])
def test_a_provider_that_uses_no_device_gets_none(
    tmp_path: Path, gpu: str, visible: str | None
) -> None:
    docker = program(tmp_path / "bin", "docker")
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}

    argv, _ = container(tmp_path, gpu=gpu).argv([], env, {"PATH": str(docker.parent)})

    assert not {"--gpus", "CUDA_VISIBLE_DEVICES"} & set(argv)


def test_rootless_podman_keeps_the_uid(tmp_path: Path) -> None:
    podman = program(tmp_path / "bin", "podman")
    argv, _ = container(tmp_path).argv([], {}, {"PATH": str(podman.parent)})

    assert ("--userns=keep-id" in argv) == (os.geteuid() != 0)


@pytest.mark.parametrize(
    ("host", "chosen"),
    [("unix:///no/such.sock", "podman"), ("tcp://elsewhere:2375", "docker")],
)
def test_podman_is_taken_where_docker_has_no_daemon(
    tmp_path: Path, host: str, chosen: str
) -> None:
    docker = program(tmp_path / "bin", "docker")
    program(tmp_path / "bin", "podman")
    environ = {"PATH": str(docker.parent), "DOCKER_HOST": host}

    argv, _ = container(tmp_path).argv([], {}, environ)

    assert argv[0] == str(docker.with_name(chosen))


def test_the_operator_says_which_container_program(tmp_path: Path) -> None:
    program(tmp_path / "bin", "docker")
    podman = program(tmp_path / "bin", "podman")
    environ = {"PATH": str(podman.parent), "TU_CONTAINER_CLI": "podman"}

    assert container(tmp_path).container_cli(environ) == str(podman)


@pytest.mark.parametrize(
    ("chosen", "where"),
    [({}, "docker, podman"), ({"TU_CONTAINER_CLI": "x"}, "TU_CONTAINER_CLI = x")],
)
def test_a_missing_container_program_is_named(
    tmp_path: Path, chosen: dict[str, str], where: str
) -> None:
    with pytest.raises(ExecEnvironmentError) as caught:
        container(tmp_path).argv([], {}, {"PATH": str(tmp_path), **chosen})

    assert str(caught.value) == (
        f"tiny: {where}: not found on PATH, a container program wanted"
    )
    assert caught.value.reason == "container_missing"
    assert caught.value.next == "export TU_CONTAINER_CLI=/path/to/docker"


def test_every_path_that_is_not_there_is_named_before_the_start(
    tmp_path: Path,
) -> None:
    made = container(
        tmp_path, binds=(Bind(path=tmp_path / "a b"), Bind(path=tmp_path / "c"))
    )

    with pytest.raises(ExecEnvironmentError) as caught:
        made.argv([], {}, {"PATH": ""})

    assert [problem.text for problem in caught.value.problems] == [
        f"tiny: {tmp_path}/a b: not there, wanted in the container",
        f"tiny: {tmp_path}/c: not there, wanted in the container",
    ]
    assert caught.value.reason == "file_missing"
    assert caught.value.next == f"mkdir -p '{tmp_path}/a b'"


def test_apptainer_gets_values_by_its_own_variables_and_any_path(
    tmp_path: Path,
) -> None:
    apptainer = program(tmp_path / "bin", "apptainer")
    comma = tmp_path / "a:b,c d"
    comma.mkdir()
    made = container(
        tmp_path,
        kind="apptainer",
        image=None,
        sif=tmp_path / "m.sif",
        gpu="required",
        binds=(Bind(path=tmp_path), Bind(path=comma, writable=True)),
    )

    argv, env = made.argv(
        ["w.py"],
        {**ENV, "TOKEN": "hunter2"},
        {"PATH": str(apptainer.parent), "HOME": "/me"},
    )

    assert argv == [
        *(str(apptainer), "exec", "--nv", "--no-home", "--cleanenv"),
        *("--bind", f"{tmp_path}:{tmp_path}:ro"),
        *("--mount", f'type=bind,"source={comma}","target={comma}"'),
        *(str(tmp_path / "m.sif"), "python", "w.py"),
    ]
    assert env == {
        "PATH": str(apptainer.parent),
        "HOME": "/me",
        "APPTAINERENV_TOKEN": "hunter2",
    }


def test_an_environment_is_made_of_what_its_kind_needs_alone(tmp_path: Path) -> None:
    python = tmp_path / "python"

    made = ExecEnvironment("venv", python)

    assert made.argv(["-V"], ENV) == ([str(python), "-V"], ENV)
    assert made.describe() == str(python)


def test_apptainer_that_is_not_there_is_named(tmp_path: Path) -> None:
    made = container(tmp_path, kind="apptainer", sif=tmp_path / "m.sif")

    with pytest.raises(ExecEnvironmentError) as caught:
        made.argv([], {}, {"PATH": str(tmp_path)})

    assert str(caught.value) == (
        f"tiny: apptainer not found on PATH, wanted for {tmp_path}/m.sif"
    )


def test_a_container_sees_what_it_needs_and_writes_only_where_it_may(
    tmp_path: Path,
) -> None:
    blobs, root = tmp_path / "blobs", tmp_path / "weights"
    for folder in (blobs, root, tmp_path / "work"):
        folder.mkdir()
    (blobs / "b1").write_bytes(b"x")
    (root / "a.pt").symlink_to(blobs / "b1")
    sha = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    rest = (
        f'[weights]\nroot_default = "{root}"\nfetch = ["x.py"]\n'
        f'[[weights.file]]\nname = "a.pt"\nsize = 1\nsha256 = "{sha}"\n'
    )
    given = loaded(
        tmp_path,
        f'kind = "docker"\nimage = "i@sha256:{sha}"\n[env.vars]\nTHREADS = "1"',
        rest=rest,
    )

    made = exec_env.from_manifest(given, [Bind(path=tmp_path / "run", writable=True)])

    assert {(bind.path, bind.writable) for bind in made.binds} == {
        (exec_env.WORKER_SIDE, False),
        (given.directory, False),
        (root, False),
        (blobs, False),
        (made.cache_dir(), True),
        (tmp_path / "run", True),
    }
    assert {"HOME", "THREADS", "TORCH_HOME"} <= made.declared


def test_two_providers_share_no_cache(tmp_path: Path) -> None:
    one, other = container(tmp_path), container(tmp_path / "other")

    assert one.cache_dir() != other.cache_dir()
    assert one.cache_dir().is_relative_to(places.cache_dir())
    assert set(one.cache_env()) == {
        *("HOME", "XDG_CACHE_HOME", "TORCH_HOME", "TORCH_EXTENSIONS_DIR"),
        *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH"),
        *("MPLCONFIGDIR", "NUMBA_CACHE_DIR"),
    }
    assert all(
        Path(value).is_relative_to(one.cache_dir())
        for value in one.cache_env().values()
    )


def test_an_unset_interpreter_is_named_with_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TINY_PYTHON", raising=False)

    with pytest.raises(ExecEnvironmentError) as caught:
        exec_env.from_manifest(loaded(tmp_path, 'python = "$TINY_PYTHON"'))

    assert str(caught.value) == (
        "tiny: [env] python = $TINY_PYTHON: TINY_PYTHON is not set "
        "and no environment was made, an interpreter wanted"
    )
    assert (caught.value.reason, caught.value.next) == (
        "python_unset",
        "export TINY_PYTHON=/path/to/python",
    )


def test_an_interpreter_with_a_lock_is_to_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TINY_PYTHON", raising=False)
    given = loaded(tmp_path, 'python = "${TINY_PYTHON}"\nlock = "tiny"')

    with pytest.raises(ExecEnvironmentError) as caught:
        exec_env.from_manifest(given)

    folder = shlex.quote(str(given.directory))
    assert caught.value.next == f"tu remote env {folder}"


def test_an_interpreter_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("")
    given = loaded(tmp_path, f'python = "{tmp_path}/python"')

    with pytest.raises(ExecEnvironmentError) as caught:
        exec_env.from_manifest(given)

    assert str(caught.value) == (
        f"tiny: [env] python = {tmp_path}/python: {tmp_path}/python cannot be run, "
        "an interpreter wanted"
    )
    assert caught.value.reason == "python_missing"


def test_an_image_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExecEnvironmentError) as caught:
        exec_env.from_manifest(loaded(tmp_path, 'kind = "apptainer"\nsif = "m.sif"'))

    assert str(caught.value) == (
        "tiny: [env] sif = m.sif: no such file, an Apptainer image wanted"
    )
    assert caught.value.reason == "image_missing"


def test_the_environment_is_an_allow_list(tmp_path: Path) -> None:
    given = loaded(
        tmp_path,
        'python = "/p"\npass_env = ["HF_TOKEN"]\n[env.vars]\nOMP_NUM_THREADS = "1"',
    )
    caller = {
        **ENV,
        "HF_TOKEN": "t",
        "OMP_NUM_THREADS": "64",
        "LD_PRELOAD": "/x.so",
        "PYTHONPATH": "/stray",
        exec_env.CUBLAS_SWITCH: "1",
        "CUDA_VISIBLE_DEVICES": "0",
    }

    env = exec_env.child_env(given, caller)

    assert env == {
        **ENV,
        **ExecEnvironment(slug="tiny", tree=given.tree, kind="venv").cache_env(),
        "HF_TOKEN": "t",
        "OMP_NUM_THREADS": "1",
        exec_env.CUBLAS_SWITCH: "1",
        "CUDA_VISIBLE_DEVICES": "0",
    }


def test_none_removes_a_name_whatever_listed_it(tmp_path: Path) -> None:
    given = loaded(
        tmp_path, 'python = "/p"\npass_env = ["A"]\n[env.vars]\nB = "1"\nC = "1"'
    )

    env = exec_env.child_env(
        given,
        {"A": "1", "PATH": "/p"},
        {"A": None, "B": None, "PATH": None, "TORCH_HOME": None, "C": "2"},
    )

    assert not {"A", "B", "PATH", "TORCH_HOME"} & env.keys()
    assert env["C"] == "2"
