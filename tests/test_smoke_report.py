"""What a smoke that passes leaves: a report, current until something changes."""

import textwrap
from pathlib import Path

from small_smoke import GOOD, assert_nothing_left, corners, made, provider, smoked

from tasks import measured, smoke
from tasks.step import Progress


def test_a_smoke_that_passes_leaves_a_current_report_and_nothing_else(
    tmp_path: Path,
) -> None:
    tiny = provider(tmp_path, outputs=["*.txt"], output_keys=["answer"])
    (before,) = smoke.problems(tiny)
    assert (before.reason, before.next) == ("stale", "doit setup:tiny")
    result, said = made(smoke.make(tiny, admit=None))
    assert (result.verdict, result.lines) == ("done", [])
    assert smoke.problems(tiny) == []
    assert_nothing_left(tiny)
    assert corners() == []
    waited = [one for one in said if isinstance(one, Progress)]
    assert {(one.total, one.unit) for one in waited} == {(120, "s")}
    report = measured.read(measured.report_path(tiny))
    assert report is not None
    assert len(report.timing["held_s"]) == 2  # type: ignore[arg-type]  # a list
    assert report.answer["values"] == {"answer": 42}
    assert report.answer["identical"] is True
    # the digest of "CA 1.0", by sha256sum
    assert report.answer["files"] == {
        "out.txt": {
            "size": 6,
            "sha256": "3b894a5b47a6d6ef337d814e35c41c397f27aa4a1d160f4d95c4e28563356e40",
        }
    }


def test_a_fresh_process_per_request_is_run_once_and_reported(tmp_path: Path) -> None:
    runtime = {"mode": "subprocess", "mode_reason": "keeps state"}
    tiny = provider(tmp_path, runtime=runtime, smoke={"repeat": 0})
    assert smoked(tiny).verdict == "done"
    report = measured.read(measured.report_path(tiny))
    assert report is not None
    assert {"fresh_s", "total_s"} <= set(report.timing)
    assert not {"first_s", "held_median_s"} & set(report.timing)
    assert isinstance(report.memory["rss_peak_bytes"], int)


def test_what_changed_since_the_report_is_named(tmp_path: Path) -> None:
    tiny = provider(tmp_path)
    assert smoked(tiny).verdict == "done"
    (tiny.directory / "worker.py").write_text(textwrap.dedent(GOOD) + "# edited\n")
    (problem,) = smoke.problems(tiny)
    assert (problem.step, problem.reason) == ("smoke", "stale")
    assert problem.next == "doit setup:tiny"
    assert problem.text.startswith("tiny: worker ")
    assert " -> " in problem.text


def test_what_changes_while_the_smoke_runs_is_not_certified(tmp_path: Path) -> None:
    edits = "Path(__file__).with_name('more.py').touch(); return {\"answer\""
    tiny = provider(tmp_path, GOOD.replace('return {"answer"', edits))
    result = smoked(tiny)
    assert (result.verdict, result.reason) == ("failed", "stale")
    assert result.lines[0].startswith(
        "stale: tiny: changed while the smoke ran: worker "
    )
    assert not measured.report_path(tiny).exists()
