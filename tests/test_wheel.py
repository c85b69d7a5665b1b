"""The wheel alone, in an environment of its own, from a directory with nothing in it."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of this checkout."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        pytest.skip("no uv here, which builds the wheel")
    folder = tmp_path_factory.mktemp("wheel")
    ran = subprocess.run(
        [uv, "build", "--wheel", "--quiet", "--out-dir", folder, ROOT],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if "Failed to fetch" in ran.stderr or "dns error" in ran.stderr:
        pytest.skip("no index here, which has what builds the wheel")
    assert ran.returncode == 0, ran.stderr
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """Give a directory with nothing in it, to stand in."""
    place = tmp_path / "an empty directory"
    place.mkdir()
    return place


def environment(place: Path, *options: str) -> Path:
    subprocess.run([sys.executable, "-m", "venv", *options, place], check=True)
    return place / "bin"


def asked(argv: list[Any], cwd: Path, **more: str) -> Any:
    ran = subprocess.run(
        [*argv, "--json"],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "TU_REMOTE_HOME": os.environ["TU_REMOTE_HOME"]}
        | more,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return json.loads(ran.stdout)


def test_the_wheel_puts_one_package_into_site_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        top = {name.partition("/")[0] for name in archive.namelist()}

    (info,) = [name for name in top if name.endswith(".dist-info")]
    assert top == {"remote_resident", info}


def test_the_wheel_carries_its_tree_and_checks_it_from_anywhere(
    wheel: Path, tmp_path: Path, empty: Path
) -> None:
    bin_ = environment(tmp_path / "env", "--without-pip")
    (site,) = bin_.parent.glob("lib/python3*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    tu = [bin_ / "python", "-m", "remote_resident", "remote"]

    listed = asked([*tu, "list"], empty)["providers"]
    checked = asked([*tu, "check"], empty)

    shipped = sorted(
        path.parent.name for path in ROOT.glob("manifests/*/provider.toml")
    )
    assert [one["slug"] for one in listed] == shipped
    assert [one["slug"] for one in checked["providers"]] == shipped
    assert checked["ok"]
    assert list(empty.iterdir()) == []


@pytest.mark.long
def test_a_provider_is_set_up_with_the_wheel_and_its_dependencies_alone(
    wheel: Path, tmp_path: Path, empty: Path
) -> None:
    bin_ = environment(tmp_path / "env")
    subprocess.run(
        [bin_ / "python", "-m", "pip", "install", "-q", wheel], check=True, timeout=600
    )

    made = asked([bin_ / "tu", "remote", "env", "capiti"], empty)
    (result,) = asked([bin_ / "tu", "remote", "setup", "capiti"], empty)["results"]

    assert Path(made["python"]).is_file()
    assert result["ok"]
    assert result["steps"][-1]["verdict"] == "done"
    assert list(empty.iterdir()) == []
