"""tu remote room: the verdicts with their numbers, and a provider that is held."""

from pathlib import Path

import pytest
from command_line import document, held, tree, tu

from remote_resident.cli import main

__all__ = ["held", "tree"]


def test_room_gives_the_verdict_with_its_numbers(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, told = document(capsys, "--tree", str(tree), "remote", "room", "alpha")
    _, every = document(capsys, "--tree", str(tree), "remote", "room")

    assert isinstance(told, dict)
    assert isinstance(every, dict)
    assert (told["slug"], told["need_gb"]) == ("alpha", 0.1)
    assert [verdict["slug"] for verdict in every["verdicts"]] == ["alpha", "beta"]


def test_room_says_that_a_provider_is_held_already(
    held: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--tree", str(held), "remote")
    assert tu("remote", "call", "alpha", '{"text": "hi"}', cwd=held).returncode == 0
    _, told = document(capsys, *words, "room", "alpha")
    _, other = document(capsys, *words, "room", "beta")

    assert isinstance(told, dict)
    assert isinstance(other, dict)
    (own,) = [row for row in told["holders"] if row["tree"] == str(held)]
    said = f"alpha is held already by pid {own['pids'][0]}: a call is answered there"
    assert [note.startswith(said) for note in told["notes"]].count(True) == 1
    assert not any("held already" in note for note in other["notes"])


def test_room_names_every_provider_also_whose_manifest_cannot_be_read(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "manifests/beta/provider.toml").write_text("slug = [")
    words = ("--tree", str(tree), "remote", "room")
    _, every = document(capsys, *words)
    main([*words])
    lines = capsys.readouterr().out.splitlines()

    assert isinstance(every, dict)
    assert [verdict["slug"] for verdict in every["verdicts"]] == ["alpha"]
    assert every["unreadable"]["beta"].startswith("manifests/beta/provider.toml:1: ")
    assert [line.split()[:2] for line in lines[1:3]][1] == ["beta", "no"]
    assert f"beta: {every['unreadable']['beta']}" in lines


def test_room_in_a_tree_without_providers_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "manifests").mkdir()

    main(["--tree", str(tmp_path), "remote", "room"])
    assert capsys.readouterr().out == "no providers\n"
