"""The kit step: third-party code at its pinned commit."""

from typing import TYPE_CHECKING

from remote_resident.errors import Problem
from tasks.step import Making, StepResult, refused

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest

STEP = "kit"


def problems(provider: "ProviderManifest") -> list[Problem]:
    """Name what the declared kit lacks; a provider without one lacks nothing."""
    if provider.kit_name is None:
        return []
    text = (
        f"{provider.slug}: kit {provider.kit_name} declared, "
        "none wanted: this version fetches no kits"
    )
    path = str(provider.kit_file())
    return [Problem(step=STEP, reason="kit_unavailable", text=text, path=path)]


def make(provider: "ProviderManifest") -> Making:
    """Refuse a declared kit, which this version cannot fetch; skip where there is none."""
    found = problems(provider)
    if found:
        return refused(STEP, found)
    yield from ()
    return StepResult(STEP, "skipped", detail="no kit declared")
