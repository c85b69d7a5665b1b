"""The preflight step: what this host lacks, before anything large is fetched."""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_resident import admission, machine, places
from remote_resident.admission import Memory
from remote_resident.errors import Problem, ProviderError
from tasks import environment
from tasks.step import Making, StepResult, refused

if TYPE_CHECKING:
    from remote_resident.admission import Gpu
    from remote_resident.manifest import ProviderManifest
    from tasks.lock import Lock

STEP = "preflight"
_ASK_VERSION = "import sys; print('%d.%d.%d' % sys.version_info[:3])"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What preflight looks at; the defaults are this machine's."""

    system: str = field(default_factory=lambda: os.uname().sysname)
    arch: str = field(default_factory=lambda: os.uname().machine)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    driver: str | None = field(default_factory=machine.driver_version)
    """None: no driver is loaded."""
    devices: int = field(default_factory=machine.device_count)
    memory: Memory = field(default_factory=machine.meminfo)
    gpus: "Callable[[], Sequence[Gpu]]" = field(default_factory=lambda: machine.gpus)
    """Starts a program: asked only of a provider that uses a device that is there."""
    which: Callable[[str], str | None] = shutil.which
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free


def problems(provider: "ProviderManifest", host: Host | None = None) -> list[Problem]:
    """Name all that this host lacks for a provider."""
    host = host or Host()
    pins = _readable_lock(provider)
    return [
        *_system(provider, pins, host),
        *_files(provider),
        *_interpreter(provider, pins),
        *_programs(provider, host),
        *_device(provider, host),
        *_capacity(provider, host),
        *_disk(provider, host),
        *_socket(provider),
        *_names(provider, host),
    ]


def make(provider: "ProviderManifest", host: Host | None = None) -> Making:
    """Refuse for what this host lacks; the lock's recipe is printed where it helps."""
    found = problems(provider, host)
    if not found:
        return StepResult(STEP, "present", detail=_detail(provider))
    yield from ()
    lines = []
    if any(problem.reason == "python_unset" for problem in found):
        pins = _readable_lock(provider)
        lines = ["recipe:", *(f"  {line}" for line in pins.recipe)] if pins else []
    return refused(STEP, found, lines=lines)


def _detail(provider: "ProviderManifest") -> str:
    python = provider.python_executable()
    return str(python or provider.env_image or provider.env_sif or "")


def _problem(reason: str, text: str, **known: Any) -> Problem:
    return Problem(step=STEP, reason=reason, text=text, **known)


def _readable_lock(provider: "ProviderManifest") -> "Lock | None":
    if provider.env_lock is None:
        return None
    return environment.read_lock(provider, STEP)[0]


def _system(
    provider: "ProviderManifest", pins: "Lock | None", host: Host
) -> Iterator[Problem]:
    here = f"{host.system}-{host.arch}".lower()
    wanted = pins.platforms if pins else ()
    if host.system != "Linux":
        text = f"{provider.slug}: {host.system} found, Linux wanted"
        yield _problem("os_unsupported", text, found=host.system, wanted="Linux")
    elif wanted and here not in wanted:
        listed = ", ".join(wanted)
        text = f"{provider.slug}: {here} found, {listed} wanted by {provider.env_lock}"
        yield _problem("os_unsupported", text, found=here, wanted=listed)


def _files(provider: "ProviderManifest") -> Iterator[Problem]:
    for problem in provider.missing_files():
        yield replace(problem, step=STEP)
    path = provider.lock_path()
    if path is not None and path.is_file():
        yield from environment.read_lock(provider, STEP)[1]


def _interpreter(
    provider: "ProviderManifest", pins: "Lock | None"
) -> Iterator[Problem]:
    if provider.env_kind != "venv":
        return
    python, found = environment.interpreter(provider, STEP)
    yield from found
    if python is None or pins is None or pins.requires_python is None:
        return
    version = _version(python)
    if version is None:
        asked = environment.ask([str(python), "-I", "-c", _ASK_VERSION])
        if isinstance(asked, str) or not asked:
            said = asked if isinstance(asked, str) else "no answer"
            yield environment.probe_problem(
                STEP, provider.slug, str(python), said, "python_missing"
            )
            return
        version = asked[-1].strip()
    from packaging.specifiers import SpecifierSet

    if not SpecifierSet(pins.requires_python).contains(version, prereleases=True):
        text = (
            f"{provider.slug}: {python}: Python {version} found, "
            f"{pins.requires_python} wanted by locks/{pins.name}.lock"
        )
        yield _problem(
            "python_version",
            text,
            path=str(python),
            found=version,
            wanted=pins.requires_python,
            next=f"doit env:{provider.slug}",
        )


def _version(python: Path) -> str | None:
    """Read the version that a venv states; None: it has to be asked."""
    settings = environment.venv_settings(python)
    stated = settings.get("version") or settings.get("version_info")
    found = re.match(r"\d+\.\d+\.\d+", stated or "")
    return found[0] if found else None


def _programs(provider: "ProviderManifest", host: Host) -> Iterator[Problem]:
    for names, reason in _needed_programs(provider):
        if not any(host.which(name) for name in names):
            listed = " or ".join(names)
            text = f"{provider.slug}: not on PATH: {listed} wanted"
            yield _problem(reason, text, name=names[0], wanted=listed)


def _needed_programs(
    provider: "ProviderManifest",
) -> Iterator[tuple[tuple[str, ...], str]]:
    if provider.env_kind == "docker":
        yield ("docker", "podman"), "container_missing"
    if provider.env_kind == "apptainer":
        yield ("apptainer",), "container_missing"
    if provider.kit_name is not None:
        yield ("git",), "git_missing"


def _device(provider: "ProviderManifest", host: Host) -> Iterator[Problem]:
    if provider.gpu_policy == "none":
        return
    slug = provider.slug
    if provider.gpu_policy == "required" and not host.devices:
        driver = host.driver or "none"
        text = f"{slug}: no GPU found (driver {driver}), 1 wanted by gpu.policy"
        yield _problem("no_gpu", text, found=0, wanted=1)
    if host.driver is None or not host.devices:
        return
    wanted = provider.gpu_driver_min
    if wanted is not None and _parts(host.driver) < _parts(wanted):
        text = (
            f"{slug}: driver {host.driver} found, {wanted} or newer wanted: "
            f"{provider.gpu_driver_min_reason}"
        )
        yield _problem("driver_too_old", text, found=host.driver, wanted=wanted)
    yield from _isolation(provider, host)


def _isolation(provider: "ProviderManifest", host: Host) -> Iterator[Problem]:
    claim = provider.gpu_isolation
    if claim == "container" and provider.env_kind == "venv":
        found = "an environment of kind venv"
    elif claim == "mig" and not any(gpu.mig for gpu in host.gpus()):
        found = "no MIG instance"
    else:
        return
    text = f"{provider.slug}: gpu.isolation: {found} found, {claim} wanted"
    yield _problem("isolation_not_backed", text, found=found, wanted=claim)


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _capacity(provider: "ProviderManifest", host: Host) -> Iterator[Problem]:
    """Ask whether the budget could ever fit, with nothing held and all of it free."""
    uses_device = provider.gpu_policy != "none" and host.devices > 0
    if provider.gpu_policy == "required" and not uses_device:
        return
    memory = host.memory
    empty = replace(memory, free_gb=memory.total_gb, available_gb=memory.total_gb)
    gpus = [
        replace(gpu, free_gb=gpu.total_gb, processes=())
        for gpu in (host.gpus() if uses_device else [])
    ]
    budget = admission.Budget(
        vram_gb=provider.gpu_vram_budget_gb if uses_device else 0.0,
        ram_gb=provider.host_ram_budget_gb,
        source="declared",
    )
    if budget.vram_gb is None:
        return
    verdict = admission.decide(
        provider.slug, budget, [], readings=admission.Readings(empty, gpus)
    )
    if not verdict.admit and verdict.reason == "no_room":
        text = f"with nothing else held: {verdict.text}"
        yield _problem("capacity_too_small", text, next="tu remote room")


def _disk(provider: "ProviderManifest", host: Host) -> Iterator[Problem]:
    """Compare free disk with the weights that are missing.

    What an environment takes is declared nowhere, so it is not part of the sum.
    """
    root = provider.weights_root()
    if root is None:
        return
    missing = sum(
        file.size or 0 for file, path in provider.weight_paths() if not path.exists()
    )
    standing = next(path for path in (root, *root.parents) if path.exists())
    free = host.free_bytes(standing)
    if missing > free:
        text = (
            f"{provider.slug}: {standing}: {free} bytes free, "
            f"{missing} bytes wanted for missing weights"
        )
        yield _problem(
            "disk_full", text, path=str(standing), found=free, wanted=missing
        )


def _socket(provider: "ProviderManifest") -> Iterator[Problem]:
    from remote_resident.worker_side import protocol

    try:
        protocol.socket_path(provider.slug, provider.tree, places.runtime_dir())
    except (ProviderError, protocol.ProtocolError) as error:
        next_ = getattr(error, "next", None)
        yield _problem("socket_path", f"{provider.slug}: {error}", next=next_)


def _names(provider: "ProviderManifest", host: Host) -> Iterator[Problem]:
    """Name what the caller's shell has and the kit refuses."""
    refused_names = tuple(provider.kit_env_absent)
    found = sorted(name for name in host.environ if _is_refused(name, refused_names))
    passed = [name for name in found if name in provider.env_pass_env]
    if passed:
        listed = ", ".join(passed)
        text = f"{provider.slug}: {listed} set, none of {refused_names} wanted"
        yield _problem("environment_names", text, next=f"unset {' '.join(passed)}")


def _is_refused(name: str, refused_names: tuple[str, ...]) -> bool:
    return any(
        name == one or (one.endswith("_") and name.startswith(one))
        for one in refused_names
    )
