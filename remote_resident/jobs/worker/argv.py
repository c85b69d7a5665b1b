"""The command line and the settings of a job worker."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from . import tags
from .ids import refused_name

TOKEN = "TU_JOB_TOKEN"
GRACE = "TU_JOB_CANCEL_GRACE_S"
KEEPALIVE = "TU_JOB_STREAM_KEEPALIVE_S"
DEFAULT_GRACE_S = 60.0


@dataclass(frozen=True)
class Options:
    """What was typed and set; None where a value was not given."""

    entry: str
    plugin_id: str
    state_root: Path
    socket: Path | None
    host: str | None
    port: int
    token: str | None
    instance: str | None
    lifeline_fd: int | None
    ready_fd: int | None
    openapi: bool
    grace_s: float | None
    """Seconds until an ignored cancel counts; None: it never does."""
    keepalive_s: float | None
    """Seconds without an event after which a stream pings; None: never."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"job worker: {message}\n")


def parse(words: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Read the command line; SystemExit 2 with one line for one that is none."""
    parser = _parser()
    typed = parser.parse_args(words)
    _refuse_incomplete(parser, typed)
    return Options(
        entry=typed.entry,
        plugin_id=typed.id,
        state_root=_state_root(typed).absolute(),
        # jobs may change the directory
        socket=typed.socket and typed.socket.absolute(),
        host=typed.host,
        port=typed.port or 0,
        token=_token(parser, typed, environ),
        instance=typed.resident_instance,
        lifeline_fd=typed.lifeline_fd,
        ready_fd=typed.ready_fd,
        openapi=typed.openapi,
        grace_s=_seconds(environ, GRACE, DEFAULT_GRACE_S),
        keepalive_s=_seconds(environ, KEEPALIVE, None),
    )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="worker", allow_abbrev=False, description=__doc__)
    add = parser.add_argument
    add("--entry", default="", metavar="module:Class")
    add("--id", default="", metavar="ID", help="name of the plugin")
    add("--socket", type=Path, metavar="PATH", help="Unix socket to listen on")
    add("--host", metavar="H", help="address to listen on, with a token")
    add("--port", type=int, metavar="P", help="0: any that is free")
    add("--state-root", type=Path, metavar="DIR", help="default ./.plugin-state/ID")
    add("--token-file", type=Path, metavar="FILE")
    add("--token", metavar="TEXT", help="argv is public: prefer --token-file")
    add("--openapi", action="store_true", help="print the document, start nothing")
    add("--lifeline-fd", type=int, metavar="N", help="its end: the owner is gone")
    add("--ready-fd", type=int, metavar="N", help="one JSON line once it accepts")
    for name in ("slug", "tree", "instance"):
        add(f"--resident-{name}", metavar="TEXT", help="marker in the process table")
    add("--manifest-dir", metavar="DIR", help="marker: where its provider is declared")
    return parser


def _refuse_incomplete(
    parser: argparse.ArgumentParser, typed: argparse.Namespace
) -> None:
    if typed.openapi:
        return
    if not typed.entry:
        parser.error("no --entry found, module:Class wanted")
    fault = refused_name(typed.id)
    if fault:
        parser.error(f"--id: {fault}")
    tcp = typed.host is not None or typed.port is not None
    if tcp == (typed.socket is not None):
        found = "both" if tcp else "neither"
        parser.error(
            f"--socket, --host and --port: {found} found, one transport wanted"
        )
    if tcp and (typed.host is None or typed.port is None):
        parser.error("--host and --port: one of them found, both wanted")
    if tcp and not 0 <= typed.port <= 65535:
        parser.error(f"--port: {typed.port} found, 0 to 65535 wanted")


def _state_root(typed: argparse.Namespace) -> Path:
    root: Path | None = typed.state_root
    return Path(".plugin-state") / typed.id if root is None else root


def _token(
    parser: argparse.ArgumentParser,
    typed: argparse.Namespace,
    environ: Mapping[str, str],
) -> str | None:
    where, token = TOKEN, environ.get(TOKEN)
    if typed.token is not None:
        where, token = "--token", typed.token
        warn(f"--token: every user can read it there, {TOKEN} or --token-file wanted")
    if typed.token_file is not None:
        where, token = "--token-file", _read_token(parser, typed.token_file)
    if token is not None and not (token and token.isascii() and token.isprintable()):
        parser.error(f"{where}: no token of printable ASCII characters found")
    if token is None and typed.host is not None:
        parser.error(f"--host: no token found, {TOKEN} or --token-file wanted")
    return token


def _read_token(parser: argparse.ArgumentParser, path: Path) -> str:
    try:
        if path.stat().st_mode & 0o077:
            warn(f"{path}: others may read or write it, mode 0600 wanted")
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        parser.error(f"--token-file: {path}: {exc}")


def _seconds(
    environ: Mapping[str, str], name: str, default: float | None
) -> float | None:
    """Read a setting: None for one that is turned off, the default for a bad one."""
    text = environ.get(name, "")
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        instead = "off" if default is None else f"{default:g}"
        warn(f"{name}: {text!r} found, seconds wanted, {instead} used")
        return default
    return seconds if seconds > 0 else None


def warn(text: str) -> None:
    """Write one line for people to the standard error."""
    tags.write(f"job worker: {text}\n")


def forget_token() -> None:
    """Take the token out of what the job and its children see."""
    os.environ.pop(TOKEN, None)
