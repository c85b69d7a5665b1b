"""The standard streams: lines that a job prints carry its id, `[id] line`."""

from __future__ import annotations

import contextvars
import io
import os
import sys
import threading
import traceback
from typing import Any

JOB: contextvars.ContextVar[str | None] = contextvars.ContextVar("job", default=None)
"""Whose code runs here; None: the worker's own, or a thread that a job started."""

LONGEST = 16 << 10
"""Characters that are kept while a line has no end yet."""


class TaggedErrors(io.TextIOBase):
    """A text stream to descriptor 2, a line at a time, each with its job's tag."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[str | None, str] = {}
        self._lock = threading.RLock()
        self.buffer: Any = _Bytes(self)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2

    def reconfigure(self, **_: object) -> None:
        """Do nothing: some programs set an encoding or buffering of their own."""

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        """Take text of the job that runs here; its whole lines are written at once."""
        job = JOB.get()
        with self._lock:
            held = self._open.pop(job, "") + text
            lines = held.split("\n")
            rest = lines.pop()
            if len(rest) > LONGEST:
                lines.append(rest)
                rest = ""
            if rest:
                self._open[job] = rest
            self._put(job, lines)
        return len(text)

    def flush_job(self, job: str | None) -> None:
        """Write out the line that a job left without an end."""
        with self._lock:
            rest = self._open.pop(job, "")
            self._put(job, [rest] if rest else [])

    def _put(self, job: str | None, lines: list[str]) -> None:
        tag = "" if job is None else f"[{job}] "
        data = "".join(f"{tag}{line}\n" for line in lines)
        rest = memoryview(data.encode(self.encoding, self.errors))
        while rest:
            try:
                rest = rest[os.write(2, rest) :]
            except OSError:  # nobody reads it any more, or the model closed it
                return


class _Bytes:
    """What `sys.stderr.buffer` is for those who write bytes."""

    def __init__(self, text: TaggedErrors) -> None:
        self._text = text

    def write(self, data: bytes) -> int:
        self._text.write(bytes(data).decode("utf-8", "backslashreplace"))
        return len(data)

    def flush(self) -> None:
        """Do nothing: whole lines are never held back."""


_errors = TaggedErrors()


def install() -> None:
    """Part the standard streams: no input, and whatever prints goes to the errors."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.stderr = _errors


def write(text: str) -> None:
    """Write to the standard error, whatever the plugin has made of `sys.stderr`."""
    _errors.write(text)


def flush(job: str | None) -> None:
    """Write out the line that a job left without an end."""
    _errors.flush_job(job)


def print_exception(exc: BaseException) -> None:
    """Write a traceback for whoever wrote the plugin, under the job's tag."""
    try:
        text = "".join(traceback.format_exception(type(exc), exc, exc.__traceback__))
    # an exception's own __str__ may raise anything
    except Exception:
        text = f"{type(exc).__name__}\n"
    write(text)
