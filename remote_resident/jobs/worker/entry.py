"""The provider's class: found by name, made once, called."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any


class BadEntry(Exception):
    """What --entry names is not there, or is no job class; the text is one line."""


def load(entry: str) -> Any:
    """Make the instance that `module:Class` names.

    Raises BadEntry with what is missing; what the plugin's own code raises otherwise
    passes unchanged, for its author.
    """
    name, colon, attribute = entry.partition(":")
    if not (colon and name and attribute):
        raise BadEntry(f"--entry: {entry!r} found, module:Class wanted")
    found: Any = _module(entry, name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise BadEntry(f"--entry {entry}: no {part} in {name}")
        found = getattr(found, part)
    if not callable(getattr(found, "run_job", None)):
        raise BadEntry(f"--entry {entry}: no run_job(ctx) in {attribute}")
    return found() if isinstance(found, type) else found


def _module(entry: str, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        missing = exc.name or str(exc)
        if f"{name}.".startswith(f"{missing}."):
            text = f"no module {missing} in {os.getcwd()} or installed"  # noqa: PTH109
        else:
            text = f"no module {missing}, which {name} imports"
        raise BadEntry(f"--entry {entry}: {text}") from None


def call(function: Callable[..., Any], *args: Any) -> Any:
    """Call a plugin's method; one that is a coroutine runs to its end in this thread."""
    returned = function(*args)
    return asyncio.run(returned) if inspect.iscoroutine(returned) else returned


def put_started_folder_first() -> None:
    """Make the folder that the worker was started in importable, once ours is loaded."""
    here = os.getcwd()  # noqa: PTH109
    sys.path[:] = [here, *(place for place in sys.path if place not in ("", here))]
