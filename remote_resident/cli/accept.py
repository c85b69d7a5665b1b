"""`tu remote accept`: put a provider through the acceptance suite."""

from typing import Any

from remote_resident.cli import tree
from remote_resident.cli.answer import Answer, Asked


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument("slug", metavar="SLUG", help="a provider, or a path to one")


def run(asked: Asked) -> Answer:
    """Go through the phases, showing each as it ends; one that fails ends with 1."""
    from remote_resident import manifest

    root = tree.data(asked)
    provider = manifest.find(root, asked.slug)
    results = tree.graph(asked, root, [("accept", asked.slug)])
    *phases, last = [result for _, result in results.rows] or [None]
    path = tree.code("ladder").beside(tree.code("measured").report_path(provider))
    # its own word: a file that is there may be an earlier one
    if last is None or f"written: {path}" not in last.lines:
        return tree.one(results, {})
    document = {
        "ok": last.ok,
        "slug": provider.slug,
        "phases": [phase.as_dict() for phase in phases],
        "ladder": _ladder(path),
        "accept": str(path),
    }
    return Answer(document=document, code=results.exit_code())


def _ladder(path: Any) -> list[dict[str, Any]]:
    import tomllib

    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = tables["ladder"]
    return rows
