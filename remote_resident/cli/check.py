"""`tu remote check`: the same findings as `doit check`, and doit is not imported."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from remote_resident.cli import tree
from remote_resident.cli.answer import Answer, Asked


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument(
        "slugs", nargs="*", metavar="SLUG", help="of these only, else of all"
    )
    parser.add_argument(
        "--no-machine",
        dest="machine",
        action="store_false",
        help="only what is declared, not what was set up here",
    )
    parser.add_argument("--deep", action="store_true", help="read every weight in full")


@contextmanager
def _no_collector() -> Iterator[None]:
    """Let no cycles be looked for: this process ends after what it makes."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def run(asked: Asked) -> Answer:
    """Look, and name every problem."""
    with _no_collector():
        root = tree.data(asked)
        names = tree.existing(root, asked.slugs) or None
        found = tree.code("check").check(
            root, names, machine=asked.machine, deep=asked.deep
        )
        return tree.judged(asked, "check", found)
