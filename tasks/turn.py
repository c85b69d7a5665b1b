"""One setup of a provider at a time: a lock file, held while a step is made."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from remote_resident import places


@contextmanager
def turn(path: Path, slug: str, say: Callable[[str], None]) -> Iterator[int]:
    """Hold the lock file for the block; wait for it, and say for whom.

    Gives the descriptor: whoever inherits it holds the lock until it ends.
    The wait ends by a signal like any other call. The file stays: what is locked is
    the file, and a new one under the same name would be another lock. Raises
    ProviderError where the file cannot be used: `disk_full` or `locked`.
    """
    places.ensure(path.parent)
    fd = places.open_lock(path)
    try:
        try:
            if not _free(fd):
                say(f"{slug}: waiting for {_holder(fd)} ({path})")
                fcntl.flock(fd, fcntl.LOCK_EX)
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        except OSError as exc:
            raise places.unusable_lock(path, exc) from None
        yield fd
    finally:
        # closed, not unlocked: a child that outlives this process still holds it
        os.close(fd)


def _free(fd: int) -> bool:
    """Take the lock if nobody holds it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(fd: int) -> str:
    written = os.pread(fd, 32, 0).strip()
    if not written.isdigit():
        return "another setup of it"
    pid = int(written)
    if Path(f"/proc/{pid}").exists():
        return f"pid {pid}, which sets it up"
    return f"what pid {pid} started, which set it up and is gone"
