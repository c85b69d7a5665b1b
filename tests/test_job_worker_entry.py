"""The plugin of a worker: what cannot be loaded or served is told by what is missing."""

from pathlib import Path

import pytest
from small_job_worker import JOBS, Start, command, refused, start, terminal

from remote_resident.jobs.worker import entry
from remote_resident.jobs.worker.app import Parts, application
from remote_resident.jobs.worker.runner import Runner
from remote_resident.jobs.worker.runtime import Runtime

__all__ = ["start"]


@pytest.fixture
def jobs_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(JOBS))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("returns", "--entry: 'returns' found, module:Class wanted"),
        (":Job", "--entry: ':Job' found, module:Class wanted"),
        ("nowhere.at_all:Job", "--entry {}: no module nowhere in {cwd} or installed"),
        (
            "imports_missing:Job",
            "--entry {}: no module a_module_that_nobody_has, "
            "which imports_missing imports",
        ),
        ("has_little:Nope", "--entry {}: no Nope in has_little"),
        ("has_little:NoRun", "--entry {}: no run_job(ctx) in NoRun"),
    ],
)
def test_an_entry_that_is_none_is_told_by_what_is_missing(
    jobs_importable: None, name: str, line: str
) -> None:
    with pytest.raises(entry.BadEntry) as refusal:
        entry.load(name)

    assert str(refusal.value) == line.format(name, cwd=Path.cwd())


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("TakesHealth", "/health found, /health is the worker's"),
        ("TakesAJob", "/jobs/mine found, /jobs is the worker's"),
        ("TakesBelowUi", "/ui/more found, /ui is the worker's"),
    ],
)
def test_a_handler_on_a_route_of_ours_is_refused_by_name(
    jobs_importable: None, tmp_path: Path, name: str, line: str
) -> None:
    plugin = entry.load(f"has_routes:{name}")
    parts = Parts("x", plugin, Runner(plugin, tmp_path), Runtime(plugin))
    with pytest.raises(entry.BadEntry) as refusal:
        application(parts)

    assert str(refusal.value) == f"{name}.get_route_handlers: {line}"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "nowhere:Job",
            f"--entry nowhere:Job: no module nowhere in {JOBS} or installed",
        ),
        (
            "has_routes:TakesHealth",
            "TakesHealth.get_route_handlers: /health found, /health is the worker's",
        ),
    ],
)
def test_what_cannot_be_served_ends_the_process_with_one_line(
    tmp_path: Path, name: str, line: str
) -> None:
    status, lines, _ = refused(command(name, "--socket", str(tmp_path / "s")))

    assert (status, lines) == (1, [f"job worker: {line}"])
    assert not (tmp_path / "s").exists()


def test_what_a_plugin_raises_at_import_keeps_its_traceback(tmp_path: Path) -> None:
    words = command("breaks_at_import:Job", "--socket", str(tmp_path / "s"))
    status, lines, _ = refused(words)

    assert status == 1
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "RuntimeError: broken on purpose"


def test_what_a_class_does_not_have_is_not_found(start: Start) -> None:
    worker = start("has_little:Job")

    assert worker.ask("GET", "/ui").status == 404
    assert worker.ask("GET", "/compute").status == 404
    assert terminal(worker.events("x", "any"))["status"] == "completed"
