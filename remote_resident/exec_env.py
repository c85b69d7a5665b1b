"""What a provider's code runs in: builds its argv, environment and binds; runs nothing.

Three kinds: the interpreter of a virtual environment, a container image under docker or
podman, an Apptainer image. `from_manifest` says which, `argv` how.
"""

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from remote_resident import kits, places
from remote_resident.errors import ExecEnvironmentError, Problem
from remote_resident.processes import CONTAINER_LABEL, INSTANCE_VARIABLE

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest

CUBLAS_SWITCH = "TOOLUNIVERSE_RESIDENT_NO_CUBLAS_RELEASE"
DEVICE_VARIABLE = "CUDA_VISIBLE_DEVICES"

WORKER_SIDE = Path(__file__).parent / "worker_side"

_HOST_NAMES = frozenset({"PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR"})
_HOST_PREFIXES = ("LC_", "XDG_")
_DEVICE_NAMES = frozenset({DEVICE_VARIABLE, "NVIDIA_VISIBLE_DEVICES"})
_CLIENT_NAMES = _HOST_NAMES | {"TMP", "TEMP", "SSL_CERT_FILE", "SSL_CERT_DIR"}
_CLIENT_PREFIXES = ("XDG_", "LC_", "DOCKER_", "CONTAINER", "APPTAINER_", "SINGULARITY_")
# the container's client finds itself by these: the image's values would break it
_CLIENT_ONLY = frozenset({"PATH", "TMPDIR", "XDG_RUNTIME_DIR"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A path that is the same inside as outside."""

    path: Path
    writable: bool = False


@dataclass(frozen=True, slots=True)
class ExecEnvironment:
    """Where a provider's code runs."""

    kind: str
    """venv, docker (docker or podman) or apptainer."""
    python: Path | None = None
    """The model's interpreter, of kind venv."""
    image: str | None = None
    sif: Path | None = None
    container_python: str = "python"
    binds: tuple[Bind, ...] = ()
    gpu: str = "none"
    """The policy: none, optional or required."""
    network: str = "none"
    slug: str = "unnamed"
    """Whose messages, labels and caches these are; `tree` tells it from its namesakes."""
    tree: Path = Path("/")
    user: tuple[int, int] | None = None
    """The uid and gid inside a docker or podman container; None: the caller's."""
    declared: frozenset[str] = frozenset()
    """Names whose value the provider declares; a container sees them also where the
    caller's value of the same name stays outside."""

    @property
    def contained(self) -> bool:
        """Say whether the process sees another file system and inherits no pipe."""
        return self.kind != "venv"

    @property
    def inner_python(self) -> str:
        """Name the interpreter as it is called where the code runs."""
        return self.container_python if self.contained else str(self.python)

    def argv(
        self,
        args: Sequence[str],
        env: Mapping[str, str],
        environ: Mapping[str, str] | None = None,
    ) -> tuple[list[str], dict[str, str]]:
        """Build the command that runs the interpreter with `args` under `env`.

        Returns the argv and the environment to start it with. `environ` is what a
        container's client itself needs of the caller's (None: this process's). Raises
        ExecEnvironmentError: `container_missing`, `file_missing`, `environment_names`.
        """
        return self.command([self.inner_python, *args], env, environ)

    def command(
        self,
        inner: Sequence[str],
        env: Mapping[str, str],
        environ: Mapping[str, str] | None = None,
    ) -> tuple[list[str], dict[str, str]]:
        """Build the command that runs `inner`, named as inside; otherwise as `argv`."""
        if not self.contained:
            return list(inner), dict(env)
        environ = os.environ if environ is None else environ
        passed = {name: env[name] for name in env if self._passes(name)}
        self._refuse_missing(passed)
        build = self._docker if self.kind == "docker" else self._apptainer
        return build(inner, passed, environ)

    def describe(self) -> str:
        """Say in one phrase what this is, for messages and reports."""
        if self.kind == "docker":
            return f"container image {self.image}"
        return f"apptainer image {self.sif}" if self.sif else f"{self.python}"

    def cache_dir(self) -> Path:
        """Name the directory of this provider's compiled kernels and downloads."""
        return (
            places.cache_dir()
            / "providers"
            / f"{self.slug}-{places.tree_id(self.tree)}"
        )

    def cache_env(self) -> dict[str, str]:
        """Give the variables that lead a model's caches into `cache_dir`."""
        return _cache_env(self.cache_dir(), contained=self.contained)

    def can_write(self, path: Path) -> bool:
        """Say whether what is written at an absolute path is seen outside as well."""
        path = Path(os.path.normpath(path))
        return not self.contained or any(
            bind.writable and path.is_relative_to(bind.path) for bind in self.binds
        )

    def container_cli(self, environ: Mapping[str, str] | None = None) -> str | None:
        """Find the program that lists and stops containers; None: no container here."""
        if self.kind != "docker":
            return None
        return container_program(os.environ if environ is None else environ, self.slug)

    def _passes(self, name: str) -> bool:
        host = name in _HOST_NAMES or name.startswith(_HOST_PREFIXES)
        return name in self.declared or not host

    def _refuse_missing(self, passed: Mapping[str, str]) -> None:
        problems = [
            _problem(
                "file_missing",
                f"{self.slug}: {bind.path}: not there, wanted in the container",
                path=str(bind.path),
            )
            for bind in self.binds
            if not bind.path.exists()
        ]
        problems += [
            _problem(
                "environment_names",
                f"{self.slug}: [env] vars: {name} found, "
                "a name that the container's client does not need itself wanted",
                name=name,
            )
            for name in sorted(_CLIENT_ONLY & passed.keys())
        ]
        _raise_all(problems)

    def _docker(
        self,
        inner: Sequence[str],
        passed: dict[str, str],
        environ: Mapping[str, str],
    ) -> tuple[list[str], dict[str, str]]:
        program = container_program(environ, self.slug)
        podman = "podman" in Path(program).name
        uid, gid = self.user or (os.geteuid(), os.getegid())
        device, passed = self._device(passed, podman=podman)
        argv = [program, "run", "--rm", "-i", "--init", "--user", f"{uid}:{gid}"]
        if podman and os.geteuid() != 0:
            argv += ["--userns=keep-id"]
        argv += ["--network", self.network]
        argv += [f"--label={name}={value}" for name, value in self._labels(passed)]
        argv += device
        for bind in self.binds:
            argv += ["--mount", _mount(bind)]
        for name in sorted(passed):
            # the name alone: the client takes the value from its own environment
            argv += ["-e", name]
        return [*argv, str(self.image), *inner], {**_client(environ, passed), **passed}

    def _labels(self, passed: Mapping[str, str]) -> list[tuple[str, str]]:
        labels = [("tu-remote.slug", self.slug), ("tu-remote.tree", str(self.tree))]
        instance = passed.get(INSTANCE_VARIABLE)
        return labels + ([(CONTAINER_LABEL, instance)] if instance else [])

    def _device(
        self, passed: dict[str, str], *, podman: bool
    ) -> tuple[list[str], dict[str, str]]:
        """Say how the admitted device gets in, and what is then still to be named."""
        # read by the container runtime itself, where it would widen what is let in
        passed = {n: v for n, v in passed.items() if n != "NVIDIA_VISIBLE_DEVICES"}
        named = passed.get(DEVICE_VARIABLE)
        if self.gpu == "none" or (self.gpu == "optional" and not named):
            return [], _without_device(passed)
        if named and not named.startswith(("GPU-", "MIG-")):
            # an index counts the devices of the host; inside there is only this one
            passed = _without_device(passed)
        devices = named.split(",") if named else ["all"]
        if podman:
            return [f"--device=nvidia.com/gpu={device}" for device in devices], passed
        if not named:
            return ["--gpus", "all"], passed
        # the value is read as CSV: a list of devices is one quoted field
        wanted = f'"device={named}"' if len(devices) > 1 else f"device={named}"
        return ["--gpus", wanted], passed

    def _apptainer(
        self,
        inner: Sequence[str],
        passed: dict[str, str],
        environ: Mapping[str, str],
    ) -> tuple[list[str], dict[str, str]]:
        from shutil import which

        program = which("apptainer", path=environ.get("PATH"))
        if program is None:
            raise ExecEnvironmentError(
                f"{self.slug}: apptainer not found on PATH, wanted for {self.sif}",
                reason="container_missing",
            )
        argv = [program, "exec"]
        if self.gpu != "none":
            argv += ["--nv"]
        argv += ["--no-home", "--cleanenv"]
        for bind in self.binds:
            argv += _apptainer_bind(bind)
        inside = {f"APPTAINERENV_{name}": value for name, value in passed.items()}
        return [*argv, str(self.sif), *inner], {**_client(environ, {}), **inside}


def from_manifest(
    manifest: "ProviderManifest", extra_binds: Iterable[Bind] = ()
) -> ExecEnvironment:
    """Build what a manifest declares; `extra_binds` come on top for a container.

    Raises ExecEnvironmentError where an interpreter is declared and not there
    (`python_unset`, `python_missing`), or an image file is not (`image_missing`).
    """
    slug, tree, gpu = manifest.slug, manifest.tree, manifest.gpu_policy
    if manifest.env_kind == "venv":
        python = _interpreter(manifest)
        return ExecEnvironment(
            kind="venv", python=python, slug=slug, tree=tree, gpu=gpu
        )
    sif = manifest.resolve(manifest.env_sif) if manifest.env_sif else None
    if sif is not None and not sif.exists():
        raise ExecEnvironmentError(
            f"{manifest.slug}: [env] sif = {manifest.env_sif}: no such file, "
            "an Apptainer image wanted",
            reason="image_missing",
        )
    bare = ExecEnvironment(
        kind=manifest.env_kind,
        slug=slug,
        tree=tree,
        gpu=gpu,
        image=manifest.env_image,
        sif=sif,
        container_python=manifest.env_container_python,
        network=manifest.env_network,
    )
    return _with_binds(bare, manifest, extra_binds)


def child_env(
    manifest: "ProviderManifest",
    environ: Mapping[str, str],
    extra: Mapping[str, str | None] | None = None,
) -> dict[str, str]:
    """Build the environment of a provider's process from the caller's, by allow-list.

    What is declared is never overridden by the caller's; `extra` comes last, and None in
    it removes a name, whatever listed it.
    """
    inherited = {
        name: value
        for name, value in environ.items()
        if allowed(name) or name in manifest.env_pass_env
    }
    env: dict[str, str | None] = {
        **inherited,
        **_cache_env(_cache_dir(manifest), contained=manifest.env_kind != "venv"),
        **dict(manifest.env_vars),
        **dict(manifest.kit_env),
        **(extra or {}),
    }
    return {name: value for name, value in env.items() if value is not None}


def allowed(name: str) -> bool:
    """Say whether every program that is started for a provider gets this variable."""
    return (
        name in _HOST_NAMES
        or name in _DEVICE_NAMES
        or name == CUBLAS_SWITCH
        or name.startswith(_HOST_PREFIXES)
    )


def container_program(environ: Mapping[str, str], slug: str) -> str:
    """Find docker or podman, as TU_CONTAINER_CLI says or whichever is there.

    Where both are, docker only if its daemon has a socket. Raises ExecEnvironmentError
    (`container_missing`).
    """
    from shutil import which

    chosen = environ.get("TU_CONTAINER_CLI")
    names = [chosen] if chosen else ["docker", "podman"]
    there = [
        found for name in names if (found := which(name, path=environ.get("PATH")))
    ]
    if len(there) > 1 and not _docker_may_answer(environ):
        return there[-1]
    if there:
        return there[0]
    where = f"TU_CONTAINER_CLI = {chosen}" if chosen else "docker, podman"
    raise ExecEnvironmentError(
        f"{slug}: {where}: not found on PATH, a container program wanted",
        reason="container_missing",
        next="export TU_CONTAINER_CLI=/path/to/docker",
    )


def _docker_may_answer(environ: Mapping[str, str]) -> bool:
    host = environ.get("DOCKER_HOST", "")
    if host or "DOCKER_CONTEXT" in environ:
        return not host.startswith("unix://") or Path(host[7:]).exists()
    sockets = [Path("/var/run/docker.sock")]
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        sockets.append(Path(runtime, "docker.sock"))
    return any(path.exists() for path in sockets)


def _interpreter(manifest: "ProviderManifest") -> Path:
    declared = manifest.env_python or "(none)"
    python = manifest.python_executable()
    variable = manifest.python_variable()
    way_on = (
        manifest.env_command()
        if manifest.env_lock
        else f"export {variable}=/path/to/python"
    )
    if python is None:
        raise ExecEnvironmentError(
            f"{manifest.slug}: [env] python = {declared}: "
            + (f"{variable} is not set" if variable else "nothing there")
            + " and no environment was made, an interpreter wanted",
            reason="python_unset" if variable else "python_missing",
            next=way_on if manifest.env_lock or variable else None,
        )
    if not (python.is_file() and os.access(python, os.X_OK)):
        raise ExecEnvironmentError(
            f"{manifest.slug}: [env] python = {declared}: {python} cannot be run, "
            "an interpreter wanted",
            reason="python_missing",
            next=way_on if manifest.env_lock or variable else None,
        )
    return python


def _with_binds(
    bare: ExecEnvironment, manifest: "ProviderManifest", extra: Iterable[Bind]
) -> ExecEnvironment:
    from dataclasses import replace

    declared = {*bare.cache_env(), *dict(manifest.env_vars), *dict(manifest.kit_env)}
    return replace(
        bare,
        binds=_distinct([*_binds(bare, manifest), *extra]),
        declared=frozenset(declared),
    )


def _binds(bare: ExecEnvironment, manifest: "ProviderManifest") -> list[Bind]:
    binds = [Bind(path=WORKER_SIDE), Bind(path=manifest.directory)]
    root = manifest.weights_root()
    if manifest.weights_files and root is not None:
        binds.append(Bind(path=root))
        # a store of blobs with links into it: the blobs have to be there too
        targets = (path.resolve().parent for _, path in manifest.weight_paths())
        binds += [Bind(path=p) for p in targets if not p.is_relative_to(root)]
    if manifest.runtime_work_root:
        binds.append(
            Bind(path=manifest.resolve(manifest.runtime_work_root), writable=True)
        )
    binds.append(Bind(path=bare.cache_dir(), writable=True))
    if manifest.kit_name and (checkout := _kit_checkout(manifest)):
        binds.append(Bind(path=checkout))
    return binds


def _kit_checkout(manifest: "ProviderManifest") -> Path | None:
    kit = kits.declared(manifest.kit_file())
    return None if kit is None else kit.checkout


def _distinct(binds: Iterable[Bind]) -> tuple[Bind, ...]:
    """Keep one bind a path, the writable one where both are asked for."""
    found: dict[Path, Bind] = {}
    for bind in binds:
        if bind.path not in found or bind.writable:
            found[bind.path] = bind
    return tuple(found.values())


def _cache_dir(manifest: "ProviderManifest") -> Path:
    name = f"{manifest.slug}-{places.tree_id(manifest.tree)}"
    return places.cache_dir() / "providers" / name


def _cache_env(directory: Path, *, contained: bool) -> dict[str, str]:
    below = {
        "XDG_CACHE_HOME": "xdg",
        "TORCH_HOME": "torch",
        "TORCH_EXTENSIONS_DIR": "torch-extensions",
        "TORCHINDUCTOR_CACHE_DIR": "torch-inductor",
        "TRITON_CACHE_DIR": "triton",
        "CUDA_CACHE_PATH": "cuda",
        "MPLCONFIGDIR": "matplotlib",
        "NUMBA_CACHE_DIR": "numba",
    }
    env = {name: str(directory / folder) for name, folder in below.items()}
    # a container runs as a uid that its image does not know: it has no home otherwise
    return {**env, "HOME": str(directory)} if contained else env


def _client(environ: Mapping[str, str], passed: Mapping[str, str]) -> dict[str, str]:
    """Give a container client its own environment, with its home kept where it is."""
    client = {
        name: value
        for name, value in environ.items()
        if name in _CLIENT_NAMES or name.startswith(_CLIENT_PREFIXES)
    }
    home = client.get("HOME")
    if home and "HOME" in passed:
        if Path(home, ".docker", "config.json").exists():
            # podman takes a named one that is not there for an error
            client.setdefault("DOCKER_CONFIG", f"{home}/.docker")
        client.setdefault("XDG_DATA_HOME", f"{home}/.local/share")
        client.setdefault("XDG_CONFIG_HOME", f"{home}/.config")
    return client


def _without_device(passed: Mapping[str, str]) -> dict[str, str]:
    return {name: passed[name] for name in passed if name != DEVICE_VARIABLE}


def _mount(bind: Bind) -> str:
    fields = ["type=bind", f"source={bind.path}", f"target={bind.path}"]
    if not bind.writable:
        fields.append("readonly")
    return ",".join(map(_csv_field, fields))


def _apptainer_bind(bind: Bind) -> list[str]:
    if any(mark in str(bind.path) for mark in ":,"):
        # --bind has no way to write it
        return ["--mount", _mount(bind)]
    mode = "" if bind.writable else ":ro"
    return ["--bind", f"{bind.path}:{bind.path}{mode}"]


def _csv_field(field: str) -> str:
    if any(mark in field for mark in ',"\n'):
        return '"' + field.replace('"', '""') + '"'
    return field


def _problem(
    reason: str, text: str, *, path: str | None = None, name: str | None = None
) -> Problem:
    command = f"mkdir -p {shlex.quote(path)}" if path else None
    return Problem(
        step="runtime", reason=reason, text=text, path=path, name=name, next=command
    )


def _raise_all(problems: list[Problem]) -> None:
    if problems:
        raise ExecEnvironmentError(
            "; ".join(problem.text for problem in problems), problems=problems
        )
