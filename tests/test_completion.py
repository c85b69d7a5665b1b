"""Shell completion: every word of the command line can be asked for before it is typed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fake_steps import plant

from remote_resident.cli import COMMANDS, main
from remote_resident.cli.shells import SCRIPTS

DEADLINE_S = 60


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tree = plant(tmp_path / "a tree", "alpha", "beta")
    monkeypatch.setenv("TU_REMOTE_TREE", str(tree))
    return tree


def offered(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["--complete", "--", *words]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("", "remote"),
        ("remote se", "setup"),
        ("--json remote --quiet se", "setup"),
        ("remote ", " ".join([*COMMANDS, "job", "endpoint"])),
        ("remote job c", "cancel"),
        ("remote setup ", "alpha beta"),
        ("remote setup alpha b", "beta"),
        ("remote job run a", "alpha"),
        ("remote setup alpha --on", "--only"),
        ("remote check --q", "--quiet"),
        ("remote setup --only sm", "smoke"),
    ],
)
def test_each_word_of_a_command_line_can_be_completed(
    tree: Path, capsys: pytest.CaptureFixture[str], words: str, wanted: str
) -> None:
    assert offered(capsys, *words.split(" ")) == wanted.split()


@pytest.mark.parametrize(
    "words",
    [
        ["remote", "setup", "--tree", ""],
        ["remote", "report", "--html", ""],
        ["remote", "endpoint", "run", "x", "--", ""],
        ["remote", "nope", ""],
        ["--tree", "/nowhere/at/all", "remote", "setup", ""],
    ],
)
def test_what_is_not_ours_to_complete_is_left_to_the_shell(
    tree: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert offered(capsys, *words) == []


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_shell_that_read_its_script_completes_what_is_typed(
    tree: Path, capsys: pytest.CaptureFixture[str], shell: str
) -> None:
    assert main(["--completion", shell]) == 0
    script = capsys.readouterr().out
    assert "tu" in script
    if shell != "bash" or shutil.which("bash") is None:
        return
    tu = tree.parent / "tu"
    tu.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m remote_resident "$@"\n')
    tu.chmod(0o755)
    asked = f'COMP_WORDS=("{tu}" remote setup al); COMP_CWORD=3; _tu "{tu}" al setup'
    found = subprocess.run(
        ["bash", "-c", f'{script}\n{asked}\nprintf "%s" "${{COMPREPLY[*]}}"'],
        text=True,
        capture_output=True,
        timeout=DEADLINE_S,
    )
    assert found.stdout == "alpha"
