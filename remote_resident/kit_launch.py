"""Build the worker's command, with or without a kit."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote_resident.exec_env import ExecEnvironment

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest

Extra = dict[str, str | None]
"""Variables on top of the allow-list; None removes a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One start, as the function that builds its command sees it."""

    manifest: "ProviderManifest"
    environment: ExecEnvironment
    instance: str
    script: tuple[str, ...]
    """worker_base.py and all its arguments, the provider's own among them."""


Builder = Callable[[Launch], tuple[list[str], Extra]]
"""Gives the argv as it is called where the code runs, and the variables to add."""


def build_command(worker: Launch) -> tuple[list[str], Extra]:
    """Build the command of a plain worker: the interpreter and the script."""
    return [worker.environment.inner_python, *worker.script], {}


def kit_package(manifest: "ProviderManifest") -> str | None:
    """Name the kit's package: declared, else made of its folder; None without a kit."""
    if not manifest.kit_name:
        return None
    if manifest.kit_package:
        return manifest.kit_package
    return f"{manifest.kit_subdir}_opt" if manifest.kit_subdir else None
