"""Standard output and error of every command: one document, closed, full, or left."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import DEADLINE_S, TU, document, tree

from remote_resident.cli import main
from remote_resident.cli.tree import columns

__all__ = ["tree"]


def test_our_own_error_ends_with_2_its_traceback_and_what_to_report(
    tree: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(tree: Path) -> list[str]:
        raise LookupError("torn")

    monkeypatch.setattr("remote_resident.manifest_path.slugs", broken)

    code = main(["remote", "list", "--json", "--tree", str(tree)])

    told = capsys.readouterr()
    assert code == 2
    assert json.loads(told.out) == {
        "ok": False,
        "reason": "internal",
        "error": "LookupError: torn",
        "problems": [],
        "next": None,
    }
    assert "Traceback (most recent call last):" in told.err
    assert "Report the lines above with:" in told.err


def test_a_reader_that_leaves_is_no_error(tree: Path) -> None:
    read, write = os.pipe()
    os.close(read)

    ran = subprocess.run(
        [*TU, "remote", "list"],
        cwd=tree,
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=DEADLINE_S,
    )
    os.close(write)

    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_printing_library_does_not_spoil_the_document(
    tree: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def prints(tree: Path) -> list[str]:
        print("noise")
        return []

    monkeypatch.setattr("remote_resident.manifest_path.slugs", prints)

    assert document(capsys, "--tree", str(tree), "remote", "list") == (
        0,
        {"providers": []},
    )


def test_names_that_no_terminal_can_show_are_escaped(tree: Path) -> None:
    ran = subprocess.run(
        [*TU, "remote", "setup", "gr\u00fc\u00df"],
        cwd=tree,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=DEADLINE_S,
    )

    assert ran.returncode == 3
    assert b"no provider 'gr\\xfc\\xdf'" in ran.stderr


@pytest.mark.parametrize("words", ["doit setup:alpha", "remote_resident remote list"])
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&-"])
def test_a_closed_stream_is_nobody_listening(
    tree: Path, words: str, closed: str
) -> None:
    command = f"{shlex.quote(sys.executable)} -m {words} {closed}"

    ran = subprocess.run(["bash", "-c", command], cwd=tree, capture_output=True)

    assert (ran.returncode, b"Traceback" in ran.stderr) == (0, False)


@pytest.mark.parametrize(
    "words",
    [
        "remote_resident remote list --json",
        "remote_resident remote report",
        "remote_resident remote verify alpha",
        "doit report",
    ],
)
def test_a_full_disk_under_the_output_is_said_and_no_success(
    tree: Path, words: str
) -> None:
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            [sys.executable, "-m", *words.split()],
            cwd=tree,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )

    assert (ran.returncode, ran.stderr) == (
        1,
        "standard output: No space left on device: what follows is lost\n",
    )


def test_a_table_shows_what_another_s_process_is_called_on_one_line() -> None:
    assert columns([("a\x1b[2J\nb", "c")]) == "a\\x1b[2J\\nb  c"
