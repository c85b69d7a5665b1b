"""What was typed, as the tasks that it names; nothing that names nothing gets through."""

import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from remote_resident.errors import UsageError
from remote_resident.manifest_path import nearest, slugs
from tasks.step import STEPS

WHOLE = ""
"""Stands for a command without a name, as in plain `check`."""

BY_SLUG = ("setup", "check", "report", "env", "verify", "room", "accept", *STEPS)
"""Commands that take a slug after a colon."""
BY_ITSELF = ("setup", "check", "report")
"""Commands that mean every provider when no slug is given."""
LOCK = "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Commands and the names that each is for, in the order typed."""

    names: tuple[tuple[str, str], ...]
    """(command, slug or lock name); the name is WHOLE where none was given."""

    def of(self, *commands: str) -> tuple[str, ...]:
        """Give the names that were typed for any of these commands, each once."""
        return tuple(
            dict.fromkeys(name for verb, name in self.names if verb in commands)
        )

    def words(self) -> list[str]:
        """Give the names of the tasks."""
        return [joined(verb, name) for verb, name in self.names]


def joined(verb: str, name: str) -> str:
    """Give a task's name."""
    return f"{verb}:{name}" if name else verb


def lock_names(tree: Path) -> list[str]:
    """List the locks that can be resolved anew."""
    return sorted(path.stem for path in tree.glob("locks/*.in"))


def everything(tree: Path, others: Iterable[str] = ()) -> Selection:
    """Select every task that there is; `others` are commands without a name."""
    return Selection(names=tuple(_all(tree, others)))


def select(words: Sequence[str], tree: Path, others: Iterable[str] = ()) -> Selection:
    """Say which tasks the words name; a `*` stands for any part of a name.

    Raises UsageError, with near matches, for the first word that names nothing.
    """
    found: dict[tuple[str, str], None] = {}
    for word in words:
        found |= dict.fromkeys(_meant(word, tree, tuple(others)))
    return Selection(names=tuple(found))


def _all(tree: Path, others: Iterable[str]) -> Iterator[tuple[str, str]]:
    yield from ((verb, WHOLE) for verb in (*BY_ITSELF, *others))
    for slug in slugs(tree):
        yield from ((verb, slug) for verb in BY_SLUG)
    yield from ((LOCK, name) for name in lock_names(tree))


def _meant(word: str, tree: Path, others: tuple[str, ...]) -> Iterable[tuple[str, str]]:
    if "*" in word:
        every = everything(tree, others)
        by_word = dict(zip(every.words(), every.names, strict=True))
        matching = fnmatch.filter(by_word, word)
        if matching:
            return [by_word[name] for name in matching]
        raise _matches_nothing(word, tree, by_word)
    verb, colon, name = word.partition(":")
    if not colon and word in {*BY_ITSELF, *others}:
        return [(word, WHOLE)]
    if colon and _exists(verb, name, tree):
        return [(verb, name)]
    raise _names_nothing(word, tree, others)


def _matches_nothing(word: str, tree: Path, known: Iterable[str]) -> UsageError:
    text = f"{word!r}: no task matches"
    verb, _, name = word.partition(":")
    if verb in BY_SLUG and (stem := name.strip("*")):
        close = nearest(stem, slugs(tree), f"{verb}:")
        return UsageError(f"{text}{close}", next="doit list")
    return _unknown(word, known, text)


def _exists(verb: str, name: str, tree: Path) -> bool:
    if not name or "/" in name or name.startswith("."):
        return False
    if verb == LOCK:
        return (tree / "locks" / f"{name}.in").is_file()
    if verb in BY_SLUG:
        return (tree / "manifests" / name / "provider.toml").is_file()
    return False


def _names_nothing(word: str, tree: Path, others: tuple[str, ...]) -> UsageError:
    verb, _, name = word.partition(":")
    every = everything(tree, others).words()
    if verb in BY_SLUG and name:
        close = nearest(name, slugs(tree), f"{verb}:")
        text = f"{word}: no provider {name!r} in {tree}/manifests{close}"
        return UsageError(text, next="doit list")
    if verb == LOCK and name:
        close = nearest(name, lock_names(tree), f"{verb}:")
        text = f"{word}: no {name}.in in {tree}/locks{close}"
        return UsageError(text, next="doit list")
    if verb in {*BY_SLUG, LOCK} and not name:
        of_verb = [known for known in every if known.startswith(f"{verb}:")]
        return _unknown(word, of_verb, f"{word}: no name after it", all_of=True)
    if "=" in word:
        return _unknown(word, every, f"{word}: no task has a name with '='")
    if word.startswith("-"):
        text = f"{word}: an option found after a name, options before the names wanted"
        return UsageError(text, next="doit help run")
    return _unknown(word, every, f"{word!r}: no such task")


def _unknown(
    word: str, known: Iterable[str], text: str, *, all_of: bool = False
) -> UsageError:
    close = list(known) if all_of else near(word, known)
    wanted = f"; near: {', '.join(close[:5])}" if close else ""
    return UsageError(f"{text}{wanted}", next="doit list")


def near(word: str, known: Iterable[str]) -> list[str]:
    """Give the known names that are nearest to a word, best first."""
    import difflib

    every = list(known)
    # a slug alone is near to what is done with it, though shorter names look more alike
    if done := [name for name in every if name.endswith(f":{word}")]:
        return done[:5]
    close = difflib.get_close_matches(word, every, n=5, cutoff=0.6)
    if not close and ":" not in word:
        # a slug alone, or a pattern, is near to what is done with it
        stem = word.strip("*")
        close = [name for name in every if stem and stem in name][:5]
    return close
