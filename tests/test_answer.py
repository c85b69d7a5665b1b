"""What counts as a right answer, as the same answer, and as a leak."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks import answer
from tasks.answer import MISSING, Answer, OutputFile

MIB = 2**20
REPLY = {
    "ok": True,
    "native": {"score": 1.34},
    "designs": [{"recovery": 0.55}, {"recovery": 0.59}],
    "text": "active site broken",
    "open": False,
    "empty": None,
}


def expect(key: str, **wanted: object) -> SimpleNamespace:
    blank = dict.fromkeys(["min", "max", "equals", "matches", "len"])
    return SimpleNamespace(key=key, **{**blank, **wanted})


def answered(tmp_path: Path, *, name: str = "held", **reply: object) -> Answer:
    return Answer(reply=reply, output_dir=tmp_path / name)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("native.score", 1.34),
        ("designs[1].recovery", 0.59),
        ("designs[-1].recovery", 0.59),
        ("designs.1.recovery", 0.59),
        ("designs.first", MISSING),
        ("empty", None),
        ("designs[2].recovery", MISSING),
        ("native[0]", MISSING),
        ("native.score.more", MISSING),
        ("nowhere", MISSING),
    ],
)
def test_a_key_path_leads_to_its_value_or_nowhere(key: str, value: object) -> None:
    assert answer.lookup(REPLY, key) == value


@pytest.mark.parametrize(
    ("expectation", "text"),
    [
        (expect("native.score", max=1.0), "1.34 found, at most 1.0 wanted"),
        (expect("native.score", min=1.5), "1.34 found, at least 1.5 wanted"),
        (expect("native.score", equals=1.3), "1.34 found, 1.3 wanted"),
        (expect("nowhere", min=0), "nothing found, at least 0 wanted"),
        (expect("empty", max=1), "null found, at most 1 wanted"),
        (expect("open", max=1), "false found, at most 1 wanted"),
        (expect("open", equals=0), "false found, 0 wanted"),
        (expect("text", min=0), '"active site broken" found, at least 0 wanted'),
        (
            expect("text", matches="^intact$"),
            "\"active site broken\" found, a text that matches '^intact$' wanted",
        ),
        (expect("native.score", len=1), "1.34 found, length 1 wanted"),
        (
            expect("designs", len=3),
            '[{"recovery": 0.55}, {"recovery": 0.59}] found, length 3 wanted',
        ),
    ],
)
def test_what_is_not_as_expected_is_said_with_both_numbers(
    expectation: SimpleNamespace, text: str
) -> None:
    [problem] = answer.unmet("demo", [expectation], REPLY)

    assert problem.text == f'demo: smoke.expect."{expectation.key}": {text}'
    assert problem.reason == "answer_wrong"


def test_what_is_as_expected_is_no_problem() -> None:
    met = [
        expect("native.score", min=1.34, max=1.34, equals=1.34),
        expect("designs", len=2),
        expect("text", matches="broken$", equals="active site broken", len=18),
        expect("open", equals=False),
    ]

    assert answer.unmet("demo", met, REPLY) == []


def test_all_that_is_wrong_is_named_not_the_first() -> None:
    wrong = [expect("native.score", max=1), expect("text", len=1)]

    assert [p.name for p in answer.unmet("demo", wrong, REPLY)] == [
        "native.score",
        "text",
    ]


def test_a_missing_reply_key_is_named() -> None:
    [problem] = answer.missing_keys("demo", ["native.score", "native.loss"], REPLY)

    assert problem.text == "demo: output_keys: no 'native.loss' in the reply"


def test_an_output_that_is_absent_or_empty_is_named(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/empty.pdb").touch()
    (tmp_path / "good.txt").write_text("x")
    got = Answer(reply={}, output_dir=tmp_path, files=answer.read_files(tmp_path))

    found = answer.missing_outputs("demo", ["*.txt", "**/*.pdb", "*.cif"], got)

    assert [p.text for p in found] == [
        f"demo: outputs: sub/empty.pdb: 0 bytes found in {tmp_path}, "
        "a file with content wanted",
        f"demo: outputs: no file for '*.cif' found in {tmp_path}",
    ]


def test_output_files_are_told_by_name_size_and_digest(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a.txt").write_text("abc")

    # the digest of "abc" is the standard's own example
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert answer.read_files(tmp_path) == {
        "sub/a.txt": OutputFile(size=3, sha256=digest)
    }


def test_what_this_project_adds_does_not_make_answers_differ(tmp_path: Path) -> None:
    one, other = (
        answered(
            tmp_path,
            name=name,
            id=name,
            output_dir=str(tmp_path / name),
            _meter={"predict_s": len(name)},
            file=str(tmp_path / name / "a.pdb"),
            results=[(tmp_path / name / "a b.fa").as_uri()],
            score=1.5,
        )
        for name in ("first", "held-1")
    )

    assert answer.differences(one, other) == []


def test_where_two_answers_differ_is_said(tmp_path: Path) -> None:
    one = answered(tmp_path, list=[1, {"a": 2}], only=None, kind=True)
    other = answered(tmp_path, list=[1, {"a": 3}], kind=1)

    assert answer.differences(one, other) == [
        "reply.list[1].a: 2 and 3",
        "reply.only: null and nothing",
        "reply.kind: true and 1",
    ]


def test_one_changed_byte_in_an_output_file_makes_answers_differ(
    tmp_path: Path,
) -> None:
    one = Answer(
        reply={},
        output_dir=tmp_path,
        files={
            "a": OutputFile(size=1, sha256="aa"),
            "b": OutputFile(size=0, sha256=""),
        },
    )
    other = Answer(
        reply={}, output_dir=tmp_path, files={"a": OutputFile(size=1, sha256="bb")}
    )

    assert answer.differences(one, other) == [
        "file a: 1 bytes aa and 1 bytes bb",
        "file b: 0 bytes  and no file",
    ]


@pytest.mark.parametrize(
    ("rss_mib", "growth"),
    [
        # the step of the two warm-up requests counts for nothing
        ([100, 400, 401, 402, 403], 1.0),
        ([100, 132, 164, 196, 228], 32.0),
        # one late step of a cache is not a leak
        ([100, 101, 101, 165, 165, 165], 0.0),
        ([100, 101], None),
        ([100, None, None, 130, None], None),
        ([], None),
    ],
)
def test_growth_is_the_median_of_steps_after_two_requests(
    rss_mib: list[int | None], growth: float | None
) -> None:
    readings = [None if mib is None else mib * MIB for mib in rss_mib]

    assert answer.growth_mib(readings) == growth
