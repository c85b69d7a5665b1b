"""What is tried again, and what never is."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
COUNTED = """
from pathlib import Path
from tests.seconds import within

def attempt(name):
    path = Path({place!r}) / name
    with path.open("a") as file:
        file.write("x")
    return len(path.read_text())

def test_late_once():
    within(1.0, 2.0 if attempt("once") == 1 else 0.5)

def test_always_late():
    attempt("always")
    within(1.0, 1.0)

def test_wrong():
    assert attempt("wrong") == 2
"""


def test_only_seconds_too_many_are_measured_again_and_not_for_ever(
    tmp_path: Path,
) -> None:
    file = tmp_path / "test_counted.py"
    file.write_text(COUNTED.format(place=str(tmp_path)))
    words = ["-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]

    said = subprocess.run(
        [sys.executable, "-m", "pytest", *words, f"--rootdir={ROOT}", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout

    tried = {
        name: (tmp_path / name).read_text() for name in ("once", "always", "wrong")
    }
    assert tried == {"once": "xx", "always": "xxx", "wrong": "x"}
    assert "1 passed" in said and "2 failed" in said, said
