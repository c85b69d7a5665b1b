"""The variables that a provider's places depend on: the caller's against the daemon's."""

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from remote_resident.errors import UsageError

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


def named(manifest: "ProviderManifest") -> dict[str, str | None]:
    """Give the variables that say where a provider's interpreter and weights are.

    None: not set in this process.
    """
    texts = (manifest.env_python, manifest.weights_root_default)
    names = [m[1] or m[2] for text in texts for m in _VARIABLE.finditer(text or "")]
    names += filter(None, [manifest.weights_root_env])
    return {name: os.environ.get(name) for name in names}


def refuse_other(manifest: "ProviderManifest", theirs: Mapping[str, object]) -> None:
    """Raise UsageError (`environment_names`) where the caller sees other places than we.

    `theirs` is what `named` gave the caller; names that it lacks are not compared.
    """
    ours = named(manifest)
    differ = [name for name in ours if name in theirs and theirs[name] != ours[name]]
    if differ:
        raise UsageError(
            f"{manifest.slug}: {', '.join(differ)}: another value found than the host "
            f"daemon (pid {os.getpid()}) was started with, the same wanted",
            reason="environment_names",
            next=f"kill {os.getpid()}",
        )
