"""Reports of several machines: found in directories, told apart, held against a tree."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from remote_resident.errors import ManifestError, ProviderError, UsageError
from tasks import history, ladder, measured
from tasks.measured import Report
from tasks.reported import Entry, Key, claimed, machine_of, noted, of_one_machine, sound

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest

    Catalog = Mapping[str, ProviderManifest | ManifestError]

_SLUG = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_PLACES = ("", "measured", "*/measured", "state/*/measured")
"""Where reports lie below a directory: itself, a tree's, all of a host's."""
_DECLARED = ("manifest", "lock", "worker", "smoke", "worker_side", "kit_commit")
"""Of what a report rests on, what a tree says by itself."""


def entries(
    tree: Path, directories: Sequence[Path], slugs: Sequence[str] | None = None
) -> list[Entry]:
    """Give what directories of reports say, by provider, then by machine.

    A directory holds `<slug>.toml` files, or is the state of a whole host. A report is
    current where it rests on what the tree declares. `slugs`: of these only. Raises
    UsageError for a directory without a report, and where there is none of `slugs`.
    """
    from remote_resident.manifest import catalog

    known = catalog(tree)
    found = [one for path in directories for one in _found(path)]
    there = sorted({one.slug for one in found})
    # a provider may be named by its directory, which is called as it is
    slugs = slugs and [Path(name).absolute().name for name in slugs]
    if slugs and not set(slugs) & set(there):
        raise UsageError(
            f"{', '.join(map(str, directories))}: reports of {', '.join(there)} found, "
            f"one of {', '.join(slugs)} wanted",
            next="tu remote report --help",
        )
    seen = [
        _elsewhere(files, known)
        for files in _by_machine(_labelled(found))
        if not slugs or files[0].slug in slugs
    ]
    machines = list(dict.fromkeys(entry.machine for entry in seen))
    return sorted(seen, key=lambda e: (e.slug, machines.index(e.machine)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """One report of a directory, with what lies beside it."""

    path: Path
    source: Path
    """The directory that was named."""
    slug: str
    report: Report | None
    """None: damaged."""
    damage: str = ""
    machine: Key = ()
    label: str = ""


def _found(place: Path) -> Iterator[_File]:
    files = _reports(place)
    if not files:
        raise UsageError(
            f"{place}: no measured report found, a directory with <slug>.toml files "
            "or a host's state directory wanted",
            next="tu remote report --help",
        )
    read = [_read(path, place) for path in files]
    for folder, group in groupby(read, key=lambda one: one.path.parent):
        beside = list(group)
        machines = {machine_of(one.report) for one in beside if one.report}
        # what cannot be read came from where all the files beside it came from
        unread = machines.pop() if len(machines) == 1 else ("?", str(folder))
        for one in beside:
            yield replace(one, machine=machine_of(one.report) if one.report else unread)


def _reports(place: Path) -> list[Path]:
    """List the reports of a place; a pipe or a device would never end."""
    if place.is_file():
        return [place]
    try:
        found = [
            path
            for below in _PLACES
            for folder in (sorted(place.glob(below)) if below else [place])
            for path in sorted(folder.glob("*.toml"))
            if not path.name.endswith(".accept.toml") and path.is_file()
        ]
    except OSError as exc:
        text = f"{place}: {exc.strerror}, a directory that can be read wanted"
        raise UsageError(text, reason="unreadable") from None
    return list(dict.fromkeys(found))


def _read(path: Path, source: Path) -> _File:
    damage, report = "", None
    try:
        report = measured.read(path)
        if report is None:
            damage = f"{path}: gone while it was read"
        elif not _SLUG.fullmatch(report.slug):
            damage = (
                f"{path}: slug {report.slug!r} found, the name of a provider wanted"
            )
    except ProviderError as exc:
        damage = str(exc)
    if report is None or damage:
        stem = path.name.removesuffix(".toml")
        return _File(path=path, source=source, slug=stem, report=None, damage=damage)
    return _File(path=path, source=source, slug=report.slug, report=sound(report))


def _labelled(files: Sequence[_File]) -> list[_File]:
    """Give each machine a name of its own: its host name, and where that is not
    enough, the directory that its reports came in."""
    sources: dict[Key, Path] = {}
    hosts: dict[str, set[Key]] = {}
    for one in files:
        sources.setdefault(one.machine, one.source)
        hosts.setdefault(_host(one), set()).add(one.machine)
    labels: dict[Key, str] = {}
    for host, keys in hosts.items():
        for machine in sorted(keys, key=str):
            label = host if len(keys) == 1 else f"{host} ({sources[machine].name})"
            taken = sum(name == label for name in labels.values())
            labels[machine] = f"{label} {taken + 1}" if taken else label
    return [replace(one, label=labels[one.machine]) for one in files]


def _host(one: _File) -> str:
    return (
        str(one.machine[0])
        if one.machine[0] != "?"
        else one.source.name or str(one.source)
    )


def _by_machine(files: Sequence[_File]) -> list[list[_File]]:
    """Group the reports of one provider on one machine, the newest last."""
    groups: dict[tuple[Key, str], list[_File]] = {}
    for one in files:
        groups.setdefault((one.machine, one.slug), []).append(one)
    return [sorted(group, key=_age) for group in groups.values()]


def _age(one: _File) -> tuple[bool, str]:
    at = history.moment(one.report) if one.report else None
    return at is not None, at.isoformat() if at else ""


def _elsewhere(files: Sequence[_File], known: "Catalog") -> Entry:
    newest = files[-1]
    found = known.get(newest.slug)
    provider = None if isinstance(found, ManifestError) else found
    entry = Entry(
        slug=newest.slug, machine=newest.label, state="stale", provider=provider
    )
    if newest.report is None:
        return replace(entry, differs=(newest.damage,))
    accepted, damaged = ladder.found(newest.path)
    kept, torn = [one.report for one in files if one.report], []
    for one in files:
        older, unread = history.read(one.path)
        kept += map(sound, older)
        torn += [*unread, *([one.damage] if one.damage else [])]
    entry = replace(
        entry,
        differs=tuple(_differs_from_tree(provider, newest)),
        report=newest.report,
        history=of_one_machine(newest.report, kept),
        acceptance=accepted,
    )
    return noted(claimed(entry, here=False), [*damaged, *torn])


def _differs_from_tree(provider: "ProviderManifest | None", newest: _File) -> list[str]:
    """Say what a report rests on and the tree does not declare; what another machine
    has is not ours to see."""
    assert newest.report is not None
    if provider is None:
        return [f"{newest.slug}: no such provider in this tree to hold it against"]
    pins = {w.name: w.sha256 for w in provider.weights_files if w.sha256}
    now = measured.inputs(provider, dict(pins), provider.readings)
    was = newest.report.inputs
    weights = was.get("weights")
    weights = weights if isinstance(weights, Mapping) else {}
    return measured.changes(
        {
            **{key: was.get(key) for key in _DECLARED},
            "weights": {name: weights.get(name) for name in pins},
        },
        {**{key: now[key] for key in _DECLARED}, "weights": pins},
    )
