"""A lock file that cannot be used is a refusal with its path, never a traceback."""

import errno
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from small_provider import provider

from remote_resident import places
from remote_resident.errors import ProviderError, WorkerStartError
from remote_resident.supervisor import ResidentWorker
from tasks.turn import turn

FULL = """
import os, sys
from pathlib import Path
from remote_resident.errors import ProviderError
from tasks.turn import turn
try:
    with turn(Path(sys.argv[1]), "m", print):
        print("held")
except ProviderError as error:
    print(error.reason, error, error.next, sep="|")
"""
IN_TMPFS = 'mount -t tmpfs -o "$1" none "$2" && shift && exec "$2" -c "$3" "$1/m.lock"'
WANTED = f"a lock file that uid {os.geteuid()} can write wanted"


def refusal(path: Path) -> ProviderError:
    with pytest.raises(ProviderError) as caught, turn(path, "m", print):
        pass
    return caught.value


def test_a_name_that_the_file_system_does_not_take_is_refused(tmp_path: Path) -> None:
    path = tmp_path / ("a" * 300)

    error = refusal(path)

    assert (error.reason, str(error), error.next) == (
        "locked",
        f"{path}: File name too long, {WANTED}",
        f"ls -la {shlex.quote(str(tmp_path))}",
    )


def test_a_lock_that_can_be_opened_and_not_written_is_refused() -> None:
    assert refusal(Path("/dev/full")).reason == "locked"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("nr_inodes=1", "disk_full|{0}/m.lock: No space left on device, "),
        ("ro", "locked|{0}/m.lock: Read-only file system, "),
    ],
)
def test_a_full_or_read_only_file_system_is_told_by_its_reason(
    tmp_path: Path, options: str, said: str
) -> None:
    place = tmp_path / "small"
    place.mkdir(mode=0o700)
    argv = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", IN_TMPFS]
    ran = subprocess.run(
        [*argv, "sh", f"{options},mode=700", str(place), sys.executable, FULL],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "mount" in ran.stderr or "unshare" in ran.stderr:
        pytest.skip(f"no file system of one's own here: {ran.stderr.strip()}")

    assert ran.stdout.startswith(said.format(place)), ran


def test_the_reason_follows_what_the_system_said(tmp_path: Path) -> None:
    path = tmp_path / "m.lock"
    reasons = {
        number: places.unusable_lock(path, OSError(number, os.strerror(number))).reason
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
    }

    assert list(reasons.values()) == ["disk_full", "disk_full", "locked", "locked"]


def test_a_start_whose_lock_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    worker = ResidentWorker(provider(tmp_path, "echo"), admit=None)
    path = worker.socket_path.with_name(f"{worker.socket_path.name}.lock")
    places.ensure(path.parent)
    path.mkdir()

    with pytest.raises(WorkerStartError) as caught:
        worker.ensure_started()

    assert (caught.value.reason, str(caught.value)) == (
        "locked",
        f"{path}: Is a directory, {WANTED}",
    )
