"""Where a provider.toml stands, which there are, and whether what it names stays there.

Strings throughout: paths are slow to make, and a check makes them by the thousand.
"""

import os
import posixpath
import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from remote_resident.errors import UsageError
from remote_resident.links import plain, real_directory

FILE = "provider.toml"
VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_SHOWN = 12
"""Names that a refusal lists where none is near to what was typed."""


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

    def beside(self, name: str) -> str | None:
        """Give the path of what lies next to it and cannot lead away; None: not sure."""
        path = f"{self.directory}/{name}"
        return None if "/" in name or os.path.islink(path) else path  # noqa: PTH114

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


def variables(text: str) -> list[str]:
    """Name the environment variables that a value is put together from."""
    return [bare or braced for bare, braced in VARIABLE.findall(text)]


def expanded(text: str) -> str | None:
    """Put in the values of variables; None where one is unset or empty."""
    if "$" not in text:
        return text
    if not all(os.environ.get(name) for name in variables(text)):
        return None
    return VARIABLE.sub(lambda found: os.environ[found[1] or found[2]], text)


def below(base: str, name: str) -> str:
    """Give the path of a file below a directory, as text."""
    twisted = "./" in name or "//" in name or name[-1] in "./"
    return str(Path(base, name)) if twisted else f"{base}/{name}"


def slugs(tree: Path) -> list[str]:
    """List the directories of a tree's manifests that hold a provider.toml, in order."""
    folder = f"{tree}/manifests"
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
    except FileNotFoundError:
        return []
    except OSError as exc:
        # not the same as a tree without providers
        text = f"{folder}: {exc.strerror}, wanted the directory of the providers"
        raise UsageError(text, reason="unreadable") from None
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            plain(entry.path)
    names = sorted(entry.name for entry in found)
    return [name for name in names if os.path.lexists(f"{folder}/{name}/{FILE}")]


def nearest(name: str, known: Sequence[str], before: str = "") -> str:
    """Say what is near to a name that is none of those known; what there is, if nothing.

    `before` stands before each.
    """
    from difflib import get_close_matches

    close = get_close_matches(name, known, 3, 0.5)
    shown = ", ".join(f"{before}{one}" for one in close or known[:_SHOWN])
    if close or not known:
        return f"; near: {shown}" if close else ""
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return f"; near: none, there are {shown}{more}"


def slug_at(name: str) -> str:
    """Give the slug that a path names, whether or not a provider is there."""
    return File(file_at(name)).slug


def file_at(name: str) -> str:
    """Give the file that a path names: itself, or the one in the directory."""
    folder = Path(name).parent if Path(name).name == FILE else Path(name)
    return os.path.abspath(folder / FILE)  # noqa: PTH100
