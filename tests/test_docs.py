"""What the documents say is what the program does."""

import re
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
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


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
