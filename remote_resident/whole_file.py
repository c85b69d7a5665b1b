"""Files that stand or fall as a whole, and durably: put in place, or taken away."""

import contextlib
import os
from pathlib import Path

from remote_resident import places


def write(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Put bytes in a file's place: under another name, to the disk, then renamed.

    `mode` is what the umask leaves of it. Raises ProviderError (`disk_full`, else
    `unreadable`); what stood there then stands.
    """
    places.ensure(path.parent)
    new = path.with_name(f".{path.name[:200]}.{os.urandom(4).hex()}.new")
    try:
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(fd)
        new.replace(path)
        _to_disk(path.parent)
    except OSError as exc:
        raise places.unwritable(path, exc) from exc
    finally:
        # gone already where all went well
        with contextlib.suppress(OSError):
            new.unlink()


def remove(path: Path) -> None:
    """Remove a file; none there is as good. Raises as `write` does."""
    try:
        path.unlink()
        _to_disk(path.parent)
    except FileNotFoundError:
        return
    except OSError as exc:
        raise places.unwritable(path, exc) from exc


def _to_disk(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
