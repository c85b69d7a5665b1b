"""`tu remote endpoint run`: run a command on an endpoint."""

import argparse
import json
import sys
from collections.abc import Mapping
from contextlib import closing
from typing import Any, TextIO

from remote_resident.cli import numbers
from remote_resident.cli.answer import Answer, Asked
from remote_resident.errors import ProviderError


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument("name", metavar="NAME", help="which endpoint")
    parser.add_argument(
        "--timeout",
        type=numbers.seconds,
        metavar="S",
        help="seconds that the command may take (3600)",
    )
    parser.add_argument(
        "words",
        # to the end, dashes too; "+" would lose a second -- that is the command's own
        nargs=argparse.PARSER,
        metavar="-- CMD",
        help="the command; BASE_URL is in its environment",
    )


def run(asked: Asked) -> Answer:
    """Show what the daemon does, then what the command prints; end as it ends."""
    from remote_resident.endpoints import client

    words = asked.words[1:] if asked.words[0] == "--" else asked.words
    lines = client.dispatch(asked.name, argv=words, timeout_s=asked.timeout)
    with closing(lines):
        for line in lines:
            if line["type"] == "result":
                notes = f"tu: {line['error']}" if "error" in line else ""
                return Answer(document=line, notes=notes, code=line["exit_code"])
            _show(asked, line)
    raise ProviderError(
        f"{asked.name}: the daemon's answer ended without a result, one wanted",
        reason="protocol_error",
        next=f"tu remote endpoint show {asked.name}",
    )


def _show(asked: Asked, line: Mapping[str, Any]) -> None:
    if asked.json:
        # a stream: one document a line
        _verbatim(asked.stdout, f"{json.dumps(line)}\n")
    elif line["type"] == "stdout":
        _verbatim(asked.stdout, line["text"])
    elif line["type"] == "stderr":
        _verbatim(sys.stderr, line["text"])
    elif not asked.quiet:
        _verbatim(sys.stderr, f"{asked.name}: {line['text']}\n")


def _verbatim(stream: TextIO, text: str) -> None:
    """Write what a program wrote, byte for byte."""
    raw = getattr(stream, "buffer", None)
    if raw is None:
        stream.write(text)
    else:
        stream.flush()
        raw.write(text.encode("utf-8", "surrogateescape"))
    stream.flush()
