"""Where a provider.toml stands, and whether what it names stays there.

Strings throughout: paths are slow to make, and a check makes them by the thousand.
"""

import os
import posixpath
import stat

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


def is_file_inside(path: str, bound: str) -> bool:
    """Say whether a regular file, itself no symlink, is there and really below `bound`.

    False is no more than a reason to look closer.
    """
    head, _, tail = path.rpartition("/")
    real = f"{real_directory(head)}/{tail}"
    try:
        mode = os.lstat(real).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(mode) and is_inside(real, real_directory(bound.rstrip("/")))
