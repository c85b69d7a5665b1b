"""Where things live on this host: every path that is not part of a tree.

Naming a place creates nothing and needs nothing but the environment; only `ensure`
makes directories.
"""

import os
import stat
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from pathlib import Path

from remote_resident.errors import ProviderError, UsageError

_APP = "tu-remote"
_PRIVATE = 0o700
_OTHERS = 0o077
_OTHERS_WRITE = 0o022


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Name the directory of what can be made again: memo, environments, checkouts.

    Raises ProviderError (`socket_path`) where others own it or may write to it, as
    `state_dir` does.
    """
    return _base("cache", "XDG_CACHE_HOME", ".cache", environ)


def state_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Name the directory of what this machine did: reports, registrations."""
    return _base("state", "XDG_STATE_HOME", ".local/state", environ)


def runtime_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Name the directory of sockets and locks, which is nobody else's.

    Raises ProviderError (`socket_path`) where what is there is a symlink, not a
    directory, another user's, or open to others. It need not exist yet.
    """
    path = _runtime_path(os.environ if environ is None else environ)
    _refuse_unsafe(path)
    return path


def ensure(path: Path) -> Path:
    """Make a directory and what it lies in, each new one with mode 0700.

    Raises ProviderError: `socket_path` for the runtime directory and what is below
    it, `disk_full` where there is no space, `unreadable` otherwise.
    """
    runtime = _runtime_path(os.environ)
    below_runtime = path == runtime or runtime in path.parents
    try:
        _make_private(path)
    except OSError as exc:
        raise _not_made(path, exc, below_runtime=below_runtime) from exc
    if below_runtime:
        # looked at after it was made: another user may have been quicker
        _refuse_unsafe(runtime)
    return path


def tree_id(tree: Path) -> str:
    """Give 8 hex digits that tell this tree's path from every other on the host."""
    return _id_of(str(tree))


@lru_cache(maxsize=64)
def _id_of(tree: str) -> str:
    return text_digest(os.fsencode(os.path.realpath(tree)))[:8]


def text_digest(data: bytes) -> str:
    """Give the SHA-256 of a few bytes, 64 hex."""
    try:
        # hashlib loads all of OpenSSL, which takes longer than many providers' check
        plain = import_module("_sha2" if sys.version_info >= (3, 12) else "_sha256")
    except ImportError:
        plain = import_module("hashlib")
    digest: str = plain.sha256(data).hexdigest()
    return digest


def packaged_tree() -> Path:
    """Name the tree that came with this package: the wheel's, else the checkout's."""
    package = Path(__file__).resolve().parent
    carried = package / "_tree"
    return carried if carried.is_dir() else package.parent


def find_tree(
    explicit: str | Path | None = None,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Path:
    """Find the tree: what was asked, TU_REMOTE_TREE, the enclosing one, the packaged.

    Gives an absolute path without symlinks. Raises UsageError (`unknown_name`) where
    a tree that somebody named has no manifests/.
    """
    environ = os.environ if environ is None else environ
    if explicit == "":
        raise UsageError("--tree: nothing found after it, the path of a tree wanted")
    if explicit is not None:
        return _named_tree("--tree", Path(explicit))
    if named := environ.get("TU_REMOTE_TREE"):
        return _named_tree("TU_REMOTE_TREE", Path(named))
    enclosing = _enclosing_tree(cwd)
    return enclosing or _named_tree("the packaged tree", packaged_tree())


def readings_path(slug: str, tree: str) -> str:
    """Name the file of what a provider's small files read as."""
    return f"{_of_tree(tree, _where())[0]}/{slug}"


def memo_file(slug: str, tree: Path) -> str:
    """Name the file of the digests already computed for a provider's weights."""
    return f"{_of_tree(str(tree), _where())[1]}/{slug}-{tree_id(tree)}.json"


def measured_path(slug: str, tree: Path) -> Path:
    """Name the report of what this machine did with a provider."""
    return Path(measured_file(slug, tree))


def measured_file(slug: str, tree: Path) -> str:
    """Give the same as text, for whoever asks it of many providers."""
    return f"{_of_tree(str(tree), _where())[2]}/{slug}.toml"


def env_dir(lock_name: str, lock_digest: str) -> Path:
    """Name the environment made by a lock's recipe; `lock_digest` is the SHA-256."""
    return cache_dir() / "envs" / f"{lock_name}-{lock_digest[:16]}"


def kit_dir(commit: str) -> Path:
    """Name the checkout of a kit's commit, shared by all that pin it."""
    return cache_dir() / "kits" / commit


def log_path(slug: str, tree: Path, environ: Mapping[str, str] | None = None) -> Path:
    """Name a worker's log; TOOLUNIVERSE_REMOTE_LOG_DIR moves all logs."""
    environ = os.environ if environ is None else environ
    moved = environ.get("TOOLUNIVERSE_REMOTE_LOG_DIR")
    logs = _absolute(moved) if moved else cache_dir(environ) / "logs"
    return logs / f"{slug}-{tree_id(tree)}.log"


def step_lock_path(slug: str, tree: Path) -> Path:
    """Name the lock file that one setup of a provider holds at a time."""
    return runtime_dir() / f"setup-{slug}-{tree_id(tree)}.lock"


def crash_path(slug: str, tree: Path) -> Path:
    """Name the history of a provider's failed starts."""
    return state_dir() / "crashes" / f"{slug}-{tree_id(tree)}.json"


def _where() -> tuple[str | None, ...]:
    """Give all of the environment that the places of a tree depend on."""
    get = os.environ.get
    if moved := get("TU_REMOTE_HOME"):
        return (moved,)
    return (None, get("XDG_CACHE_HOME"), get("XDG_STATE_HOME"), get("HOME"))


@lru_cache(maxsize=64)
def _of_tree(tree: str, where: tuple[str | None, ...]) -> tuple[str, str, str]:
    """Name the directories of a tree's readings, digests and reports.

    They are looked at once for each process, tree and environment: a check asks for
    them three times for each of a thousand providers.
    """
    cache, state, here = cache_dir(), state_dir(), _id_of(tree)
    return (
        f"{cache}/readings/{here}",
        f"{cache}/digest-memo",
        f"{state}/{here}/measured",
    )


def _base(
    below_home: str, variable: str, default: str, environ: Mapping[str, str] | None
) -> Path:
    environ = os.environ if environ is None else environ
    if moved := _moved(environ):
        return _trusted(_trusted(moved) / below_home)
    named = environ.get(variable, "")
    # the XDG rule: a relative value counts as none
    if named.startswith("/"):
        return _trusted(Path(named) / _APP)
    home = user_home(environ)
    if home is None:
        # a shared directory: only as good as its owner and mode
        return runtime_dir(environ) / below_home
    return _trusted(home / default / _APP)


def _trusted(path: Path) -> Path:
    """Refuse a directory that others may write: what lies in it is run and believed."""
    try:
        found = path.stat()
    except OSError:
        return path
    me = os.geteuid()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid == me and not mode & _OTHERS_WRITE:
        return path
    raise ProviderError(
        f"{path}: uid {found.st_uid} with mode {mode:04o} found, "
        f"uid {me} and nobody else who may write wanted",
        reason="socket_path",
        next=_cure(path, found, me),
    )


def user_home(environ: Mapping[str, str]) -> Path | None:
    """Name the user's home; None for a uid that has neither HOME nor an account."""
    named = environ.get("HOME", "")
    if named.startswith("/"):
        return Path(named)
    import pwd

    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None


def _runtime_path(environ: Mapping[str, str]) -> Path:
    if moved := _moved(environ):
        return _trusted(moved) / "run"
    named = environ.get("XDG_RUNTIME_DIR", "")
    if named.startswith("/"):
        return Path(named) / _APP
    return _temp_dir(environ) / f"{_APP}-{os.geteuid()}"


def _temp_dir(environ: Mapping[str, str]) -> Path:
    """Name the temp dir; `tempfile` would do, and writes a file to find out."""
    for variable in ("TMPDIR", "TEMP", "TMP"):
        named = environ.get(variable, "")
        if named.startswith("/"):
            return Path(named)
    return Path("/tmp")


def _moved(environ: Mapping[str, str]) -> Path | None:
    """Give the one place of all; a relative one would be another for each directory."""
    named = environ.get("TU_REMOTE_HOME")
    if not named:
        return None
    if not named.startswith("/"):
        raise UsageError(
            f"TU_REMOTE_HOME: {named!r} found, an absolute path wanted",
            next=elsewhere(),
        )
    return Path(named)


def elsewhere() -> str:
    """Give the command that moves all places to where this user may write.

    Below the home where that can be written, else to a new directory of the temp dir.
    """
    home = user_home(os.environ)
    if home is not None and os.access(home, os.W_OK | os.X_OK):
        return 'export TU_REMOTE_HOME="$HOME/.tu-remote"'
    return 'export TU_REMOTE_HOME="$(mktemp -d)"'


def _absolute(named: str) -> Path:
    path = Path(named)
    return path if path.is_absolute() else path.absolute()


def _make_private(path: Path) -> None:
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        try:
            directory.mkdir(_PRIVATE)
        except FileExistsError:
            if not directory.is_dir():
                raise


def _refuse_unsafe(path: Path) -> None:
    try:
        found = path.lstat()
    except OSError:
        return
    kind = _unsafe_kind(found)
    if kind is None:
        return
    me = os.geteuid()
    raise ProviderError(
        f"{path}: {kind} of uid {found.st_uid} with mode "
        f"{stat.S_IMODE(found.st_mode):04o} found, "
        f"a directory of uid {me} with mode 0700 wanted",
        reason="socket_path",
        next=_cure(path, found, me),
    )


def _unsafe_kind(found: os.stat_result) -> str | None:
    """Say what stands in the runtime directory's place; None: nothing wrong."""
    if stat.S_ISLNK(found.st_mode):
        return "a symlink"
    if not stat.S_ISDIR(found.st_mode):
        return "a file"
    open_to_others = stat.S_IMODE(found.st_mode) & _OTHERS
    return "a directory" if found.st_uid != os.geteuid() or open_to_others else None


def _cure(path: Path, found: os.stat_result, me: int) -> str:
    from shlex import quote

    # a sticky directory is everybody's, and what is no file is the machine's
    plain = stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)
    shared = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    if found.st_uid != me or shared or not (plain or stat.S_ISDIR(found.st_mode)):
        return elsewhere()
    if stat.S_ISDIR(found.st_mode):
        return f"chmod 700 {quote(str(path))}"
    return aside(path)


def aside(path: str | Path, ending: str = "bad") -> str:
    """Give the command that moves a path aside, and over nothing that stands there."""
    from shlex import quote

    free, number = f"{path}.{ending}", 1
    while os.path.lexists(free):
        number += 1
        free = f"{path}.{ending}{number}"
    return f"mv {quote(str(path))} {quote(free)}"


def _not_made(path: Path, exc: OSError, *, below_runtime: bool) -> ProviderError:
    import errno
    from shlex import quote

    full = exc.errno in (errno.ENOSPC, errno.EDQUOT)
    reason = "disk_full" if full else "socket_path" if below_runtime else "unreadable"
    return ProviderError(
        f"{exc.filename or path}: {exc.strerror}, a directory that uid "
        f"{os.geteuid()} can write wanted",
        reason=reason,
        next=f"df -h {quote(str(_nearest(path)))}" if full else elsewhere(),
    )


def _nearest(path: Path) -> Path:
    """Name what is there of a path: its file system is the one that is full."""
    around = (path, *path.parents)
    return next((p for p in around if os.access(p, os.F_OK)), Path("/"))


def open_lock(path: Path) -> int:
    """Open a lock file, made where there is none; raises ProviderError as below."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags, 0o600)
    except OSError as exc:
        raise unusable_lock(path, exc) from None


def unwritable(
    path: Path, exc: OSError, what: str = "a file", reason: str = "unreadable"
) -> ProviderError:
    """Give the error for a file that cannot be opened, locked, written or removed.

    `disk_full` where there is no space for it, `reason` otherwise.
    """
    import errno
    from shlex import quote

    full = exc.errno in (errno.ENOSPC, errno.EDQUOT)
    wanted = (
        f"space for {what}" if full else f"{what} that uid {os.geteuid()} can write"
    )
    folder = quote(str(path.parent))
    return ProviderError(
        f"{path}: {exc.strerror}, {wanted} wanted",
        reason="disk_full" if full else reason,
        next=f"df -h {folder}" if full else f"ls -la {folder}",
    )


def unusable_lock(path: Path, exc: OSError) -> ProviderError:
    """Give the same for a lock file: `disk_full`, else `locked`."""
    return unwritable(path, exc, "a lock file", "locked")


def has_report(slug: str, tree: Path) -> bool:
    """Say whether a provider has a report here; a path that cannot be one has none."""
    try:
        return measured_path(slug, tree).is_file()
    except OSError:
        return False


def _named_tree(origin: str, path: Path) -> Path:
    if not _is_dir(path):
        raise UsageError(f"{origin} {path}: no such directory, a tree wanted")
    if not _is_dir(path / "manifests"):
        raise UsageError(f"{origin} {path}: no manifests/ in it, a tree wanted")
    return path.resolve()


def _enclosing_tree(cwd: Path | None) -> Path | None:
    try:
        start = Path.cwd() if cwd is None else cwd.resolve()
    except OSError:
        # the caller stands in a directory that was deleted
        return None
    for directory in (start, *start.parents):
        if _is_dir(directory / "manifests"):
            return directory
    return None


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except PermissionError:
        return False
