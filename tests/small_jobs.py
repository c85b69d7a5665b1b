"""A provider of mode jobs around tests/workers/small_job.py, in a tree of a test's own."""

import shutil
import sys
from pathlib import Path
from typing import Any

import tomli_w

WORKERS = Path(__file__).with_name("workers")


def write(tree: Path, slug: str = "tiny", **tables: Any) -> Path:
    """Write a provider.toml and its module; `tables` add, None takes away."""
    folder = tree / "manifests" / slug
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(WORKERS / "small_job.py", folder / "plugin.py")
    declared: dict[str, dict[str, Any]] = {
        "runtime": {
            "mode": "jobs",
            "mode_reason": "it runs for hours",
            "entry": "plugin:Job",
        },
        "gpu": {"policy": "none"},
        "host": {"ram_budget_gb": 0.25},
        "env": {"kind": "venv", "python": sys.executable},
        "smoke": {
            "request": {"x": 1},
            "expect": {"status": {"equals": "completed"}, "results": {"len": 1}},
        },
    }
    for name, table in tables.items():
        merged = {**declared.get(name, {}), **table}
        declared[name] = {k: v for k, v in merged.items() if v is not None}
    head = {"slug": slug, "description": "Tiny", "operations": []}
    path = folder / "provider.toml"
    path.write_text(tomli_w.dumps({**head, **declared}))
    return path
