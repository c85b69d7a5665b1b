"""The smoke of a provider of jobs: the job is run for real, and nothing of it stays."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import small_jobs

from remote_resident import manifest, processes
from remote_resident.jobs.starting import WORKER
from remote_resident.manifest import ProviderManifest
from tasks import measured, smoke
from tasks.step import StepResult


def provider(tmp_path: Path, **tables: Any) -> ProviderManifest:
    return manifest.load(small_jobs.write(tmp_path / "a tree", **tables))


def made(provider: ProviderManifest) -> StepResult:
    making = smoke.make(provider, admit=None)
    while True:
        try:
            next(making)
        except StopIteration as end:
            result: StepResult = end.value
            return result


def nothing_is_left(provider: ProviderManifest, home: Path) -> bool:
    alive = processes.instances(provider.slug, str(provider.tree))
    return not alive and not list((home / "run").glob("s-*"))


def test_a_job_that_completes_is_certified(tmp_path: Path, home: Path) -> None:
    tiny = provider(
        tmp_path,
        smoke={
            "request": {"does": "writes", "x": 3},
            "repeat": 2,
            "deterministic": True,
            "expect": {
                "status": {"equals": "completed"},
                "results": {"len": 1},
                "metrics": {"len": 1},
            },
        },
    )

    result = made(tiny)
    report = measured.read(measured.report_path(tiny))

    assert (result.verdict, result.lines) == ("done", [])
    assert smoke.problems(tiny) == []
    assert report is not None
    assert len(report.timing["held_s"]) == 2  # type: ignore[arg-type]
    assert report.memory["rss_peak_bytes"]
    assert list(report.answer["files"]) == ["out.txt"]  # type: ignore[call-overload]
    assert nothing_is_left(tiny, home)
    assert not list((home / "cache/smoke").iterdir())


@pytest.mark.parametrize(
    ("request_", "reason", "said"),
    [
        (
            {"does": "raises"},
            "request_failed",
            "tiny: first request: ValueError: of the job; log",
        ),
        (
            {"does": "exits"},
            "request_failed",
            "tiny: first request: no terminal event; the worker: exit status 9; log",
        ),
        (
            {"does": "chats", "lines": 1},
            "answer_wrong",
            'tiny: smoke.expect."results": [] found, length 1 wanted',
        ),
    ],
)
def test_a_job_that_does_not_is_named_and_leaves_nothing(
    tmp_path: Path, home: Path, request_: dict[str, Any], reason: str, said: str
) -> None:
    tiny = provider(tmp_path, smoke={"request": request_, "repeat": 0})

    result = made(tiny)

    assert (result.verdict, result.reason) == ("failed", reason)
    assert said in "\n".join(result.lines)
    assert nothing_is_left(tiny, home)
    assert measured.read(measured.report_path(tiny)) is None


def limit_s(starts: float) -> float:
    """Give the time of so many starts of a worker on this machine as it is now."""
    began = time.monotonic()
    subprocess.run(
        [sys.executable, str(WORKER), "--openapi"], check=True, capture_output=True
    )
    return 1.0 + starts * (time.monotonic() - began)


@pytest.mark.parametrize("does", ["ignores", "holds"])
def test_a_job_without_an_end_is_ended_at_the_deadline_and_shows_its_stacks(
    tmp_path: Path, home: Path, does: str
) -> None:
    files = {key: str(tmp_path / key) for key in ("began", "go")}
    limit = limit_s(3.0)
    tiny = provider(
        tmp_path,
        smoke={"request": {"does": does, "seconds": 600, **files}, "timeout_s": limit},
    )

    result = made(tiny)

    assert (result.verdict, result.reason) == ("failed", "timeout")
    assert f"tiny: first request: no end within {limit} s found" in result.lines[0]
    stacks = result.lines[result.lines.index("its stacks at the deadline:") :]
    assert [line for line in stacks if 'plugin.py", line' in line and does in line]
    assert nothing_is_left(tiny, home)


def test_a_module_that_hangs_while_it_is_imported_shows_its_stacks(
    tmp_path: Path, home: Path
) -> None:
    tiny = provider(tmp_path, smoke={"timeout_s": limit_s(2.0)})
    # the module waits as long as this file is there
    (tiny.directory / "slow").touch()

    result = made(tiny)

    assert (result.verdict, result.reason) == ("failed", "timeout")
    stacks = result.lines[result.lines.index("its stacks at the deadline:") :]
    assert [
        line for line in stacks if 'plugin.py", line' in line and "<module>" in line
    ]
    assert nothing_is_left(tiny, home)
