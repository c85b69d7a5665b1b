"""Where a provider.toml stands, and whether what it names stays there.

Strings throughout: paths are slow to make, and a check makes them by the thousand.
"""

import os
import posixpath
import stat
from collections.abc import Iterable

from remote_resident.links import real_directory

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


def file_inside(path: str, bounds: Iterable[str]) -> os.stat_result | None:
    """Look at a regular file, itself no symlink, that is really below one of `bounds`.

    None, where there is none, is no more than a reason to look closer.
    """
    head, _, tail = path.rpartition("/")
    real = f"{real_directory(head)}/{tail}"
    try:
        st = os.lstat(real)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(st.st_mode):
        return None
    below = (is_inside(real, real_directory(bound.rstrip("/"))) for bound in bounds)
    return st if any(below) else None
