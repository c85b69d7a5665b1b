"""The arrows of docs/architecture.md hold in the code."""

import ast
import sys
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STDLIB = sys.stdlib_module_names


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> frozenset[str]:
    """Give the dotted name of everything that the file imports, at any depth."""
    package = path.relative_to(ROOT).with_suffix("").parts
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: -node.level]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            found.update(f"{module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def imported_roots(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(path)}


def foreign(path: Path, ours: tuple[str, ...], also: str | None = None) -> set[str]:
    """Name what a file imports besides the standard library, and may not."""
    allowed = {*STDLIB, also}
    return {
        name
        for name in imports(path)
        if name.partition(".")[0] not in allowed and not name.startswith(ours)
    }


def wrong(
    folder: str, of: Callable[[Path], Collection[str]]
) -> dict[str, Collection[str]]:
    """Map each file of a folder to what is wrong with it, where something is."""
    found = {str(path.relative_to(ROOT)): of(path) for path in modules(folder)}
    assert found
    return {path: names for path, names in found.items() if names}


def test_the_runtime_never_imports_the_tree_nor_doit_itself() -> None:
    above = {"tasks", "dodo", "doit"}

    assert wrong("remote_resident", lambda path: imported_roots(path) & above) == {}


def test_only_the_graph_and_the_reporter_import_doit() -> None:
    assert set(wrong("tasks", lambda path: imported_roots(path) & {"doit"})) <= {
        "tasks/graph.py",
        "tasks/reporter.py",
    }


WORKER_SIDE = ("remote_resident.worker_side.", "resident_side.")


def test_the_worker_side_imports_the_standard_library_only() -> None:
    folder = "remote_resident/worker_side"

    assert wrong(folder, lambda path: foreign(path, WORKER_SIDE)) == {}


def test_the_worker_side_keeps_to_the_syntax_of_its_oldest_interpreter() -> None:
    for path in modules("remote_resident/worker_side"):
        ast.parse(path.read_text(), str(path), feature_version=(3, 8))


def test_the_job_worker_imports_its_framework_in_one_place_and_nothing_of_ours() -> (
    None
):
    framework = {"app.py": "litestar", "server.py": "uvicorn"}
    ours = ("remote_resident.jobs.worker.", "job_worker.", *WORKER_SIDE)
    folder = "remote_resident/jobs/worker"

    assert wrong(folder, lambda p: foreign(p, ours, framework.get(p.name))) == {}
    for path in modules(folder):
        ast.parse(path.read_text(), str(path), feature_version=(3, 10))


READERS = {"machine", "nvidia", "room", "places", "processes", "readings"}


def test_the_decision_reads_nothing() -> None:
    reading = {"os", "pathlib", "subprocess", "socket", "shutil", "io"}

    for name in ("admission", "holdings", "pools", "retiring"):
        path = ROOT / f"remote_resident/{name}.py"
        assert not imported_roots(path) & reading, path
        ours = {n for n in imports(path) if n.startswith("remote_resident.")}
        assert not any(n.split(".")[1] in READERS for n in ours), path


def above_the_core(path: Path) -> set[str]:
    room = path.relative_to(ROOT / "remote_resident").parts[0]
    if room == "cli" or path.name == "__main__.py":
        return set()
    above = {"cli", "jobs", "endpoints"} - {room}
    return {
        name
        for name in imports(path)
        for other in above
        if f"{name}.".startswith(f"remote_resident.{other}.")
    }


def test_the_core_knows_nothing_of_its_tenants_and_commands() -> None:
    assert wrong("remote_resident", above_the_core) == {}


@pytest.mark.parametrize("folder", ["remote_resident", "tasks", "tests"])
def test_no_room_is_called_utils(folder: str) -> None:
    nobody = {"utils", "helpers", "common", "manager", "base", "util", "misc"}

    assert not {path for path in modules(folder) if path.stem in nobody}


def named() -> dict[str, Path]:
    """Map the dotted name of every module of the product to its file."""
    files = [*modules("remote_resident"), *modules("tasks")]
    parts = {file: file.relative_to(ROOT).with_suffix("").parts for file in files}
    return {".".join(p).removesuffix(".__init__"): file for file, p in parts.items()}


def needed(path: Path, known: Mapping[str, Path]) -> set[str]:
    """Name the modules that a file imports, at any depth and for its types too."""
    found = set()
    for name in imports(path):
        above = name.rpartition(".")[0]
        found.update({name if name in known else above} & set(known))
    # a name that a module imports is found in its package as well
    return {name for name in found if known[name] != path}


def circles(arrows: Mapping[str, set[str]]) -> list[list[str]]:
    """Give the groups of modules that all lead to one another."""
    leads: dict[str, set[str]] = {}
    for start in arrows:
        seen: set[str] = set()
        todo = [start]
        while todo:
            new = arrows[todo.pop()] - seen
            seen |= new
            todo += new
        leads[start] = seen
    groups = {
        tuple(sorted(other for other in leads[name] if name in leads[other]))
        for name in leads
        if name in leads[name]
    }
    return [list(group) for group in sorted(groups)]


def test_no_rooms_import_one_another_in_a_circle() -> None:
    known = named()

    assert circles({name: needed(path, known) for name, path in known.items()}) == []


def test_a_circle_is_seen_wherever_it_closes() -> None:
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"e"}}

    assert circles(arrows) == [["b", "c"], ["e"]]
