"""Whose job it is: the manifest as it is now, or what the record keeps of it."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from remote_resident import manifest as manifests
from remote_resident.errors import UsageError
from remote_resident.jobs.job import Job

if TYPE_CHECKING:
    from remote_resident.admission import Holder
    from remote_resident.manifest import ProviderManifest

_CONTAINED = "docker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What it takes to go on with a worker, and to end it, without its manifest."""

    slug: str
    tree: Path
    env_kind: str
    gpu_policy: str
    runtime_idle_timeout_s: float = 0.0

    @property
    def named(self) -> str:
        """Give the words by which a command names it."""
        return self.slug


def refuse_mode(manifest: "ProviderManifest") -> None:
    """Raise UsageError for a provider that runs no jobs."""
    if manifest.runtime_mode != "jobs":
        raise UsageError(
            f"{manifest.slug}: mode {manifest.runtime_mode} found, jobs wanted",
            reason="bad_request",
            next=f"tu remote call {manifest.named} -",
        )


def of_job(job: Job) -> "ProviderManifest":
    """Read a job's manifest as it is now; raises ManifestError, OSError."""
    return manifests.load(Path(job.provider) / manifests.FILE, Path(job.lock_tree))


def of_holder(holder: "Holder") -> "ProviderManifest":
    """Read the manifest of a worker that is alive, which may lie outside of a tree."""
    named = holder.manifest_dir or holder.slug
    return manifests.find(Path(holder.tree or "/"), named)


def recorded(job: Job) -> "ProviderManifest":
    """Give what a job's record keeps of its provider, for who starts nothing."""
    return _in_its_place(
        Remembered(
            slug=job.slug,
            tree=Path(job.tree),
            env_kind=job.env_kind,
            gpu_policy=job.gpu_policy,
        )
    )


def seen(holder: "Holder") -> "ProviderManifest":
    """Give what the process table shows of a worker's provider."""
    known = Remembered(
        slug=holder.slug,
        tree=Path(holder.tree or "/"),
        env_kind=_CONTAINED if _is_client(holder.pids[0]) else "venv",
        gpu_policy="none",
    )
    return _in_its_place(known)


def _is_client(pid: int) -> bool:
    """Say whether a process is a container's client: its argv is not the worker's own."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    chosen = os.path.basename(os.environ.get("TU_CONTAINER_CLI", ""))  # noqa: PTH119
    program = os.path.basename(os.fsdecode(words[0]))  # noqa: PTH119
    return program in {"docker", "podman", chosen} - {""}


def _in_its_place(known: Remembered) -> "ProviderManifest":
    # a starter that starts nothing asks for no more of it
    return cast("ProviderManifest", known)
