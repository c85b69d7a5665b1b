"""All that comes before a start: what it is made of, its command, its environment."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from remote_resident import exec_env, file_identity, places
from remote_resident.errors import WorkerRequestError, WorkerStartError
from remote_resident.kit_launch import Builder, Launch
from remote_resident.processes import (
    INSTANCE_VARIABLE,
    SLUG_VARIABLE,
    TREE_VARIABLE,
)
from remote_resident.worker_side import calls, protocol

if TYPE_CHECKING:
    from remote_resident.admission import Verdict
    from remote_resident.manifest import ProviderManifest

_NOT_PLAIN = frozenset({"deadline", "output_dir"})
"""What can be wrong in a request whose operation is known."""
WORKER_BASE = exec_env.WORKER_SIDE / "worker_base.py"


class Candidate(Protocol):
    """What is to be started, as admission sees it."""

    manifest: "ProviderManifest"
    instance: str | None


Admit = Callable[[Candidate], object]
"""Raises AdmissionRefused, or gives a context manager that is held until the spawned
process is in the process table; what that gives may name a `device`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What is executed, and under which environment."""

    argv: list[str]
    env: dict[str, str]


def new_instance() -> str:
    """Give the random id of one start."""
    return os.urandom(8).hex()


def inputs_digest(manifest: "ProviderManifest") -> str:
    """Give the SHA-256, 64 hex, of all that a worker is made from.

    The manifest's meaning, its lock, its kit's file, the weights' pins, the worker's
    script and the files of the worker's side. A named file that is not there counts as
    such. It is what `ping` answers as `inputs`.
    """
    from remote_resident.manifest import effective_digest

    parts = [("manifest", effective_digest(manifest).encode())]
    for weight in manifest.weights_files:
        pin = f"{weight.name} {weight.size} {weight.sha256} {weight.unpacked_dir}"
        parts.append(("weight", pin.encode()))
    parts += [(name, _bytes_of(path)) for name, path in _input_files(manifest)]
    whole = hashlib.sha256()
    for name, content in parts:
        # the length in front: no two lists of parts run together to the same bytes
        whole.update(f"{name} {len(content)}\n".encode())
        whole.update(content)
    return whole.hexdigest()


def inputs_marks(manifest: "ProviderManifest") -> tuple[object, ...]:
    """Give what changes when a file behind `inputs_digest` may have changed."""
    return tuple(file_identity.now(path) for _, path in _input_files(manifest))


def _input_files(manifest: "ProviderManifest") -> Iterator[tuple[str, Path]]:
    named = [("lock", manifest.lock_path()), ("kit", manifest.kit_file())]
    if manifest.runtime_worker is not None:
        named.append(("worker", manifest.resolve(manifest.runtime_worker)))
    yield from ((name, path) for name, path in named if path is not None)
    for path in sorted(exec_env.WORKER_SIDE.glob("*.py")):
        yield path.name, path


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        return f"{exc.errno}".encode()


def refuse_bad_request(
    manifest: "ProviderManifest",
    payload: Mapping[str, Any],
    writable: Sequence[Path] = (),
) -> None:
    """Raise WorkerRequestError (`bad_request`) for what no worker of it would take.

    An unknown op, a deadline that is no number, an `output_dir` that is not absolute, or
    that a container writes to without anybody outside seeing it; `writable` is what the
    container sees on top of what is declared.
    """
    op = payload.get("op", "predict")
    if (op == "predict" or op in manifest.operations) and _NOT_PLAIN.isdisjoint(
        payload
    ):
        return
    asked = {"op": op, **payload}
    fault = None
    if asked["op"] not in protocol.RESERVED:
        known = dict.fromkeys(("predict", *manifest.operations))
        fault = calls.fault_of(asked, tuple(known))
    directory = asked.get("output_dir")
    if fault is None and directory is not None and manifest.env_kind != "venv":
        binds = [exec_env.Bind(path=path, writable=True) for path in writable]
        if not exec_env.from_manifest(manifest, binds).can_write(Path(directory)):
            fault = (
                f"output_dir: {directory} found, which its container does not see; "
                "a directory below [runtime] work_root wanted"
            )
    if fault is not None:
        raise WorkerRequestError(f"{manifest.slug}: {fault}", reason="bad_request")


def size_of(payload: Mapping[str, Any]) -> float | None:
    """Give the size of a request's input, for a ladder; None: it says none."""
    size = payload.get("size")
    is_number = isinstance(size, int | float) and not isinstance(size, bool)
    return size if is_number else None


def refuse_bad_weights(manifest: "ProviderManifest") -> None:
    """Raise WorkerStartError with every weight that is not at its pin, by the memo."""
    problems = manifest.verify_weights()
    if problems:
        raise WorkerStartError(
            f"{manifest.slug}: {len(problems)} of {len(manifest.weights_files)} weights "
            "not at their pins: " + "; ".join(problem.text for problem in problems),
            problems=problems,
        )


@contextmanager
def admitted(admit: Admit | None, candidate: Candidate) -> Iterator[str | None]:
    """Hold the room for a start; gives the device, None: no device was chosen."""
    held = None if admit is None else admit(candidate)
    if isinstance(held, AbstractContextManager):
        with held as granted:
            yield _device_of(granted)
    else:
        yield _device_of(held)


def _device_of(granted: object) -> str | None:
    device = getattr(granted, "device", None)
    return device if isinstance(device, str) and device else None


@contextmanager
def default_admit(candidate: Candidate) -> Iterator["Verdict"]:
    """Hold this machine's reservation for a candidate; raises AdmissionRefused.

    A candidate whose `make_room` is true may have idle workers of this user retired;
    one with a `size` takes its ladder's step.
    """
    from remote_resident.reservation import reserved

    make_room = bool(getattr(candidate, "make_room", False))
    size = getattr(candidate, "size", None)
    with reserved(candidate.manifest, size=size, make_room=make_room) as verdict:
        yield verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One start of a worker, before it has a command."""

    manifest: "ProviderManifest"
    environment: exec_env.ExecEnvironment
    builder: Builder
    instance: str
    inputs: str

    def command(self, options: Sequence[str], device: str | None) -> Command:
        """Build the command; `options` say where and how the worker listens.

        Raises ExecEnvironmentError, and what the builder raises.
        """
        launch = Launch(
            manifest=self.manifest,
            environment=self.environment,
            instance=self.instance,
            script=tuple(self._script(options, device)),
        )
        inner, extra = self.builder(launch)
        env = exec_env.child_env(
            self.manifest, os.environ, {**self._marks(), **_chosen(device), **extra}
        )
        argv, env = self.environment.command(inner, env)
        return Command(argv=argv, env=env)

    def _marks(self) -> Mapping[str, str]:
        return {
            INSTANCE_VARIABLE: self.instance,
            SLUG_VARIABLE: self.manifest.slug,
            TREE_VARIABLE: str(self.manifest.tree),
        }

    def _script(self, options: Sequence[str], device: str | None) -> Iterator[str]:
        manifest = self.manifest
        given = {
            "--resident-slug": manifest.slug,
            "--resident-tree": manifest.tree,
            "--resident-instance": self.instance,
            "--orphan-grace": manifest.runtime_orphan_grace_s,
            "--max-queue": manifest.runtime_max_queue,
            "--inputs": self.inputs,
            "--manifest-dir": manifest.directory,
            "--weights-root": manifest.weights_root(),
            "--work-root": _resolved(manifest, manifest.runtime_work_root),
            "--device": device,
            "--script": _resolved(manifest, manifest.runtime_worker),
            "--operations": ",".join(manifest.operations) or None,
        }
        yield str(WORKER_BASE)
        for flag, value in given.items():
            if value is not None:
                yield from (flag, str(value))
        yield from options
        yield from ("--", *manifest.runtime_worker_args)


def plan(
    manifest: "ProviderManifest",
    inputs: str,
    *,
    instance: str,
    writable: Sequence[Path] = (),
) -> Plan:
    """Find the interpreter and the builder of a start; `writable` is bound on top.

    Raises ExecEnvironmentError, and WorkerStartError where the manifest declares no
    worker or a launch that is none.
    """
    if manifest.runtime_worker is None:
        raise WorkerStartError(
            f"{manifest.slug}: [runtime] worker: none declared, one wanted to start",
            reason="file_missing",
        )
    environment = exec_env.from_manifest(
        manifest, [exec_env.Bind(path=path, writable=True) for path in writable]
    )
    places.ensure(environment.cache_dir())
    return Plan(
        manifest=manifest,
        environment=environment,
        builder=builder_of(manifest),
        instance=instance,
        inputs=inputs,
    )


def builder_of(manifest: "ProviderManifest") -> Builder:
    """Resolve `[runtime] launch`; raises WorkerStartError where it names nothing.

    A module missing inside the named module is that module's fault and passes as it is.
    """
    launch = manifest.runtime_launch
    name, _, function = launch.partition(":")
    try:
        found = getattr(import_module(name), function, None)
    except ModuleNotFoundError as exc:
        if exc.name is None or not f"{name}.".startswith(f"{exc.name}."):
            raise
        raise _no_launch(manifest, f"no module {exc.name}") from None
    if not callable(found):
        raise _no_launch(manifest, f"no function {function} in {name}")
    return cast(Builder, found)


def _no_launch(manifest: "ProviderManifest", found: str) -> WorkerStartError:
    return WorkerStartError(
        f"{manifest.slug}: [runtime] launch = {manifest.runtime_launch!r}: {found}, "
        "module:function wanted",
        reason="manifest_invalid",
    )


def _chosen(device: str | None) -> Mapping[str, str]:
    return {} if device is None else {exec_env.DEVICE_VARIABLE: device}


def _resolved(manifest: "ProviderManifest", rel: str | None) -> Path | None:
    return None if rel is None else manifest.resolve(rel)
