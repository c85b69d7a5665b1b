"""Digests that were computed before: by this process, and kept for others."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from remote_resident import kept_file, places
from remote_resident.errors import ProviderError
from remote_resident.file_identity import SETTLED_NS, Identity, identity

VERSION = 2
_ENTRY = 5
"""The four numbers of an identity, and the digest."""


class DigestMemo:
    """Digests already computed, in a file that may vanish at any time.

    A damaged file reads as empty; one that cannot be written is not written.
    """

    def __init__(self, path: str | Path) -> None:
        self.file = str(path)
        self.files = _load(self.file)
        """By resolved path: the four numbers of the identity, then the digest."""
        self._new: dict[str, tuple[Any, ...]] = {}

    @property
    def path(self) -> Path:
        """Give the same as a path."""
        return Path(self.file)

    def get(self, name: str | Path, st: os.stat_result) -> str | None:
        """Give the digest of the file that `st` describes; None: unknown."""
        return self.lookup(os.path.realpath(name), identity(st))

    def put(self, name: str | Path, st: os.stat_result, digest: str) -> None:
        """Keep the digest of a file, unless it is younger than two seconds."""
        self.note(os.path.realpath(name), identity(st), digest)

    def lookup(self, key: str, identity: Identity) -> str | None:
        """Do what `get` does, for a path that is resolved already."""
        entry = self.files.get(key)
        return entry[4] if entry is not None and entry[:4] == identity else None

    def note(self, key: str, identity: Identity, digest: str) -> None:
        """Do what `put` does, for a path that is resolved already."""
        if time.time_ns() - identity[1] < SETTLED_NS:
            return
        entry = (*identity, digest)
        if self.files.get(key) != entry:
            self.files[key] = self._new[key] = entry

    def save(self) -> None:
        """Write what is new beside what other processes wrote meanwhile."""
        if not self._new:
            return
        with contextlib.suppress(OSError, ProviderError):
            directory = places.ensure(self.path.parent)
            with _one_writer(directory):
                files = {**_load(self.file), **self._new}
                kept_file.write(self.file, VERSION, files)
            self._new = {}


class Seen(NamedTuple):
    """A file as this process read it."""

    identity: Identity
    digest: str
    certain: bool
    """Whether the tick of its last change was over when it was read."""

    def stands_for(self, identity: Identity) -> bool:
        """Say whether this is what would be read of that file."""
        return self.certain and self.identity == identity


SEEN: dict[str, Seen] = {}
"""What this process read, by resolved path. No file could hold it: certified is what was
read by whoever certifies, and the steps of one run share nothing but their process."""


def _load(path: str) -> dict[str, Any]:
    files = kept_file.load(path, VERSION)
    if not isinstance(files, dict):
        return {}
    return {k: v for k, v in files.items() if type(v) is tuple and len(v) == _ENTRY}


@contextlib.contextmanager
def _one_writer(directory: Path) -> Iterator[None]:
    """Let one process at a time merge and write; wait a second for another, no longer."""
    import fcntl

    with (directory / ".lock").open("a") as lock:
        for left in range(40, -1, -1):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not left:
                    raise
                time.sleep(0.025)
            except OSError:
                # a filesystem without locks: at worst an entry is lost and hashed again
                break
        yield
