"""The tree of a command: one without manifests, its code, and where its caller stands."""

from pathlib import Path

import pytest
from command_line import document, tree, tu

__all__ = ["tree"]


@pytest.mark.parametrize("name", ["nowhere", "a tree/manifests"])
def test_a_tree_without_manifests_is_refused(
    tree: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code, told = document(capsys, "--tree", str(tree.parent / name), "remote", "list")

    assert code == 3
    assert isinstance(told, dict)
    assert told["error"].startswith(f"--tree {tree.parent / name}: no ")


def test_a_list_says_what_each_provider_is_and_a_broken_one_too(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "manifests/beta/provider.toml").write_text("slug =\n")

    _, told = document(capsys, "--tree", str(tree), "remote", "list")

    assert told == {
        "providers": [
            {
                "slug": "alpha",
                "description": "Answers with what it was asked.",
                "mode": "resident",
                "status": "untested",
                "set_up": False,
                "gpu_policy": "none",
                "ok": True,
            },
            {
                "slug": "beta",
                "description": None,
                "mode": None,
                "status": None,
                "set_up": False,
                "gpu_policy": None,
                "ok": False,
            },
        ]
    }


def test_code_in_a_tree_is_never_run(tree: Path) -> None:
    trap = "raise SystemExit('the code of the tree ran')\n"
    (tree / "tasks").mkdir()
    for name in ("tasks/__init__.py", "tasks/graph.py", "tasks/check.py", "dodo.py"):
        (tree / name).write_text(trap)
    (tree / "pyproject.toml").write_text("[tool.doit]\nreporter = 'json'\n")

    for words in (["check"], ["setup", "alpha", "--only", "kit"], ["list"]):
        ran = tu("remote", *words, cwd=tree)
        assert (ran.returncode, "the tree ran" in ran.stderr) == (0, False), ran.stderr


def test_no_file_is_left_where_the_caller_stands(tree: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()

    tu("remote", "setup", "alpha", "--only", "kit", "--tree", str(tree), cwd=here)
    tu("remote", "list", "--tree", str(tree), cwd=here)

    assert list(here.iterdir()) == []
    assert not list(tree.glob(".doit*"))
