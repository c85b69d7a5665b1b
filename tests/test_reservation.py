"""One start at a time decides, on the whole machine, whoever asks."""

import os
import shlex
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from remote_resident.errors import ProviderError
from remote_resident.reservation import reserve

HOLD = """
import os, sys
from pathlib import Path
from remote_resident.reservation import reserve
os.umask(0o077)
os.setuid(int(sys.argv[2]))
with reserve(places=[Path(sys.argv[1])]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory like /run/lock: everybody writes, nobody removes another's."""
    path = tmp_path / "lock"
    path.mkdir()
    path.chmod(0o1777)
    return path


@contextmanager
def held_elsewhere(place: Path, uid: int | None = None) -> "Iterator[int]":
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            HOLD,
            str(place),
            str(os.geteuid() if uid is None else uid),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"held\n"
        yield child.pid
    finally:
        child.communicate()


def is_free(place: Path, device: str | None = None) -> bool:
    try:
        with reserve(device, wait_s=0, places=[place]):
            return True
    except ProviderError:
        return False


def test_who_waits_too_long_is_told_who_holds_it(place: Path) -> None:
    with held_elsewhere(place) as pid, pytest.raises(ProviderError) as caught:  # noqa: SIM117
        with reserve(wait_s=0.05, places=[place]):
            pass

    assert str(caught.value) == (
        f"{place}/tu-remote-host.lock: held by pid {pid} for 0.05 s, "
        "free within that wanted"
    )
    assert (caught.value.reason, caught.value.next) == ("locked", f"ps -fp {pid}")


def test_it_is_free_again_after_the_block_and_after_a_sigkill(place: Path) -> None:
    with reserve(places=[place]):
        assert not is_free(place)
    assert is_free(place)
    with held_elsewhere(place) as pid:
        os.kill(pid, signal.SIGKILL)
        with reserve(wait_s=30, places=[place]):
            pass


def test_a_fork_of_the_holder_does_not_keep_it(place: Path) -> None:
    read, write = os.pipe()
    with reserve(places=[place]):
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
    assert is_free(place)
    os.close(write)
    os.close(read)
    os.waitpid(child, 0)


def test_what_is_started_inside_does_not_inherit_it(place: Path) -> None:
    with reserve(places=[place]):
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False)
        links = [str(fd.readlink()) for fd in Path(f"/proc/{child.pid}/fd").iterdir()]
    child.communicate()

    assert not [link for link in links if "tu-remote" in link]


def test_the_host_is_held_for_a_device_too_but_not_the_other_way(place: Path) -> None:
    with reserve("GPU-1", places=[place]):
        assert not is_free(place)
    assert sorted(path.name for path in place.iterdir()) == [
        "tu-remote-device-GPU-1.lock",
        "tu-remote-host.lock",
    ]


def test_the_name_of_a_device_cannot_leave_the_directory(place: Path) -> None:
    with reserve("../../x", places=[place]):
        pass

    assert sorted(path.name for path in place.iterdir()) == [
        "tu-remote-device-______x.lock",
        "tu-remote-host.lock",
    ]


def test_the_file_is_for_everybody_whatever_the_umask(place: Path) -> None:
    with held_elsewhere(place):
        mode = (place / "tu-remote-host.lock").stat().st_mode

    assert stat.S_IMODE(mode) == 0o666


@pytest.mark.skipif(os.geteuid() != 0, reason="another user takes root to become")
@pytest.mark.parametrize("first", [0, 65534])
def test_two_users_take_turns_at_one_file(first: int) -> None:
    # not below this test's own directory, which is closed to others
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o1777)
        with held_elsewhere(place, first):
            pass
        with held_elsewhere(place, 65534 - first):
            assert not is_free(place)


def test_it_is_never_taken_through_a_symlink(place: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    path = place / "tu-remote-host.lock"
    path.symlink_to(precious)

    with pytest.raises(ProviderError) as caught, reserve(places=[place]):
        pass

    assert str(caught.value) == (
        f"{path}: a symlink found, a lock file of this machine wanted"
    )
    assert caught.value.reason == "locked"
    assert precious.read_text() == "mine"


def test_the_lock_is_looked_at_where_it_lies_in_a_path_with_a_space(
    place: Path, tmp_path: Path
) -> None:
    spaced = tmp_path / "a place"
    spaced.mkdir()
    spaced.chmod(0o1777)
    (spaced / "tu-remote-host.lock").symlink_to(tmp_path / "other")

    with pytest.raises(ProviderError) as caught, reserve(places=[spaced]):
        pass

    assert caught.value.next is not None
    assert shlex.split(caught.value.next)[2:] == [str(spaced / "tu-remote-host.lock")]


def test_a_dangling_symlink_makes_no_file(place: Path, tmp_path: Path) -> None:
    (place / "tu-remote-host.lock").symlink_to(tmp_path / "made")

    with pytest.raises(ProviderError), reserve(places=[place]):
        pass

    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_is_refused_and_does_not_hang(
    place: Path, make: object
) -> None:
    path = place / "tu-remote-host.lock"
    make(path)  # type: ignore[operator]

    with pytest.raises(ProviderError, match="not a regular file found"):  # noqa: SIM117
        with reserve(places=[place]):
            pass


def test_a_place_that_is_not_for_all_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    with reserve(places=[mine, tmp_path / "none"]):
        pass

    assert not list(mine.iterdir())
    assert (tmp_path / "tu-remote-host.lock").exists()


def test_a_lock_that_was_cleaned_away_is_not_held_twice(place: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    def wait_for_it() -> None:
        with reserve(wait_s=30, places=[place]):
            entered.set()
            leave.wait(30)

    with reserve(places=[place]):
        waiter = threading.Thread(target=wait_for_it)
        waiter.start()
        _until_two_have_it_open(place / "tu-remote-host.lock")
        (place / "tu-remote-host.lock").unlink()
    assert entered.wait(30)
    was_free = is_free(place)
    leave.set()
    waiter.join()

    assert not was_free


def _until_two_have_it_open(path: Path) -> None:
    import time

    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        links = []
        for fd in Path("/proc/self/fd").iterdir():
            try:
                links.append(str(fd.readlink()))
            except FileNotFoundError:
                continue
        if links.count(str(path)) >= 2:
            return
    raise AssertionError("the waiter never opened the lock")
