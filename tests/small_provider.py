"""A provider around one of tests/workers, in a tree of a test's own."""

import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from remote_resident import manifest
from remote_resident.manifest import ProviderManifest

WORKERS = Path(__file__).with_name("workers")
DEADLINE_S = 60.0


def until(true: Callable[[], object], what: str) -> None:
    """Wait for what cannot be waited for otherwise, with a deadline."""
    end = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < end, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.005)


def write(tree: Path, script: str, slug: str = "tiny", **tables: Any) -> Path:
    """Write a provider.toml and its worker.py; `tables` add, None takes away."""
    import tomli_w

    folder = tree / "manifests" / slug
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(WORKERS / f"{script}.py", folder / "worker.py")
    declared: dict[str, dict[str, Any]] = {
        "runtime": {"mode": "resident", "worker": "worker.py"},
        "gpu": {"policy": "none"},
        "host": {"ram_budget_gb": 0.1},
        "env": {"kind": "venv", "python": sys.executable},
        "smoke": {"request": {"x": 1}, "expect": {"echo": {"equals": 1}}},
    }
    for name, table in tables.items():
        merged = {**declared.get(name, {}), **table}
        declared[name] = {k: v for k, v in merged.items() if v is not None}
    head = {"slug": slug, "description": "Tiny", "operations": ["predict"]}
    path = folder / "provider.toml"
    path.write_text(tomli_w.dumps({**head, **declared}))
    return path


def provider(tree: Path, script: str, **tables: Mapping[str, Any]) -> ProviderManifest:
    """Give the manifest of a provider around a script of tests/workers."""
    return manifest.load(write(tree, script, **tables))
