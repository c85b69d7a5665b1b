"""Say whether what is declared is well formed, and whether what was set up still holds.

Read-only: what one provider comes to is in `findings`, and nothing here is remembered.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from remote_resident import links, manifest, manifest_path
from remote_resident.errors import OK, REFUSED
from tasks import findings
from tasks.findings import ProviderCheck

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest

    Loaded = dict[str, ProviderManifest | Exception]

__all__ = ["ProviderCheck", "check", "exit_code", "verify"]


def check(
    tree: Path,
    names: Sequence[str] | None = None,
    *,
    machine: bool = True,
    deep: bool = False,
) -> list[ProviderCheck]:
    """Check providers: all of a tree, or those named by slug or path.

    `machine`: also whether what was set up here still is; `deep`: with every weight read.
    A provider that cannot be read is its own result. Raises UsageError for a name that
    is none.
    """
    named = _named(tree, names)
    links.forget()
    everyone = {slug: _load(tree, slug) for slug in manifest_path.slugs(tree)} | named
    claims = _claims(everyone)
    looking = {"machine": machine, "deep": deep}
    return [
        _kept(slug, provider, partial(findings.whole, provider, claims, **looking))
        for slug, provider in (named if names is not None else everyone).items()
    ]


def _kept(
    slug: str,
    provider: "ProviderManifest | Exception",
    look: "Callable[[], ProviderCheck]",
) -> ProviderCheck:
    """Look at a provider, and keep what its files read as for the next look."""
    found = findings.guarded(slug, look)
    if not isinstance(provider, Exception):
        provider.readings.save()
    return found


def verify(
    tree: Path,
    names: Sequence[str] | None = None,
    *,
    progress: findings.Progress | None = None,
) -> list[ProviderCheck]:
    """Read every weight of the named providers in full, whatever the memo says."""
    named = _named(tree, names if names is not None else manifest_path.slugs(tree))
    return [
        findings.guarded(slug, partial(findings.weights, provider, progress))
        for slug, provider in named.items()
    ]


def exit_code(checks: Iterable[ProviderCheck]) -> int:
    """Give 0 where nothing is wrong, 1 where something is."""
    return OK if all(one.ok for one in checks) else REFUSED


def _named(tree: Path, names: Sequence[str] | None) -> "Loaded":
    """Load what is named, by slug or path, in order."""
    loaded: Loaded = {}
    known = manifest_path.slugs(tree) if names else []
    for name in names or ():
        if name in known:
            loaded[name] = _load(tree, name)
            continue
        slug = manifest_path.slug_at(name)
        try:
            loaded[slug] = manifest.find(tree, name)
        except manifest.ManifestError as error:
            loaded[slug] = error
    return loaded


def _load(tree: Path, slug: str) -> "ProviderManifest | Exception":
    """Load a provider; what goes wrong is that provider's result, also where it is ours."""
    try:
        return manifest.load(f"{tree}/manifests/{slug}/{manifest.FILE}", tree)
    except Exception as error:  # the other providers are still looked at
        return error


def _claims(loaded: "Loaded") -> Mapping[str, Sequence[str]]:
    """Give the slugs that claim each operation."""
    claims: dict[str, list[str]] = {}
    for slug, provider in sorted(loaded.items()):
        if not isinstance(provider, Exception):
            for operation in provider.operations:
                claims.setdefault(operation, []).append(slug)
    return claims
