"""`tu remote setup`: run the graph for the providers named."""

from pathlib import Path
from typing import Any

from remote_resident.cli import tree
from remote_resident.cli.answer import Answer, Asked, failure
from remote_resident.errors import ManifestError, UsageError


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    steps = tree.code("step").STEPS
    parser.add_argument(
        "slugs",
        nargs="*",
        metavar="SLUG",
        help="a provider, or a path to a directory with a provider.toml",
    )
    parser.add_argument("--all", action="store_true", help="every provider of the tree")
    parser.add_argument(
        "--only",
        choices=steps,
        metavar="STEP",
        help=f"one step, without those before it: {', '.join(steps)}",
    )


def run(asked: Asked) -> Answer:
    """Set up, showing each step as it ends."""
    root = tree.data(asked)
    names = _wanted(asked, root)
    results = tree.graph(
        asked,
        root,
        [(asked.only or "setup", name) for name in names],
        alone=asked.only is not None,
    )
    code = results.exit_code()
    if len(results.unreadable) == len(results.rows):
        # shown as it came; for programs: nothing could be run
        return Answer(
            document=failure(_all_of(results.unreadable), asked.tree).document,
            code=code,
        )
    return Answer(document=_document(results), code=code)


def _wanted(asked: Asked, root: Path) -> list[str]:
    from remote_resident import manifest_path

    known = manifest_path.slugs(root)
    if asked.all and not asked.slugs:
        if not known:
            raise UsageError(f"{root}: no provider in its manifests/, one wanted")
        return known
    if asked.slugs and not asked.all:
        return tree.existing(root, asked.slugs)
    found = "both names and --all" if asked.all else "neither a name nor --all"
    raise UsageError(
        f"tu remote setup: {found} found, one of them wanted; "
        f"providers: {', '.join(known) or 'none'}",
    )


def _all_of(unreadable: list[ManifestError]) -> ManifestError:
    problems = [problem for exc in unreadable for problem in exc.problems]
    return ManifestError("; ".join(map(str, unreadable)), problems=problems)


def _document(results: Any) -> dict[str, object]:
    by_slug = results.by_slug.items()
    return {
        "ok": results.exit_code() == 0,
        "results": [
            {
                "slug": slug,
                "ok": all(step.ok for step in steps.values()),
                "steps": [step.as_dict() for step in steps.values()],
                "measured": results.measured.get(slug),
            }
            for slug, steps in by_slug
        ],
    }
