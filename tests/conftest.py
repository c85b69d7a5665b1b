"""Fixtures that every test file may use."""

import importlib.util
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from container_image import base_image
from hypothesis import HealthCheck, settings
from small_base import busy, start
from small_worker import make, tree

__all__ = ["base_image", "busy", "home", "make", "start", "tree"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long",
        action="store_true",
        help="full loops, and slow models downloaded and run for real",
    )


def pytest_configure(config: pytest.Config) -> None:
    # an example that a busy machine takes long over is no failure; new examples are looked
    # for by --long, so that the default suite says of one tree always the same
    settings.register_profile(
        "ours",
        deadline=None,
        derandomize=not config.getoption("--long"),
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("ours")


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    if config.getoption("--long"):
        return
    for item in items:
        if "long" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="slow: run with --long"))


@pytest.fixture(autouse=True)
def home(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Keep everything the host holds in a directory of this test's own."""
    place = tmp_path_factory.mktemp("home", numbered=True)
    place.chmod(0o700)
    monkeypatch.setenv("TU_REMOTE_HOME", str(place))
    monkeypatch.delenv("TU_REMOTE_TREE", raising=False)
    return place


@pytest.fixture(scope="session")
def model_env(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make one model's environment with pip; a test takes out again what it installs."""
    place = tmp_path_factory.mktemp("model") / "with space"
    ours = importlib.util.find_spec("pip")
    venv.create(place, symlinks=True, with_pip=ours is None)
    if ours is not None and ours.origin is not None:
        # compiled already: ensurepip takes seconds for that
        found = Path(ours.origin).parents[1]
        (site,) = place.glob("lib/python3*/site-packages")
        for part in ("pip", *(path.name for path in found.glob("pip-*.dist-info"))):
            shutil.copytree(found / part, site / part)
    return place


@pytest.fixture
def run() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start a Python program; it is ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def run(*argv: str, **options: Any) -> "subprocess.Popen[str]":
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        child = subprocess.Popen(
            [sys.executable, *argv], text=True, **{**pipes, **options}
        )
        started.append(child)
        return child

    yield run
    for child in started:
        child.kill()
        child.communicate()
