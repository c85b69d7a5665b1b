"""`tu`: what was typed, to one command's module and its answer."""

import argparse
import sys
from collections.abc import Collection, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any, NoReturn, TextIO

from remote_resident.cli import signals
from remote_resident.cli.answer import (
    Answer,
    Asked,
    emit,
    failure,
    open_streams,
    our_error,
)
from remote_resident.errors import OK, USAGE, ProviderError, UsageError

COMMANDS = {
    "setup": "bring this machine to what a provider declares, and prove it",
    "check": "say whether all that is declared still holds; read-only",
    "verify": "read every weight in full, whatever is remembered of it",
    "list": "list the providers",
    "report": "show what this machine measured",
    "env": "create a provider's environment by its lock's recipe",
    "lock": "resolve a lock anew",
    "room": "say whether a provider would fit beside what this machine holds now",
    "call": "ask a provider for one answer",
    "ps": "list who holds memory on this machine, whoever started it",
    "stop": "end a provider's worker",
    "restart": "end a provider's worker, forget its failed starts, start it anew",
    "logs": "show what a provider's workers wrote",
}
"""Each is the module of that name here, with `arguments(parser)` and `run(asked)`."""

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
  -h, --help   this help, or a command's
"""


class Parser(argparse.ArgumentParser):
    """A parser that raises UsageError, where argparse would print and exit."""

    def error(self, message: str) -> NoReturn:
        """Refuse what was typed."""
        raise UsageError(f"{self.prog}: {message}", next=f"{self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and give its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in words
    open_streams()
    stdout = sys.stdout
    with signals.caught():
        try:
            # whatever prints, a library too, must not stand before the document
            with redirect_stdout(sys.stderr if as_json else stdout):
                answer = _answer(words, stdout)
        except ProviderError as exc:
            answer = failure(exc)
        except signals.Cut as cut:
            answer = _cut(cut)
        except Exception as exc:  # the last resort: a bug of ours keeps its traceback
            answer = our_error(exc)
        return emit(answer, as_json=as_json, stdout=stdout)


def _answer(words: list[str], stdout: TextIO) -> Answer:
    known, rest = _global_parser().parse_known_args(words)
    asked = Asked(
        tree=known.tree,
        json=known.json,
        quiet=known.quiet,
        color=known.color,
        stdout=stdout,
    )
    if known.version:
        from remote_resident import __version__

        return Answer(document={"version": __version__}, text=f"tu {__version__}")
    group, verb, rest = _split(rest)
    if known.help or group is None or verb is None:
        text = _help(group, verb)
        return _told(text) if known.help else _refused_with_help(text)
    parser = _parser(verb)
    command = _module(verb)
    command.arguments(parser)
    parser.parse_args(rest, namespace=asked)
    answer = command.run(asked)
    assert isinstance(answer, Answer)
    return answer


def _global_parser() -> Parser:
    parser = Parser(prog="tu", add_help=False, allow_abbrev=False)
    parser.add_argument("--tree")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--no-color", dest="color", action="store_false")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("-h", "--help", action="store_true")
    return parser


def _split(rest: list[str]) -> tuple[str | None, str | None, list[str]]:
    """Take the group and the command off; None where there is none."""
    if not rest:
        return None, None, rest
    group, *rest = rest
    if group != "remote":
        close = _near(group, ["remote"]) or _near(group, COMMANDS)
        meant = f"; near: {', '.join(_full(word) for word in close)}" if close else ""
        raise UsageError(f"tu {group}: no such command{meant}", next="tu --help")
    if not rest:
        return group, None, rest
    verb, *rest = rest
    if verb not in COMMANDS:
        close = _near(verb, COMMANDS)
        meant = f"; near: {', '.join(_full(word) for word in close)}" if close else ""
        raise UsageError(
            f"tu remote {verb}: no such command{meant}", next="tu remote --help"
        )
    return group, verb, rest


def _near(word: str, known: Collection[str]) -> list[str]:
    import difflib

    return [word] if word in known else difflib.get_close_matches(word, known, n=3)


def _full(word: str) -> str:
    return f"tu {word}" if word == "remote" else f"tu remote {word}"


def _module(verb: str) -> Any:
    return import_module(f"remote_resident.cli.{_MODULES.get(verb, verb)}")


def _parser(verb: str) -> Parser:
    return Parser(
        prog=f"tu remote {verb}",
        description=f"{COMMANDS[verb][0].upper()}{COMMANDS[verb][1:]}.",
        epilog=_GLOBAL,
        add_help=False,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _help(group: str | None, verb: str | None) -> str:
    if verb is not None:
        parser = _parser(verb)
        _module(verb).arguments(parser)
        return parser.format_help()
    prog = "tu remote" if group else "tu"
    width = max(map(len, COMMANDS))
    prefix = "" if group else "remote "
    lines = [f"  {prefix}{name:{width}}  {what}" for name, what in COMMANDS.items()]
    return "\n".join(
        [
            f"usage: {prog} {'' if group else 'remote '}COMMAND [options]",
            "",
            "Set up, verify and hold scientific models on this machine.",
            "",
            *lines,
            "",
            _GLOBAL,
        ]
    )


def _told(text: str) -> Answer:
    return Answer(document={"help": text}, text=text.rstrip())


def _refused_with_help(text: str) -> Answer:
    error = "no command found, one wanted"
    document = {
        "ok": False,
        "reason": UsageError.default_reason,
        "error": error,
        "problems": [],
        "next": "tu --help",
    }
    return Answer(
        document=document, notes=f"{text.rstrip()}\n\ntu: {error}", code=USAGE
    )


def _cut(cut: signals.Cut) -> Answer:
    exc = ProviderError(f"cut by {cut.name}", reason="interrupted")
    answer = failure(exc)
    return Answer(document=answer.document, notes=answer.notes, code=cut.exit_code)


__all__ = ["COMMANDS", "OK", "main"]
