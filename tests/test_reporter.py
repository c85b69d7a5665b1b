"""What people and programs are told of a run."""

import io
import json
import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from remote_resident.cli.signals import Cut
from remote_resident.errors import Problem, UsageError
from tasks.reporter import Node, Reporter, Results, Rows, internal, streams
from tasks.screen import Screen, plain
from tasks.step import STEPS, Progress, StepResult, refused
from tasks.verdicts import with_next

ESCAPE = "\x1b"
DONE = StepResult("weights", "done", "2 files, 3 bytes", seconds=12.34)
REFUSED = refused(
    "weights",
    [
        Problem(
            step="weights",
            reason="size",
            text="w.bin: 3 bytes found, 936516 bytes wanted",
            next="rm w.bin",
        ),
        Problem(step="weights", reason="absent", text="v.bin: absent"),
    ],
)
UNREADABLE = StepResult("manifest", "refused", "bad", "manifest_invalid")
INTERNAL = internal("smoke", ["Traceback", "ValueError: torn"])


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Shut(io.StringIO):
    """A pipe whose reader has left; it has no descriptor to redirect."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


class Task:
    """What doit hands to its reporter."""

    def __init__(self, node: Node) -> None:
        self.name = f"{node.step}:{node.slug}"
        self.meta = {"node": node}


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("TU_REMOTE_ROWS", raising=False)


def shown(*results: StepResult, stream: io.StringIO, **options: bool) -> str:
    screen = Screen(stream, io.StringIO(), **options)
    for result in results:
        screen.finished("capiti", result)
    return stream.getvalue()


# -- lines for people


def test_a_step_is_one_line_with_verdict_slug_step_seconds_and_detail() -> None:
    assert shown(DONE, stream=io.StringIO()) == (
        "✓ done     capiti  weights       12.3 s  2 files, 3 bytes\n"
    )


def test_a_refusal_names_its_reason_every_problem_and_what_to_type() -> None:
    assert shown(REFUSED, stream=io.StringIO()).splitlines() == [
        "✗ refused  capiti  weights      size",
        "           size: w.bin: 3 bytes found, 936516 bytes wanted",
        "           absent: v.bin: absent",
        "           next: rm w.bin",
    ]


@pytest.mark.parametrize(
    ("step", "verb"),
    [(step, "setup") for step in STEPS]
    + [(verb, verb) for verb in ("check", "verify", "env", "accept", "lock")],
)
def test_a_refusal_that_names_nothing_nearer_names_the_command_that_asks_again(
    step: str, verb: str
) -> None:
    bare = Problem(step=step, reason="install_failed", text="exit 1")

    told = with_next("x", refused(step, [bare]))

    assert told.lines == ["install_failed: exit 1", f"next: doit {verb}:x"]


def test_what_is_no_terminal_gets_no_control_code_however_long_the_line() -> None:
    long = StepResult("smoke", "done", "word " * 60)

    text = shown(DONE, REFUSED, long, stream=io.StringIO())

    assert ESCAPE not in text
    assert text.count("word") == 60
    assert len(text.splitlines()) == 1 + 4 + 1


def test_a_terminal_gets_lines_no_wider_than_it_is() -> None:
    long = StepResult("smoke", "done", "word " * 60, seconds=1.0)

    text = shown(long, REFUSED, stream=Terminal(), color=False)

    assert ESCAPE not in text
    assert text.count("word") == 60
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[1].startswith(" " * 41 + "word")


def test_a_word_that_has_no_room_beside_the_verdict_stands_whole_below_it() -> None:
    path = StepResult("env", "done", "/" + 60 * "x", seconds=1.0)

    assert shown(path, stream=Terminal(), color=False).splitlines() == [
        "✓ done     capiti  env            1.0 s",
        "           /" + 60 * "x",
    ]


@pytest.mark.parametrize("how", ["option", "variable"])
def test_no_color_is_honoured(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "variable":
        monkeypatch.setenv("NO_COLOR", "1")

    assert ESCAPE in shown(DONE, stream=Terminal()) or how == "variable"
    assert ESCAPE not in shown(DONE, stream=Terminal(), color=how == "variable")


def test_quiet_tells_only_what_is_not_as_it_should_be() -> None:
    notes, results = io.StringIO(), io.StringIO()
    screen = Screen(results, notes, quiet=True)

    screen.started("capiti", "weights")
    screen.output("pip's own line")
    screen.finished("capiti", DONE)
    screen.finished("capiti", REFUSED)
    screen.table({"capiti": {"weights": REFUSED}}, {})

    assert notes.getvalue() == ""
    assert results.getvalue().splitlines()[0].startswith("✗ refused")
    assert len(results.getvalue().splitlines()) == 4


def test_a_stream_that_has_no_symbols_gets_letters() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="latin-1")
    screen = Screen(stream, io.StringIO())

    screen.finished("capiti", StepResult("kit", "done", "“π”"))

    assert raw.getvalue().startswith(b"+ done")
    assert rb"\u201c\u03c0\u201d" in raw.getvalue()


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("10 %\r20 %", "20 %"),
        ("bell\x07", "bell\\x07"),
        ("line\n", "line"),
        ("a\tb", "a   b"),
    ],
)
def test_somebody_elses_control_codes_do_not_get_through(
    line: str, wanted: str
) -> None:
    assert plain(line) == wanted


def test_the_table_has_a_verdict_for_each_step_and_facts_below() -> None:
    out = io.StringIO()
    steps = {
        "capiti": {
            "preflight": StepResult("preflight", "present"),
            "kit": StepResult("kit", "skipped"),
            "weights": REFUSED,
        },
        "ruined": {"manifest": UNREADABLE},
    }

    facts = [("measured", "/m"), ("answer", "x = 1"), ("answer", "y = 2")]

    Screen(out, out).table(steps, {"capiti": facts})

    assert [line.rstrip() for line in out.getvalue().splitlines()] == [
        "",
        "provider  preflight  environment  kit        weights    smoke",
        "capiti    ✓ present               · skipped  ✗ refused",
        "ruined    ✗ manifest unreadable",
        "",
        "capiti  measured  /m",
        "        answer    x = 1",
        "                  y = 2",
    ]


def test_facts_that_have_no_room_beside_their_name_leave_no_empty_line() -> None:
    terminal = Terminal()
    facts = [("answer", 70 * "x"), ("answer", 70 * "y")]

    Screen(terminal, terminal, color=False).table(
        {"capiti": {"kit": DONE}}, {"capiti": facts}
    )

    assert [line.rstrip() for line in terminal.getvalue().splitlines()[-3:]] == [
        "capiti  answer",
        "           " + 70 * "x",
        "           " + 70 * "y",
    ]


def test_a_live_line_stands_on_a_terminal_and_is_gone_afterwards() -> None:
    terminal = Terminal()
    screen = Screen(terminal, terminal)

    screen.started("capiti", "weights")
    screen.progress("capiti", "weights", Progress("reading", 2**29, 2**30, "bytes"))
    screen.output("a line that stays")
    screen.finished("capiti", DONE)
    screen.close()

    text = terminal.getvalue()
    hidden, shown_again = text.index("\x1b[?25l"), text.rindex("\x1b[?25h")
    assert hidden < text.index("a line that stays") < text.index("✓ done") < shown_again


def test_without_a_terminal_progress_is_silent_for_a_while() -> None:
    notes = io.StringIO()
    screen = Screen(io.StringIO(), notes)

    screen.started("capiti", "weights")
    screen.progress("capiti", "weights", Progress("reading", 1, 2, "bytes"))

    assert notes.getvalue() == ""


def test_a_reader_that_left_stops_nobody() -> None:
    shown(DONE, REFUSED, stream=Shut())


def test_a_command_to_paste_is_one_line_on_a_narrow_terminal() -> None:
    command = f"mv '/a place/{'w' * 60}' '/a place/{'w' * 60}.bad' && tu remote setup m"
    step = "  ~/envs/m/bin/pip install --no-deps --require-hashes -r locks/m.lock " * 2
    lines = ["a word " * 30, "recipe:", step, f"next: {command}"]

    told = shown(StepResult("kit", "refused", lines=lines), stream=Terminal())

    told = re.sub(r"\x1b\[[0-9;]*m", "", told)
    assert f"           {step}\n" in told
    assert f"           next: {command}\n" in told
    assert "a word " * 30 not in told


# -- rows and codes for programs


def test_a_row_has_the_shape_that_is_promised() -> None:
    out = io.StringIO()

    Rows(out).write("capiti", REFUSED)

    assert json.loads(out.getvalue()) == {
        "slug": "capiti",
        "step": "weights",
        "verdict": "refused",
        "reason": "size",
        "detail": "w.bin: 3 bytes found, 936516 bytes wanted",
        "lines": [
            "size: w.bin: 3 bytes found, 936516 bytes wanted",
            "absent: v.bin: absent",
            "next: rm w.bin",
        ],
        "seconds": 0.0,
    }


def test_rows_for_a_reader_that_left_are_dropped() -> None:
    rows = Rows(Shut())

    rows.write("capiti", DONE)
    rows.write("capiti", DONE)


def test_rows_on_stdout_send_people_to_stderr() -> None:
    assert streams({"TU_REMOTE_ROWS": "-"}) == (sys.stderr, sys.stdout)
    assert streams({}) == (sys.stdout, None)


def test_rows_into_a_descriptor_that_is_not_open_are_refused(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    os.close(fd)

    with pytest.raises(UsageError, match=re.escape(f"TU_REMOTE_ROWS: '{fd}' found")):
        streams({"TU_REMOTE_ROWS": str(fd)})


@pytest.mark.parametrize(
    ("results", "cut", "code"),
    [
        ([], 0, 0),
        ([DONE], 0, 0),
        ([DONE, REFUSED], 0, 1),
        ([UNREADABLE, REFUSED, DONE], 0, 3),
        ([UNREADABLE, INTERNAL, REFUSED], 0, 2),
        ([INTERNAL, REFUSED], 143, 143),
    ],
)
def test_the_code_is_the_signals_then_ours_then_usage_then_a_refusal(
    results: list[StepResult], cut: int, code: int
) -> None:
    came = Results(cut=cut)
    for result in results:
        came.add("capiti", result)

    assert came.exit_code() == code


def test_a_broken_reporter_is_our_error_with_its_traceback() -> None:
    notes = io.StringIO()
    reporter = Reporter(Screen(io.StringIO(), notes), end_children=lambda: None)

    with pytest.raises(LookupError):
        try:
            raise LookupError("torn")
        finally:
            reporter.complete_run()

    assert reporter.results.exit_code() == 2
    assert "LookupError: torn" in notes.getvalue()


@pytest.mark.parametrize("running", [True, False])
def test_a_cut_is_said_within_a_step_and_between_two(*, running: bool) -> None:
    lines = io.StringIO()
    reporter = Reporter(Screen(lines, lines), end_children=lambda: None)
    if running:
        reporter.get_status(Task(Node("capiti", "kit")))

    with pytest.raises(Cut):
        try:
            raise Cut(signal.SIGINT)
        finally:
            reporter.complete_run()

    assert reporter.results.exit_code() == 130
    assert lines.getvalue().count("cut by SIGINT") == 1
    assert lines.getvalue().count("goes on from here, or names what to mend first") == 1


@pytest.mark.parametrize(
    ("step", "reason", "command"),
    [
        ("manifest", "manifest_invalid", "doit check:capiti"),
        ("check", "worker_imports", "doit check:capiti"),
        ("preflight", "os_unsupported", "doit setup:capiti"),
        ("preflight", "no_gpu", "tu remote room"),
        ("env", "install_failed", "doit env:capiti"),
        ("smoke", "disk_full", "df -h"),
    ],
)
def test_every_refusal_names_a_command_to_type_next(
    step: str, reason: str, command: str
) -> None:
    reporter = Reporter(Screen(io.StringIO(), io.StringIO()), exits=True)
    problem = Problem(step=step, reason=reason, text="1 found, 2 wanted")

    reporter.record("capiti", refused(step, [problem]))
    reporter.record("capiti", refused(step, [replace(problem, next="rm w.bin")]))

    lines = [result.lines[1:] for _, result in reporter.results.rows]
    assert lines == [[f"next: {command}"], ["next: rm w.bin"]]


def test_each_command_of_a_chain_is_one_that_works_in_any_directory() -> None:
    reporter = Reporter(Screen(io.StringIO(), io.StringIO()))
    reporter.tree = "/a tree"
    problem = Problem(
        step="weights",
        reason="size",
        text="1 found, 2 wanted",
        next="mv /e /e.bad && doit env:capiti && doit setup:capiti",
    )

    reporter.record("capiti", refused("weights", [problem]))

    tu = "tu remote --tree '/a tree'"
    assert reporter.results.rows[0][1].lines[-1] == (
        f"next: mv /e /e.bad && {tu} env capiti && {tu} setup capiti"
    )


def test_what_doit_itself_refuses_becomes_a_row() -> None:
    from doit.exceptions import DependencyError, UnmetDependency

    reporter = Reporter(Screen(io.StringIO(), io.StringIO()))
    task = Task(Node("capiti", "kit"))

    reporter.get_status(task)
    reporter.add_failure(task, UnmetDependency("weights:capiti"))
    reporter.add_failure(task, DependencyError("doit tore"))

    ((slug, result),) = reporter.results.rows
    assert (slug, result.step, result.reason) == ("capiti", "kit", "internal")
    assert result.lines[0] == "doit tore"


def test_a_problem_of_several_lines_is_shown_as_lines() -> None:
    out = io.StringIO()
    result = StepResult(
        "smoke", "failed", reason="x", lines=["x: it said:\n  one\n  two"]
    )

    Screen(out, out).finished("a", result)

    assert out.getvalue().splitlines()[1:] == [
        "           x: it said:",
        "             one",
        "             two",
    ]
