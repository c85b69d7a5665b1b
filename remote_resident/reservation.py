"""The machine-wide lock between a decision and the start that rests on it.

Two starts must not both see the same free gigabytes. All users of the machine take turns
at one file, so it is made for everybody, and nothing is ever written to it: the kernel
knows who holds it. Nobody's file is followed through a symlink.
"""

import contextlib
import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from remote_resident.errors import ProviderError

if TYPE_CHECKING:
    from remote_resident.admission import Verdict
    from remote_resident.manifest import ProviderManifest

WAIT_S = 60.0
"""A start holds the lock for as long as the machine is read; who waits this long waits
for a fault."""
_PLACES = (Path("/run/lock"), Path("/tmp"))
_LOOK_S = 0.01
_TRIES = 100


@contextmanager
def reserved(
    manifest: "ProviderManifest",
    *,
    own_instance: str | None = None,
    size: float | None = None,
    smoke: bool = False,
    make_room: bool = False,
    wait_s: float = WAIT_S,
) -> "Iterator[Verdict]":
    """Admit a start and hold its room until the block ends: spawn inside it.

    Raises AdmissionRefused, and ProviderError (`locked`) past `wait_s`. With `make_room`
    idle workers of this user are retired where that makes it fit. The other arguments
    are those of `room.room_for`.
    """
    from remote_resident import room

    def decided() -> "Verdict":
        return room.room_for(
            manifest, own_instance=own_instance, size=size, smoke=smoke
        )

    with reserve(wait_s=wait_s):
        verdict = decided()
        if make_room and not verdict.admit:
            verdict, _ = room.make_room(verdict, decided)
        verdict.raise_if_refused()
        yield verdict


@contextmanager
def reserve(
    device: str | None = None,
    wait_s: float = WAIT_S,
    places: Sequence[Path] = _PLACES,
) -> Iterator[None]:
    """Hold the host's memory, and a device's besides, until the block ends.

    The host comes first, always, so that no two wait for each other. Raises
    ProviderError (`locked`) where the lock cannot be made, or is held by somebody else
    for `wait_s` seconds. Not to be taken twice by one thread.
    """
    deadline = time.monotonic() + wait_s
    names = ["host"] if device is None else ["host", _plain(device)]
    with contextlib.ExitStack() as stack:
        for name in names:
            fd = _locked(f"tu-remote-{name}.lock", places, deadline, wait_s)
            stack.callback(_unlock, fd)
        yield


def _plain(device: str) -> str:
    return "device-" + re.sub(r"[^A-Za-z0-9-]", "_", device)


def _unlock(fd: int) -> None:
    # by word, not by closing: a fork of this process may hold a copy of the descriptor
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def _locked(name: str, places: Sequence[Path], deadline: float, wait_s: float) -> int:
    while True:
        path, fd = _opened(name, places)
        try:
            _wait(fd, path, deadline, wait_s)
            if _is_still(path, fd):
                return fd
            if time.monotonic() >= deadline:
                raise _refused(path, OSError(errno.ESTALE, "a file that is replaced"))
        except BaseException:
            os.close(fd)
            raise
        # somebody cleaned up the directory meanwhile: the others lock the new file
        os.close(fd)


def _wait(fd: int, path: Path, deadline: float, wait_s: float) -> None:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise _held(fd, path, wait_s) from None
        time.sleep(_LOOK_S)


def _is_still(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _opened(name: str, places: Sequence[Path]) -> tuple[Path, int]:
    """Open the lock in the first place that every user of the machine can write to.

    A read-only place is passed over, as it is one for all; what stands in the way
    otherwise is refused, or two users would not take turns at the same file.
    """
    for place in _shared(places):
        path = place / name
        try:
            return path, _open(path)
        except OSError as exc:
            if exc.errno != errno.EROFS:
                raise _refused(path, exc) from None
    raise _refused(path, OSError(errno.EROFS, os.strerror(errno.EROFS)))


def _shared(places: Sequence[Path]) -> Iterator[Path]:
    yield from filter(_is_for_all, places)
    import tempfile

    yield Path(tempfile.gettempdir())


def _is_for_all(place: Path) -> bool:
    try:
        found = place.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_mode & 0o1777 == 0o1777


def _open(path: Path) -> int:
    """Open a lock file, made for everybody where there is none; raises OSError."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    for _ in range(_TRIES):
        try:
            # without O_CREAT first: a sticky directory refuses it for another's file
            fd = os.open(path, flags)
        except FileNotFoundError:
            try:
                fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                continue
            # a umask would keep the others out
            os.fchmod(fd, 0o666)
        except PermissionError:
            # it was made this instant, and is not yet for all
            if not _is_new(path):
                raise
            time.sleep(_LOOK_S)
            continue
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EEXIST, "not a regular file")
        return fd
    raise OSError(errno.EAGAIN, "made and removed by somebody again and again")


def _is_new(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return abs(time.time() - path.lstat().st_ctime) < 1.0
    return True


def _held(fd: int, path: Path, wait_s: float) -> ProviderError:
    pid = _holder(fd)
    who = "another start" if pid is None else f"pid {pid}"
    return ProviderError(
        f"{path}: held by {who} for {wait_s} s, free within that wanted",
        reason="locked",
        next="ps -fp " + str(pid) if pid else f"fuser -v {path}",
    )


def _holder(fd: int) -> int | None:
    """Give the pid that the kernel says holds the file's lock; None: not to be seen."""
    found = os.fstat(fd)
    major, minor = os.major(found.st_dev), os.minor(found.st_dev)
    file = f"{major:02x}:{minor:02x}:{found.st_ino}"
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[5] == file:
            # 0: a process of another PID namespace
            return int(words[4]) or None
    return None


def _refused(path: Path, exc: OSError) -> ProviderError:
    found = "a symlink" if exc.errno == errno.ELOOP else exc.strerror or str(exc)
    return ProviderError(
        f"{path}: {found} found, a lock file of this machine wanted",
        reason="locked",
        next=f"ls -l {quote(str(path))}",
    )
