"""What can be wrong with a declared file, as problems with the command to type next."""

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Any

from remote_resident import places
from remote_resident.errors import Problem
from remote_resident.file_identity import Identity, kind
from remote_resident.wanted import Wanted

STEP = "weights"
SHOWN = 10
_LEFTOVER_ENDS = tuple(
    ".incomplete .part .partial .tmp .temp .download .crdownload .aria2 .filepart "
    "_.gstmp".split()
)


def leftovers(
    path: Path, declared: set[str], listings: dict[str, list[str]]
) -> list[tuple[str, int]]:
    """Find what a fetch that was cut may have left beside a file that is not there."""
    directory = os.fspath(path.parent)
    if directory not in listings:
        listings[directory] = []
        with contextlib.suppress(OSError):
            listings[directory] = os.listdir(directory)  # noqa: PTH208
    found = []
    for beside in listings[directory]:
        # rsync writes .NAME.XXXXXX
        ends = beside.endswith(_LEFTOVER_ENDS) or beside.startswith(f".{path.name}.")
        begun = beside.startswith((path.name, f".{path.name}"))
        if begun and ends and str(path.parent / beside) not in declared:
            with contextlib.suppress(OSError):
                size = (path.parent / beside).lstat().st_size
                found.append((beside, size))
    return sorted(found)


def _problem(want: Wanted, reason: str, what: str, **more: Any) -> Problem:
    facts = {"path": str(want.path), "name": want.name, **more}
    return Problem(
        step=STEP, reason=reason, text=f"{STEP}: {want.name}: {what}", **facts
    )


def absent(want: Wanted, leftovers: list[tuple[str, int]]) -> Problem:
    size = "a file" if want.size is None else f"{want.size} bytes"
    beside = "".join(f"; {name} has {n} bytes" for name, n in leftovers)
    return _problem(
        want,
        "absent",
        f"absent at {want.path}, {size} wanted{beside}",
        wanted=want.size,
    )


def unreachable(want: Wanted, exc: OSError) -> Problem:
    path = Path(want.path)
    if path.is_symlink() and exc.errno in (errno.ENOENT, errno.ELOOP):
        return not_a_file(want, f"a broken symlink to {path.readlink()}")
    if exc.errno in (errno.ENOENT, errno.ENOTDIR):
        return absent(want, [])
    return _problem(
        want,
        "unreadable",
        f"{exc.strerror}, a readable file wanted",
        found=exc.strerror,
        next=f"chmod u+r {_quoted(want.path)}",
    )


def not_a_file(want: Wanted, what_it_is: str) -> Problem:
    what = f"{what_it_is}, a regular file wanted"
    return _problem(
        want, "not_a_file", what, found=what_it_is, next=places.aside(want.path)
    )


def misfit(want: Wanted, st: os.stat_result) -> Problem:
    if not stat.S_ISREG(st.st_mode):
        return not_a_file(want, kind(st.st_mode))
    return _wrong_size(want, st.st_size)


def _wrong_size(want: Wanted, found: int) -> Problem:
    return _problem(
        want,
        "size",
        f"{found} bytes, {want.size} wanted",
        wanted=want.size,
        found=found,
        next=places.aside(want.path),
    )


def wrong_digest(want: Wanted, found: str, owner: str | None) -> Problem:
    whose = f" (the pin of {owner})" if owner else ""
    return _problem(
        want,
        "digest",
        f"sha256 {found}{whose}, {want.sha256} wanted",
        wanted=want.sha256,
        found=found,
        next=places.aside(want.path),
    )


def changed(want: Wanted, before: Identity, after: Identity) -> Problem:
    first, then = (
        f"{size} bytes, modified {mtime} ns, changed {ctime} ns, inode {inode}"
        for size, mtime, ctime, inode in (before, after)
    )
    return _problem(
        want,
        "changed_while_read",
        f"changed while it was read: {first}, then {then}; one file throughout wanted",
    )


def not_an_archive(want: Wanted, exc: Exception) -> Problem:
    return _problem(
        want,
        "not_unpacked",
        f"its members cannot be listed ({exc}), a tar or zip archive wanted",
        next=places.aside(want.path),
    )


def missing_members(want: Wanted, missing: list[str], members: int) -> Problem:
    named = ", ".join(missing[:SHOWN])
    more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    return _problem(
        want,
        "not_unpacked",
        f"{want.unpacked_dir}: {members - len(missing)} members of the archive there, "
        f"{members} wanted; missing: {named}{more}",
        wanted=members,
        path=str(want.unpacked_dir),
        next=_unpack_command(want),
    )


def wrong_member(
    want: Wanted, member: str, path: str, size: int, st: os.stat_result
) -> Problem:
    regular = stat.S_ISREG(st.st_mode)
    found = f"{st.st_size} bytes" if regular else kind(st.st_mode)
    return _problem(
        want,
        "not_unpacked",
        f"{path}: {found}, {size} bytes as in the archive wanted",
        name=f"{want.name}: {member}",
        path=path,
        wanted=size,
        found=st.st_size if regular else found,
        next=places.aside(path),
    )


def _unpack_command(want: Wanted) -> str:
    archive, directory = _quoted(want.path), _quoted(want.unpacked_dir or "")
    if want.name.endswith(".zip"):
        return f"python3 -m zipfile -e {archive} {directory}"
    return f"mkdir -p {directory} && tar -xf {archive} -C {directory}"


def _quoted(path: str | Path) -> str:
    from shlex import quote

    return quote(str(path))
