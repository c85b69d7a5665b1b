"""The GPUs of this machine, as a measured report names them."""

from dataclasses import dataclass

from remote_resident import machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a report says of one GPU; None: the driver does not say."""

    name: str | None
    driver: str | None
    memory_gb: float | str | None
    """GiB, or "unified" where it is the host's."""
    compute_capability: str | None


def seen() -> tuple[Device, ...]:
    """Describe the devices that the driver shows."""
    return tuple(
        Device(
            name=gpu.name,
            driver=gpu.driver,
            memory_gb="unified" if gpu.unified else gpu.total_gb,
            compute_capability=gpu.compute_capability,
        )
        for gpu in machine.gpus()
    )
