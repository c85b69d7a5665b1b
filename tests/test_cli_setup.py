"""tu remote setup: its document, a directory for a slug, and a signal that ends it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import DEADLINE_S, TU, document, tree
from fake_steps import PLAIN_SIGNALS, plant

__all__ = ["tree"]


def test_a_setup_answers_in_its_own_shape_also_when_it_is_refused(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tree / "manifests/alpha/provider.toml"
    manifest.write_text(manifest.read_text().replace(sys.executable, "/no/python"))

    code, told = document(capsys, "--tree", str(tree), "remote", "setup", "alpha")

    assert code == 1
    assert isinstance(told, dict)
    (result,) = told["results"]
    assert (told["ok"], result["ok"], result["measured"]) == (False, False, None)
    (step,) = result["steps"]
    assert set(step) == {"step", "verdict", "reason", "detail", "lines", "seconds"}
    assert (step["step"], step["verdict"], step["reason"]) == (
        "preflight",
        "refused",
        "python_missing",
    )


def test_a_provider_that_cannot_be_read_is_a_failure_with_every_fault(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tree / "manifests/beta/provider.toml"
    manifest.write_text(manifest.read_text() + "spam = 1\neggs = 2\n")

    code, told = document(capsys, "--tree", str(tree), "remote", "setup", "beta")

    assert code == 3
    assert isinstance(told, dict)
    assert (told["ok"], told["reason"]) == (False, "manifest_invalid")
    assert [problem["name"] for problem in told["problems"]] == [
        "smoke.spam",
        "smoke.eggs",
    ]


def test_a_directory_stands_for_a_slug(
    tree: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    outside = plant(tmp_path / "other", "gamma") / "manifests" / "gamma"

    code, told = document(
        capsys, "--tree", str(tree), "remote", "setup", str(outside), "--only", "kit"
    )

    assert code == 0
    assert isinstance(told, dict)
    (result,) = told["results"]
    assert result["slug"] == "gamma"
    assert [(s["step"], s["verdict"]) for s in result["steps"]] == [("kit", "skipped")]


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_a_signal_ends_the_fetch_and_leaves_one_document(
    tree: Path, signum: signal.Signals, code: int
) -> None:
    manifest = tree / "manifests/alpha/provider.toml"
    fetch = "import os, time; print('child', os.getpid(), flush=True); time.sleep(600)"
    manifest.write_text(
        manifest.read_text()
        + f'[weights]\nroot_default = "{tree}/weights"\nfetch = ["-c", "{fetch}"]\n'
        + '[[weights.file]]\nname = "w.bin"\nsize = 4\nunpinned_reason = "a test"\n'
    )
    process = subprocess.Popen(
        [
            *PLAIN_SIGNALS,
            *TU,
            "--json",
            "remote",
            "--tree",
            str(tree),
            "setup",
            "alpha",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    pid = next(
        int(line.rsplit("child ", 1)[1]) for line in process.stderr if "child " in line
    )

    process.send_signal(signum)
    out, err = process.communicate(timeout=DEADLINE_S)

    assert process.returncode == code
    cut = json.loads(out)["results"][0]["steps"][-1]
    assert (cut["step"], cut["reason"]) == ("weights", "interrupted")
    assert cut["detail"] == f"cut by {signum.name}"
    assert "Traceback" not in err
    assert not Path(f"/proc/{pid}").exists()
