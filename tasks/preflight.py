"""The preflight step: what this host lacks, before anything large is fetched."""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_resident import admission, interpreters, machine, places
from remote_resident.admission import Memory
from remote_resident.errors import ExecEnvironmentError, Problem, ProviderError
from tasks import installed
from tasks.step import Making, StepResult, refused

if TYPE_CHECKING:
    from remote_resident.admission import Gpu
    from remote_resident.manifest import ProviderManifest
    from tasks.pins import Pins

STEP = "preflight"
_PLAIN_CLAUSE = re.compile(r"\s*(>=|<)\s*(\d+(?:\.\d+)*)\s*")
_PLAIN_VERSION = re.compile(r"\d+(?:\.\d+)*")
_ASK_VERSION = "import sys; print('%d.%d.%d' % sys.version_info[:3])"


@cache
def _gpus() -> "Sequence[Gpu]":
    """Ask once per process: what is looked at here does not change."""
    return machine.gpus()


def _in_container() -> bool:
    marks = (Path("/.dockerenv"), Path("/run/.containerenv"))
    return any(mark.exists() for mark in marks) or "APPTAINER_NAME" in os.environ


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
    gpus: "Callable[[], Sequence[Gpu]]" = field(default_factory=lambda: _gpus)
    """Starts a program: called only for a provider that may use a device."""
    contained: bool = field(default_factory=_in_container)
    """Whether this process runs in a container."""
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free

    @property
    def device_here(self) -> bool:
        """Say whether there is a device, asking a program only where /proc has none."""
        return self.devices > 0 or len(self.gpus()) > 0


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
        *_disk(provider, pins, host),
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


def _readable_lock(provider: "ProviderManifest") -> "Pins | None":
    if provider.env_lock is None:
        return None
    return installed.read_pins(provider, STEP)[0]


def _system(
    provider: "ProviderManifest", pins: "Pins | None", host: Host
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
        yield from installed.read_pins(provider, STEP)[1]


def _interpreter(
    provider: "ProviderManifest", pins: "Pins | None"
) -> Iterator[Problem]:
    if provider.env_kind != "venv":
        return
    python, found = installed.interpreter(provider, STEP)
    yield from found
    if python is None or pins is None or pins.requires_python is None:
        return
    version = _version(python, pins.requires_python)
    if isinstance(version, Problem):
        yield version
    elif not _satisfies(version, pins.requires_python):
        yield _problem(
            "python_version",
            f"{provider.slug}: {python}: Python {version} found, "
            f"{pins.requires_python} wanted by locks/{pins.name}.lock",
            path=str(python),
            found=version,
            wanted=pins.requires_python,
            next=f"doit env:{provider.slug}",
        )


def _version(python: Path, requires: str) -> str | Problem:
    """Give the version that a venv or a file's name states; else ask for it.

    A stated X.Y is enough where the lock does not ask for more than that.
    """
    settings = interpreters.settings(python)
    stated = settings.get("version") or settings.get("version_info") or ""
    found = re.match(r"\d+\.\d+(?:\.\d+)?", stated)
    found = found or re.search(r"(?<=python)\d+\.\d+$", str(python.resolve()))
    if found and (found[0].count(".") > 1 or not re.search(r"\.\d+\.\d", requires)):
        return found[0]
    asked = installed.ask([str(python), "-I", "-c", _ASK_VERSION])
    if isinstance(asked, str):
        return installed.probe_problem(STEP, str(python), asked, "python_missing")
    return asked[-1].strip() if asked else "unknown"


def _satisfies(version: str, requires: str) -> bool:
    clauses = [_PLAIN_CLAUSE.fullmatch(part) for part in requires.split(",")]
    plain = [clause for clause in clauses if clause]
    if len(plain) == len(clauses) and _PLAIN_VERSION.fullmatch(version):
        # the usual lower and upper bound, without an import that costs more than all else
        here = _parts(version)
        return all((here >= _parts(c[2])) == (c[1] == ">=") for c in plain)
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(requires).contains(version, prereleases=True)
    except InvalidSpecifier:
        return False


def _parts(version: str) -> tuple[int, ...]:
    """Give a version's numbers, without zeros at the end: 3.11.0 is 3.11."""
    numbers = [int(part) for part in re.findall(r"\d+", version)]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _programs(provider: "ProviderManifest", host: Host) -> Iterator[Problem]:
    path = host.environ.get("PATH")
    if provider.env_kind == "docker":
        from remote_resident import exec_env

        try:
            exec_env.container_program(host.environ, provider.slug)
        except ExecEnvironmentError as exc:
            yield exc.as_problem(STEP)
    if provider.env_kind == "apptainer" and not shutil.which("apptainer", path=path):
        text = f"{provider.slug}: no apptainer on PATH found, one wanted"
        yield _problem("container_missing", text, name="apptainer")
    if _kit_is_missing(provider) and not shutil.which("git", path=path):
        text = (
            f"{provider.slug}: no git on PATH found, one wanted to fetch "
            f"the kit {provider.kit_name}"
        )
        yield _problem("git_missing", text, name="git")


def _kit_is_missing(provider: "ProviderManifest") -> bool:
    path = provider.kit_file()
    if path is None:
        return False
    import tomllib

    try:
        declared = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        # named by another step; without a commit no checkout is the right one
        return True
    return not places.kit_dir(str(declared.get("commit"))).is_dir()


def _device(provider: "ProviderManifest", host: Host) -> Iterator[Problem]:
    if provider.gpu_policy == "none":
        return
    yield from _isolation(provider, host)
    if not host.device_here:
        if provider.gpu_policy == "required":
            driver = f"driver {host.driver}" if host.driver else "no NVIDIA driver"
            text = f"{provider.slug}: 0 GPUs ({driver}) found, 1 wanted"
            yield _problem("no_gpu", text, found=0, wanted=1)
        return
    yield from _late_probes(provider, host)
    loaded = host.driver or next((gpu.driver for gpu in host.gpus()), None)
    wanted = provider.gpu_driver_min
    if wanted is not None and loaded and _parts(loaded) < _parts(wanted):
        text = (
            f"{provider.slug}: driver {loaded} found, {wanted} or newer wanted: "
            f"{provider.gpu_driver_min_reason}"
        )
        yield _problem("driver_too_old", text, found=loaded, wanted=wanted)


def _late_probes(provider: "ProviderManifest", host: Host) -> Iterator[Problem]:
    reasons = (why for gpu in host.gpus() for why in gpu.unknown.values())
    for why in dict.fromkeys(why for why in reasons if "no answer" in why):
        text = f"{provider.slug}: {why} found, an answer wanted"
        yield _problem("probe_timeout", text, next="nvidia-smi")


def _isolation(provider: "ProviderManifest", host: Host) -> Iterator[Problem]:
    claim = provider.gpu_isolation
    if claim == "container" and provider.env_kind == "venv" and not host.contained:
        found = "a plain process of this host"
    elif claim == "mig" and not any(gpu.mig for gpu in host.gpus()):
        found = "no MIG instance"
    else:
        return
    text = f"{provider.slug}: [gpu] isolation: {found} found, {claim} wanted"
    yield _problem("isolation_not_backed", text, found=found, wanted=claim)


def _capacity(provider: "ProviderManifest", host: Host) -> Iterator[Problem]:
    """Ask whether the budget could ever fit, with nothing held and all of it free."""
    uses_device = provider.gpu_policy != "none" and host.device_here
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


def _disk(
    provider: "ProviderManifest", pins: "Pins | None", host: Host
) -> Iterator[Problem]:
    """Compare what is missing with the free space of the file system it goes to.

    Weights by their declared sizes, the environment by `installed-bytes` of its lock.
    What declares no size is named beside the sum, and is no part of it.
    """
    by_device: dict[int, list[_Missing]] = {}
    for missing in (_missing_weights(provider), _missing_environment(provider, pins)):
        if missing is not None:
            by_device.setdefault(missing.place.stat().st_dev, []).append(missing)
    for parts in by_device.values():
        wanted = sum(part.size for part in parts)
        free = host.free_bytes(parts[0].place)
        if wanted > free:
            what = " and ".join(part.text for part in parts)
            text = (
                f"{provider.slug}: {parts[0].place}: {free} bytes free found, "
                f"{wanted} wanted for {what}"
            )
            yield _problem(
                "disk_full",
                text,
                path=str(parts[0].place),
                found=free,
                wanted=wanted,
            )


@dataclass(frozen=True, slots=True)
class _Missing:
    place: Path
    """What is there of where it goes to."""
    size: int
    """Bytes that are declared."""
    text: str


def _missing_weights(provider: "ProviderManifest") -> _Missing | None:
    root = provider.weights_root()
    absent = [f for f, path in provider.weight_paths() if not os.path.lexists(path)]
    if root is None or not absent:
        return None
    unknown = sum(file.size is None for file in absent)
    more = f" ({unknown} of undeclared size)" if unknown else ""
    known = sum(file.size or 0 for file in absent)
    return _Missing(_standing(root), known, f"{len(absent)} weight files{more}")


def _missing_environment(
    provider: "ProviderManifest", pins: "Pins | None"
) -> _Missing | None:
    python = provider.python_executable()
    if pins is None or python is None or provider.env_kind != "venv":
        return None
    if not installed.compare(pins, python, provider.slug):
        return None
    place = _standing(interpreters.site_packages(python) or python.parent)
    unknown = pins.installed_bytes is None
    text = "the environment" + (" (of undeclared size)" if unknown else "")
    return _Missing(place, pins.installed_bytes or 0, text)


def _standing(path: Path) -> Path:
    """Give the nearest directory of a path that is there and can be looked at."""
    around = (path, *path.parents)
    return next((p for p in around if os.access(p, os.F_OK)), Path("/"))


def _socket(provider: "ProviderManifest") -> Iterator[Problem]:
    from remote_resident.worker_side import protocol

    try:
        protocol.socket_path(provider.slug, provider.tree, places.runtime_dir())
    except (ProviderError, protocol.ProtocolError) as error:
        shorter = places.elsewhere()
        next_ = getattr(error, "next", None) or shorter
        yield _problem("socket_path", f"{provider.slug}: {error}", next=next_)


def _names(provider: "ProviderManifest", host: Host) -> Iterator[Problem]:
    """Name what the caller's environment has and the kit refuses."""
    for refused_name in provider.kit_env_absent:
        for name in sorted(host.environ):
            if _matches(name, refused_name):
                text = (
                    f"{provider.slug}: [kit] env_absent {refused_name!r}: "
                    f"{name} in the environment found, none wanted"
                )
                command = f"unset {name}"
                yield _problem("environment_names", text, name=name, next=command)


def _matches(name: str, refused_name: str) -> bool:
    if refused_name.endswith(("*", "_")):
        return name.startswith(refused_name.rstrip("*"))
    return name == refused_name
