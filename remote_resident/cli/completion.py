"""Shell completion: what may stand for the word that is being typed."""

import argparse
from collections.abc import Iterable, Iterator

from remote_resident.cli import typed
from remote_resident.cli.answer import Answer
from remote_resident.errors import ProviderError


def candidates(words: list[str]) -> Answer:
    """List what may stand for the last word, the one that is being typed."""
    *before, begun = words or [""]
    try:
        known = [word for word in _known(before, begun) if word.startswith(begun)]
    except ProviderError:
        known = []
    return Answer(document={"candidates": known}, text="\n".join(known))


def _known(before: list[str], begun: str) -> Iterable[str]:
    if "--" in before:
        return []
    line = typed.line(before)
    parser = line.parser or line.options
    awaiting = parser._option_string_actions.get(before[-1] if before else "")
    if awaiting is not None and awaiting.nargs != 0:
        return awaiting.choices or []
    if begun.startswith("-"):
        return {**line.options._option_string_actions, **parser._option_string_actions}
    if line.verbs is not None:
        return line.verbs
    return [name for action in parser._actions for name in _names(action, line.tree)]


def _names(action: argparse.Action, named_tree: str | None) -> Iterator[str]:
    """Give what may stand for an argument without an option."""
    if action.option_strings:
        return
    yield from action.choices or []
    if "SLUG" in str(action.metavar):
        from remote_resident import manifest_path, places

        yield from manifest_path.slugs(places.find_tree(named_tree))
