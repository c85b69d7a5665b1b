"""Archives that are used unpacked: what is in them, and whether all of it is there."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from remote_resident import kept_file
from remote_resident.errors import Problem
from remote_resident.wanted import Wanted
from remote_resident.weight_problems import SHOWN, missing_members, wrong_member

Member = tuple[str, int | str | None]
"""An archive's member: its name and its bytes, "dir", or None where it has no size."""
VERSION = 2


def list_archive(path: Path) -> list[Member]:
    """List what a tar (also compressed) or zip archive holds.

    Raises ValueError where it is neither, or is damaged.
    """
    import tarfile
    import zipfile
    import zlib
    from lzma import LZMAError

    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                return [
                    (i.filename, "dir" if i.is_dir() else i.file_size)
                    for i in archive.infolist()
                ]
        with tarfile.open(path) as tar:
            return [(m.name, _tar_size(m)) for m in tar]
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        EOFError,
        zlib.error,
        LZMAError,
    ) as exc:
        # tarfile lists on several lines what it tried
        why = str(exc).partition("\n")[0].rstrip(":")
        raise ValueError(why or type(exc).__name__) from exc


def _tar_size(member: Any) -> int | str | None:
    if member.isdir():
        return "dir"
    # a hard link's header says 0 whatever the file has
    return member.size if member.isreg() else None


def compare_members(want: Wanted, members: Sequence[Member]) -> list[Problem]:
    base = os.fspath(want.unpacked_dir or "")
    missing: list[str] = []
    wrong: list[Problem] = []
    for name, size in members:
        parts = [p for p in name.split("/") if p not in ("", ".")]
        try:
            if ".." in parts:
                raise FileNotFoundError(name)
            path = "/".join((base, *parts))
            # a symlink that was unpacked is there, wherever it leads
            st = os.lstat(path) if size is None else os.stat(path)  # noqa: PTH116
        except OSError:
            missing.append(name)
            continue
        if size == "dir":
            if not stat.S_ISDIR(st.st_mode):
                missing.append(name)
        elif size is not None and (st.st_size != size or not stat.S_ISREG(st.st_mode)):
            wrong.append(wrong_member(want, name, path, int(size), st))
    found = [missing_members(want, missing, len(members))] if missing else []
    return found + wrong[:SHOWN]


def load_members(path: str) -> list[Member] | None:
    members = kept_file.load(path, VERSION)
    if not isinstance(members, list):
        return None
    try:
        return [(str(name), size) for name, size in members]
    except (TypeError, ValueError):
        return None
