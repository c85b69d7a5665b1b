"""What a hostile host does to a worker: stray variables, a busy core, a full disk.

Each is a context manager that leaves nothing behind, also where this process is killed
in the middle: what it starts ends with the pipe or the parent that it watches.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from remote_resident import exec_env

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest

READY_S = 20.0
_TRAP = 'raise SystemExit("a module from the caller\'s PYTHONPATH was imported")\n'
_TRAPPED = ("sitecustomize", "usercustomize", "numpy", "torch", "onnxruntime")

_BUSY = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(100_000):
        pass
"""

_FULL = """
import ctypes, os, sys
where, uid, gid = sys.argv[1], os.geteuid(), os.getegid()
libc = ctypes.CDLL(None, use_errno=True)
NEW_MOUNTS, NEW_USER, PRIVATE, RECURSIVE = 0x20000, 0x10000000, 1 << 18, 1 << 14

def done(result):
    if result:
        sys.exit(os.strerror(ctypes.get_errno()))

def say(path, text):
    with open(path, "w") as file:
        file.write(text)

if libc.unshare(NEW_MOUNTS):
    # who is not root has this right in a user namespace of its own
    done(libc.unshare(NEW_MOUNTS | NEW_USER))
    say("/proc/self/setgroups", "deny")
    say("/proc/self/uid_map", f"{uid} {uid} 1")
    say("/proc/self/gid_map", f"{gid} {gid} 1")
done(libc.mount(b"none", b"/", None, PRIVATE | RECURSIVE, None))
options = b"size=4k,mode=0700"
done(libc.mount(b"tmpfs", os.fsencode(where), b"tmpfs", 0, options))
os.mkdir(os.path.join(where, "out"), 0o700)
try:
    with open(os.path.join(where, "full"), "wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
except OSError as exc:
    print("ready", exc.errno, flush=True)
sys.stdin.read()
"""


# -- variables


def strays(provider: "ProviderManifest", trap: Path) -> dict[str, str]:
    """Name variables that a caller's shell may have, each with a value of no use.

    `trap` is a directory that none of a worker's paths may lead to.
    """
    gone = str(trap / "nothing")
    found = {
        "PYTHONPATH": str(trap),
        "PYTHONHOME": gone,
        "PYTHONSTARTUP": gone,
        "PYTHONHASHSEED": "7",
        "PYTHONOPTIMIZE": "2",
        "VIRTUAL_ENV": gone,
        "LD_PRELOAD": f"{gone}.so",
        "LD_LIBRARY_PATH": gone,
        "OMP_NUM_THREADS": "61",
        "MKL_NUM_THREADS": "61",
        "OPENBLAS_NUM_THREADS": "61",
        "CUDA_HOME": gone,
        "CUDA_LAUNCH_BLOCKING": "1",
        "TORCH_HOME": gone,
        "HF_HOME": gone,
        "MODEL_OPT_LEVERS_OFF": "stray",
        # where the caller is in the world, which every program is told
        "TZ": "Pacific/Kiritimati",
        "LANG": "tr_TR.UTF-8",
        "LC_ALL": "C",
    }
    if provider.gpu_policy == "none":
        # with a device it is the operator's pin, which is respected
        found["CUDA_VISIBLE_DEVICES"] = "61"
    if provider.kit_package:
        found[f"{provider.kit_package.upper()}_STRAY"] = "stray"
    for name in provider.kit_env_absent:
        found[f"{name.rstrip('*')}STRAY" if name.endswith("*") else name] = "stray"
    return found


def set_trap(trap: Path) -> None:
    """Put modules into a directory that end whoever imports them."""
    trap.mkdir(exist_ok=True)
    for name in _TRAPPED:
        (trap / f"{name}.py").write_text(_TRAP)


@contextmanager
def strayed(variables: dict[str, str]) -> Iterator[None]:
    """Have these in this process's own environment, as a caller's shell would."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def reached(
    provider: "ProviderManifest", variables: dict[str, str], pids: Sequence[int]
) -> list[str]:
    """Name the variables that a worker has of a caller and that nobody lets through."""
    wanted = {
        f"{name}={value}".encode(): name
        for name, value in variables.items()
        if not exec_env.allowed(name) and name not in provider.env_pass_env
    }
    found = set()
    for pid in pids:
        try:
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        found |= {wanted[entry] for entry in entries if entry in wanted}
    return sorted(found)


# -- a core


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep a core busy."""
    with _running(_BUSY, ()):
        yield


# -- a disk


@contextmanager
def full_disk(
    corner: Path, names: Sequence[str], *, contained: bool = False
) -> Iterator[tuple[Path | None, str]]:
    """Give an output directory on a disk without room, and in words what it is.

    A tmpfs of one page that is full, in a mount namespace of its own, reached through
    the process that holds it: as root, and as an ordinary user where the kernel lets
    users make namespaces. Else, and for what is `contained` and sees no path of the
    host's, links to /dev/full under the `names` that an answer's files are known by.
    None: neither can be had.
    """
    below = corner / "full-disk"
    below.mkdir()
    if not contained:
        with _running(_FULL, (str(below),)) as holder:
            out = _held_mount(holder, below)
            if out is not None:
                yield out, "a full tmpfs"
                return
    links = [name for name in names if "/" not in name]
    for name in links:
        (below / name).symlink_to("/dev/full")
    if links:
        yield below, "links to /dev/full"
    else:
        yield None, "no full disk could be made here"


def _held_mount(holder: "subprocess.Popen[bytes]", below: Path) -> Path | None:
    """Give the full directory as it is reached from here; None: it is not."""
    import select

    assert holder.stdout is not None
    ready, _, _ = select.select([holder.stdout], [], [], READY_S)
    if not ready or not holder.stdout.readline().startswith(b"ready"):
        return None
    out = Path(f"/proc/{holder.pid}/root") / str(below).lstrip("/") / "out"
    return out if os.access(out, os.W_OK) else None


@contextmanager
def _running(code: str, words: Sequence[str]) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()
