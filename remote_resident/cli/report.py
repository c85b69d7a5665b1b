"""`tu remote report`: what this machine measured, or what several did."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from remote_resident.cli import tree
from remote_resident.cli.answer import Answer, Asked


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="SLUG|DIR",
        help="of these providers only, else of all; a directory with measured reports, "
        "as they lie in another machine's state, is compared with the other "
        "directories that are named",
    )
    parser.add_argument(
        "--html", metavar="FILE", help="also write all of it as one page"
    )


def run(asked: Asked) -> Answer:
    """Show the reports as a table, and write the page that was asked for."""
    root = tree.data(asked)
    slugs, directories = _told_apart(root, asked.names)
    if directories:
        entries = tree.code("machines").entries(root, directories, slugs or None)
    else:
        entries = tree.code("reported").of_tree(root, slugs or None)
    rows = [entry.row() for entry in entries]
    screen = tree.screen(asked)
    if not asked.json:
        table = tree.code("report").table(rows, screen.width(), color=screen.styled())
        screen.show(table)
    document: dict[str, object] = {"reports": rows}
    if asked.html is not None:
        path = Path(asked.html)
        tree.code("page").write(path, entries, asked_for=True)
        document["html"] = str(path.absolute())
        if not asked.json:
            screen.say(f"page: {path}")
    return Answer(document=document)


def _told_apart(root: Path, names: Iterable[str]) -> tuple[Sequence[str], list[Path]]:
    """Tell providers from directories of reports. Raises UsageError for neither."""
    slugs, directories = [], []
    for name in names:
        at = Path(name)
        is_slug = "/" not in name and (root / "manifests" / name).is_dir()
        if name and not is_slug and at.exists() and not _is_provider(at):
            directories.append(at)
        else:
            slugs.append(name)
    return tree.existing(root, slugs), directories


def _is_provider(path: Path) -> bool:
    return path.name == "provider.toml" or (path / "provider.toml").is_file()
