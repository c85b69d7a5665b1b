"""The worker in an environment that holds litestar and uvicorn, and nothing of ours."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from small_job_worker import JobWorker, Start, start, terminal

__all__ = ["start"]

OURS = {"remote_resident", "tasks", "doit", "requests", "matplotlib", "pytest"}


def closure(*names: str) -> set[str]:
    """Name the installed distributions that these need."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform or Python
        found.add(name)
        plain = [need for need in needs if "extra ==" not in need]
        waiting += [re.match(r"[\w.-]+", need)[0] for need in plain]  # type: ignore[index]  # a requirement begins with a name
    return found


def link(distribution: str, site: Path) -> None:
    """Link what a distribution installed into another environment."""
    files = importlib.metadata.files(distribution) or []
    for top in {file.parts[0] for file in files if file.parts[0] != ".."}:
        source = Path(
            str(importlib.metadata.distribution(distribution).locate_file(top))
        )
        target = site / top
        if top != "__pycache__" and not target.exists():
            target.symlink_to(source)


def small_venv(place: Path) -> Path:
    """Make an environment of the closure of litestar and uvicorn; its interpreter."""
    venv.create(place, symlinks=True, with_pip=False)
    python = place / "bin/python"
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.check_output([python, "-c", asked], text=True).strip()
    for distribution in closure("litestar", "uvicorn"):
        link(distribution, Path(site))
    return python


def serve_all(worker: JobWorker) -> None:
    """Run a job, look at what the process has loaded, and stop it."""
    assert worker.get("/health")["ok"]
    assert terminal(worker.events("all", "says_everything"))["status"] == "completed"
    events = worker.events("env", "says_environment", names=[])
    assert not OURS & set(events[2]["payload"])
    worker.process.terminate()
    assert worker.wait() == 0


def test_litestar_and_uvicorn_are_all_that_it_needs(
    start: Start, tmp_path: Path
) -> None:
    python = small_venv(tmp_path / "a venv")
    for module in ("remote_resident", "doit", "requests"):
        words = [python, "-c", f"import {module}"]
        asked = subprocess.run(words, cwd=tmp_path, capture_output=True)
        assert asked.returncode == 1, module

    serve_all(start(argv=lambda words: [str(python), *words[1:]]))


def test_an_isolated_interpreter_serves_it_too(start: Start, tmp_path: Path) -> None:
    python = small_venv(tmp_path / "venv")

    serve_all(start(argv=lambda words: [str(python), "-I", *words[1:]]))


@pytest.mark.long
def test_the_oldest_interpreter_serves_it(start: Start, tmp_path: Path) -> None:
    oldest = shutil.which("python3.10")
    if (
        oldest is None
        or subprocess.run([oldest, "-c", ""], capture_output=True).returncode
    ):
        pytest.skip("no python3.10 here")
    python = tmp_path / "venv/bin/python"
    subprocess.run([oldest, "-m", "venv", tmp_path / "venv"], check=True)
    pip = [python, "-m", "pip", "install", "-q", "litestar>=2.13,<3", "uvicorn>=0.30"]
    subprocess.run(pip, check=True, stderr=subprocess.DEVNULL)

    assert sys.version_info >= (3, 11)
    serve_all(start(argv=lambda words: [str(python), *words[1:]]))
