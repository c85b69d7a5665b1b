"""Say whether what is declared is well formed, and whether what was set up still holds.

Read-only. Where nothing has changed since a provider was found to be right, that stands,
and only the times of its files are read (`standing`); all others are looked at in full
(`findings`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING

from remote_resident.errors import OK, REFUSED, Problem
from tasks import standing

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest

    Loaded = dict[str, ProviderManifest | Exception]

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderCheck:
    """What a look at one provider came to."""

    slug: str
    problems: list[Problem] = field(default_factory=list)
    set_up: bool = False
    """True: this machine has a measured report of it."""
    from_memo: list[str] = field(default_factory=list)
    """Weights whose digest was not computed now."""

    @property
    def ok(self) -> bool:
        """Say whether nothing is wrong."""
        return not self.problems

    def as_dict(self) -> dict[str, object]:
        """Give the JSON shape of a provider's check."""
        return {
            "slug": self.slug,
            "ok": self.ok,
            "set_up": self.set_up,
            "problems": [problem.as_dict() for problem in self.problems],
            "from_memo": self.from_memo,
        }


def check(
    tree: Path,
    names: Sequence[str] | None = None,
    *,
    machine: bool = True,
    deep: bool = False,
    settled_s: float = standing.SETTLED_S,
) -> list[ProviderCheck]:
    """Check providers: all of a tree, or those named by slug or path.

    `machine`: also whether what was set up here still is; `deep`: with every weight read.
    `settled_s`: how old all that an answer rests on must be for it to be kept. A provider
    that cannot be read is its own result. Raises UsageError for a name that is none.
    """
    began = time_ns()
    kept = standing.Answers(tree) if machine and not deep else None
    slugs = standing.slugs(tree)
    held = kept.held(slugs) if kept else {}
    asked = slugs if names is None else names
    if len(held) == len(slugs) and held.keys() >= set(asked):
        return [_still(slug, held[slug]) for slug in dict.fromkeys(asked)]
    from tasks import findings

    others, named = _named(tree, names, slugs)
    loaded = {slug: _load(tree, slug) for slug in slugs if slug not in held} | others
    claims = _claims(held, loaded)
    for slug in _contested(claims) & held.keys():
        loaded[slug] = _load(tree, slug)
    checks = [
        findings.guarded(
            slug,
            partial(findings.whole, loaded[slug], claims, machine=machine, deep=deep),
        )
        if slug in loaded
        else _still(slug, held[slug])
        for slug in named
    ]
    if kept:
        before = began - int(settled_s * 1e9)
        kept.keep(checks, {s: p for s, p in loaded.items() if s not in others}, before)
    return checks


def verify(
    tree: Path,
    names: Sequence[str] | None = None,
    *,
    progress: Progress | None = None,
) -> list[ProviderCheck]:
    """Read every weight of the named providers in full, whatever the memo says."""
    from tasks import findings

    slugs = standing.slugs(tree)
    others, named = _named(tree, names, slugs)
    loaded = {slug: _load(tree, slug) for slug in named if slug not in others} | others
    return [
        findings.guarded(slug, partial(findings.weights, loaded[slug], progress))
        for slug in named
    ]


def exit_code(checks: Iterable[ProviderCheck]) -> int:
    """Give 0 where nothing is wrong, 1 where something is."""
    return OK if all(one.ok for one in checks) else REFUSED


def _still(slug: str, answer: standing.Answer) -> ProviderCheck:
    return ProviderCheck(
        slug=slug, set_up=answer["set_up"], from_memo=answer["from_memo"]
    )


def _named(
    tree: Path, names: Sequence[str] | None, slugs: Sequence[str]
) -> tuple["Loaded", list[str]]:
    """Load what is named by a path; give the slugs of all that is named, in order."""
    if names is None:
        return {}, list(slugs)
    from remote_resident import manifest

    others: Loaded = {}
    named: list[str] = []
    for name in names:
        slug = name
        if name not in slugs:
            slug = Path(name).resolve().name
            try:
                others[slug] = manifest.find(tree, name)
            except manifest.ManifestError as error:
                others[slug] = error
        named.append(slug)
    return others, list(dict.fromkeys(named))


def _load(tree: Path, slug: str) -> "ProviderManifest | Exception":
    """Load a provider; what goes wrong is that provider's result, also where it is ours."""
    from remote_resident import manifest

    try:
        return manifest.load(tree / "manifests" / slug / manifest.FILE, tree)
    except Exception as error:  # the other providers are still looked at
        return error


def _claims(
    held: Mapping[str, standing.Answer], loaded: "Loaded"
) -> Mapping[str, Sequence[str]]:
    """Give the slugs that claim each operation."""
    offered = {slug: answer["operations"] for slug, answer in held.items()}
    for slug, provider in loaded.items():
        if not isinstance(provider, Exception):
            offered[slug] = list(provider.operations)
    claims: dict[str, list[str]] = {}
    for slug in sorted(offered):
        for operation in offered[slug]:
            claims.setdefault(operation, []).append(slug)
    return claims


def _contested(claims: Mapping[str, Sequence[str]]) -> set[str]:
    return {slug for slugs in claims.values() if len(slugs) > 1 for slug in slugs}
