"""A small image of Debian's packages for tests that run real containers.

Built once on a machine, under a name that changes with what it is made of; later runs
find it. Without a container program that runs, the tests that ask for it are skipped by
name, or fail where TU_TEST_REQUIRE is set, as `.ci/run` does.
"""

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

import pytest

REPOSITORY = "localhost/tu-test-base"
PYTHON = "/usr/bin/python3"
"""The interpreter in the image, with the whole standard library."""
REQUIRE = "TU_TEST_REQUIRE"
"""Where it is set, a test that misses its program fails instead of being skipped."""

# as root, the archive on standard output; below /var/tmp, for the temp directory may be
# mounted without devices
_RECIPE = """
set -e
root=$(mktemp -d /var/tmp/tu-test-image-XXXXXX)
trap 'rm -rf "$root"' EXIT
debootstrap --variant=minbase --include=python3 bookworm "$root" >&2
# another user inside goes through it too
chmod 755 "$root"
for folder in var/cache/apt var/lib/apt/lists usr/share/doc usr/share/locale; do
    rm -rf "${root:?}/$folder"
    mkdir -p "$root/$folder"
done
tar --create --numeric-owner --directory="$root" .
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image that is in a container program's store."""

    program: str
    """The program, for TU_CONTAINER_CLI."""
    name: str
    """Its repository and tag."""
    by_digest: str
    """Its repository and digest."""


def missing(reason: str) -> NoReturn:
    """Skip a test for want of a program, or fail it where all are required."""
    if os.environ.get(REQUIRE):
        pytest.fail(f"{reason} ({REQUIRE} is set)", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def base_image() -> Image:
    """Give the image, built if this machine has none yet."""
    return image()


@functools.cache
def image() -> Image:
    """Give the image, built if this machine has none yet; skips where it cannot be."""
    found = program()
    if found is None:
        missing("neither podman nor docker runs here")
    tag = hashlib.sha256(_RECIPE.encode()).hexdigest()[:12]
    name = f"{REPOSITORY}:{tag}"
    with _alone():
        if _answer(found, "image", "inspect", name) is None:
            _build(found, name)
    digest = _answer(found, "image", "inspect", "--format", "{{.Digest}}", name)
    by_digest = f"{REPOSITORY}@{digest.strip()}" if digest else name
    return Image(program=found, name=name, by_digest=by_digest)


@functools.cache
def program() -> str | None:
    """Find a container program whose answer shows that it can run one; None: none."""
    chosen = os.environ.get("TU_CONTAINER_CLI")
    for name in [chosen] if chosen else ["podman", "docker"]:
        if shutil.which(name) and _answer(name, "info") is not None:
            return name
    return None


def _build(program: str, name: str) -> None:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    if shutil.which("debootstrap", path=path) is None:
        missing(f"{name} is not there and debootstrap neither, to build it")
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if as_root and _answer(*as_root, "true") is None:
        missing(f"{name} is not there, and building it needs root")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        archive = Path(place, "root.tar")
        with archive.open("wb") as out:
            _run([*as_root, "sh", "-c", _RECIPE], out)
        _run([program, "import", str(archive), name], subprocess.DEVNULL)


@contextmanager
def _alone() -> Iterator[None]:
    """Keep two runs on one machine from building at once."""
    path = Path(tempfile.gettempdir(), f"tu-test-image-{os.geteuid()}.lock")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _answer(*argv: str) -> str | None:
    ended = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    return ended.stdout if ended.returncode == 0 else None


def _run(argv: list[str], out: IO[bytes] | int) -> None:
    ended = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.PIPE,
        check=False,
    )
    if ended.returncode:
        last = b"\n".join(ended.stderr.splitlines()[-20:]).decode(errors="replace")
        pytest.fail(f"{argv[0]}: exit status {ended.returncode}\n{last}")
