"""`tu remote check` where nothing has changed: many providers, all set up here.

Each provider has five weights, which the memo knows, six distributions in an environment
and a current report. Some 33 system calls are made for each: a stat of every file and
directory, an access of each distribution's last file, what is kept. With 1000 providers
these alone are half of the goal, and the comparisons of each step come to more than the
other half: nothing that was found is remembered, so each is made.

Usage: python bench/bench_check.py [--providers N,N] [--rounds N] [--keep]
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from interleaved import HEAD, medians, met

LONG_AGO = 1_000_000_000
"""Seconds; a modification time that is recorded."""
GOALS = {40: 8.0, 1000: 20.0}
"""Ratio to the bare interpreter, by number of providers."""
WEIGHTS, PINS, HASHES = 5, 6, 8
TU = "from remote_resident.cli import start; start()"
PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"

MANIFEST = """\
slug = "{slug}"
description = "Says what it was asked."
operations = ["{slug}"]
output_keys = ["answer"]

[runtime]
worker = "worker.py"
start_timeout_s = 60

[host]
ram_budget_gb = 0.2

[env]
python = "{python}"
lock = "{slug}"

[env.vars]
OMP_NUM_THREADS = "1"

[weights]
root_default = "{weights}"

{files}
[smoke]
request = {{ op = "{slug}", text = "hello" }}
timeout_s = 60
deterministic = true

[smoke.expect."answer.score"]
min = 0.9
max = 1.0
"""
WORKER = '''\
"""A worker of the usual length."""

import json
import os
import sys
from pathlib import Path


def build(context):
    import torch

    model = torch.load(Path(context.weights_root) / "w0")
    return model.eval()


def predict(model, request):
    rows = []
    for index, text in enumerate(request["text"].split()):
        if not text:
            continue
        rows.append({"index": index, "score": float(model(text)), "text": text})
    return {"answer": {"rows": rows, "score": max(row["score"] for row in rows)}}
'''


def sha(text: str) -> str:
    """Give 64 hex digits that stand for a digest."""
    return hashlib.sha256(text.encode()).hexdigest()


def make(work: Path, count: int) -> Path:
    """Make a tree of `count` providers, set up on this machine; gives it."""
    from remote_resident import manifest
    from tasks import measured

    tree = work / "tree"
    for folder in ("manifests", "locks", "kits"):
        (tree / folder).mkdir(parents=True)
    for number in range(count):
        _declare(tree, work, f"p{number:04}")
    for provider in manifest.catalog(tree).values():
        assert isinstance(provider, manifest.ProviderManifest), provider
        digests = provider.check_weights().digests
        report = measured.Report(
            slug=provider.slug,
            machine={"gpus": []},
            inputs=measured.inputs(provider, digests),
            timing={"spawn_to_ready_s": 1.0},
            memory={"rss_peak_bytes": 2**20},
            answer={},
            certified={"at": "now"},
        )
        measured.write(measured.report_path(provider), report)
    return tree


def _declare(tree: Path, work: Path, slug: str) -> None:
    folder, weights, env = (
        tree / "manifests" / slug,
        work / "w" / slug,
        work / "e" / slug,
    )
    for place in (folder, weights, env / "bin", env / "lib" / PYTHON / "site-packages"):
        place.mkdir(parents=True)
    files = []
    for number in range(WEIGHTS):
        content = f"{slug} {number}"
        path = weights / f"w{number}"
        path.write_text(content)
        os.utime(path, (LONG_AGO, LONG_AGO))
        files.append(
            f'[[weights.file]]\nname = "{path.name}"\nsize = {len(content)}\n'
            f'sha256 = "{sha(content)}"\n'
        )
    python = env / "bin/python"
    python.symlink_to(sys.executable)
    (folder / "provider.toml").write_text(
        MANIFEST.format(
            slug=slug, python=python, weights=weights, files="\n".join(files)
        )
    )
    (folder / "worker.py").write_text(WORKER)
    version = ".".join(map(str, sys.version_info[:3]))
    (env / "pyvenv.cfg").write_text(
        f"version = {version}\ninclude-system-site-packages = false\n"
    )
    _lock(tree, env, slug)


def _lock(tree: Path, env: Path, slug: str) -> None:
    lines = [
        f"# requires-python: >={PYTHON.removeprefix('python')}\n# recipe:\n#   x\n"
    ]
    for number in range(PINS):
        parts = [f"pinned-{number}==1.{number}"]
        parts += [
            f"    --hash=sha256:{sha(f'{slug}{number}{h}')}" for h in range(HASHES)
        ]
        lines.append(" \\\n".join(parts) + "\n")
        site = env / "lib" / PYTHON / "site-packages"
        info = site / f"pinned_{number}-1.{number}.dist-info"
        info.mkdir()
        (info / "INSTALLER").write_text("pip\n")
    (tree / "locks" / f"{slug}.lock").write_text("".join(lines))


def compiled() -> dict[str, str]:
    """Give this environment, in which Python keeps what it compiles.

    pip compiles what it installs; a checkout is compiled where it is first imported.
    """
    env = dict(os.environ)
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env


def measure(ours: Sequence[str], rounds: int) -> dict[str, float]:
    """Give the medians of the bare interpreter and of ours, seconds, interleaved."""
    run = partial(subprocess.run, check=True, stdout=subprocess.DEVNULL, env=compiled())
    # the second look, after the clock's grain, is the one whose readings are kept
    for _ in range(2):
        time.sleep(2.1)
        run(ours)
    base = [sys.executable, "-I", "-S", "-c", "pass"]
    return medians({"base": lambda: run(base), "ours": lambda: run(ours)}, rounds)


def main() -> int:
    """Measure and print; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--providers", default="40,1000")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--keep", action="store_true", help="keep the tree; print it")
    asked = parser.parse_args()
    print(HEAD)
    well = True
    for count in map(int, asked.providers.split(",")):
        work = Path(tempfile.mkdtemp(prefix="bench-check-"))
        os.environ["TU_REMOTE_HOME"] = str(work / "home")
        try:
            tree = make(work, count)
            taken = measure(
                [sys.executable, "-c", TU, "remote", "--tree", str(tree), "check"],
                asked.rounds,
            )
        finally:
            print(work) if asked.keep else shutil.rmtree(work)
        goal = GOALS.get(count, float("inf"))
        what = f"tu remote check, {count} providers / python -I -S"
        well &= met(what, taken["base"], taken["ours"], goal)
    return not well


if __name__ == "__main__":
    sys.exit(main())
