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
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from remote_resident import kept_file, places
from remote_resident import weight_problems as wrong
from remote_resident.digest_memo import SEEN, DigestMemo, Seen
from remote_resident.errors import Problem, ProviderError
from remote_resident.file_identity import (
    SETTLED_NS,
    Identity,
    identity,
    same_content,
)
from remote_resident.links import real_directory
from remote_resident.wanted import Wanted

if TYPE_CHECKING:
    from remote_resident.hashing import Read

__all__ = [
    "DigestMemo",
    "Identity",
    "Progress",
    "Verification",
    "Wanted",
    "settle",
    "verify",
    "verifying",
]

Progress = Callable[[int, int], object]
_FORMAT, _REGULAR, _LINK = 0o170000, 0o100000, 0o120000
_NOTHING: dict[str, Any] = {}


# a named tuple where a dataclass would only cost every start of the command line


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
    seen = [(w, SEEN.get(os.path.realpath(w.path))) for w in wanted]
    read = [(w, s) for w, s in seen if s is not None]
    ages = [time.time_ns() - s.identity[1] for _, s in read]
    young = [SETTLED_NS - age for age in ages if 0 <= age < SETTLED_NS]
    if young:
        sleep((max(young) + 1_000_000) / 1e9)
    problems, again = [], []
    for want, was in read:
        try:
            now = identity(os.stat(want.path))  # noqa: PTH116
        except OSError as exc:
            problems.append(wrong.unreachable(want, exc))
            continue
        if now == was.identity:
            if was.certain:
                memo.note(os.path.realpath(want.path), now, was.digest)
        elif same_content(now, was.identity):
            again.append((want, was))
        else:
            problems.append(wrong.changed(want, was.identity, now))
    memo.save()
    return problems + _read_again(again, memo)


def _read_again(
    files: Sequence[tuple[Wanted, "Seen"]], memo: "DigestMemo"
) -> list[Problem]:
    """Tell a chmod or a new hard link from an edit whose modification time was put back."""
    found = verify([want for want, _ in files], memo, deep=True)
    known = {p.name for p in found.problems}
    edited = []
    for want, was in files:
        now = SEEN.get(os.path.realpath(want.path))
        if want.name not in known and now is not None and now.digest != was.digest:
            edited.append(wrong.changed(want, was.identity, now.identity))
    return found.problems + edited


class _Look:
    """One verification in the making; files are known by their place in `wanted`."""

    def __init__(
        self, *, wanted: Sequence[Wanted], memo: DigestMemo, deep: bool
    ) -> None:
        self.wanted, self.memo, self.deep = wanted, memo, deep
        self.problems: dict[int, list[Problem]] = {}
        self.digests: dict[int, str] = {}
        self.from_memo: list[str] = []
        self.reads: dict[str, Read] = {}
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
        lstat, seen, digests, unequal = os.lstat, SEEN, self.digests, self.unequal
        special = bool(seen)
        head, prefix, form, link = None, "", _FORMAT, _LINK
        for i, (_, path, size, pin, unpacked_dir) in enumerate(self.wanted):
            path = path if type(path) is str else str(path)
            try:
                st = lstat(path)
                if st.st_mode & form == link:
                    key, st = os.path.realpath(path), os.stat(path)  # noqa: PTH116
                else:
                    above, slash, tail = path.rpartition("/")
                    if above != head:
                        head, prefix = above, _resolved(above or slash or ".")
                    key = prefix + tail
            except OSError as exc:
                self.problems[i] = [self._unreachable(self.wanted[i], exc)]
                continue
            found, entry = st.st_size, recall(key)
            if (
                entry == (found, st.st_mtime_ns, st.st_ctime_ns, st.st_ino, pin)
                and not special
                and unpacked_dir is None
                and (size is None or size == found)
            ):
                # as it mostly is; what is not a regular file is never kept
                digests[i] = entry[4]
                continue
            now = (found, st.st_mtime_ns, st.st_ctime_ns, st.st_ino)
            if st.st_mode & _FORMAT != _REGULAR or (size != found and size is not None):
                self.problems[i] = [wrong.misfit(self.wanted[i], st)]
                continue
            if seen and key in seen and seen[key].stands_for(now):
                digest = seen[key].digest
            elif entry is not None and entry[:4] == now:
                digest = entry[4]
            else:
                self._unknown(i, key, now)
                continue
            digests[i] = digest
            if pin != digest or unpacked_dir is not None:
                unequal.append(i)
        self.from_memo = [self.wanted[i].name for i in digests]

    def _unknown(self, i: int, key: str, identity: Identity) -> None:
        from remote_resident.hashing import Read

        want = self.wanted[i]
        if self.deep or want.sha256 or want.unpacked_dir:
            self.keys[i] = key
            self.reads.setdefault(key, Read(key, identity))

    def _unreachable(self, want: Wanted, exc: OSError) -> Problem:
        if (
            exc.errno not in (errno.ENOENT, errno.ENOTDIR)
            or Path(want.path).is_symlink()
        ):
            return wrong.unreachable(want, exc)
        if not self.declared:
            self.declared.update(str(w.path) for w in self.wanted)
        return wrong.absent(
            want, wrong.leftovers(Path(want.path), self.declared, self.listings)
        )

    def read(self, threads: int | None) -> Generator[tuple[int, int], None, None]:
        """Read what must be read, biggest first."""
        if not self.reads:
            return
        from remote_resident.hashing import Crew, cores, let_the_tick_pass

        reads = sorted(self.reads.values(), key=lambda r: -r.identity[0])
        let_the_tick_pass(reads)
        crew = Crew(reads, min(threads or len(reads), cores(), len(reads)))
        try:
            yield from crew.work()
        finally:
            self.read_bytes, self.files_opened = crew.read_bytes, crew.files_opened
            for read in reads:
                self._keep(read)

    def _keep(self, read: "Read") -> None:
        seen = read.seen
        if seen is not None:
            SEEN[read.key] = seen
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
                self.problems[i] = [
                    wrong.wrong_digest(want, digest, self._owner(digest))
                ]
            elif want.unpacked_dir is not None:
                self._compare_members(i, want, digest)

    def _owner(self, digest: str) -> str | None:
        """Name the file whose pin a digest is: two that were swapped say so."""
        pins = ((w.name, w.sha256) for w in self.wanted if w.sha256)
        return next((name for name, pin in pins if pin.lower() == digest), None)

    def _take(self, i: int, read: "Read") -> None:
        want = self.wanted[i]
        if read.seen is not None:
            self.digests[i] = read.seen.digest
        elif read.error is not None:
            self.problems[i] = [self._unreachable(want, read.error)]
        elif read.kind is not None:
            self.problems[i] = [wrong.not_a_file(want, read.kind)]
        elif read.changed is not None:
            self.problems[i] = [wrong.changed(want, *read.changed)]

    def _compare_members(self, i: int, want: Wanted, digest: str) -> None:
        from remote_resident import archives

        kept = self.memo.path.parent / f"members-{digest}"
        members = archives.load_members(str(kept))
        if members is None:
            self.files_opened += 1
            try:
                members = archives.list_archive(Path(want.path))
            except (OSError, ValueError) as exc:
                self.problems[i] = [wrong.not_an_archive(want, exc)]
                return
            with contextlib.suppress(OSError, ProviderError):
                places.ensure(kept.parent)
                kept_file.write(str(kept), archives.VERSION, members)
        found = archives.compare_members(want, members)
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


def _resolved(directory: str) -> str:
    return f"{real_directory(directory).rstrip('/')}/"
