"""The command line as it is typed, and a tree whose alpha a worker answers."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_steps import plant

from remote_resident.cli import main

TU = (sys.executable, "-m", "remote_resident")
DEADLINE_S = 60


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return plant(tmp_path / "a tree", "alpha", "beta")


def document(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, object]:
    """Run a command line with --json; stdout must be one document and nothing else."""
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def tu(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*TU, *words], cwd=cwd, text=True, capture_output=True, timeout=DEADLINE_S
    )


ECHO = """
def build(config):
    print("built", flush=True)
    return []

def predict(model, request):
    model.append(request)
    return {"text": request["text"], "nth": len(model)}
"""


@pytest.fixture
def held(tree: Path) -> Iterator[Path]:
    """A tree whose alpha answers, and whose worker ends with the test."""
    (tree / "manifests/alpha/worker.py").write_text(ECHO)
    yield tree
    main(["--tree", str(tree), "remote", "stop", "alpha"])
