"""`tu remote lock`: resolve a lock anew."""

from typing import Any

from remote_resident.cli import tree
from remote_resident.cli.answer import Answer, Asked
from remote_resident.errors import UsageError


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument("name", metavar="NAME", help="of locks/NAME.in")


def run(asked: Asked) -> Answer:
    """Resolve it, showing what the resolver says."""
    from remote_resident.manifest_path import nearest

    root = tree.data(asked)
    known = tree.code("selection").lock_names(root)
    if asked.name not in known:
        raise UsageError(
            f"no {asked.name!r} among the {len(known)} locks of {root}"
            f"{nearest(asked.name, known)}; {root}/locks/NAME.in with the model's "
            "packages wanted"
        )
    results = tree.graph(asked, root, [("lock", asked.name)])
    return tree.one(results, {"lock": str(root / "locks" / f"{asked.name}.lock")})
