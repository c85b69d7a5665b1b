"""Workers between commands: tu remote ps, logs, restart and stop."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import document, held, tree, tu

from remote_resident.cli import main

__all__ = ["held", "tree"]


def test_a_worker_outlives_the_call_is_listed_and_stopped(
    held: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(*words: str) -> Any:
        code, told = document(capsys, "--tree", str(held), "remote", *words)
        assert code == 0, told
        return told

    def holders() -> list[Any]:
        return [h for h in ask("ps")["holders"] if h["tree"] == str(held)]

    asked = ("call", "alpha", '{"text": "hi"}')

    first = json.loads(tu("--json", "remote", *asked, cwd=held).stdout)
    second = ask(*asked)
    (holder,) = holders()
    log = ask("logs", "alpha", "--lines", "1000")["lines"]
    restarted = ask("restart", "alpha")
    stopped = ask("stop", "alpha")

    assert [first["nth"], second["nth"]] == [1, 2]
    assert (holder["slug"], holder["state"], holder["requests"]) == (
        "alpha",
        "ready",
        2,
    )
    assert holder["budget"] == {"vram_gb": 0.0, "ram_gb": 0.1, "source": "declared"}
    assert [line for line in log if "built" in line]
    assert holder["pid"] in restarted["stopped"]
    assert restarted["started"] in stopped["stopped"]
    assert holders() == []
    assert ask("stop", "alpha") == {"stopped": []}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("alpha", None),
        ("./manifests/alpha/", "slug = 1"),
        ("manifests/alpha/provider.toml", None),
    ],
)
def test_a_worker_is_stopped_by_its_name_also_without_a_readable_manifest(
    held: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    text: str | None,
) -> None:
    monkeypatch.chdir(held)
    file = held / "manifests/alpha/provider.toml"
    whole = file.read_text()
    assert tu("remote", "call", "alpha", '{"text": "hi"}', cwd=held).returncode == 0
    file.unlink()
    if text is not None:
        file.write_text(text)

    code, stopped = document(capsys, "remote", "stop", name)
    again = main(["remote", "stop", name])
    file.write_text(whole)

    assert isinstance(stopped, dict)
    assert (code, again) == (0, 3)
    assert len(stopped["stopped"]) == 1


def test_a_holder_above_its_budget_is_named_by_ps_and_room(
    held: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = held / "manifests/alpha/provider.toml"
    text = path.read_text()
    # an interpreter alone takes some ten times as much
    path.write_text(text.replace("ram_budget_gb = 0.1", "ram_budget_gb = 0.001"))
    assert path.read_text() != text
    words = ("--tree", str(held), "remote")

    assert tu("remote", "call", "alpha", '{"text": "hi"}', cwd=held).returncode == 0
    _, told = document(capsys, *words, "ps")
    shown = []
    for command in (["ps"], ["room"], ["room", "alpha"]):
        main([*words, *command])
        shown.append(capsys.readouterr().out)

    assert isinstance(told, dict)
    (holder,) = [row for row in told["holders"] if row["tree"] == str(held)]
    (over,) = holder["over_budget"]
    assert over.startswith("RAM peak 0.0")
    assert over.endswith("GiB, above its budget of 0.001 GiB")
    pid = holder["pid"]
    for text, start in zip(
        shown,
        (
            f"alpha, pid {pid}: RAM peak 0.0",
            f"alpha, held by pid {pid}: RAM peak 0.0",
            f"alpha, held by pid {pid}: RAM peak 0.0",
        ),
        strict=True,
    ):
        assert [line for line in text.splitlines() if line.startswith(start)]
