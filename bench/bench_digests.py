"""Digests and the memo: hashing one big file, many small ones, and not hashing them.

Two rows need two free cores: the first line says how much faster two threads hash from
memory than one, in this run. Where that is near 1, two vCPUs share one core's worth, and
no order of the reading can gain anything.

Usage: python bench/bench_digests.py [--big-mib N] [--files N] [--rounds N]
"""

import argparse
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from interleaved import HEAD, medians, met

from remote_resident import digest_memo, hashing
from remote_resident.digests import DigestMemo, Wanted, verify

MIB = 2**20
LONG_AGO = 1_000_000_000
"""Seconds; a modification time that is recorded."""

COMMAND = """
import sys
from pathlib import Path
from remote_resident.digests import DigestMemo, Wanted, verify
lines = Path(sys.argv[1]).read_text().splitlines()
wanted = [Wanted(name=p, path=Path(p), sha256=d) for d, p in (l.split("  ") for l in lines)]
sys.exit(bool(verify(wanted, DigestMemo(Path(sys.argv[2]))).problems))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the performance table."""

    what: str
    base: Callable[[], object]
    ours: Callable[[], object]
    goal: float
    times: int = 1
    """How often ours is done in one measurement; what is short is too noisy once."""


def measured(row: Row, rounds: int) -> bool:
    """Print a row; say whether its goal is met."""

    def base() -> None:
        # what this process has read it would not read again
        digest_memo.SEEN.clear()
        row.base()

    def ours() -> None:
        digest_memo.SEEN.clear()
        for _ in range(row.times):
            row.ours()

    taken = medians({"base": base, "ours": ours}, rounds)
    return met(row.what, taken["base"], taken["ours"] / row.times, row.goal)


def report(rows: Sequence[Row], rounds: int) -> bool:
    """Print a line for each row; say whether all goals are met."""
    print(f"two threads hash from memory {cores():.2f} times as fast as one")
    print(HEAD)
    # every row is measured, also after one above its goal
    return False not in [measured(row, rounds) for row in rows]


def file_of(path: Path, size: int) -> Wanted:
    """Write a file of random bytes, old enough to be recorded."""
    whole, rest = divmod(size, MIB)
    hasher = hashlib.sha256()
    with path.open("wb") as file:
        for count in [MIB] * whole + [rest]:
            block = random.randbytes(count)
            hasher.update(block)
            file.write(block)
    os.utime(path, (LONG_AGO, LONG_AGO))
    return Wanted(name=path.name, path=path, size=size, sha256=hasher.hexdigest())


def from_memory(size: int) -> Callable[[], object]:
    """Hash as many bytes as a file has, from one buffer that stays in the cache."""
    block = random.randbytes(min(size, hashing.BUFFER_BYTES))

    def run() -> str:
        hasher = hashlib.sha256()
        for _ in range(size // len(block)):
            hasher.update(block)
        return hasher.hexdigest()

    return run


def cores() -> float:
    """Give how much faster two threads hash than one: 2 with two free cores."""
    from threading import Thread

    one = from_memory(256 * MIB)
    began = time.perf_counter()
    one()
    alone = time.perf_counter() - began
    both = [Thread(target=one) for _ in range(2)]
    began = time.perf_counter()
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    return 2 * alone / (time.perf_counter() - began)


def rows(work: Path, big_mib: int, files: int) -> list[Row]:
    """Make the files and give the rows that measure them."""
    (work / "many").mkdir()
    big = file_of(work / "big", big_mib * MIB)
    many = [file_of(work / "many" / f"{i:04}", MIB) for i in range(files)]
    sums = work / "sums"
    sums.write_text("".join(f"{w.sha256}  {w.path}\n" for w in many))
    memo_at = work / "memo" / "many.json"
    none = work / "sums" / "none.json"
    verify(many, DigestMemo(memo_at))
    return [
        Row(
            what=f"digest of one warm {big_mib} MiB file / from memory",
            base=from_memory(big_mib * MIB),
            ours=lambda: checked([big], none),
            goal=1.15,
        ),
        Row(
            what=f"{files} x 1 MiB, all cores / one by one",
            base=lambda: checked(many, none, threads=1),
            ours=lambda: checked(many, none),
            goal=0.65,
        ),
        Row(
            what=f"{files} x 1 MiB, whole command / sha256sum -c",
            base=lambda: command("sha256sum", "--quiet", "-c", str(sums)),
            ours=lambda: command(sys.executable, "-c", COMMAND, str(sums), str(none)),
            goal=0.20,
        ),
        Row(
            what=f"memo hit for {files} files / hashing them",
            base=lambda: checked(many, none, threads=1),
            ours=lambda: unread(many, memo_at),
            goal=1 / 200,
            times=10,
        ),
    ]


def checked(
    wanted: Sequence[Wanted], memo_at: Path, threads: int | None = None
) -> None:
    """Verify files that the memo does not know."""
    found = verify(wanted, DigestMemo(memo_at), threads=threads)
    assert not found.problems, found.problems
    assert found.read_bytes == sum(w.size or 0 for w in wanted)


def unread(wanted: Sequence[Wanted], memo_at: Path) -> None:
    """Verify files that the memo knows."""
    found = verify(wanted, DigestMemo(memo_at))
    assert (found.problems, found.read_bytes, found.files_opened) == ([], 0, 0)


def command(*argv: str) -> None:
    """Run a program that must succeed."""
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)


def main() -> int:
    """Measure and print; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--big-mib", type=int, default=1024)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="bench-digests-"))
    try:
        return not report(rows(work, asked.big_mib, asked.files), asked.rounds)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    sys.exit(main())
