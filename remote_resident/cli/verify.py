"""`tu remote verify`: every byte of the weights is read."""

from typing import Any

from remote_resident.cli import tree
from remote_resident.cli.answer import Answer, Asked


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument("slugs", nargs="+", metavar="SLUG", help="whose weights")


def run(asked: Asked) -> Answer:
    """Read them, showing how far it is."""
    root = tree.data(asked)
    names = tree.existing(root, asked.slugs)
    screen = tree.screen(asked)
    progress = tree.code("step").Progress

    def show(done: int, total: int) -> None:
        screen.progress("weights", "verify", progress("reading", done, total, "bytes"))

    screen.started("weights", "verify")
    try:
        found = tree.code("check").verify(root, names, progress=show)
    finally:
        screen.close()
    return tree.judged(asked, "verify", found)
