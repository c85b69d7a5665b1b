"""`tu remote report`: what this machine measured."""

from typing import Any

from remote_resident.cli import tree
from remote_resident.cli.answer import Answer, Asked


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument(
        "slugs", nargs="*", metavar="SLUG", help="of these only, else of all"
    )


def run(asked: Asked) -> Answer:
    """Show the reports as a table."""
    root = tree.data(asked)
    names = tree.existing(root, asked.slugs) or None
    reports = tree.code("report")
    rows = reports.rows(root, names)
    if not asked.json:
        screen = tree.screen(asked)
        screen.show(reports.table(rows, screen.width(), color=screen.styled()))
    return Answer(document={"reports": rows})
