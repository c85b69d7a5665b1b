"""What a command answers: a document for programs, text for people, an exit code."""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from remote_resident.errors import OK, OUR_ERROR, REFUSED, ProviderError, refusal
from remote_resident.printable import escaped

# compiled where it is needed, which a check that finds nothing wrong never does
_DOIT = r"(^|&& )doit (setup|check|report|room|env|verify|accept|lock):(\S+)"


class Asked:
    """What was typed: the options of all commands, and one command's own."""

    def __init__(self, **typed: Any) -> None:
        self.__dict__.update(typed)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    tree: str | None
    json: bool
    quiet: bool
    color: bool
    stdout: TextIO
    """Where documents go, for a command that gives a stream of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command came to."""

    document: Mapping[str, object]
    text: str = ""
    """The result for people, on stdout; empty: it was shown while it came."""
    notes: str = ""
    """Messages for people, on stderr."""
    code: int = OK


def as_tu(
    command: str, tree: str | None = None, typed: Mapping[str, str] | None = None
) -> str:
    """Give a command to type next as `tu` has it, on the tree that was named for this one.

    Those of doit work in a checkout, those of `tu` in any directory. `typed` has the
    names that stand for slugs: a provider outside the tree has its path alone.
    """
    from shlex import quote

    def told(found: re.Match[str]) -> str:
        before, verb, name = found.groups()
        if verb != "lock":
            name = quote((typed or {}).get(name, name))
        return f"{before}tu remote {verb} {name}"

    command = re.sub(_DOIT, told, command)
    if tree is None or "--tree" in command:
        return command
    return command.replace("tu remote ", f"tu remote --tree {quote(tree)} ")


def failure(exc: ProviderError, tree: str | None = None) -> Answer:
    """Give the answer to what could not be run at all; `tree` is the one named."""
    next_ = exc.next and as_tu(exc.next, tree)
    problems = [problem.as_dict() for problem in exc.problems]
    document = refusal(exc.reason, str(exc), next=next_, problems=problems)
    said = str(exc)
    lines = [said if said.startswith("tu ") else f"tu: {said}"]
    lines += [f"  {p.reason}: {p.text}" for p in exc.problems if p.text != said]
    lines += [f"next: {next_}"] if next_ else []
    notes = "\n".join(map(_indented, lines))
    return Answer(document=document, notes=notes, code=exc.exit_code)


def _indented(text: str) -> str:
    """Set further lines in: what a model said is not to be taken for a line of ours."""
    first, *more = text.split("\n")
    return "\n".join(
        [first, *(line if line.startswith("    ") else f"    {line}" for line in more)]
    )


def our_error(exc: BaseException) -> Answer:
    """Give the answer where this program itself broke; its traceback is kept."""
    import traceback

    from remote_resident import __version__

    told = "".join(traceback.format_exception(exc))
    document = refusal("internal", f"{type(exc).__name__}: {exc}")
    python = ".".join(map(str, sys.version_info[:3]))
    notes = (
        f"{told}This is an error of remote-resident, not of yours. Report the lines above "
        f"with:\n  remote-resident {__version__}, Python {python}, {sys.platform}"
    )
    return Answer(document=document, notes=notes, code=OUR_ERROR)


def emit(answer: Answer, *, as_json: bool, stdout: TextIO) -> int:
    """Write an answer where it belongs and give its exit code.

    A reader that has left (a pipe to head) is no error. What a person reads may hold
    what a model or another user wrote, and steers no terminal.
    """
    if answer.notes:
        write_line(sys.stderr, escaped(answer.notes))
    text = escaped(answer.text) if stdout.isatty() else answer.text
    if as_json:
        import json

        text = json.dumps(answer.document, default=str)
    if text:
        write_line(stdout, text)
    return answer.code or lost()


def lost() -> int:
    """Give the exit code of a command of which a result could not be written."""
    return REFUSED if _Lost.results else OK


class _Lost:
    results = False
    """Something of this command line's results, said since the streams were opened."""


def write_line(stream: TextIO, text: str) -> None:
    """Write a line; that it could not be written is said."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
    except BrokenPipeError:
        silence(stream)
    except OSError as exc:
        unwritable(stream, exc)


def open_streams() -> None:
    """Give the standard streams that the caller has closed somewhere to go."""
    _Lost.results = False
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115, PTH123
            setattr(sys, name, nowhere)


def unwritable(stream: TextIO, exc: OSError) -> None:
    """Say once that a stream takes no more (a full disk), and write to it no more."""
    silence(stream)
    if stream is not sys.stderr:
        _Lost.results = True
        write_line(sys.stderr, f"standard output: {exc.strerror}: what follows is lost")


def silence(stream: TextIO) -> None:
    """Let what is still written to a stream that nobody reads go nowhere."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
