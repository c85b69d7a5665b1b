"""`tu remote env`: create the environment of a provider."""

from typing import Any

from remote_resident.cli import tree
from remote_resident.cli.answer import Answer, Asked


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument("slug", metavar="SLUG", help="a provider, or a path to one")


def run(asked: Asked) -> Answer:
    """Create it, showing what the installer says."""
    from remote_resident import manifest

    root = tree.data(asked)
    provider = manifest.find(root, asked.slug)
    results = tree.graph(asked, root, [("env", asked.slug)])
    python = provider.python_executable()
    return tree.one(results, {"python": None if python is None else str(python)})
