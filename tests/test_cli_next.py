"""What to type next: a provider is named so that the printed command works."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import document, tree, tu
from fake_steps import plant

from remote_resident import manifest

__all__ = ["tree"]


@pytest.mark.parametrize("typed", ["./my own/gamma", "gamma"])
def test_the_next_command_names_a_provider_as_it_was_typed(
    tree: Path, tmp_path: Path, typed: str
) -> None:
    home = tmp_path / "other" if typed.startswith(".") else tree
    manifest = plant(home, "gamma") / "manifests" / "gamma" / "provider.toml"
    pinned = f'name = "a.bin"\nsha256 = "{"0" * 64}"\nsize = 1'
    weights = f'[weights]\nroot_default = "/no/such"\n[[weights.file]]\n{pinned}\n'
    manifest.write_text(f"{manifest.read_text()}\n{weights}")
    if home != tree:
        (tmp_path / "my own").symlink_to(manifest.parents[1])

    words = ("--tree", str(tree), "remote", "setup", typed, "--only", "weights")
    ran = tu(*words, cwd=tmp_path)

    assert ran.returncode == 1
    nexts = [line for line in ran.stdout.splitlines() if "next: " in line]
    assert nexts
    again = f"tu remote --tree {shlex.quote(str(tree))} setup {shlex.quote(typed)}"
    assert all(again in line for line in nexts)
    assert "doit" not in ran.stdout


def test_the_printed_command_works_for_a_provider_outside_the_tree(
    tree: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "my own" / "alpha"
    folder.parent.mkdir()
    (tree / "manifests/alpha").rename(folder)
    (folder / "worker.py").write_text(
        "def build(config): raise OSError('torn')\ndef predict(model, request): ...\n"
    )
    monkeypatch.chdir(tree)

    def typed(*words: str) -> dict[str, Any]:
        _, told = document(capsys, *words)
        assert isinstance(told, dict)
        return told

    def typed_next(told: dict[str, Any]) -> dict[str, Any]:
        return typed(*shlex.split(told["next"])[1:])

    ask = ("remote", "call", "../my own/alpha", "{}")
    absent, *failed = typed(*ask, "--no-start"), *(typed(*ask) for _ in range(4))

    assert [told["reason"] for told in failed] == ["start_failed"] * 3 + ["crash_loop"]
    assert failed[-1]["next"] == f"tu remote restart {shlex.quote(str(folder))}"
    # started anew, in spite of all that failed
    assert typed_next(failed[-1])["reason"] == "start_failed"
    assert typed_next(absent)["reason"] == "start_failed"
    assert "OSError: torn" in typed_next(failed[0])["lines"]


@pytest.mark.parametrize("stands", ["in force", "in another tree", "outside"])
def test_a_provider_is_named_as_it_can_be_typed(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stands: str
) -> None:
    found = manifest.load(tree / "manifests/alpha/provider.toml")
    folder = shlex.quote(str(found.directory))
    if stands == "in force":
        monkeypatch.setenv("TU_REMOTE_TREE", str(tree))
        assert found.named == "alpha"
    elif stands == "in another tree":
        assert found.named == folder
    else:
        own = tmp_path / "own"
        own.mkdir()
        (tree / "manifests/alpha").rename(own / "alpha")
        path = own / "alpha" / "provider.toml"
        folder = shlex.quote(str(path.parent))
        assert manifest.load(path, tree).named == folder
        locked = replace(manifest.load(path, tree), env_lock="alpha")
        assert locked.named == f"{folder} --tree {shlex.quote(str(tree))}"
