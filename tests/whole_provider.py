"""A provider that has all: an environment, a kit, weights that are fetched, a smoke."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from remote_resident import places
from tests import small_kit
from tests.small_tree import lock_text, pin, wheel

WEIGHTS = {"a.bin": b"a" * 2**20, "b.bin": b"b" * 100}
MANIFEST = """\
slug = "m"
description = "Tiny."
operations = ["m"]
[runtime]
worker = "worker.py"
start_timeout_s = 60
[host]
ram_budget_gb = 0.5
[env]
python = "{python}"
lock = "m"
[weights]
root_default = "{weights}"
fetch = ["fetch.py", "{weights}"]
{files}
[kit]
name = "tiny"
subdir = "tiny"
package = "tiny_opt"
mode = "quick"
[smoke]
request = {{ op = "m", text = "hello" }}
timeout_s = 120
deterministic = true
repeat = 2
expect."text" = {{ equals = "hello" }}
"""
WORKER = """\
import os


def build(config):
    import a
    root = config["weights_root"]
    return os.path.getsize(os.path.join(root, "a.bin"))


def predict(model, request):
    return {"text": request["text"], "size": model}
"""
FETCH = """\
import os, sys
root = sys.argv[1]
os.makedirs(root, exist_ok=True)
for name, count in (("a", 2**20), ("b", 100)):
    path = os.path.join(root, name + ".bin")
    with open(path + ".part", "wb") as file:
        for _ in range(4):
            file.write(name.encode() * (count // 4))
            file.flush()
    # as old as it is where it comes from: a young file is waited for
    os.utime(path + ".part", (1.7e9, 1.7e9))
    os.rename(path + ".part", path)
    print("fetched", name, flush=True)
"""
AUTOLOAD = """\
def resolve(mode):
    return {"route": "plain", "attach": [], "row": {}, "absent": []}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """The provider, and all that its setup makes."""

    tree: Path
    venv: Path
    weights: Path
    wheels: Path
    origin: Path
    before: frozenset[str]
    """What the environment's site-packages held before any setup."""

    @property
    def site(self) -> Path:
        (site,) = self.venv.glob("lib/python3*/site-packages")
        return site

    def environ(self) -> dict[str, str]:
        """Give the environment of a setup: pip sees one directory of wheels."""
        return {
            **os.environ,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "COLUMNS": "200",
        }

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start `tu remote ...` in the tree."""
        return subprocess.Popen(
            [sys.executable, "-m", "remote_resident", "remote", *words],
            cwd=self.tree,
            env=self.environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str) -> tuple[int, str]:
        """Run it to its end: its exit code, and all that it said."""
        process = self.start(*words)
        try:
            said, _ = process.communicate(timeout=300)
        finally:
            process.kill()
            process.wait()
        return process.returncode, said

    def undo(self) -> None:
        """Take away all that a setup made."""
        for name in sorted({path.name for path in self.site.iterdir()} - self.before):
            path = self.site / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.rmtree(self.weights, ignore_errors=True)
        shutil.rmtree(places.cache_dir(), ignore_errors=True)
        shutil.rmtree(places.state_dir(), ignore_errors=True)


def whole(root: Path, venv: Path) -> Whole:
    """Plant the provider in a tree of its own, around an environment with pip."""
    (site,) = venv.glob("lib/python3*/site-packages")
    found = Whole(
        tree=root / "a tree",
        venv=venv,
        weights=root / "weights",
        wheels=root / "wheels",
        origin=root / "origin",
        before=frozenset(path.name for path in site.iterdir()),
    )
    home = found.tree / "manifests/m"
    for folder in (home, found.tree / "locks", found.tree / "kits"):
        folder.mkdir(parents=True)
    files = "\n".join(
        f'[[weights.file]]\nname = "{name}"\nsize = {len(data)}\n'
        f'sha256 = "{hashlib.sha256(data).hexdigest()}"'
        for name, data in WEIGHTS.items()
    )
    text = MANIFEST.format(
        python=venv / "bin/python", weights=found.weights, files=files
    )
    (home / "provider.toml").write_text(text)
    (home / "worker.py").write_text(WORKER)
    (home / "fetch.py").write_text(FETCH)
    digest = wheel(found.wheels, "a", "1.0")
    lock(found, pin("a", "1.0", digest))
    commit(found, {})
    return found


def lock(found: Whole, *pins: str) -> None:
    """Write the lock of these pins."""
    (found.tree / "locks/m.lock").write_text(lock_text(*pins))


def commit(found: Whole, files: dict[str, str]) -> str:
    """Commit to the kit's repository and pin that; gives the commit."""
    kit = {
        **small_kit.FILES,
        "tiny/tiny_opt/_autoload.py": AUTOLOAD,
        "tiny/tiny_opt.pth": "import tiny_opt._autoload\n",
        **files,
    }
    made = small_kit.commit(found.origin, kit)
    small_kit.declare(found.tree, "tiny", f"file://{found.origin}", made)
    return made


def verdicts(rows: Sequence[dict[str, object]]) -> dict[str, str]:
    """Give the verdict of each step."""
    return {str(row["step"]): str(row["verdict"]) for row in rows}
