"""What is known of a provider on a machine: its report, those before it, what they mean."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_resident.errors import ManifestError, ProviderError
from tasks import history, ladder, measured
from tasks.claims import NOTHING, Compared, compared
from tasks.ladder import Acceptance
from tasks.measured import Report

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest


Row = dict[str, Any]
"""`slug`, `machine` (its name), `state` (current, stale, missing), `differs` (why it is
not current), `status` (what the author claims), `contradicts` and `notes` (what became of
the claims) and `measured` (the report's tables); None: not known."""

_LARGEST = 2**63
"""What a number of TOML is below: a larger one is no machine's."""

Key = tuple[object, ...]
"""What tells a machine from others, whatever its name and software."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is known of one provider on one machine."""

    slug: str
    machine: str | None
    """Its name, told apart from others of that name; None: not known."""
    state: str
    """current, stale or missing."""
    differs: tuple[str, ...] = ()
    """Why it is not current."""
    provider: "ProviderManifest | None" = None
    """None: no such provider in the tree, or it cannot be read."""
    report: Report | None = None
    claims: Compared = NOTHING
    history: tuple[Report, ...] = ()
    """All reports of this provider on this machine, also this one, oldest first."""
    acceptance: Acceptance | None = None

    def row(self) -> Row:
        """Give the JSON shape."""
        return {
            "slug": self.slug,
            "machine": self.machine,
            "state": self.state,
            "differs": list(self.differs),
            "status": self.provider.status if self.provider else None,
            "contradicts": [problem.text for problem in self.claims.problems],
            "notes": list(self.claims.notes),
            "measured": self.report.as_dict() if self.report else None,
        }


def of_tree(tree: Path, names: Sequence[str] | None = None) -> list[Entry]:
    """Give what this machine knows of each provider of a tree, or of those named.

    Raises UsageError for a name that is none.
    """
    from remote_resident.manifest import catalog, find

    if names is None:
        return [_here(slug, found) for slug, found in catalog(tree).items()]
    entries = []
    for name in dict.fromkeys(names):
        try:
            entries.append(_here(name, find(tree, name)))
        except ManifestError as exc:
            entries.append(_here(Path(name).name, exc))
    return entries


# -- this machine


def _here(slug: str, provider: "ProviderManifest | ManifestError") -> Entry:
    if isinstance(provider, ManifestError):
        texts = [problem.text for problem in provider.problems] or [str(provider)]
        return Entry(slug=slug, machine=None, state="missing", differs=tuple(texts))
    path = measured.report_path(provider)
    blank = Entry(slug=provider.slug, machine=None, state="missing", provider=provider)
    try:
        report = measured.read(path)
    except ProviderError as exc:
        blank = replace(blank, state="stale", differs=(str(exc),))
        report = None
    accepted, damaged = ladder.found(path)
    kept, torn = history.read(path)
    kept = [sound(one) for one in kept]
    if report is None:
        held = compared(provider, None, state=blank.state, acceptance=accepted)
        return noted(
            replace(blank, claims=held, acceptance=accepted, history=tuple(kept)),
            [*damaged, *torn],
        )
    report = sound(report)
    entry = replace(
        blank,
        machine=_text(report.machine.get("hostname")),
        differs=tuple(measured.differs(provider, report)),
        report=report,
        history=of_one_machine(report, kept),
        acceptance=accepted,
    )
    return noted(claimed(entry), [*damaged, *torn])


def claimed(entry: Entry, *, here: bool = True) -> Entry:
    """Say of an entry with a report how it stands, and what became of the claims."""
    state = "stale" if entry.differs else "current"
    one, accepted = entry.provider, entry.acceptance
    if one is None:
        return replace(entry, state=state)
    held = compared(one, entry.report, state=state, acceptance=accepted, here=here)
    return replace(entry, state=state, claims=held)


def sound(report: Report) -> Report:
    """Leave out of a report the numbers that are none: they are not known.

    Infinity, what is no number, and what has more digits than a number of TOML can be
    neither compared nor drawn nor written as JSON.
    """
    parts = {one.name: getattr(report, one.name) for one in fields(report)}
    tables = {
        name: _sound(part) for name, part in parts.items() if isinstance(part, Mapping)
    }
    return replace(report, **tables)


def _sound(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sound(one) for key, one in value.items() if _is_known(one)}
    if isinstance(value, list):
        return [_sound(one) for one in value if _is_known(one)]
    return value


def _is_known(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or -_LARGEST <= value < _LARGEST


def noted(entry: Entry, more: Iterable[str]) -> Entry:
    """Add notes to what became of the claims."""
    notes = (*entry.claims.notes, *more)
    return replace(entry, claims=replace(entry.claims, notes=notes))


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def of_one_machine(report: Report, kept: Iterable[Report]) -> tuple[Report, ...]:
    """Give the reports of the same machine once each, oldest first."""
    same: list[Report] = []
    for one in (*kept, report):
        if (
            machine_of(one) == machine_of(report)
            and history.moment(one)
            and one not in same
        ):
            same.append(one)
    return tuple(sorted(same, key=lambda one: str(history.moment(one))))


def machine_of(report: Report) -> Key:
    """Tell the machine of a report from others."""
    said = report.machine
    gpus = said.get("gpus")
    names = [
        str(gpu.get("name"))
        for gpu in (gpus if isinstance(gpus, list) else [])
        if isinstance(gpu, Mapping)
    ]
    facts = (said.get(name) for name in ("hostname", "arch", "cpu_model", "cores"))
    return (*map(str, facts), *names)
