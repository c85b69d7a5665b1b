"""The admission decision among many processes, against a bare loop over their argv.

What is measured is what a start does: read memory, devices and the process table, find the
budgets of who holds, decide. The base is the least that any decision on the process table
costs: each process's argv, read once.

Usage: python bench/bench_admission.py [--processes N] [--holders N] [--rounds N]
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from interleaved import medians, met

from remote_resident import manifest, room

GOAL = 1.5
MANIFEST = """\
slug = "echo"
[runtime]
worker = "w.py"
[host]
ram_budget_gb = 0.1
[env]
python = "$ECHO_PYTHON"
[smoke]
request = { text = "hello" }
"""


def bare_loop() -> int:
    """Read every process's argv and do nothing with it."""
    total = 0
    for name in os.listdir("/proc"):  # noqa: PTH208 - the least that it costs
        if not name.isdigit():
            continue
        try:
            fd = os.open(f"/proc/{name}/cmdline", os.O_RDONLY)
        except OSError:
            continue
        try:
            total += len(os.read(fd, 1 << 16))
        except OSError:
            continue
        finally:
            os.close(fd)
    return total


@contextmanager
def processes(count: int, argv: Sequence[str]) -> Iterator[None]:
    """Keep that many sleeping processes with this argv."""
    children = [
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for child in children:
            child.send_signal(signal.SIGKILL)
        for child in children:
            child.communicate()


def tree(work: Path) -> manifest.ProviderManifest:
    """Make a tree with one provider."""
    folder = work / "manifests" / "echo"
    folder.mkdir(parents=True)
    (folder / "w.py").write_text("")
    (folder / "provider.toml").write_text(MANIFEST)
    return manifest.load(folder / "provider.toml", work)


def main() -> int:
    """Print the medians, the ratio and the goal; 1 where it is not met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=500)
    parser.add_argument("--holders", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=101)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        os.environ["TU_REMOTE_HOME"] = str(work / "home")
        provider = tree(work)
        worker = ["sh", "-c", "read -r over", "--resident-slug", "echo"]
        worker += ["--resident-tree", name, "--resident-instance"]
        with processes(asked.processes - asked.holders, ["sleep", "600"]):
            held = [processes(1, [*worker, f"b-{n}"]) for n in range(asked.holders)]
            for one in held:
                one.__enter__()
            cases = {"base": bare_loop, "ours": lambda: room.room_for(provider)}
            taken = medians(cases, asked.rounds)
            for one in held:
                one.__exit__(None, None, None)
    what = f"admission, {asked.processes} processes / bare loop over argv"
    return not met(what, taken["base"], taken["ours"], GOAL)


if __name__ == "__main__":
    sys.exit(main())
