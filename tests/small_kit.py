"""A small real kit: a git repository that speeds up a model that is not there."""

import os
import subprocess
from pathlib import Path

BACKEND = """\
import os, zipfile

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    open("built.here", "w").close()
    name, info = "tiny_opt-1.0-py3-none-any.whl", "tiny_opt-1.0.dist-info/"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as wheel:
        for inner in sorted(os.listdir("tiny_opt")):
            wheel.write("tiny_opt/" + inner, "tiny_opt/" + inner)
        if os.path.exists("tiny_opt.pth"):
            wheel.write("tiny_opt.pth", "tiny_opt.pth")
        wheel.writestr(
            info + "METADATA",
            "Metadata-Version: 2.1\\nName: tiny-opt\\nVersion: 1.0\\n",
        )
        wheel.writestr(
            info + "WHEEL",
            "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\n"
            "Tag: py3-none-any\\n",
        )
        wheel.writestr(info + "RECORD", "")
    return name
"""
PROJECT = """\
[project]
name = "tiny-opt"
version = "1.0"
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
FILES = {
    "tiny/pyproject.toml": PROJECT,
    "tiny/backend.py": BACKEND,
    "tiny/tiny_opt/__init__.py": "FACTOR = 1\n",
}


def git(place: Path, *command: str) -> str:
    """Run git in a directory, with nobody's configuration; gives what it prints."""
    env = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{who}_NAME": "t" for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_EMAIL": "t@t" for who in ("AUTHOR", "COMMITTER")},
    }
    done = subprocess.run(
        ["git", *command],
        cwd=place,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def commit(place: Path, files: dict[str, str]) -> str:
    """Commit files to the repository, made where there is none; gives the commit."""
    if not (place / ".git").is_dir():
        place.mkdir(parents=True, exist_ok=True)
        git(place, "init", "-q", "-b", "main")
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    git(place, "add", ".")
    git(place, "commit", "-q", "-m", "state")
    return git(place, "rev-parse", "HEAD")


def declare(tree: Path, name: str, repository: str, commit_id: str) -> Path:
    """Write kits/<name>.toml."""
    path = tree / "kits" / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'repository = "{repository}"\ncommit = "{commit_id}"\n'
        'license = "MIT"\ndescription = "Tiny."\n'
    )
    return path
