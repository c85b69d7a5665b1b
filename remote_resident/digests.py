"""Hash files, and remember which digest a file had: what it is, never a verdict.

A file is what `(resolved path, size, mtime_ns, ctime_ns, inode)` says; the change time
catches an edit whose modification time was put back. Equal keys can hide different bytes
only within one tick of the filesystem's clock. So no file is read before the tick of its
last change is over, and a file whose modification time is younger than two seconds is not
recorded for other processes.
"""

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from remote_resident import kept_file, places
from remote_resident.errors import Problem, ProviderError
from remote_resident.links import real_directory

if TYPE_CHECKING:
    from collections import deque
    from queue import SimpleQueue
    from threading import Event

Identity = tuple[int, int, int, int]
"""Size in bytes, mtime_ns, ctime_ns, inode: what would change if the file did."""
Member = tuple[str, int | str | None]
"""An archive's member: its name and its bytes, "dir", or None where it has no size."""
Progress = Callable[[int, int], object]

STEP = "weights"
_SETTLED_NS = 2_000_000_000
_TICK_NS = 20_000_000
"""Longer than the clock of any filesystem that keeps fractions of a second."""
_BUFFER_BYTES = 1024 * 1024
_SHOWN = 10
_VERSION = 2
_ENTRY = 5
"""The four numbers of an identity, and the digest."""
_FORMAT, _REGULAR, _LINK = 0o170000, stat.S_IFREG, stat.S_IFLNK
_NOTHING: dict[str, Any] = {}
_OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
"""What was a regular file may be a fifo or a symlink by now: neither is waited for."""
_LEFTOVER_ENDS = tuple(
    ".incomplete .part .partial .tmp .temp .download .crdownload .aria2 .filepart "
    "_.gstmp".split()
)


# named tuples where a dataclass would only cost every start of the command line


class Wanted(NamedTuple):
    """A file as it is declared."""

    name: str
    path: str | Path
    size: int | None = None
    """Bytes; None: not declared."""
    sha256: str | None = None
    """64 hex; None: not pinned, so that to be there is enough."""
    unpacked_dir: str | Path | None = None
    """Where the archive's members must all be; None: it is used as it is."""


class Verification(NamedTuple):
    """What a look at files came to."""

    problems: list[Problem]
    digests: dict[str, str]
    """SHA-256 by name, of every file whose digest is known."""
    from_memo: list[str]
    """Names whose digest was not computed by this call."""
    read_bytes: int
    """Bytes that were hashed by this call."""
    files_opened: int
    """Files that were opened by this call, to be hashed or to list an archive."""


def verify(
    wanted: Sequence[Wanted],
    memo: "DigestMemo",
    *,
    deep: bool = False,
    progress: Progress | None = None,
    threads: int | None = None,
) -> Verification:
    """Hold files against their pins.

    `deep` computes every digest from bytes that this process read, also of files without
    a pin. `progress(done_bytes, total_bytes)` is called from the calling thread; what it
    raises ends the work. `threads`: None: as many as there are cores, which is the most.
    New digests are saved in the memo, however it ends.
    """
    work = verifying(wanted, memo, deep=deep, threads=threads)
    with contextlib.closing(work):
        while True:
            try:
                done, total = next(work)
            except StopIteration as end:
                found: Verification = end.value
                return found
            if progress is not None:
                progress(done, total)


def verifying(
    wanted: Sequence[Wanted],
    memo: "DigestMemo",
    *,
    deep: bool = False,
    threads: int | None = None,
) -> Generator[tuple[int, int], None, Verification]:
    """Do what `verify` does, step by step: yield bytes read and bytes to read."""
    look = _Look(wanted=wanted, memo=memo, deep=deep)
    look.examine()
    try:
        yield from look.read(threads)
    finally:
        memo.save()
    look.compare()
    return look.verification()


def settle(
    wanted: Iterable[Wanted],
    memo: "DigestMemo",
    *,
    sleep: Callable[[float], object] = time.sleep,
) -> list[Problem]:
    """Look again at what this process read, and record what was too young for it.

    Waits until the files are old enough, two seconds at most. Returns a problem for each
    that is not what was read any more. Files that this process did not read are left out.
    """
    seen = [(w, _SEEN.get(os.path.realpath(w.path))) for w in wanted]
    read = [(w, s) for w, s in seen if s is not None]
    ages = [time.time_ns() - s.identity[1] for _, s in read]
    young = [_SETTLED_NS - age for age in ages if 0 <= age < _SETTLED_NS]
    if young:
        sleep((max(young) + 1_000_000) / 1e9)
    problems, again = [], []
    for want, was in read:
        try:
            now = _identity(os.stat(want.path))  # noqa: PTH116
        except OSError as exc:
            problems.append(_unreachable(want, exc))
            continue
        if now == was.identity:
            if was.certain:
                memo.note(os.path.realpath(want.path), now, was.digest)
        elif _same_content(now, was.identity):
            again.append((want, was))
        else:
            problems.append(_changed(want, was.identity, now))
    memo.save()
    return problems + _read_again(again, memo)


def _read_again(
    files: Sequence[tuple[Wanted, "_Seen"]], memo: "DigestMemo"
) -> list[Problem]:
    """Tell a chmod or a new hard link from an edit whose modification time was put back."""
    found = verify([want for want, _ in files], memo, deep=True)
    known = {p.name for p in found.problems}
    edited = []
    for want, was in files:
        now = _SEEN.get(os.path.realpath(want.path))
        if want.name not in known and now is not None and now.digest != was.digest:
            edited.append(_changed(want, was.identity, now.identity))
    return found.problems + edited


class DigestMemo:
    """Digests already computed, in a file that may vanish at any time.

    A damaged file reads as empty; one that cannot be written is not written.
    """

    def __init__(self, path: str | Path) -> None:
        self.file = str(path)
        self.files = _load(self.file)
        """By resolved path: the four numbers of the identity, then the digest."""
        self._new: dict[str, tuple[Any, ...]] = {}

    @property
    def path(self) -> Path:
        """Give the same as a path."""
        return Path(self.file)

    def get(self, name: str | Path, st: os.stat_result) -> str | None:
        """Give the digest of the file that `st` describes; None: unknown."""
        return self.lookup(os.path.realpath(name), _identity(st))

    def put(self, name: str | Path, st: os.stat_result, digest: str) -> None:
        """Keep the digest of a file, unless it is younger than two seconds."""
        self.note(os.path.realpath(name), _identity(st), digest)

    def lookup(self, key: str, identity: Identity) -> str | None:
        """Do what `get` does, for a path that is resolved already."""
        entry = self.files.get(key)
        return entry[4] if entry is not None and entry[:4] == identity else None

    def note(self, key: str, identity: Identity, digest: str) -> None:
        """Do what `put` does, for a path that is resolved already."""
        if time.time_ns() - identity[1] < _SETTLED_NS:
            return
        entry = (*identity, digest)
        if self.files.get(key) != entry:
            self.files[key] = self._new[key] = entry

    def save(self) -> None:
        """Write what is new beside what other processes wrote meanwhile."""
        if not self._new:
            return
        with contextlib.suppress(OSError, ProviderError):
            directory = places.ensure(self.path.parent)
            with _one_writer(directory):
                files = {**_load(self.file), **self._new}
                kept_file.write(self.file, _VERSION, files)
            self._new = {}


class _Seen(NamedTuple):
    """A file as this process read it."""

    identity: Identity
    digest: str
    certain: bool
    """Whether the tick of its last change was over when it was read."""

    def stands_for(self, identity: Identity) -> bool:
        """Say whether this is what would be read of that file."""
        return self.certain and self.identity == identity


_SEEN: dict[str, _Seen] = {}
"""What this process read, by resolved path. No file could hold it: certified is what was
read by whoever certifies, and the steps of one run share nothing but their process."""


class _Read:
    """One file to read, and what came of it."""

    __slots__ = ("changed", "error", "identity", "key", "kind", "seen")

    def __init__(self, key: str, identity: Identity) -> None:
        self.key = key
        self.identity = identity
        self.seen: _Seen | None = None
        self.error: OSError | None = None
        self.kind: str | None = None
        """What stands there now, when it is not a regular file any more."""
        self.changed: tuple[Identity, Identity] | None = None


class _Look:
    """One verification in the making; files are known by their place in `wanted`."""

    def __init__(
        self, *, wanted: Sequence[Wanted], memo: DigestMemo, deep: bool
    ) -> None:
        self.wanted, self.memo, self.deep = wanted, memo, deep
        self.problems: dict[int, list[Problem]] = {}
        self.digests: dict[int, str] = {}
        self.from_memo: list[str] = []
        self.reads: dict[str, _Read] = {}
        """By resolved path: two names of one file are read once."""
        self.keys: dict[int, str] = {}
        self.unequal: list[int] = []
        """Whose digest is not simply the pin."""
        self.declared: set[str] = set()
        self.listings: dict[str, list[str]] = {}
        """Names in the directories of absent files, each listed once."""
        self.read_bytes = 0
        self.files_opened = 0

    def examine(self) -> None:
        """Stat every file once; find its digest, or note that it must be read."""
        # names bound once: with a memo this loop is nearly all that a check does
        recall = (_NOTHING if self.deep else self.memo.files).get
        lstat, seen, digests, unequal = os.lstat, _SEEN, self.digests, self.unequal
        head, prefix = None, ""
        for i, (_, path, size, pin, unpacked_dir) in enumerate(self.wanted):
            path = path if type(path) is str else str(path)
            try:
                st = lstat(path)
                if st.st_mode & _FORMAT == _LINK:
                    key, st = os.path.realpath(path), os.stat(path)  # noqa: PTH116
                else:
                    above, slash, tail = path.rpartition("/")
                    if above != head:
                        head, prefix = above, _resolved(above or slash or ".")
                    key = prefix + tail
            except OSError as exc:
                self.problems[i] = [self._unreachable(self.wanted[i], exc)]
                continue
            found = st.st_size
            if st.st_mode & _FORMAT != _REGULAR or (size != found and size is not None):
                self.problems[i] = [_misfit(self.wanted[i], st)]
                continue
            identity = (found, st.st_mtime_ns, st.st_ctime_ns, st.st_ino)
            entry = recall(key)
            if seen and key in seen and seen[key].stands_for(identity):
                digest = seen[key].digest
            elif entry is not None and entry[:4] == identity:
                digest = entry[4]
            else:
                self._unknown(i, key, identity)
                continue
            digests[i] = digest
            if pin != digest or unpacked_dir is not None:
                unequal.append(i)
        self.from_memo = [self.wanted[i].name for i in digests]

    def _unknown(self, i: int, key: str, identity: Identity) -> None:
        want = self.wanted[i]
        if self.deep or want.sha256 or want.unpacked_dir:
            self.keys[i] = key
            self.reads.setdefault(key, _Read(key, identity))

    def _unreachable(self, want: Wanted, exc: OSError) -> Problem:
        if (
            exc.errno not in (errno.ENOENT, errno.ENOTDIR)
            or Path(want.path).is_symlink()
        ):
            return _unreachable(want, exc)
        if not self.declared:
            self.declared.update(str(w.path) for w in self.wanted)
        return _absent(want, _leftovers(Path(want.path), self.declared, self.listings))

    def read(self, threads: int | None) -> Generator[tuple[int, int], None, None]:
        """Read what must be read, biggest first."""
        if not self.reads:
            return
        reads = sorted(self.reads.values(), key=lambda r: -r.identity[0])
        _let_the_tick_pass(reads)
        crew = _Crew(reads, min(threads or len(reads), _cores(), len(reads)))
        try:
            yield from crew.work()
        finally:
            self.read_bytes, self.files_opened = crew.read_bytes, crew.files_opened
            for read in reads:
                self._keep(read)

    def _keep(self, read: _Read) -> None:
        seen = read.seen
        if seen is not None:
            _SEEN[read.key] = seen
            if seen.certain:
                self.memo.note(read.key, seen.identity, seen.digest)

    def compare(self) -> None:
        """Hold what was read against the pins, and archives against their directory."""
        for i, key in self.keys.items():
            self._take(i, self.reads[key])
        for i in (*self.unequal, *self.keys):
            want, digest = self.wanted[i], self.digests.get(i)
            if digest is None:
                continue
            pin = want.sha256
            if pin is not None and pin != digest and pin.lower() != digest:
                self.problems[i] = [_wrong_digest(want, digest, self._owner(digest))]
            elif want.unpacked_dir is not None:
                self._compare_members(i, want, digest)

    def _owner(self, digest: str) -> str | None:
        """Name the file whose pin a digest is: two that were swapped say so."""
        pins = ((w.name, w.sha256) for w in self.wanted if w.sha256)
        return next((name for name, pin in pins if pin.lower() == digest), None)

    def _take(self, i: int, read: _Read) -> None:
        want = self.wanted[i]
        if read.seen is not None:
            self.digests[i] = read.seen.digest
        elif read.error is not None:
            self.problems[i] = [self._unreachable(want, read.error)]
        elif read.kind is not None:
            self.problems[i] = [_not_a_file(want, read.kind)]
        elif read.changed is not None:
            self.problems[i] = [_changed(want, *read.changed)]

    def _compare_members(self, i: int, want: Wanted, digest: str) -> None:
        kept = self.memo.path.parent / f"members-{digest}"
        members = _load_members(str(kept))
        if members is None:
            self.files_opened += 1
            try:
                members = list_archive(Path(want.path))
            except (OSError, ValueError) as exc:
                self.problems[i] = [_not_an_archive(want, exc)]
                return
            with contextlib.suppress(OSError, ProviderError):
                places.ensure(kept.parent)
                kept_file.write(str(kept), _VERSION, members)
        found = _compare_members(want, members)
        if found:
            self.problems[i] = found

    def verification(self) -> Verification:
        """Give the result, in the order of what is wanted."""
        # what was read comes after what was known
        digests = sorted(self.digests.items()) if self.reads else self.digests.items()
        return Verification(
            problems=[p for i in sorted(self.problems) for p in self.problems[i]],
            digests={self.wanted[i].name: d for i, d in digests},
            from_memo=self.from_memo,
            read_bytes=self.read_bytes,
            files_opened=self.files_opened,
        )


class _Crew:
    """Threads that read files from one list, each into one buffer of its own."""

    def __init__(self, reads: Sequence[_Read], threads: int) -> None:
        from collections import deque
        from queue import SimpleQueue
        from threading import Event, Thread

        self._todo = deque(reads)
        self._total = sum(r.identity[0] for r in reads)
        # a token for each file, None for each thread that is over, or what it raised
        self._told: SimpleQueue[BaseException | bool | None] = SimpleQueue()
        self._stop = Event()
        self._readers = [_Reader() for _ in range(threads)]
        # daemon: a read from a dead server must not keep the program from ending
        self._threads = [
            Thread(target=r.run, args=(self._todo, self._told, self._stop), daemon=True)
            for r in self._readers
        ]

    @property
    def read_bytes(self) -> int:
        return sum(r.read_bytes for r in self._readers)

    @property
    def files_opened(self) -> int:
        return sum(r.files_opened for r in self._readers)

    def work(self) -> Generator[tuple[int, int], None, None]:
        """Yield bytes read and bytes to read until all is read."""
        from queue import Empty

        for thread in self._threads:
            thread.start()
        try:
            alive, said = len(self._threads), time.monotonic()
            while alive:
                with contextlib.suppress(Empty):
                    told = self._told.get(timeout=0.1)
                    if isinstance(told, BaseException):
                        raise told
                    alive -= told is None
                if time.monotonic() - said >= 0.05:
                    yield self.read_bytes, self._total
                    said = time.monotonic()
            yield self.read_bytes, self._total
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(timeout=1)


class _Reader:
    """One thread's work, and the exact count of it."""

    def __init__(self) -> None:
        self.read_bytes = 0
        self.files_opened = 0

    def run(
        self,
        todo: "deque[_Read]",
        told: "SimpleQueue[BaseException | bool | None]",
        stop: "Event",
    ) -> None:
        view = memoryview(bytearray(_BUFFER_BYTES))
        end: BaseException | None = None
        try:
            while todo and not stop.is_set():
                try:
                    read = todo.popleft()
                except IndexError:
                    break
                self._read(read, view, stop)
                told.put(True)
        except BaseException as exc:  # handed to the thread that waits, which raises it
            end = exc
        told.put(end)

    def _read(self, read: _Read, view: memoryview, stop: "Event") -> None:
        # a chmod or a new hard link also moves the change time: read again, not refused
        for _ in range(3):
            read.changed = None
            try:
                self._read_once(read, view, stop)
            except OSError as exc:
                read.error = exc
            if read.changed is None or not _same_content(*read.changed):
                return

    def _read_once(self, read: _Read, view: memoryview, stop: "Event") -> None:
        from hashlib import sha256

        with open(  # noqa: PTH123 - a descriptor that must not wait for a fifo
            os.open(read.key, _OPEN_FLAGS), "rb", buffering=0
        ) as file:
            self.files_opened += 1
            st = os.fstat(file.fileno())
            if not stat.S_ISREG(st.st_mode):
                read.kind = _kind(st.st_mode)
                return
            before, started = _identity(st), time.time_ns()
            if not _same_content(before, read.identity):
                read.changed = (read.identity, before)
                return
            hasher = sha256()
            while count := file.readinto(view):
                hasher.update(view[:count])
                self.read_bytes += count
                if stop.is_set():
                    return
            after = _identity(os.fstat(file.fileno()))
        if after != before:
            read.changed = (before, after)
            return
        certain = started - before[2] >= _grain_ns(before[2])
        read.seen = _Seen(identity=before, digest=hasher.hexdigest(), certain=certain)


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


def _compare_members(want: Wanted, members: Sequence[Member]) -> list[Problem]:
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
            wrong.append(_wrong_member(want, name, path, int(size), st))
    found = [_missing_members(want, missing, len(members))] if missing else []
    return found + wrong[:_SHOWN]


def _resolved(directory: str) -> str:
    return f"{real_directory(directory).rstrip('/')}/"


def _identity(st: os.stat_result) -> Identity:
    return (st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_ino)


def _same_content(one: Identity, other: Identity) -> bool:
    """Say whether only the change time differs, if anything does."""
    return (one[0], one[1], one[3]) == (other[0], other[1], other[3])


def _grain_ns(ctime_ns: int) -> int:
    """Give the longest that two changes can bear one change time."""
    return _TICK_NS if ctime_ns % 1_000_000_000 else _SETTLED_NS


def _let_the_tick_pass(reads: Iterable[_Read]) -> None:
    age = time.time_ns() - max(r.identity[2] for r in reads)
    if age < _TICK_NS:
        time.sleep(min(_TICK_NS, _TICK_NS - age) / 1e9)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _load(path: str) -> dict[str, Any]:
    files = kept_file.load(path, _VERSION)
    if not isinstance(files, dict):
        return {}
    return {k: v for k, v in files.items() if type(v) is tuple and len(v) == _ENTRY}


def _load_members(path: str) -> list[Member] | None:
    members = kept_file.load(path, _VERSION)
    if not isinstance(members, list):
        return None
    try:
        return [(str(name), size) for name, size in members]
    except (TypeError, ValueError):
        return None


@contextlib.contextmanager
def _one_writer(directory: Path) -> Iterator[None]:
    """Let one process at a time merge and write; wait a second for another, no longer."""
    import fcntl

    with (directory / ".lock").open("a") as lock:
        for left in range(40, -1, -1):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not left:
                    raise
                time.sleep(0.025)
            except OSError:
                # a filesystem without locks: at worst an entry is lost and hashed again
                break
        yield


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a fifo",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a character device",
        stat.S_IFBLK: "a block device",
        stat.S_IFLNK: "a symlink",
    }
    return kinds.get(stat.S_IFMT(mode), "no file")


def _leftovers(
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


def _absent(want: Wanted, leftovers: list[tuple[str, int]]) -> Problem:
    size = "a file" if want.size is None else f"{want.size} bytes"
    beside = "".join(f"; {name} has {n} bytes" for name, n in leftovers)
    return _problem(
        want,
        "absent",
        f"absent at {want.path}, {size} wanted{beside}",
        wanted=want.size,
    )


def _unreachable(want: Wanted, exc: OSError) -> Problem:
    path = Path(want.path)
    if path.is_symlink() and exc.errno in (errno.ENOENT, errno.ELOOP):
        return _not_a_file(want, f"a broken symlink to {path.readlink()}")
    if exc.errno in (errno.ENOENT, errno.ENOTDIR):
        return _absent(want, [])
    return _problem(
        want,
        "unreadable",
        f"{exc.strerror}, a readable file wanted",
        found=exc.strerror,
        next=f"chmod u+r {_quoted(want.path)}",
    )


def _not_a_file(want: Wanted, kind: str) -> Problem:
    what = f"{kind}, a regular file wanted"
    return _problem(want, "not_a_file", what, found=kind, next=_aside(want.path))


def _misfit(want: Wanted, st: os.stat_result) -> Problem:
    if not stat.S_ISREG(st.st_mode):
        return _not_a_file(want, _kind(st.st_mode))
    return _wrong_size(want, st.st_size)


def _wrong_size(want: Wanted, found: int) -> Problem:
    return _problem(
        want,
        "size",
        f"{found} bytes, {want.size} wanted",
        wanted=want.size,
        found=found,
        next=_aside(want.path),
    )


def _wrong_digest(want: Wanted, found: str, owner: str | None) -> Problem:
    whose = f" (the pin of {owner})" if owner else ""
    return _problem(
        want,
        "digest",
        f"sha256 {found}{whose}, {want.sha256} wanted",
        wanted=want.sha256,
        found=found,
        next=_aside(want.path),
    )


def _changed(want: Wanted, before: Identity, after: Identity) -> Problem:
    first, then = (
        f"{size} bytes, modified {mtime} ns, changed {ctime} ns, inode {inode}"
        for size, mtime, ctime, inode in (before, after)
    )
    return _problem(
        want,
        "changed_while_read",
        f"changed while it was read: {first}, then {then}; one file throughout wanted",
    )


def _not_an_archive(want: Wanted, exc: Exception) -> Problem:
    return _problem(
        want,
        "not_unpacked",
        f"its members cannot be listed ({exc}), a tar or zip archive wanted",
        next=_aside(want.path),
    )


def _missing_members(want: Wanted, missing: list[str], members: int) -> Problem:
    named = ", ".join(missing[:_SHOWN])
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    return _problem(
        want,
        "not_unpacked",
        f"{want.unpacked_dir}: {members - len(missing)} members of the archive there, "
        f"{members} wanted; missing: {named}{more}",
        wanted=members,
        path=str(want.unpacked_dir),
        next=_unpack_command(want),
    )


def _wrong_member(
    want: Wanted, member: str, path: str, size: int, st: os.stat_result
) -> Problem:
    regular = stat.S_ISREG(st.st_mode)
    found = f"{st.st_size} bytes" if regular else _kind(st.st_mode)
    return _problem(
        want,
        "not_unpacked",
        f"{path}: {found}, {size} bytes as in the archive wanted",
        name=f"{want.name}: {member}",
        path=path,
        wanted=size,
        found=st.st_size if regular else found,
        next=_aside(path),
    )


def _unpack_command(want: Wanted) -> str:
    archive, directory = _quoted(want.path), _quoted(want.unpacked_dir or "")
    if want.name.endswith(".zip"):
        return f"python3 -m zipfile -e {archive} {directory}"
    return f"mkdir -p {directory} && tar -xf {archive} -C {directory}"


def _aside(path: str | Path) -> str:
    return f"mv {_quoted(path)} {_quoted(f'{path}.bad')}"


def _quoted(path: str | Path) -> str:
    from shlex import quote

    return quote(str(path))
