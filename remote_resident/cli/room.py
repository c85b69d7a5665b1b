"""`tu remote room`: would it fit beside what this machine holds now."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from remote_resident.cli import tree
from remote_resident.cli.answer import Answer, Asked
from remote_resident.errors import OK, REFUSED

if TYPE_CHECKING:
    from remote_resident.admission import Verdict
    from remote_resident.manifest import ProviderManifest


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument("slug", nargs="?", metavar="SLUG", help="of this one, with why")


def run(asked: Asked) -> Answer:
    """Decide for one provider, or for each; no room for any ends with 1."""
    from remote_resident import manifest, room

    root = tree.data(asked)
    if asked.slug is not None:
        provider = manifest.find(root, asked.slug)
        verdict = _with_own(room.room_for(provider), provider)
        code = OK if verdict.admit else REFUSED
        text = "\n".join([_why(verdict), *_higher(verdict, provider)])
        return Answer(document=verdict.as_dict(), text=text, code=code)
    providers, unreadable = [], {}
    for slug, found in manifest.catalog(root).items():
        if isinstance(found, manifest.ManifestError):
            texts = [problem.text for problem in found.problems]
            unreadable[slug] = "; ".join(texts) or str(found)
        else:
            providers.append(found)
    verdicts = room.rooms_for(providers)
    pairs = zip(verdicts, providers, strict=True)
    return Answer(
        document={
            "verdicts": [verdict.as_dict() for verdict in verdicts],
            "unreadable": unreadable,
        },
        text="\n".join(
            [
                _overview(verdicts, unreadable),
                *(line for pair in pairs for line in _higher(*pair)),
            ]
        ),
        code=OK if any(verdict.admit for verdict in verdicts) else REFUSED,
    )


def _with_own(verdict: "Verdict", provider: "ProviderManifest") -> "Verdict":
    """Note that the provider is held already: what is asked needs no room for one more."""
    own = [
        holder
        for holder in verdict.holders
        if holder.slug == provider.slug
        and holder.tree == str(provider.tree)
        and holder.uid == os.geteuid()
    ]
    runs = (
        "its next job runs" if provider.runtime_mode == "jobs" else "a call is answered"
    )
    notes = tuple(
        f"{provider.slug} is held already by pid {holder.pids[0]}: {runs} there and needs "
        "no room"
        for holder in own
    )
    return replace(verdict, notes=(*verdict.notes, *notes))


def _overview(verdicts: Sequence["Verdict"], unreadable: Mapping[str, str]) -> str:
    """Lay one line a provider out, then each refusal whole, then who holds what."""
    from remote_resident.admission import RESERVE_GB

    lines: list[tuple[str, ...]] = [_line(verdict) for verdict in verdicts]
    nothing = ["-"] * 5
    lines += [(slug, "no", *nothing, "manifest unreadable") for slug in unreadable]
    if not lines:
        return "no providers"
    lines.sort()
    lines.insert(
        0, ("provider", "room", "pool", "wants", "others", "free", "of", "budget")
    )
    refused = [verdict.text for verdict in verdicts if not verdict.admit]
    refused += [f"{slug}: {error}" for slug, error in unreadable.items()]
    holders = verdicts[0].holders if verdicts else ()
    held = [f"holder: {holder}" for holder in holders]
    reserve = f"reserve: {RESERVE_GB} GiB; tu remote room SLUG has every number"
    return "\n".join([tree.columns(lines), *refused, *held, reserve])


def _line(verdict: "Verdict") -> tuple[str, ...]:
    pool, answer = verdict.pool, "yes" if verdict.admit else "no"
    numbers = ["-"] * 4
    if pool is not None:
        shown = (pool.need_gb, pool.declared_gb, pool.free_gb, pool.capacity_gb)
        numbers = ["-" if value is None else f"{value:.2f}" for value in shown]
    kind = pool.kind if pool else "-"
    return (verdict.slug, answer, kind, *numbers, verdict.budget.source)


def _higher(verdict: "Verdict", provider: "ProviderManifest") -> list[str]:
    """Say where more was measured than is declared, here or by a holder of it."""
    from remote_resident.cli import holding

    budget, slug = verdict.budget, verdict.slug
    pairs = [
        ("host.ram_budget_gb", budget.ram_gb, provider.host_ram_budget_gb),
        ("gpu.vram_budget_gb", budget.vram_gb, provider.gpu_vram_budget_gb),
    ]
    lines = [
        f"{slug}: {seen} GiB measured here, above {name} = {declared}: "
        f"raise it in {provider.path}"
        for name, seen, declared in pairs
        if "measured" in budget.source and seen and declared and seen > declared
    ]
    for holder in verdict.holders:
        if holder.slug == slug:
            peak = holding.peaks(holder, holding.said(holder))
            over = holding.over_budget(holder.budget, peak)
            lines += [f"{slug}, held by pid {holder.pids[0]}: {text}" for text in over]
    return lines


def _why(verdict: "Verdict") -> str:
    lines = [(verdict.text, "")]
    for pool in verdict.pools:
        said = {
            "pool": pool.kind,
            "capacity": f"{_gib(pool.capacity_gb)} ({pool.capacity_source})",
            "declared held": _gib(pool.declared_gb),
            "still loading": _gib(pool.loading_gb),
            "free": _gib(pool.free_gb),
            "available": _gib(pool.available_gb),
            "needed": _gib(pool.need_gb),
        }
        lines += [(f"  {name}", value) for name, value in said.items()]
    lines += [
        ("  budget from", verdict.budget.source),
        ("  reserve", _gib(verdict.reserve_gb)),
        ("  gate", verdict.gate or "-"),
    ]
    lines += [("  holder", str(holder)) for holder in verdict.holders]
    lines += [("  note", note) for note in verdict.notes]
    head, *rest = lines
    return "\n".join([head[0], tree.columns(rest)])


def _gib(value: float | None) -> str:
    return "-" if value is None else f"{value} GiB"
