"""What the tests of the host steps build: a small tree, wheels, what looks like a venv."""

import base64
import hashlib
import sys
import zipfile
from collections.abc import Generator
from pathlib import Path

from remote_resident import manifest
from tasks.step import Progress, StepResult

PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
HEADER = f"""\
# requires-python: >=3.{sys.version_info[1]},<3.{sys.version_info[1] + 1}
# recipe:
#   {PYTHON} -m venv ~/envs/m
#   ~/envs/m/bin/pip install --no-deps --require-hashes -r locks/m.lock
#   export M_PYTHON=~/envs/m/bin/python
"""
MANIFEST = """\
slug = "m"
operations = ["m"]
[runtime]
worker = "worker.py"
[host]
ram_budget_gb = 0.1
[env]
python = "$M_PYTHON"
lock = "m"
[smoke]
request = { op = "m" }
"""


def pin(name: str, version: str, *digests: str) -> str:
    hashes = digests or (hashlib.sha256(f"{name}{version}".encode()).hexdigest(),)
    return "".join([f"{name}=={version}", *(f" --hash=sha256:{d}" for d in hashes)])


def lock_text(*pins: str, header: str = HEADER) -> str:
    return header + "".join(f"{line}\n" for line in pins)


def tree(root: Path, *pins: str, toml: str = MANIFEST) -> Path:
    """Make a tree with one provider `m`, its worker, and its lock of these pins."""
    for folder in ("manifests/m", "locks", "kits"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "manifests/m/provider.toml").write_text(toml)
    (root / "manifests/m/worker.py").write_text("import json\n")
    (root / "locks/m.lock").write_text(lock_text(*(pins or (pin("a", "1.0"),))))
    return root


def provider(root: Path) -> manifest.ProviderManifest:
    return manifest.load(root / "manifests/m/provider.toml", root)


def look_alike(place: Path, *installed: str, settings: str = "") -> Path:
    """Make what a venv looks like from outside; gives its python."""
    python = place / "bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys._base_executable)
    version = ".".join(map(str, sys.version_info[:3]))
    plain = f"version = {version}\ninclude-system-site-packages = false\n"
    (place / "pyvenv.cfg").write_text(settings or plain)
    site = place / "lib" / PYTHON / "site-packages"
    site.mkdir(parents=True)
    for name in installed:
        info = site / f"{name}.dist-info"
        info.mkdir()
        (info / "INSTALLER").write_text("pip\n")
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: {}\nVersion: {}\n".format(
                *name.rsplit("-", 1)
            )
        )
    return python


def wheel(folder: Path, name: str, version: str, code: str = "") -> str:
    """Write a wheel of one module; gives the digest of its bytes."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    rows = [f"{path},{_record(text)}" for path, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inner, text in files.items():
            archive.writestr(inner, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _record(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    shown = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    return f"sha256={shown},{len(text.encode())}"


def drive(
    making: Generator[str | Progress, None, StepResult],
) -> tuple[list[str], StepResult]:
    """Run a step to its end: the lines it said, and what it came to."""
    lines: list[str] = []
    while True:
        try:
            lines.append(str(next(making)))
        except StopIteration as stop:
            return lines, stop.value
