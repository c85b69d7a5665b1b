"""A held model answers as a fresh process does: a real network, from the command line."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_tree import drive

from remote_resident import manifest
from remote_resident.caller_side.once import run_once
from remote_resident.manifest import ProviderManifest
from tasks import env

pytestmark = pytest.mark.long

TREE = Path(__file__).parents[1]


def load() -> ProviderManifest:
    return manifest.load(TREE / "manifests/proteinmpnn/provider.toml", TREE)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give an interpreter that has what the lock pins: this host's, or one made now."""
    with pytest.MonkeyPatch.context() as patch:
        if load().python_executable() is None:
            patch.setenv("TU_REMOTE_HOME", str(tmp_path_factory.mktemp("mpnn")))
            _, result = drive(env.make(load()))
            assert result.ok, result.detail
        made = load().python_executable()
        assert made is not None
        yield made


def call(request: Path) -> dict[str, Any]:
    words = ["--tree", str(TREE), "call", "proteinmpnn", f"@{request}"]
    said = subprocess.check_output(
        [sys.executable, "-m", "remote_resident", "remote", *words], text=True
    )
    reply: dict[str, Any] = json.loads(said)
    return reply


def test_a_held_network_designs_what_a_fresh_one_designs(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROTEINMPNN_PYTHON", str(python))
    monkeypatch.delenv("PROTEINMPNN_WEIGHTS", raising=False)
    asked = {"op": "design_sequence", "pdb": "1ubi.pdb", "seed": 42, "count": 2}
    request = tmp_path / "request.json"
    request.write_text(json.dumps(asked))
    try:
        held = [call(request), call(request)]
        other = run_once(load(), {**asked, "seed": 43}, admit=None)[0]
        fresh = run_once(load(), asked, admit=None)[0]
    finally:
        stop = ["--tree", str(TREE), "stop", "proteinmpnn"]
        argv = [sys.executable, "-m", "remote_resident", "remote", *stop]
        subprocess.run(argv, check=True, env=dict(os.environ))

    assert held[0]["designs"] == held[1]["designs"] == fresh["designs"]
    assert held[0]["native"] == fresh["native"]
    # the seed does count
    assert other["designs"] != fresh["designs"]
