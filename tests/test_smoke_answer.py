"""The answers of a smoke: wrong, without files, or another the second time."""

from pathlib import Path
from typing import Any

import pytest
from small_smoke import SCRIPTS, answering, kept, provider, smoked

from tasks import measured, smoke


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("", "tiny: outputs: no file for '*.txt' found in {dir}/first"),
        (
            'Path(request["output_dir"], "out.txt").touch()',
            "tiny: outputs: out.txt: 0 bytes found in {dir}/first, "
            "a file with content wanted",
        ),
    ],
    ids=["none", "empty"],
)
def test_an_answer_without_its_output_files_is_none(
    tmp_path: Path, written: str, text: str
) -> None:
    worker = f"""
    from pathlib import Path

    def build(config):
        return None

    def predict(model, request):
        {written or "pass"}
        return {{"answer": 42}}
    """
    result = smoked(provider(tmp_path, worker, outputs=["*.txt"]))
    place = kept(result)
    assert (result.verdict, result.reason) == ("failed", "outputs_missing")
    assert result.lines[0] == "outputs_missing: " + text.format(dir=place)


@pytest.mark.parametrize(
    ("worker", "tables", "reason", "text"),
    [
        (
            answering('{"answer": 41}'),
            {},
            "answer_wrong",
            'tiny: smoke.expect."answer": 41 found, 42 wanted',
        ),
        (
            answering('{"answer": 42 if n < 2 else None}'),
            {},
            "answer_wrong",
            'tiny: held-2 request: smoke.expect."answer": null found, 42 wanted',
        ),
        (
            answering('{"answer": 42}'),
            {"output_keys": ["score"]},
            "keys_missing",
            "tiny: output_keys: no 'score' in the reply",
        ),
        (
            answering('{"answer": 42, "n": n}'),
            {},
            "not_deterministic",
            "tiny: first and held-1 request: reply.n: 0 and 1 found, "
            "identical answers wanted (smoke.deterministic)",
        ),
    ],
    ids=["nonsense", "nonsense-later", "keys", "differs"],
)
def test_a_wrong_answer_is_named_with_what_was_found_and_wanted(
    tmp_path: Path, worker: str, tables: dict[str, Any], reason: str, text: str
) -> None:
    result = smoked(provider(tmp_path, worker, **tables))
    assert (result.verdict, result.reason) == ("failed", reason)
    assert result.lines[0] == f"{reason}: {text}"
    assert not measured.report_path(provider(tmp_path, worker, **tables)).exists()


def test_a_fresh_process_that_answers_otherwise_is_not_deterministic(
    tmp_path: Path,
) -> None:
    worker = answering('{"answer": 42, "pid": os.getpid()}')
    result = smoked(provider(tmp_path, worker))
    assert result.reason == "not_deterministic"
    assert "tiny: first and fresh request: reply.pid: " in result.lines[0]


def test_a_second_identical_request_that_fails_is_caught_with_the_models_words(
    tmp_path: Path,
) -> None:
    worker = answering('{"answer": 42}', before='assert n < 1, "cache is stale"')
    result = smoked(provider(tmp_path, worker))
    assert (result.verdict, result.reason) == ("failed", "request_failed")
    assert result.lines[0] == (
        "request_failed: tiny: held-1 request: AssertionError: cache is stale "
        "(request_failed)"
    )
    assert result.lines[-1] == "next: doit setup:tiny"


@pytest.mark.parametrize("kind", [kind for kind in SCRIPTS if kind != "hangs"])
def test_a_script_stands_for_a_request(tmp_path: Path, kind: str) -> None:
    text, reason = SCRIPTS[kind]
    asked = {"script": "smoke.py", "expect": {"answer": {"equals": 42}}}
    (provider(tmp_path).directory / "smoke.py").write_text(text)
    tiny = provider(tmp_path, whole={"smoke": asked})
    result = smoked(tiny)
    assert result.reason == reason
    if kind == "passes":
        assert smoke.problems(tiny) == []


def test_two_fresh_processes_that_answer_otherwise_are_not_deterministic(
    tmp_path: Path,
) -> None:
    runtime = {"mode": "subprocess", "mode_reason": "keeps state"}
    asked = {"repeat": 0, "deterministic": True}
    worker = answering('{"answer": 42, "pid": os.getpid()}')

    result = smoked(provider(tmp_path, worker, runtime=runtime, smoke=asked))

    assert result.reason == "not_deterministic"
    assert "tiny: first and second request: reply.pid: " in result.lines[0]
