"""Whose turn it is to start a worker: the lock beside its socket, and what is written in it.

The lock's file names the instance that loads, so that who comes next can join a load whose
starter is gone; and who ends a load from outside writes that there, so that its starter
can tell it from a failure.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from remote_resident import places, spawn
from remote_resident.errors import ProviderError, WorkerStartError

_NOTE_BYTES = 64
"""More than an instance and a word take."""
_STOPPED = "stopped"


def path_of(socket_path: Path) -> Path:
    """Name the lock of the starts on a socket."""
    return socket_path.with_name(f"{socket_path.name}.lock")


@contextlib.contextmanager
def taken(path: Path) -> Iterator[int]:
    """Hold a lock that ends with its holder, in a fork and in what is executed too.

    Gives its descriptor.
    Raises WorkerStartError (`disk_full`, `locked`) where the file cannot be used.
    """
    try:
        fd = spawn.keep_private(places.open_lock(path))
    except ProviderError as error:
        raise _unusable(error) from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as exc:
            raise _unusable(places.unusable_lock(path, exc)) from None
        yield fd
    finally:
        spawn.close_private(fd)


def _unusable(error: ProviderError) -> WorkerStartError:
    return WorkerStartError(str(error), reason=error.reason, next=error.next)


def note(fd: int, text: str) -> None:
    """Write which instance loads; empty: none does."""
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, text.encode(), 0)


def loading(fd: int) -> str:
    """Give the instance that loads; empty: none does."""
    return _read(fd).partition(" ")[0]


def was_stopped(fd: int, instance: str) -> bool:
    """Say whether somebody asked for the end of this load."""
    return _read(fd) == f"{instance} {_STOPPED}"


def note_stopped(socket_path: Path, instance: str) -> None:
    """Write that the end of an instance was asked for, if it is the one that loads."""
    # whoever writes here holds no lock: the one that does waits for the load
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    with contextlib.suppress(OSError):
        fd = os.open(path_of(socket_path), flags)
        try:
            if loading(fd) == instance:
                note(fd, f"{instance} {_STOPPED}")
        finally:
            os.close(fd)


def loading_on(socket_path: Path) -> str:
    """Give the instance that loads for a socket; empty: none does, or nobody knows."""
    try:
        return path_of(socket_path).read_text(errors="replace").partition(" ")[0]
    except OSError:
        return ""


def _read(fd: int) -> str:
    return os.pread(fd, _NOTE_BYTES, 0).decode(errors="replace")
