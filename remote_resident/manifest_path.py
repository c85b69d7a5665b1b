"""Where a provider.toml stands, and whether what it names stays there.

Strings throughout: paths are slow to make, and a check makes them by the thousand.
"""

import os
import posixpath
import stat
from functools import lru_cache

FILE = "provider.toml"


class File:
    """A provider.toml by its absolute path."""

    __slots__ = ("directory", "path", "slug", "tree")

    def __init__(self, path: str) -> None:
        self.path = path
        self.directory = posixpath.dirname(path)
        above, self.slug = posixpath.split(self.directory)
        around, name = posixpath.split(above)
        self.tree = around if name == "manifests" else None
        """None: it stands outside of any tree."""

    @property
    def bound(self) -> str:
        """Name the directory that what it names must stay in."""
        return self.tree or self.directory

    @property
    def shown(self) -> str:
        """Write the path for a person: within the tree, where there is one."""
        tree = self.tree
        return self.path[len(tree.rstrip("/")) + 1 :] if tree else self.path


def leads_out(path: str, bound: str) -> str | None:
    """Give where symlinks below `bound` lead, if that is outside of it."""
    real = os.path.realpath(path)
    if is_inside(real, bound) or is_inside(real, os.path.realpath(bound)):
        return None
    return real


def is_inside(path: str, bound: str) -> bool:
    """Say whether a path is a directory's or below it, by its text."""
    return path == bound or path.startswith(bound.rstrip("/") + "/")


def is_file_inside(path: str, bound: str) -> bool:
    """Say whether a regular file, itself no symlink, is there and really below `bound`.

    False is no more than a reason to look closer. Directories are resolved once, until
    `forget`.
    """
    head, _, tail = path.rpartition("/")
    real = f"{_real(head)}/{tail}"
    try:
        mode = os.lstat(real).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(mode) and is_inside(real, _real(bound.rstrip("/")))


@lru_cache(maxsize=4096)
def _real(directory: str) -> str:
    head, _, tail = directory.rpartition("/")
    if not tail:
        return head
    path = f"{_real(head)}/{tail}"
    return os.path.realpath(path) if os.path.islink(path) else path  # noqa: PTH114


def forget() -> None:
    """Resolve directories anew."""
    _real.cache_clear()
