"""The worker's command line, read by hand: argparse costs as much as the interpreter."""

# pathlib would cost each start of a worker half the interpreter's own
# ruff: noqa: PTH120

from __future__ import annotations

import os
import sys

from . import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

INSTANCE = "TU_RESIDENT_INSTANCE"

_TEXTS = {
    "--resident-slug": "slug",
    "--resident-tree": "tree",
    "--resident-instance": "instance",
    "--inputs": "inputs",
    "--device": "device",
    "--operations": "operations",
}
_PATHS = {
    "--socket": "socket_path",
    "--script": "script",
    "--manifest-dir": "manifest_dir",
    "--weights-root": "weights_root",
    "--work-root": "work_root",
}
_SECONDS = {
    "--idle-timeout": "idle_timeout_s",
    "--orphan-grace": "orphan_grace_s",
    "--start-timeout": "start_timeout_s",
    "--request-timeout": "request_timeout_s",
}
_COUNTS = {
    "--lifeline-fd": "lifeline_fd",
    "--ready-fd": "ready_fd",
    "--max-queue": "max_queue",
    "--max-line-bytes": "max_line_bytes",
    "--owner-pid": "owner_pid",
}
_READERS: dict[str, tuple[str, Callable[[str], object]]] = {
    **{flag: (name, str) for flag, name in _TEXTS.items()},
    **{flag: (name, os.path.abspath) for flag, name in _PATHS.items()},
    **{flag: (name, float) for flag, name in _SECONDS.items()},
    **{flag: (name, int) for flag, name in _COUNTS.items()},
}


class Options:
    """The command line; None where a value was not given."""

    def __init__(self) -> None:
        self.slug = ""
        self.tree: str | None = None
        self.instance: str | None = os.environ.get(INSTANCE)
        self.inputs: str | None = None
        self.device: str | None = None
        self.operations = ""
        self.socket_path = ""
        self.script = ""
        self.manifest_dir: str | None = None
        self.weights_root: str | None = None
        self.work_root: str | None = None
        self.idle_timeout_s = 0.0
        self.orphan_grace_s = 120.0
        self.start_timeout_s = 0.0
        self.request_timeout_s = 0.0
        self.owner_pid: int | None = None
        self.lifeline_fd: int | None = None
        self.ready_fd: int | None = None
        self.max_queue = 16
        self.max_line_bytes = protocol.MAX_LINE_BYTES
        self.once = False
        self.args: list[str] = []

    def known_operations(self) -> tuple[str, ...]:
        """Name what a request may ask of the model."""
        named = [op for op in self.operations.split(",") if op]
        return tuple(dict.fromkeys(("predict", *named)))


def parse(argv: Sequence[str]) -> Options:
    """Read the command line; SystemExit 2 for one that is none."""
    options = Options()
    waiting = list(argv)
    while waiting:
        flag, equals, value = waiting.pop(0).partition("=")
        if flag == "--":
            options.args = waiting
            break
        if flag == "--once":
            options.once = True
        elif flag not in _READERS:
            _refuse_usage(f"{flag}: no such option")
        elif not equals and not waiting:
            _refuse_usage(f"{flag}: nothing found, a value wanted")
        else:
            _set_option(options, flag, value if equals else waiting.pop(0))
    if not options.script or bool(options.socket_path) == options.once:
        _refuse_usage("--script, and one of --socket and --once, wanted")
    options.manifest_dir = options.manifest_dir or os.path.dirname(options.script)
    return options


def _set_option(options: Options, flag: str, value: str) -> None:
    name, read = _READERS[flag]
    try:
        setattr(options, name, read(value))
    except ValueError:
        _refuse_usage(f"{flag}: {value!r} found, a number wanted")


def _refuse_usage(text: str) -> NoReturn:
    sys.stderr.write(f"worker_base.py: {text}\n")
    raise SystemExit(2)


class Config:
    """What `build` is given: attributes, which `config[name]` and dict() read too.

    `slug`, `manifest_dir`, `weights_root`, `work_root` (absolute paths as text, None
    where not declared), `args` (the list behind `--`), `device` (the UUID of the one
    admitted, None where there is none), and `socket_path` for a script that calls
    `serve` by itself.
    """

    __slots__ = (
        "args",
        "device",
        "manifest_dir",
        "slug",
        "socket_path",
        "weights_root",
        "work_root",
    )

    def __init__(self, options: Options) -> None:
        for name in self.__slots__:
            object.__setattr__(self, name, getattr(options, name))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"config.{name} is read-only")

    def __getitem__(self, name: str) -> object:
        if name not in self.__slots__:
            raise KeyError(name)
        return getattr(self, name)

    def keys(self) -> tuple[str, ...]:
        """Name the attributes."""
        return self.__slots__
