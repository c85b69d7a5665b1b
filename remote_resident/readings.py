"""What small files read as, remembered: a manifest, a lock, a worker, a report; and what
directories list.

Only what follows from a file's bytes alone is kept, never what was found about them in
their place: a reading says what a file says, and whether that is right is asked anew.
A file is what `(path, size, mtime_ns, ctime_ns, inode)` says, as in `digests`, and none
is recorded that was younger than two seconds when it was read. What is kept is that of
one provider, by one state of this program's code; it may vanish at any time.
"""

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from remote_resident import __version__, kept_file, places
from remote_resident.errors import ProviderError
from remote_resident.file_identity import SETTLED_NS, Identity, identity

T = TypeVar("T")

MAX_BYTES = 4 * 2**20
"""No manifest, lock or script is larger; what is was named by mistake."""
Listing = tuple[tuple[str, bool], ...]
"""Name, and whether it is a directory itself, in order of names."""
NOWHERE: Identity = (0, 0, 0, 0)
"""Of no file."""


class Readings:
    """What the files of one provider read as; `path` None: kept for this process."""

    __slots__ = ("_changed", "_entries", "_looked_at", "path")

    def __init__(self, path: str | None = None) -> None:
        self.path = path
        self._entries: dict[str, tuple[Identity, dict[str, Any]]] = (
            {} if path is None else _load(path)
        )
        self._changed = False
        self._looked_at: set[str] | None = None
        """Files that are what they were, as seen in the look in hand; None: in none."""

    @contextmanager
    def one_look(self) -> Iterator[None]:
        """Look at each file once in the block, however often it is asked for."""
        self._looked_at = set()
        try:
            yield
        finally:
            self._looked_at = None

    def saw(self, file: str, st: os.stat_result) -> None:
        """Take note of a look that somebody else took at a file, in the look in hand."""
        entry, looked_at = self._entries.get(file), self._looked_at
        if looked_at is not None and entry is not None and entry[0] == identity(st):
            looked_at.add(file)

    def identity(self, file: str) -> Identity | None:
        """Say which file was read, as it is kept; None: nothing is kept of it."""
        entry = self._entries.get(file)
        return None if entry is None else entry[0]

    def recall(self, file: str, how: str) -> Any:
        """Give what a file was read as, if it is that file still; None: not known."""
        entry = self._entries.get(file)
        if entry is None:
            return None
        looked_at = self._looked_at
        if looked_at is not None and file in looked_at:
            return entry[1].get(how)
        try:
            st = os.stat(file)  # noqa: PTH116 - strings are all that is at hand here
        except (OSError, ValueError):
            return None
        found = (st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_ino)
        if entry[0] != found:
            return None
        if looked_at is not None:
            looked_at.add(file)
        return entry[1].get(how)

    def note(self, file: str, identity: Identity | None, how: str, value: Any) -> None:
        """Keep what a file reads as: plain values. An identity of None is not kept."""
        if identity is None:
            return
        entry = self._entries.get(file)
        if entry is None or entry[0] != identity:
            entry = self._entries[file] = (identity, {})
        entry[1][how] = value
        self._changed = True

    def learn(self) -> None:
        """Take note that a value that is kept has grown."""
        self._changed = True

    def of(
        self,
        file: str,
        how: str,
        read: Callable[[bytes], Any],
        limit: int = MAX_BYTES,
    ) -> Any:
        """Give what `read` makes of a file's bytes, from what is kept where it is.

        Raises OSError where the file cannot be read, and what `read` raises.
        """
        known = self.recall(file, how)
        if known is None:
            data, identity = content(file, limit)
            known = read(data)
            self.note(file, identity, how, known)
        return known

    def listing(self, folder: str) -> "Listing":
        """Give what a directory lists: what was kept of it, where it did not change.

        Each entry that comes, goes or gets another name moves the directory's own times.
        Raises OSError.
        """
        return self.of_listing(folder, "listing", lambda names: names)

    def of_listing(self, folder: str, how: str, read: Callable[[Listing], T]) -> T:
        """Give what `read` makes of the names in a directory. Raises OSError."""
        known: T | None = self.recall(folder, how)
        if known is None:
            names, identity = listed(folder)
            known = read(names)
            self.note(folder, identity, how, known)
        return known

    def worked(self, what: str, parts: tuple[Any, ...], work: Callable[[], T]) -> T:
        """Give what follows from plain values alone; the last of each kind is kept."""
        kept = self._entries.setdefault("", (NOWHERE, {}))[1]
        known = kept.get(what)
        if known is None or known[0] != parts:
            known = kept[what] = (parts, work())
            self._changed = True
        value: T = known[1]
        return value

    def digest(self, file: str) -> str:
        """Give the SHA-256 of a file, 64 hex. Raises OSError."""
        digest: str = self.of(file, "sha256", sha256, sys.maxsize - 1)
        return digest

    def save(self) -> None:
        """Write what is new; where that is not possible, it is not kept."""
        if not self._changed or self.path is None:
            return
        self._changed = False
        with suppress(OSError, ProviderError, ValueError):
            places.ensure(Path(self.path).parent)
            with suppress(FileNotFoundError):
                # some filesystems bring to the disk at once what replaces a file
                os.unlink(self.path)  # noqa: PTH108
            kept_file.write(self.path, _code(), self._entries)


@lru_cache(maxsize=4096)
def _at(path: str) -> Readings:
    return Readings(path)


def of(slug: str, tree: str) -> Readings:
    """Give what is kept of a provider's files."""
    try:
        return _at(places.readings_path(slug, tree))
    except ProviderError:
        # places that are not to be trusted: whoever needs them says so
        return Readings()


def forget() -> None:
    """Let go of what this process holds, so that it is read from the disk again."""
    _at.cache_clear()


def sha256(data: bytes) -> str:
    """Give the SHA-256 of bytes, 64 hex."""
    from hashlib import sha256 as hasher

    return hasher(data).hexdigest()


def content(path: str, limit: int = MAX_BYTES) -> tuple[bytes, Identity | None]:
    """Read a regular file, at most a byte more than `limit`, and say which it was.

    The identity is None where it is not certain that these bytes are all that can ever
    be seen under it. Raises OSError, ValueError for what is no path. What is no regular
    file is not waited for: a fifo has no end.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            import errno

            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(found.st_mode):
            import errno

            raise OSError(errno.EINVAL, "not a regular file", path)
        began = time.time_ns()
        data = os.read(fd, min(found.st_size, limit) + 1)
        # a byte more was asked for: as many as the size are all
        while len(data) != found.st_size:
            more = os.read(fd, limit + 1 - len(data))
            if not more:
                break
            data += more
        before, after = identity(found), identity(os.fstat(fd))
    finally:
        os.close(fd)
    whole = before == after and len(data) == found.st_size
    return data, before if whole and _settled(before, began) else None


def listed(folder: str) -> tuple[Listing, Identity | None]:
    """List a directory and say which it was; None as for `content`. Raises OSError."""
    before, began = identity(os.stat(folder)), time.time_ns()  # noqa: PTH116
    with os.scandir(folder) as entries:
        found = sorted((e.name, e.is_dir(follow_symlinks=False)) for e in entries)
    same = before == identity(os.stat(folder))  # noqa: PTH116
    return tuple(found), before if same and _settled(before, began) else None


def _settled(identity: Identity, began: int) -> bool:
    return all(began - changed >= SETTLED_NS for changed in identity[1:3])


def _load(path: str) -> dict[str, tuple[Identity, dict[str, Any]]]:
    entries = kept_file.load(path, _code())
    return entries if isinstance(entries, dict) else {}


@lru_cache(maxsize=1)
def _code() -> str:
    """Tell this state of the code from every other: of its version, its files' times."""
    found: list[Any] = [__version__, sys.implementation.cache_tag]
    here = os.path.dirname(__file__)  # noqa: PTH120
    for folder in (here, f"{places.packaged_tree()}/tasks"):
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.name.endswith(".py"):
                    st = entry.stat()
                    found.append((entry.name, st.st_size, st.st_mtime_ns))
    # one text: a list of a hundred files would be read with each provider
    return places.text_digest(repr(found).encode())
