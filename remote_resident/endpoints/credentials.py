"""The families' credentials: kept 0600 or in the system's keyring, and never shown."""

import os
import stat
import sys
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import Any

from remote_resident import places, whole_file
from remote_resident.endpoints.record import CREDENTIALS
from remote_resident.errors import ProviderError, UsageError

LONGEST = 16 * 1024
_SERVICE = "tu-remote"
_OTHERS = 0o077


def from_file(path: str) -> str:
    """Read a credential from a file, or from standard input for `-`.

    Blanks and line ends around it are not its own. Raises UsageError (`bad_request`)
    that never shows any of it.
    """
    where = "standard input" if path == "-" else path
    try:
        if path == "-":
            found = sys.stdin.read(LONGEST + 1)
        else:
            with Path(path).open(encoding="ascii") as file:
                found = file.read(LONGEST + 1)
    except OSError as exc:
        raise _unusable(where, exc.strerror or "unreadable") from None
    except UnicodeDecodeError:
        raise _unusable(where, "a character that is not ASCII") from None
    return _checked(found.strip(), where)


def save(name: str, value: str, *, keyring: Any = None) -> str:
    """Keep a credential, durably, and say where: `keyring` or the file's path.

    `keyring` is a module as the package of that name; None: the system's, if any.
    Raises UsageError (`bad_request`) for a name that is no family's or an empty value.
    """
    _known(name)
    value = _checked(value, name)
    ring = _ring(keyring)
    path = _path(name)
    if ring is not None:
        try:
            ring.set_password(_SERVICE, str(path), value)
        except ring.errors.KeyringError:
            # locked, or nobody there to unlock it: the file will do
            pass
        else:
            whole_file.remove(path)
            return "keyring"
    whole_file.write(path, value.encode("ascii"))
    return str(path)


def load(name: str, *, keyring: Any = None) -> str | None:
    """Give a credential; None: none is kept.

    Raises ProviderError (`unreadable`) where its file is not this user's alone, or the
    keyring does not open.
    """
    _known(name)
    path = _path(name)
    try:
        found = path.stat()
        value = path.read_text(encoding="ascii")
    except FileNotFoundError:
        return _from_ring(path, keyring)
    except (OSError, UnicodeDecodeError) as exc:
        said = exc.strerror if isinstance(exc, OSError) else "not ASCII"
        raise _not_believed(path, str(said), "rm") from None
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid() or mode & _OTHERS:
        raise _not_believed(
            path, f"uid {found.st_uid} with mode {mode:04o}", "chmod 600"
        )
    return value


def forget(name: str, *, keyring: Any = None) -> None:
    """Keep a credential no longer."""
    _known(name)
    path = _path(name)
    whole_file.remove(path)
    ring = _ring(keyring)
    if ring is not None:
        try:
            ring.delete_password(_SERVICE, str(path))
        except ring.errors.KeyringError:
            # none was there, or it does not open
            return


def _known(name: str) -> None:
    if name not in CREDENTIALS:
        raise UsageError(
            f"credential: {name!a} found, {' or '.join(CREDENTIALS)} wanted",
            reason="bad_request",
        )


def _checked(value: str, where: str) -> str:
    if not value:
        raise _unusable(where, "nothing")
    if len(value) > LONGEST:
        raise _unusable(where, f"more than {LONGEST} characters")
    if not (value.isascii() and value.isprintable()) or " " in value:
        raise _unusable(where, "blanks, line ends or characters that are not ASCII")
    return value


def _unusable(where: str, found: str) -> UsageError:
    return UsageError(
        f"{where}: {found} found, a credential in one line wanted", reason="bad_request"
    )


def _not_believed(path: Path, found: str, cure: str) -> ProviderError:
    return ProviderError(
        f"{path}: {found} found, a file of uid {os.geteuid()} with mode 0600 wanted",
        reason="unreadable",
        next=f"{cure} {quote(str(path))}",
    )


def _path(name: str) -> Path:
    return places.state_dir() / "endpoints/credentials" / name


def _from_ring(path: Path, keyring: Any) -> str | None:
    ring = _ring(keyring)
    if ring is None:
        return None
    try:
        found = ring.get_password(_SERVICE, str(path))
    except ring.errors.KeyringError as exc:
        raise ProviderError(
            f"keyring: {type(exc).__name__} found, the credential wanted",
            reason="unreadable",
            next="tu remote endpoint connect --help",
        ) from None
    return found if isinstance(found, str) else None


def _ring(keyring: Any) -> Any:
    """Give the system's keyring; None: there is none that keeps anything."""
    if keyring is None:
        try:
            keyring = import_module("keyring")
        except ImportError:
            return None
    # the package's own way to say that nothing keeps what it is given
    return keyring if keyring.get_keyring().priority >= 1 else None
