"""`tu remote list`: the providers of the tree."""

from pathlib import Path
from typing import Any

from remote_resident.cli import tree
from remote_resident.cli.answer import Answer, Asked


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument("slugs", nargs="*", metavar="SLUG", help="of these only")


def run(asked: Asked) -> Answer:
    """List them, a broken one too; what is claimed and what was measured apart."""
    from remote_resident import manifest_path

    root = tree.data(asked)
    names = tree.existing(root, asked.slugs) or manifest_path.slugs(root)
    rows = [_row(root, name) for name in names]
    return Answer(document={"providers": rows}, text=_text(rows) or f"none in {root}")


def _row(root: Path, name: str) -> dict[str, object]:
    from remote_resident import manifest, manifest_path, places

    try:
        provider = manifest.find(root, name)
    except manifest.ManifestError:
        unknown = dict.fromkeys(("description", "mode", "status", "gpu_policy"))
        slug = manifest_path.slug_at(name)
        measured = places.has_report(slug, root)
        return {"slug": slug, **unknown, "set_up": measured, "ok": False}
    return {
        "slug": provider.slug,
        "description": provider.description,
        "mode": provider.runtime_mode,
        "status": provider.status,
        "set_up": places.has_report(provider.slug, provider.tree),
        "gpu_policy": provider.gpu_policy,
        "ok": True,
    }


def _text(rows: list[dict[str, object]]) -> str:
    width = max((len(str(row["slug"])) for row in rows), default=0)
    lines = []
    for row in rows:
        state = "set up" if row["set_up"] else "-"
        claim = row["status"] if row["ok"] else "broken manifest: tu remote check"
        what = row["description"] or ""
        lines.append(f"{row['slug']:{width}}  {state:6}  {claim:8}  {what}".rstrip())
    return "\n".join(lines)
