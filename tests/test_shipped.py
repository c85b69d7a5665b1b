"""The providers that ship, each set up for real: its lock's stack, its right answer."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TREE = Path(__file__).parents[1]
TU = (sys.executable, "-m", "remote_resident", "--tree", str(TREE), "--json", "remote")
ON_A_CPU = ["proteinmpnn", "ligandmpnn", "minilm", "spliceai", "proteinmpnn_batch"]


@pytest.mark.long
@pytest.mark.parametrize("slug", ON_A_CPU)
def test_a_shipped_provider_gives_its_right_answer_from_its_lock_alone(
    slug: str, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    environ = {**os.environ, "TU_REMOTE_HOME": str(home)}

    def asked(*words: str) -> Any:
        ran = subprocess.run(
            [*TU, *words], env=environ, capture_output=True, text=True, cwd="/"
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return json.loads(ran.stdout)

    asked("env", slug)
    (result,) = asked("setup", slug)["results"]
    verdicts = {step["step"]: step["verdict"] for step in result["steps"]}
    (again,) = asked("setup", slug)["results"]

    assert verdicts["smoke"] == "done"
    assert Path(result["measured"]).is_file()
    assert {step["verdict"] for step in again["steps"]} <= {"present", "skipped"}
