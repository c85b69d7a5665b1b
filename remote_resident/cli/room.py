"""`tu remote room`: would it fit beside what this machine holds now."""

from typing import TYPE_CHECKING, Any

from remote_resident.cli import tree
from remote_resident.cli.answer import Answer, Asked
from remote_resident.errors import OK, REFUSED

if TYPE_CHECKING:
    from remote_resident.admission import Verdict


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument("slug", nargs="?", metavar="SLUG", help="of this one, with why")


def run(asked: Asked) -> Answer:
    """Decide for one provider, or for each; no room for any ends with 1."""
    from remote_resident import manifest, room

    root = tree.data(asked)
    if asked.slug is not None:
        verdict = room.room_for(manifest.find(root, asked.slug))
        code = OK if verdict.admit else REFUSED
        return Answer(document=verdict.as_dict(), text=_why(verdict), code=code)
    found = manifest.catalog(root).values()
    verdicts = [
        room.room_for(provider)
        for provider in found
        if not isinstance(provider, manifest.ManifestError)
    ]
    lines = [("provider", "room", "why")]
    lines += [(v.slug, "yes" if v.admit else "no", v.text) for v in verdicts]
    return Answer(
        document={"verdicts": [verdict.as_dict() for verdict in verdicts]},
        text=tree.columns(lines),
        code=OK if any(verdict.admit for verdict in verdicts) else REFUSED,
    )


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
