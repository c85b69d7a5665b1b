"""tu remote check: the findings of doit check, and little imported for them."""

import subprocess
import sys
from pathlib import Path

from command_line import DEADLINE_S, tree, tu

__all__ = ["tree"]

HEAVY = {"doit", "rich", "requests", "asyncio", "importlib.metadata", "tasks.graph"}


def test_check_gives_the_findings_of_doit_check(tree: Path) -> None:
    beta = tree / "manifests/beta"
    (beta / "provider.toml").write_text("slug =\n")
    (tree / "manifests/alpha/worker.py").write_text("import numpy\n")

    ours = tu("remote", "check", "--tree", str(tree), cwd=Path("/"))
    plain = subprocess.run(
        [sys.executable, "-m", "doit", "check"],
        cwd=tree,
        text=True,
        capture_output=True,
        timeout=DEADLINE_S,
    )

    as_tu = f"tu remote --tree '{tree}' check "
    assert ours.stdout == plain.stdout.replace("doit check:", as_tu)
    assert "worker_imports: manifests/alpha/worker.py:1: imports numpy" in ours.stdout
    assert (ours.returncode, plain.returncode) == (1, 1)


def test_an_up_to_date_check_imports_nothing_heavy(tree: Path) -> None:
    script = (
        "import sys; from remote_resident.cli import main; code = main(sys.argv[1:]);"
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, "remote", "check", "--tree", str(tree)],
        text=True,
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )

    assert not HEAVY & set(ran.stderr.split())
