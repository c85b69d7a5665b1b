"""What was typed, read by argparse: the options, the command's words, and the help."""

import argparse
from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple, NoReturn, TextIO

from remote_resident.cli.answer import Answer, Asked, failure
from remote_resident.cli.tables import COMMANDS, GROUPS
from remote_resident.errors import HELP, ProviderError, UsageError

# a module's name becomes one of this package, where it would hide the builtin
_MODULES = {"list": "listing"}

_GLOBAL = """\
options, before or after the command:
  --tree DIR   the tree to work on: else TU_REMOTE_TREE, else the directory around
               this one that has manifests/, else the one that came with tu
  --json       one JSON document on stdout, and nothing else there
  --quiet      no progress, and no word about what is as it should be
  --no-color   as if NO_COLOR were set
  --version    the version of tu
  --completion SHELL
               what bash, zsh or fish reads to complete what is typed
  -h, --help   this help, or a command's
"""


class Parser(argparse.ArgumentParser):
    """A parser that raises UsageError, where argparse would print and exit."""

    def error(self, message: str) -> NoReturn:
        """Refuse what was typed."""
        raise UsageError(f"{self.prog}: {message}", next=f"{self.prog} --help")


def answer(words: list[str], stdout: TextIO) -> Answer:
    """Run what was typed. Raises UsageError for what cannot be."""
    known, rest = _global_parser().parse_known_args(words)
    asked = Asked(
        tree=known.tree,
        json=known.json,
        quiet=known.quiet,
        color=known.color,
        stdout=stdout,
    )
    if known.completion:
        from remote_resident.cli import shells

        return shells.script(known.completion)
    if known.version:
        from remote_resident import __version__

        return Answer(document={"version": __version__}, text=f"tu {__version__}")
    path, rest = _split(rest)
    if known.help or _table(path) is not None:
        text = _help(path)
        return _told(text) if known.help else _refused_with_help(text, path)
    parser = _parser(path)
    command = _module(path)
    command.arguments(parser)
    parser.parse_args(rest, namespace=asked)
    try:
        found = command.run(asked)
    except ProviderError as exc:
        if exc.next == HELP:
            exc.next = f"{_full(path)} --help"
        raise
    assert isinstance(found, Answer)
    return found


class Line(NamedTuple):
    """A command line that may be unfinished."""

    tree: str | None
    options: Parser
    """The options of all commands."""
    verbs: Mapping[str, str] | None
    """What may follow; None: a command is named."""
    parser: Parser | None
    """That command's own."""


def line(words: list[str]) -> Line:
    """Read how far a command line goes. Raises UsageError for what is none."""
    options = _global_parser()
    known, rest = options.parse_known_args(words)
    path, _ = _split(rest)
    verbs = _table(path)
    if verbs is not None:
        return Line(known.tree, options, verbs, None)
    parser = _parser(path)
    _module(path).arguments(parser)
    return Line(known.tree, options, None, parser)


def _global_parser() -> Parser:
    parser = Parser(prog="tu", add_help=False, allow_abbrev=False)
    parser.add_argument("--tree")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--no-color", dest="color", action="store_false")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("--completion", choices=("bash", "zsh", "fish"))
    parser.add_argument("-h", "--help", action="store_true")
    return parser


def _split(rest: list[str]) -> tuple[list[str], list[str]]:
    """Take the command's words off: as many as name a group, and the command."""
    path: list[str] = []
    while rest and (table := _table(path)) is not None:
        word, *rest = rest
        if word not in table:
            raise _unknown(path, word, table)
        path.append(word)
    return path, rest


def _table(path: list[str]) -> Mapping[str, str] | None:
    """Give what may follow these words; None: they are a command's."""
    if not path:
        return {"remote": "all commands"}
    if path == ["remote"]:
        return {**COMMANDS, **GROUPS}
    if len(path) == 2 and path[1] in GROUPS:
        table: Mapping[str, str] = import_module(f"{__package__}.{path[1]}").COMMANDS
        return table
    return None


def _unknown(path: list[str], word: str, table: Mapping[str, str]) -> UsageError:
    close = [f"{_full([*path, near])}" for near in _near(word, table)]
    if not path and not close:
        close = [_full(["remote", near]) for near in _near(word, _table(["remote"]))]
    meant = f"; near: {', '.join(close)}" if close else ""
    return UsageError(
        f"{_full([*path, word])}: no such command{meant}", next=f"{_full(path)} --help"
    )


def _near(word: str, known: Collection[str] | None) -> list[str]:
    import difflib

    known = known or ()
    return [word] if word in known else difflib.get_close_matches(word, known, n=3)


def _full(path: list[str]) -> str:
    return " ".join(["tu", *path])


def _module(path: list[str]) -> Any:
    *groups, verb = path[1:]
    return import_module(".".join([__package__, *groups, _MODULES.get(verb, verb)]))


def _parser(path: list[str]) -> Parser:
    what = (_table(path[:-1]) or {})[path[-1]]
    return Parser(
        prog=_full(path),
        description=f"{what[0].upper()}{what[1:]}.",
        epilog=_GLOBAL,
        add_help=False,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _help(path: list[str]) -> str:
    table = _table(path)
    if table is None:
        parser = _parser(path)
        _module(path).arguments(parser)
        return parser.format_help()
    prefix = ""
    if not path:
        table, prefix = _table(["remote"]) or {}, "remote "
    width = max(map(len, table), default=0)
    lines = [f"  {prefix}{name:{width}}  {what}" for name, what in table.items()]
    return "\n".join(
        [
            f"usage: {_full(path)} {prefix}COMMAND [options]",
            "",
            _purpose(path),
            "",
            *lines,
            "",
            _GLOBAL,
        ]
    )


def _purpose(path: list[str]) -> str:
    what = GROUPS.get(path[-1]) if path else None
    if what is None:
        return "Set up, verify and hold scientific models on this machine."
    return f"{what[0].upper()}{what[1:]}."


def _told(text: str) -> Answer:
    return Answer(document={"help": text}, text=text.rstrip())


def _refused_with_help(text: str, path: list[str]) -> Answer:
    told = failure(
        UsageError("no command found, one wanted", next=f"{_full(path)} --help")
    )
    return replace(told, notes=f"{text.rstrip()}\n\n{told.notes}")
