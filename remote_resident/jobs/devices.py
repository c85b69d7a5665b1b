"""Which device a job asks for."""

from typing import TYPE_CHECKING

from remote_resident.errors import UsageError
from remote_resident.jobs.job import AUTO

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest

CPU = "cpu"


def device_named(manifest: "ProviderManifest", asked: str) -> str:
    """Give what is asked for as auto, cpu or a UUID; an index counts from 0.

    Raises UsageError for what this machine, or the provider's policy, does not have.
    """
    policy = manifest.gpu_policy
    if asked == AUTO or (asked == CPU and policy == "none"):
        return AUTO
    if asked == CPU and policy == "optional":
        return CPU
    known = [AUTO] if policy == "required" else [AUTO, CPU]
    if policy != "none":
        from remote_resident import machine

        for gpu in machine.gpus():
            if asked in (gpu.uuid, str(gpu.index)):
                return gpu.uuid or asked
            known.append(gpu.uuid or str(gpu.index))
    raise UsageError(
        f"{manifest.slug}: device {asked!r} found, one of {', '.join(known)} wanted"
    )
