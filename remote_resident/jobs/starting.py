"""The start of a job worker: as a resident worker's, with another program in it."""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from remote_resident import exec_env, places, processes, spawn, start_lock
from remote_resident.caller_side import start_command
from remote_resident.caller_side.found import Found
from remote_resident.caller_side.starter import END_GRACE_S, LEAVING_S, Starter
from remote_resident.errors import WorkerStartError
from remote_resident.jobs import asking
from remote_resident.jobs.job import AUTO
from remote_resident.processes import end_all
from remote_resident.worker_side import protocol

if TYPE_CHECKING:
    from remote_resident.admission import Verdict
    from remote_resident.manifest import ProviderManifest

WORKER = Path(__file__).parent / "worker"
WEIGHTS_VARIABLE = "TU_WEIGHTS_ROOT"
_SETTINGS = ("TU_JOB_CANCEL_GRACE_S", "TU_JOB_STREAM_KEEPALIVE_S")
"""What reaches the worker of the daemon's own environment besides the allow-list."""


class JobPlan(start_command.Plan):
    """One start of a job worker, before it has a command."""

    __slots__ = ()

    def _marks(self) -> dict[str, str]:
        marks = {**super()._marks(), asking.INPUTS_VARIABLE: self.inputs}
        marks |= {name: os.environ[name] for name in _SETTINGS if name in os.environ}
        root = self.manifest.weights_root()
        if root is not None:
            # under the manifest's own name too, resolved where that is not set
            names = (WEIGHTS_VARIABLE, self.manifest.weights_root_env)
            marks |= {name: str(root) for name in names if name}
        if self.environment.contained:
            # no container takes the directory that its client was started in
            marks["PYTHONPATH"] = str(self.manifest.directory)
        return marks

    def _script(self, options: Sequence[str], device: str | None) -> Iterator[str]:
        manifest = self.manifest
        yield str(WORKER)
        given = {
            "--resident-slug": manifest.slug,
            "--resident-tree": manifest.tree,
            "--resident-instance": self.instance,
            "--manifest-dir": manifest.directory,
            "--entry": manifest.runtime_entry,
            "--id": manifest.slug,
        }
        for flag, value in given.items():
            yield from (flag, str(value))
        yield from options


@dataclass(slots=True, kw_only=True)
class JobStarter(Starter):
    """What starts one provider's job worker."""

    state_root: Path
    """The directory in which each job has one of its own."""
    device: str = AUTO
    """Where the next start is to be: auto, cpu, or a device's UUID."""

    def stop(self, grace_s: float = LEAVING_S) -> list[int]:
        """End the worker: its jobs are cancelled, and have `grace_s` seconds to end."""
        self.stops += 1
        ended: list[int] = []
        for left in processes.instances(self.slug, self.tree):
            if left.leader is None or self.is_ours(left):
                start_lock.note_stopped(self.socket_path, left.instance)
                cli = self.container_cli()
                ended += end_all(left.instance, grace_s=grace_s, container_cli=cli)
        return sorted(ended)

    def _find(self) -> Found | None:
        return asking.find(self.socket_path, self.ping_s)

    def _retire(self, there: Found) -> None:
        if there.instance is not None:
            # a stopped one heeds nothing but the last signal
            grace_s = END_GRACE_S if there.leaving else LEAVING_S
            cli = self.container_cli()
            end_all(there.instance, grace_s=grace_s, container_cli=cli)

    def _plan(self, instance: str, inputs: str) -> start_command.Plan:
        places.ensure(self.state_root)
        writable = (self.socket_path.parent, self.state_root)
        binds = [exec_env.Bind(path=path, writable=True) for path in writable]
        environment = exec_env.from_manifest(
            self.manifest, [*binds, exec_env.Bind(path=WORKER)]
        )
        places.ensure(environment.cache_dir())
        return JobPlan(
            manifest=pinned(self.manifest, self.device),
            environment=environment,
            builder=start_command.builder_of(self.manifest),
            instance=instance,
            inputs=inputs,
        )

    def _options(self) -> list[str]:
        where = ["--socket", str(self.socket_path)]
        return [*where, "--state-root", str(self.state_root)]

    def _folder(self) -> Path | None:
        return self.manifest.directory


@contextlib.contextmanager
def admit(candidate: start_command.Candidate) -> "Iterator[Verdict]":
    """Ask for room on the device that is wanted, idle workers retired if that helps."""
    from remote_resident.reservation import reserved

    manifest = pinned(candidate.manifest, getattr(candidate, "device", AUTO))
    with reserved(manifest, make_room=True) as verdict:
        yield verdict


def starter_of(
    manifest: "ProviderManifest",
    *,
    admit: start_command.Admit | None = admit,
    socket_path: Path | None = None,
    log_path: Path | None = None,
    state_root: Path | None = None,
    owned: bool = False,
) -> JobStarter:
    """Make the starter of a provider's one job worker, or of one in other places.

    `owned`: it ends with this process; a host that is killed leaves its jobs running.
    """
    slug, tree = manifest.slug, manifest.tree
    name = f"{slug}-{places.tree_id(tree)}"
    return JobStarter(
        manifest=manifest,
        socket_path=socket_path or socket_of(manifest),
        log=spawn.Log(log_path or places.log_path(slug, tree)),
        owned=owned,
        admit=admit,
        state_root=state_root or places.state_dir() / "jobs" / name,
    )


def socket_of(manifest: "ProviderManifest") -> Path:
    """Name the socket of a provider's job worker; raises WorkerStartError."""
    runtime = places.runtime_dir()
    try:
        named = protocol.socket_path(manifest.slug, manifest.tree, runtime)
    except protocol.ProtocolError as exc:
        raise WorkerStartError(f"{manifest.slug}: {exc}", reason=exc.reason) from None
    return Path(named)


def inputs_of(manifest: "ProviderManifest") -> str:
    """Give the SHA-256 of all that a job worker is made from, the provider's module too."""
    whole = hashlib.sha256(start_command.inputs_digest(manifest).encode())
    module = (manifest.runtime_entry or "").partition(":")[0].split(".")
    own = manifest.directory.joinpath(*module)
    named = [own.with_suffix(".py"), own / "__init__.py"]
    for path in [*named, *sorted(WORKER.glob("*.py"))]:
        with contextlib.suppress(OSError):
            content = path.read_bytes()
            whole.update(f"{path.name} {len(content)}\n".encode() + content)
    return whole.hexdigest()


def pinned(manifest: "ProviderManifest", device: str) -> "ProviderManifest":
    """Limit a provider to one device; the decision alone looks at what this gives."""
    if device == AUTO:
        return manifest
    only = "" if device == "cpu" else device
    return replace(
        manifest, env_vars={**manifest.env_vars, exec_env.DEVICE_VARIABLE: only}
    )
