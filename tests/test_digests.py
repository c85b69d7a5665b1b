"""Files are at their pins, or named as what they are, with nothing read twice."""

import hashlib
import io
import marshal
import os
import stat
import subprocess
import tarfile
import threading
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from remote_resident import digest_memo, digests, hashing, weight_problems
from remote_resident.digests import DigestMemo, Wanted, settle, verify
from remote_resident.file_identity import identity

LONG_AGO = 1_000_000_000
"""A modification time, seconds; older than any two seconds."""


def write(path: Path, data: bytes, mtime: float = LONG_AGO) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (mtime, mtime))
    return path


def pinned(path: Path, data: bytes, name: str = "") -> Wanted:
    return Wanted(
        name=name or path.name,
        path=path,
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def many(directory: Path, count: int) -> list[Wanted]:
    contents = {f"w{i:03}.bin": b"%d" % i * 50 for i in range(count)}
    return [pinned(write(directory / n, d), d) for n, d in contents.items()]


@pytest.fixture
def memo_at(tmp_path: Path) -> Path:
    return tmp_path / "memo" / "capiti"


@pytest.fixture(autouse=True)
def another_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Forget what this process read, as a new one has; called once before each test."""

    def forget() -> None:
        monkeypatch.setattr(digests, "SEEN", {})

    forget()
    return forget


def test_200_files_are_checked_twice_and_only_a_touched_one_is_read(
    tmp_path: Path, memo_at: Path, another_process: Callable[[], None]
) -> None:
    wanted = many(tmp_path / "w", 200)
    first = verify(wanted, DigestMemo(memo_at))
    another_process()
    second = verify(wanted, DigestMemo(memo_at))
    another_process()
    os.utime(wanted[7].path, (LONG_AGO + 1, LONG_AGO + 1))
    third = verify(wanted, DigestMemo(memo_at))

    assert [first.problems, second.problems, third.problems] == [[], [], []]
    assert (first.files_opened, first.from_memo) == (200, [])
    assert (second.files_opened, second.read_bytes) == (0, 0)
    assert second.digests == first.digests
    assert (third.files_opened, third.read_bytes) == (1, wanted[7].size)
    assert wanted[7].name not in third.from_memo


def test_a_short_file_is_named_and_left_in_place_unread(
    tmp_path: Path, memo_at: Path
) -> None:
    path = write(tmp_path / "capiti" / "x y.onnx", b"a" * 11000)
    want = Wanted(name="capiti/x y.onnx", path=path, size=936516, sha256="0" * 64)

    found = verify([want], DigestMemo(memo_at))

    (problem,) = found.problems
    assert problem.text == "weights: capiti/x y.onnx: 11000 bytes, 936516 wanted"
    assert (problem.reason, problem.wanted, problem.found) == ("size", 936516, 11000)
    assert problem.next == f"mv '{path}' '{path}.bad'"
    assert (found.files_opened, found.read_bytes) == (0, 0)
    assert path.read_bytes() == b"a" * 11000


def test_a_wrong_file_is_moved_over_no_earlier_evidence(
    tmp_path: Path, memo_at: Path
) -> None:
    path = write(tmp_path / "x y.onnx", b"b" * 11)
    want = Wanted(name="x y.onnx", path=path, size=936516, sha256="0" * 64)
    write(tmp_path / "x y.onnx.bad", b"a" * 11)

    (problem,) = verify([want], DigestMemo(memo_at)).problems
    assert problem.next is not None
    subprocess.run(problem.next, shell=True, check=True)

    there = sorted(tmp_path.glob("x y.onnx*"))
    assert [file.read_bytes() for file in there] == [b"a" * 11, b"b" * 11]


def test_a_file_that_should_be_empty_and_is_not_has_a_wrong_size(
    tmp_path: Path, memo_at: Path
) -> None:
    want = Wanted(name="a", path=write(tmp_path / "a", b"1"), size=0)

    (problem,) = verify([want], DigestMemo(memo_at)).problems

    assert problem.text == "weights: a: 1 bytes, 0 wanted"


def test_two_swapped_files_of_one_size_are_both_named_with_both_digests(
    tmp_path: Path, memo_at: Path
) -> None:
    a = pinned(write(tmp_path / "a", b"22"), b"11")
    b = pinned(write(tmp_path / "b", b"11"), b"22")

    found = verify([a, b], DigestMemo(memo_at))

    one = hashlib.sha256(b"11").hexdigest()
    two = hashlib.sha256(b"22").hexdigest()
    assert [p.text for p in found.problems] == [
        f"weights: a: sha256 {two} (the pin of b), {one} wanted",
        f"weights: b: sha256 {one} (the pin of a), {two} wanted",
    ]
    assert {p.reason for p in found.problems} == {"digest"}
    assert [(p.wanted, p.found) for p in found.problems] == [(one, two), (two, one)]


def test_the_memo_holds_digests_never_verdicts(tmp_path: Path, memo_at: Path) -> None:
    path = write(tmp_path / "a", b"11")
    verify([pinned(path, b"11")], DigestMemo(memo_at))

    found = verify([pinned(path, b"22")], DigestMemo(memo_at))

    assert [p.reason for p in found.problems] == ["digest"]
    assert found.from_memo == ["a"]


def test_an_edit_with_size_and_modification_time_put_back_is_found(
    tmp_path: Path, memo_at: Path
) -> None:
    for i in range(20):
        want = pinned(write(tmp_path / f"{i}", b"right"), b"right")
        assert verify([want], DigestMemo(memo_at)).problems == []
        write(want.path, b"wrong")

        found = verify([want], DigestMemo(memo_at))

        assert [p.reason for p in found.problems] == ["digest"]


def test_several_faults_are_all_named_in_one_pass_in_declared_order(
    tmp_path: Path, memo_at: Path
) -> None:
    (tmp_path / "dir").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    write(tmp_path / "short", b"1")
    write(tmp_path / "flipped", b"1")
    names = "gone dir fifo link loop short flipped".split()
    wanted = [pinned(tmp_path / n, b"22") for n in names[:-1]]
    wanted.append(pinned(tmp_path / "flipped", b"2"))

    found = verify(wanted, DigestMemo(memo_at), deep=True)

    assert [(p.name, p.reason) for p in found.problems] == [
        ("gone", "absent"),
        ("dir", "not_a_file"),
        ("fifo", "not_a_file"),
        ("link", "not_a_file"),
        ("loop", "not_a_file"),
        ("short", "size"),
        ("flipped", "digest"),
    ]
    assert [p.text for p in found.problems[:5]] == [
        f"weights: gone: absent at {tmp_path}/gone, 2 bytes wanted",
        "weights: dir: a directory, a regular file wanted",
        "weights: fifo: a fifo, a regular file wanted",
        "weights: link: a broken symlink to nowhere, a regular file wanted",
        "weights: loop: a broken symlink to loop, a regular file wanted",
    ]
    assert found.files_opened == 1


def test_what_a_cut_fetch_left_beside_is_mentioned(
    tmp_path: Path, memo_at: Path
) -> None:
    write(tmp_path / "x.onnx.incomplete", b"123")
    write(tmp_path / ".x.onnx.Ab12Cd", b"1")
    write(tmp_path / "x.onnx.data", b"declared")
    wanted = [
        Wanted(name="x.onnx", path=tmp_path / "x.onnx"),
        Wanted(name="x.onnx.data", path=tmp_path / "x.onnx.data"),
    ]

    (problem,) = verify(wanted, DigestMemo(memo_at)).problems

    assert problem.text == (
        f"weights: x.onnx: absent at {tmp_path}/x.onnx, a file wanted; "
        ".x.onnx.Ab12Cd has 1 bytes; x.onnx.incomplete has 3 bytes"
    )


def test_a_symlink_to_a_file_is_followed_and_read_once_for_two_names(
    tmp_path: Path, memo_at: Path
) -> None:
    real = write(tmp_path / "real", b"11")
    (tmp_path / "link").symlink_to("real")
    wanted = [pinned(real, b"11"), pinned(tmp_path / "link", b"11")]

    found = verify(wanted, DigestMemo(memo_at))

    assert found.problems == []
    assert sorted(found.digests) == ["link", "real"]
    assert found.files_opened == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads whatever the mode says")
def test_an_unreadable_file_is_named(tmp_path: Path, memo_at: Path) -> None:
    path = write(tmp_path / "a", b"11")
    path.chmod(0)

    (problem,) = verify([pinned(path, b"11")], DigestMemo(memo_at)).problems

    assert problem.reason == "unreadable"
    assert problem.text == "weights: a: Permission denied, a readable file wanted"
    assert problem.next == f"chmod u+r {path}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop to another uid")
def test_an_unreadable_file_is_named_to_an_ordinary_user(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"11")
    path.chmod(0)
    memo = DigestMemo(tmp_path / "memo.json")
    held = os.open(path, os.O_PATH)
    want = Wanted(name="a", path=Path(f"/proc/self/fd/{held}"))
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgid(54321)
            os.setuid(54321)
            (problem,) = verify([want], memo, deep=True).problems
            os.write(write_end, problem.text.encode())
        finally:
            os._exit(0)
    os.close(write_end)
    os.close(held)

    with os.fdopen(read_end) as said:
        assert said.read() == ("weights: a: Permission denied, a readable file wanted")
    os.waitpid(child, 0)


def test_an_unpinned_file_is_hashed_only_when_read_in_full(
    tmp_path: Path, memo_at: Path
) -> None:
    want = Wanted(name="a", path=write(tmp_path / "a", b"11"))

    shallow = verify([want], DigestMemo(memo_at))
    deep = verify([want], DigestMemo(memo_at), deep=True)

    assert (shallow.problems, shallow.digests) == ([], {})
    assert deep.digests == {"a": hashlib.sha256(b"11").hexdigest()}


def test_deep_believes_no_memo_and_reads_nothing_twice_in_one_process(
    tmp_path: Path, memo_at: Path, another_process: Callable[[], None]
) -> None:
    wanted = many(tmp_path / "w", 3)
    memo = DigestMemo(memo_at)
    for want in wanted:
        memo.put(want.path, want.path.stat(), "f" * 64)

    first = verify(wanted, memo, deep=True)
    second = verify(wanted, memo, deep=True)
    another_process()
    third = verify(wanted, DigestMemo(memo_at), deep=True)

    assert (first.problems, first.files_opened, first.from_memo) == ([], 3, [])
    assert (second.files_opened, second.digests) == (0, first.digests)
    assert third.files_opened == 3


def test_a_young_file_is_not_recorded_until_it_is_settled(
    tmp_path: Path, memo_at: Path, another_process: Callable[[], None]
) -> None:
    want = pinned(write(tmp_path / "a", b"11", time.time()), b"11")
    verify([want], DigestMemo(memo_at))
    assert not memo_at.exists()
    slept = []

    def grow_old(seconds: float) -> None:
        slept.append(seconds)
        time.sleep(seconds)

    assert settle([want], DigestMemo(memo_at), sleep=grow_old) == []
    another_process()
    found = verify([want], DigestMemo(memo_at))

    assert 0 < slept[0] <= 2.01
    assert (found.files_opened, found.problems) == (0, [])


def test_settling_names_a_file_that_is_not_what_was_read(
    tmp_path: Path, memo_at: Path
) -> None:
    wanted = many(tmp_path / "w", 4)
    verify(wanted, DigestMemo(memo_at))
    wanted[0].path.chmod(0o600)
    write(wanted[1].path, b"x" * 50)
    write(wanted[2].path, b"longer" * 50)
    wanted[3].path.unlink()

    found = settle(wanted, DigestMemo(memo_at))

    assert {(p.name, p.reason) for p in found} == {
        ("w001.bin", "digest"),
        ("w002.bin", "changed_while_read"),
        ("w003.bin", "absent"),
    }


class Meddler:
    """Stands where a reader asks between two chunks whether to stop, and meddles."""

    def __init__(self, meddle: Callable[[], object], times: int) -> None:
        self.meddle, self.left = meddle, times

    def is_set(self) -> bool:
        if self.left:
            self.left -= 1
            self.meddle()
        return False


def read_while(path: Path, meddle: Callable[[], object], times: int) -> hashing.Read:
    read = hashing.Read(str(path), identity(path.stat()))
    reader = hashing._Reader()
    reader._read(read, memoryview(bytearray(4)), Meddler(meddle, times))  # type: ignore[arg-type]
    return read


def test_a_file_that_changes_while_it_is_read_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"0123456789")

    read = read_while(path, lambda: path.write_bytes(b"01234567"), 1)

    assert read.seen is None
    assert read.changed is not None
    problem = weight_problems.changed(pinned(path, b"0123456789"), *read.changed)
    assert problem.reason == "changed_while_read"
    assert problem.text.startswith(
        "weights: a: changed while it was read: "
        f"10 bytes, modified {LONG_AGO}000000000 ns, changed "
    )
    assert problem.text.endswith("; one file throughout wanted")


def test_a_chmod_while_a_file_is_read_costs_a_second_reading_not_a_refusal(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "a", b"0123456789")

    read = read_while(path, lambda: path.chmod(0o600), 1)

    assert read.seen is not None
    assert read.seen.digest == hashlib.sha256(b"0123456789").hexdigest()


def test_a_file_that_became_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"0123456789")
    read = hashing.Read(str(path), identity(path.stat()))
    path.unlink()
    os.mkfifo(path)

    hashing._Reader()._read(read, memoryview(bytearray(4)), threading.Event())

    assert read.kind == "a fifo"


def memo_file(version: object, files: object) -> bytes:
    body = marshal.dumps((version, files))
    return zlib.crc32(body).to_bytes(4, "big") + body


WHOLE = memo_file(digest_memo.VERSION, {})
DAMAGED = {
    "empty": b"",
    "cut": WHOLE[:-1],
    "flipped": bytes([*WHOLE[:-1], WHOLE[-1] ^ 1]),
    "binary": b"\xff\xfe\x00",
    "text": b'{"version":1,"files":{}}',
    "zeros": bytes(4096),
    "version": memo_file(99, {}),
    "files": memo_file(digest_memo.VERSION, []),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_memo_reads_as_empty_and_is_written_anew(
    tmp_path: Path, memo_at: Path, damage: bytes, another_process: Callable[[], None]
) -> None:
    wanted = many(tmp_path / "w", 2)
    write(memo_at, damage)

    first = verify(wanted, DigestMemo(memo_at))
    another_process()
    second = verify(wanted, DigestMemo(memo_at))

    assert (first.problems, first.files_opened) == ([], 2)
    assert second.files_opened == 0


@pytest.mark.parametrize("entry", [None, 7, (), (1, 2), "text", [1] * 5, (1,) * 5])
def test_a_damaged_entry_is_an_unknown_digest(
    tmp_path: Path, memo_at: Path, entry: object
) -> None:
    want = many(tmp_path / "w", 1)[0]
    files = {str(want.path): entry}
    write(memo_at, memo_file(digest_memo.VERSION, files))

    found = verify([want], DigestMemo(memo_at))

    assert (found.problems, found.files_opened) == ([], 1)


def test_two_processes_that_save_at_once_keep_what_both_wrote(
    tmp_path: Path, memo_at: Path
) -> None:
    one, two = many(tmp_path / "w", 2)
    first, second = DigestMemo(memo_at), DigestMemo(memo_at)
    first.put(one.path, one.path.stat(), "1" * 64)
    second.put(two.path, two.path.stat(), "2" * 64)
    first.save()
    second.save()

    memo = DigestMemo(memo_at)

    assert memo.get(one.path, one.path.stat()) == "1" * 64
    assert memo.get(two.path, two.path.stat()) == "2" * 64
    assert stat.S_IMODE(memo_at.parent.stat().st_mode) == 0o700


def test_many_savers_in_a_race_lose_no_entry(tmp_path: Path, memo_at: Path) -> None:
    wanted = many(tmp_path / "w", 8)
    start = threading.Barrier(len(wanted))

    def save(want: Wanted) -> None:
        memo = DigestMemo(memo_at)
        memo.put(want.path, want.path.stat(), "a" * 64)
        start.wait(10)
        memo.save()

    threads = [threading.Thread(target=save, args=(w,)) for w in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    memo = DigestMemo(memo_at)
    assert [memo.get(w.path, w.path.stat()) for w in wanted] == ["a" * 64] * 8


def test_a_memo_that_cannot_be_written_is_silently_not_kept(
    tmp_path: Path, another_process: Callable[[], None]
) -> None:
    wanted = many(tmp_path / "w", 2)
    memo_at = write(tmp_path / "file", b"") / "memo.json"

    first = verify(wanted, DigestMemo(memo_at))
    another_process()
    second = verify(wanted, DigestMemo(memo_at))

    assert first.problems == second.problems == []
    assert second.files_opened == 2


def test_files_are_read_biggest_first_by_no_more_threads_than_cores(
    tmp_path: Path, memo_at: Path
) -> None:
    sizes = [10, 3000, 200, 40000]
    data = {n: b"x" * n for n in sizes}
    wanted = [pinned(write(tmp_path / str(n), data[n]), data[n]) for n in sizes]
    look = digests._Look(wanted=wanted, memo=DigestMemo(memo_at), deep=False)
    look.examine()

    for _ in look.read(1):
        pass

    assert [Path(key).name for key in digests.SEEN] == ["40000", "3000", "200", "10"]
    assert hashing.cores() == len(os.sched_getaffinity(0))


def test_progress_ends_at_all_bytes_and_comes_from_the_callers_thread(
    tmp_path: Path, memo_at: Path
) -> None:
    wanted = many(tmp_path / "w", 9)
    said = []

    verify(
        wanted,
        DigestMemo(memo_at),
        progress=lambda done, total: said.append((done, total, threading.get_ident())),
    )

    total = sum(w.size or 0 for w in wanted)
    assert said[-1] == (total, total, threading.get_ident())


def test_a_verification_that_is_cut_keeps_what_it_has_read(
    tmp_path: Path, memo_at: Path, another_process: Callable[[], None]
) -> None:
    wanted = many(tmp_path / "w", 5)

    def cut(done: int, total: int) -> None:
        raise KeyboardInterrupt

    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        verify(wanted, DigestMemo(memo_at), progress=cut)
    assert before.issuperset(threading.enumerate())
    another_process()
    found = verify(wanted, DigestMemo(memo_at))

    assert found.files_opened < 5


def archive_of(directory: Path, kind: str) -> Path:
    path = directory.with_name(f"{directory.name}.{kind}")
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for member in sorted(directory.rglob("*")):
                archive.write(member, member.relative_to(directory))
    else:
        with tarfile.open(path, f"w:{kind.partition('.')[2]}") as tar:
            tar.add(directory, ".")
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def unpacked(tmp_path: Path, kind: str) -> Wanted:
    base = tmp_path / "mols"
    write(base / "a" / "ALA.pkl", b"alanine")
    write(base / "GLY.pkl", b"gly")
    if kind != "zip":
        (base / "latest").symlink_to("GLY.pkl")
        (base / "hard").hardlink_to(base / "GLY.pkl")
    path = archive_of(base, kind)
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    return Wanted(name=path.name, path=path, sha256=digest, unpacked_dir=base)


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tar.xz", "zip"])
def test_an_archive_is_listed_once_and_held_against_its_directory_each_time(
    tmp_path: Path, memo_at: Path, kind: str, another_process: Callable[[], None]
) -> None:
    want = unpacked(tmp_path, kind)
    first = verify([want], DigestMemo(memo_at))
    another_process()
    second = verify([want], DigestMemo(memo_at))
    write(tmp_path / "mols" / "GLY.pkl", b"g")
    (tmp_path / "mols" / "a" / "ALA.pkl").unlink()
    third = verify([want], DigestMemo(memo_at))

    assert (first.problems, first.files_opened) == ([], 2)
    assert (second.problems, second.files_opened) == ([], 0)
    assert {p.reason for p in third.problems} == {"not_unpacked"}
    missing, *wrong = third.problems
    assert "missing: " in missing.text
    assert "a/ALA.pkl" in missing.text
    assert "GLY.pkl: 1 bytes, 3 bytes as in the archive wanted" in wrong[0].text
    assert third.files_opened == 0


def test_the_missing_members_are_counted_and_the_first_ten_named(
    tmp_path: Path, memo_at: Path
) -> None:
    base = tmp_path / "mols"
    for i in range(15):
        write(base / f"{i:02}", b"1")
    path = archive_of(base, "zip")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for i in range(12):
        (base / f"{i:02}").unlink()
    want = Wanted(name="mols.zip", path=path, sha256=digest, unpacked_dir=base)

    (problem,) = verify([want], DigestMemo(memo_at)).problems

    assert problem.text == (
        f"weights: mols.zip: {base}: 3 members of the archive there, 15 wanted; "
        "missing: 00, 01, 02, 03, 04, 05, 06, 07, 08, 09 and 2 more"
    )
    assert problem.next == f"python3 -m zipfile -e {path} {base}"


def test_an_archive_that_is_none_is_named(tmp_path: Path, memo_at: Path) -> None:
    path = write(tmp_path / "x.tar", b"not a tar")
    want = Wanted(name="x.tar", path=path, unpacked_dir=tmp_path)

    (problem,) = verify([want], DigestMemo(memo_at)).problems

    assert problem.reason == "not_unpacked"
    assert problem.text.startswith("weights: x.tar: its members cannot be listed (")
    assert problem.text.endswith("), a tar or zip archive wanted")
    assert "\n" not in problem.text


def test_a_member_that_leaves_the_directory_is_never_looked_at(
    tmp_path: Path, memo_at: Path
) -> None:
    path = tmp_path / "x.tar"
    write(tmp_path / "outside", b"1")
    (tmp_path / "in").mkdir()
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo("../outside")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"1"))
    want = Wanted(name="x.tar", path=path, unpacked_dir=tmp_path / "in")

    (problem,) = verify([want], DigestMemo(memo_at)).problems

    assert problem.text.endswith("missing: ../outside")
