"""Fixtures that every test file may use."""

from pathlib import Path

import pytest
from container_image import base_image

__all__ = ["base_image", "home"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long",
        action="store_true",
        help="full loops, and slow models downloaded and run for real",
    )


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
