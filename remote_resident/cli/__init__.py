"""`tu`: what was typed, to one command's module and its answer.

A plain `tu remote check`, which CI and every habit runs, is read here; all else, and all
that is wrong, by argparse in `typed`.
"""

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from itertools import pairwise
from typing import Any, NoReturn, TextIO

from remote_resident import later

# dataclasses imports it, and what is done here mostly does not
later.load("inspect")

from remote_resident.cli import signals  # noqa: E402
from remote_resident.cli.answer import (  # noqa: E402
    Answer,
    Asked,
    emit,
    failure,
    open_streams,
    our_error,
)
from remote_resident.cli.tables import COMMANDS  # noqa: E402
from remote_resident.errors import OK, ProviderError  # noqa: E402

_SWITCHES: dict[str, dict[str, Any]] = {
    "--json": {"json": True},
    "--quiet": {"quiet": True},
    "--no-color": {"color": False},
}
_CHECK_SWITCHES: dict[str, dict[str, Any]] = {
    "--no-machine": {"machine": False},
    "--deep": {"deep": True},
}


def start() -> NoReturn:
    """Run this process's command line, and end the process."""
    if _plain_check(sys.argv[1:]) is None:
        sys.exit(main())
    # neither cycles are looked for nor what a check holds is taken apart: either would
    # take a good part of its time, and nothing runs after it
    gc.disable()
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and give its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    # what follows a bare -- is another program's
    ours = words[: words.index("--") if "--" in words else None]
    as_json = "--json" in ours
    open_streams()
    stdout = sys.stdout
    with signals.caught():
        try:
            # whatever prints, a library too, must not stand before the document
            with redirect_stdout(sys.stderr if as_json else stdout):
                answer = _answer(words, stdout)
        except ProviderError as exc:
            answer = failure(exc, _named_tree(ours))
        except signals.Cut as cut:
            answer = _cut(cut)
        except Exception as exc:  # the last resort: a bug of ours keeps its traceback
            answer = our_error(exc)
        return emit(answer, as_json=as_json, stdout=stdout)


def _answer(words: list[str], stdout: TextIO) -> Answer:
    if words[:2] == ["--complete", "--"]:
        from remote_resident.cli import completion

        return completion.candidates(words[2:])
    plain = _plain_check(words)
    if plain is None:
        from remote_resident.cli import typed

        return typed.answer(words, stdout)
    from remote_resident.cli import check

    return check.run(Asked(stdout=stdout, **plain))


def _plain_check(words: list[str]) -> dict[str, Any] | None:
    """Read a plain `remote check`; None: another command, or not certainly right."""
    found: dict[str, Any] = {
        "tree": None,
        "json": False,
        "quiet": False,
        "color": True,
        "machine": True,
        "deep": False,
    }
    command: list[str] = []
    left = iter(words)
    for word in left:
        if word == "--tree":
            found["tree"] = next(left, "-")
        elif word in _SWITCHES:
            found |= _SWITCHES[word]
        elif word in _CHECK_SWITCHES and len(command) == 2:
            found |= _CHECK_SWITCHES[word]
        elif word[:1] in ("", "-"):
            return None
        else:
            command.append(word)
    found["slugs"] = command[2:]
    usual = command[:2] == ["remote", "check"] and (found["tree"] or "x")[0] != "-"
    return found if usual else None


def _named_tree(words: list[str]) -> str | None:
    """Give the tree that was typed; None: none was."""
    named = None
    for word, following in pairwise([*words, ""]):
        if word == "--tree":
            named = following
        elif word.startswith("--tree="):
            named = word.removeprefix("--tree=")
    return named or None


def _cut(cut: signals.Cut) -> Answer:
    exc = ProviderError(f"cut by {cut.name}", reason="interrupted")
    answer = failure(exc)
    return Answer(document=answer.document, notes=answer.notes, code=cut.exit_code)


__all__ = ["COMMANDS", "OK", "main", "start"]
