"""What the documents say is what the program does."""

import re
from pathlib import Path

from remote_resident.errors import REASONS

ROOT = Path(__file__).parents[1]


def test_every_reason_has_its_cure_and_no_other_is_listed() -> None:
    text = (ROOT / "docs/reasons.md").read_text()
    listed = re.findall(r"^\| `([a-z_]+)` \| .+ \| .+ \|$", text, re.MULTILINE)

    assert sorted(listed) == sorted(REASONS)


def test_every_link_between_the_documents_leads_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
