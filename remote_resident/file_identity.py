"""Which file it is, and what it is: told by its numbers, without reading it."""

import os
import stat
from pathlib import Path

Identity = tuple[int, int, int, int]
"""Size in bytes, mtime_ns, ctime_ns, inode: what would change if the file did."""

SETTLED_NS = 2_000_000_000
"""What changed less than this ago could change again within a coarse clock's grain."""


def identity(st: os.stat_result) -> Identity:
    """Give the numbers of a file that was looked at."""
    return (st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_ino)


def now(path: Path) -> Identity | None:
    """Look at a file; None: it cannot be."""
    try:
        return identity(path.stat())
    except OSError:
        return None


def same_content(one: Identity, other: Identity) -> bool:
    """Say whether only the change time differs, if anything does."""
    return (one[0], one[1], one[3]) == (other[0], other[1], other[3])


def kind(mode: int) -> str:
    """Say in words what stands where a regular file was wanted."""
    kinds = {
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a fifo",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a character device",
        stat.S_IFBLK: "a block device",
        stat.S_IFLNK: "a symlink",
    }
    return kinds.get(stat.S_IFMT(mode), "no file")
