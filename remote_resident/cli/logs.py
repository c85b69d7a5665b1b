"""`tu remote logs`: what a provider's workers wrote."""

import json
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from remote_resident.cli import numbers, tree
from remote_resident.cli.answer import Answer, Asked, silence, unwritable
from remote_resident.errors import ProviderError
from remote_resident.printable import escaped

_LOOK_S = 0.25


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument("slug", metavar="SLUG", help="whose log")
    parser.add_argument(
        "--lines", type=numbers.lines, default=50, metavar="N", help="the last N (50)"
    )
    parser.add_argument(
        "--follow", action="store_true", help="go on with what is written, to Ctrl-C"
    )


def run(asked: Asked) -> Answer:
    """Show the end of the log."""
    from remote_resident import manifest, places

    provider = manifest.find(tree.data(asked), asked.slug)
    path = places.log_path(provider.slug, provider.tree)
    try:
        log = path.open(encoding="utf-8", errors="backslashreplace")
    except OSError as exc:
        raise ProviderError(
            f"{path}: {exc.strerror}, the log of a worker of {provider.slug} wanted",
            reason="not_running",
            next=f"tu remote restart {provider.named}",
        ) from None
    with log:
        lines = [line.rstrip("\n") for line in deque(log, asked.lines)]
        if asked.follow:
            with suppress(_Unread):
                _follow(asked, path, log, lines)
            return Answer(document={})
    return Answer(document={"log": str(path), "lines": lines}, text="\n".join(lines))


class _Unread(Exception):
    """Nobody takes what is shown: the reader has left, or its disk is full."""


def _follow(asked: Asked, path: Path, log: TextIO, lines: list[str]) -> None:
    """Show what there is and what is added, until a signal or the reader ends it."""
    for line in lines:
        _show(asked, line)
    rest = ""
    while True:
        rest += log.read()
        *whole, rest = rest.split("\n")
        for line in whole:
            _show(asked, line)
        if not whole:
            time.sleep(_LOOK_S)
            if path.exists() and path.stat().st_size < log.tell():
                # begun anew under the same name
                log.seek(0)


def _show(asked: Asked, line: str) -> None:
    # a stream: one document a line
    text = json.dumps({"line": line}) if asked.json else _shown(asked, line)
    try:
        print(text, file=asked.stdout, flush=True)
    except BrokenPipeError:
        silence(asked.stdout)
        raise _Unread from None
    except OSError as exc:
        unwritable(asked.stdout, exc)
        raise _Unread from None


def _shown(asked: Asked, line: str) -> str:
    """Give a line as the model wrote it; to a terminal, with its control codes shown."""
    return escaped(line) if asked.stdout.isatty() else line
