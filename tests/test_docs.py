"""What the documents say is what the program does."""

import os
import re
import subprocess
import sys
from pathlib import Path

from remote_resident.errors import REASONS
from remote_resident.manifest_schema import TABLES, TOP, WEIGHT_FILE

ROOT = Path(__file__).parents[1]


def test_every_reason_has_its_cure_and_no_other_is_listed() -> None:
    text = (ROOT / "docs/reasons.md").read_text()
    listed = re.findall(r"^\| `([a-z_]+)` \| .+ \| .+ \|$", text, re.MULTILINE)

    assert sorted(listed) == sorted(REASONS)


def test_every_link_between_the_documents_leads_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target, anchor in re.findall(
            r"\]\(([^)#:]*)#?([^):]*)\)", page.read_text()
        ):
            led = page.parent / target if target else page
            assert led.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in _anchors(led), f"{page.name}: #{anchor}"


def _anchors(page: Path) -> set[str]:
    """Name the headings of a page as its links do."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}


def test_every_key_of_a_manifest_is_explained() -> None:
    text = (ROOT / "docs/manifest.md").read_text()
    explained = {
        name
        for cell in re.findall(r"^\| (`[^|]+`) \|", text, re.MULTILINE)
        for name in re.findall(r"`([a-z_0-9]+)`", cell)
    }
    known = {key for table in (TOP, *TABLES.values()) for key in table}
    known |= set(WEIGHT_FILE)
    # [[weights.file]] is a heading, not a row
    assert explained == known - {"file"}


def test_the_authors_page_can_be_followed_to_a_provider_that_is_set_up(
    tmp_path: Path,
) -> None:
    page = (ROOT / "docs/provider-author.md").read_text()
    files = re.findall(r"`(greet/[a-z.]+)`:\n\n```\w+\n(.*?)```", page, re.DOTALL)
    commands = re.search(r"^## 3\..*?```sh\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    assert commands is not None
    (tmp_path / "greet").mkdir()
    for name, content in files:
        (tmp_path / name).write_text(content)
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "tu").write_text(
        f"#!/bin/sh\nexec '{sys.executable}' -m remote_resident \"$@\"\n"
    )
    (bin_ / "tu").chmod(0o755)

    ran = subprocess.run(
        ["bash", "-e", "-c", commands[1]],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{bin_}:{Path(sys.executable).parent}:/usr/bin:/bin",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert sorted(name for name, _ in files) == [
        "greet/provider.toml",
        "greet/worker.py",
    ]
    assert 'text = "Good morning, Ada!"' in ran.stdout
