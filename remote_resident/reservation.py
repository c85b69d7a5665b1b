"""The machine-wide lock between a decision and the start that rests on it.

Two starts must not both see the same free gigabytes. All users of the machine take turns
at one file, so it is made for everybody; nobody's file is followed through a symlink.
"""

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from remote_resident.errors import ProviderError

NAME = "tu-remote-admission.lock"
WAIT_S = 60.0
"""A start holds the lock for milliseconds; who waits this long waits for a fault."""
_LOOK_S = 0.01


def directory() -> Path:
    """Give where the machine's locks are: /run/lock, else the temp directory."""
    place = Path("/run/lock")
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        return place
    return Path(tempfile.gettempdir())


@contextmanager
def reserve(path: Path | None = None, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the machine's reservation; raises ProviderError (`locked`) past `wait_s`."""
    path = path or directory() / NAME
    fd = _open(path)
    try:
        _lock(fd, path, wait_s)
        yield
    finally:
        os.close(fd)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    for _ in range(10):
        try:
            # without O_CREAT first: a sticky directory refuses it for another's file
            fd = os.open(path, flags)
        except FileNotFoundError:
            try:
                fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                continue
            except OSError as error:
                raise _refused(path, error.strerror or str(error)) from None
            # a umask would keep the others out
            os.fchmod(fd, 0o666)
        except OSError as error:
            raise _refused(path, error.strerror or str(error)) from None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise _refused(path, "not a regular file")
        return fd
    raise _refused(path, "made and removed by somebody again and again")


def _lock(fd: int, path: Path, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise ProviderError(
                    f"{path}: held by another start for {wait_s} s, "
                    "free within that wanted",
                    reason="locked",
                    next=f"fuser -v {path}",
                ) from None
        time.sleep(_LOOK_S)


def _refused(path: Path, found: str) -> ProviderError:
    return ProviderError(
        f"{path}: {found} found, a lock file of this machine wanted",
        reason="locked",
        next=f"ls -l {path}",
    )
