"""The arrows of docs/architecture.md hold in the code."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STDLIB = sys.stdlib_module_names


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Yield the dotted name of everything that the file imports, at any depth."""
    package = path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: -node.level]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imported_roots(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(path)}


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", modules("remote_resident"), ids=ids)
def test_the_runtime_never_imports_the_tree_nor_doit_itself(path: Path) -> None:
    assert not imported_roots(path) & {"tasks", "dodo", "doit"}


@pytest.mark.parametrize("path", modules("tasks"), ids=ids)
def test_only_the_graph_and_the_reporter_import_doit(path: Path) -> None:
    if path.name not in {"graph.py", "reporter.py"}:
        assert "doit" not in imported_roots(path)


@pytest.mark.parametrize("path", modules("remote_resident/worker_side"), ids=ids)
def test_the_worker_side_imports_the_standard_library_only(path: Path) -> None:
    foreign = {
        name
        for name in imports(path)
        if name.partition(".")[0] not in STDLIB
        and not name.startswith(("remote_resident.worker_side.", "resident_side."))
    }

    assert not foreign


@pytest.mark.parametrize("path", modules("remote_resident/worker_side"), ids=ids)
def test_the_worker_side_keeps_to_the_syntax_of_its_oldest_interpreter(
    path: Path,
) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("path", modules("remote_resident/jobs/worker"), ids=ids)
def test_the_job_worker_imports_its_framework_in_one_place_and_nothing_of_ours(
    path: Path,
) -> None:
    framework = {"app.py": "litestar", "server.py": "uvicorn"}.get(path.name)
    own = ("remote_resident.jobs.worker.", "job_worker.")
    beside = ("remote_resident.worker_side.", "resident_side.")
    foreign = {
        name
        for name in imports(path)
        if name.partition(".")[0] not in {*STDLIB, framework}
        and not name.startswith((*own, *beside))
    }

    assert not foreign
    ast.parse(path.read_text(), feature_version=(3, 10))


def test_the_decision_reads_nothing() -> None:
    reading = {"os", "pathlib", "subprocess", "socket", "shutil", "io"}

    assert not imported_roots(ROOT / "remote_resident/admission.py") & reading


@pytest.mark.parametrize("path", modules("remote_resident"), ids=ids)
def test_the_core_knows_nothing_of_its_tenants_and_commands(path: Path) -> None:
    room = path.relative_to(ROOT / "remote_resident").parts[0]
    above = {"cli", "jobs", "endpoints"} - {room}
    if room == "cli" or path.name == "__main__.py":
        return

    assert not {
        name
        for name in imports(path)
        for other in above
        if f"{name}.".startswith(f"remote_resident.{other}.")
    }


@pytest.mark.parametrize("folder", ["remote_resident", "tasks", "tests"])
def test_no_room_is_called_utils(folder: str) -> None:
    nobody = {"utils", "helpers", "common", "manager", "base", "util", "misc"}

    assert not {path for path in modules(folder) if path.stem in nobody}
