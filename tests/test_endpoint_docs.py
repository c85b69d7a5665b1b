"""The page on endpoints can be followed, and says what the program does."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from endpoint_daemon import end_daemon
from small_endpoint import CANARY
from small_provider import DEADLINE_S

from remote_resident.endpoints.lint import REFUSED, SHOWN
from remote_resident.endpoints.record import Endpoint

PAGE = (Path(__file__).parents[1] / "docs/endpoints.md").read_text()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "key").write_text(f"{CANARY}\n")
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "tu").write_text(
        f"#!/bin/sh\nexec '{sys.executable}' -m remote_resident \"$@\"\n"
    )
    (bin_ / "tu").chmod(0o755)
    yield tmp_path
    end_daemon()


def follow(place: Path, block: str) -> str:
    ran = subprocess.run(
        ["sh", "-e", "-c", block],
        cwd=place,
        env={
            **os.environ,
            "PATH": f"{place}/bin:{Path(sys.executable).parent}:/usr/bin:/bin",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S * 4,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert CANARY not in ran.stdout + ran.stderr
    return ran.stdout


def blocks(heading: str) -> list[str]:
    (section,) = re.findall(
        rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE
    )
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


def test_the_runbook_can_be_followed_to_an_answer(place: Path) -> None:
    (block,) = blocks("A runbook")

    said = follow(place, block)

    assert re.search(r"^it is at http://127\.0\.0\.1:2\d{4}$", said, re.MULTILINE)
    assert re.search(r"^hello-service +ready ", said, re.MULTILINE)
    assert said.endswith("removed hello-service\ndisconnected, 0 endpoints removed\n")
    assert "1 | #!/bin/sh" in (place / "card.txt").read_text()


def test_the_container_of_the_page_is_composed(place: Path) -> None:
    (block,) = blocks("A container")

    assert follow(place, block) == (
        "boltz2-start.sh: written\nboltz2-stop.sh: written\n"
    )


def test_every_rule_of_the_lint_is_explained() -> None:
    rows = re.findall(r"^\| `([a-z_0-9]+)` \| (yes)? ?\|", PAGE, re.MULTILINE)
    assert {name for name, refused in rows if refused} == REFUSED
    assert sorted(name for name, _ in rows) == sorted(REFUSED | SHOWN)


def test_every_field_is_explained() -> None:
    (section,) = re.findall(r"^## Fields\n(.*?)^## ", PAGE, re.DOTALL | re.MULTILINE)
    named = {
        name
        for cell in re.findall(r"^\| (`[^|]+`) \|", section, re.MULTILINE)
        for name in re.findall(r"`([a-z_]+)`", cell)
    }

    assert named == set(Endpoint.__dataclass_fields__) - {"service_dir"}
