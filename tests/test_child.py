"""A child's lines arrive, its deadline holds, and nothing of it is left."""

import os
import signal
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from seconds import within

from remote_resident.processes import INSTANCE_VARIABLE, members
from tasks import child
from tasks.child import Ended, Passing

ENV = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}
LIMIT_S = 20.0


def python(text: str) -> list[str]:
    return [sys.executable, "-u", "-c", text]


def drive(running: Generator[str, None, Ended]) -> tuple[list[str], Ended]:
    lines = []
    while True:
        try:
            lines.append(next(running))
        except StopIteration as stop:
            return lines, stop.value


def run(text: str, timeout_s: float | None = LIMIT_S) -> tuple[list[str], Ended]:
    return drive(child.run(python(text), env=ENV, timeout_s=timeout_s))


def gone(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


BACKGROUND = """
import os, signal, sys, time
ready, told = os.pipe()
child = os.fork()
if not child:
    {before}
    os.write(told, b"1")
    while True: time.sleep(60)
os.read(ready, 1)
print(child, flush=True)
{after}
"""


def test_both_outputs_arrive_line_by_line_in_order_and_the_status_is_returned() -> None:
    lines, ended = run(
        "import sys; print('one'); print('two', file=sys.stderr); print('three');"
        "sys.exit(5)"
    )

    assert lines == ["one", "two", "three"]
    assert (ended.returncode, ended.timed_out, ended.tail) == (5, False, lines)
    assert 0 < ended.seconds < LIMIT_S


def test_what_a_progress_bar_overwrote_passes_and_only_its_last_is_kept() -> None:
    text = r"import sys; sys.stdout.write('start\r\n\r1%\r2%\r\x1b[31m3%\x1b[0m\nend')"

    lines, ended = run(text)

    assert lines == ["start", "1%", "2%", "3%", "end"]
    assert [isinstance(line, Passing) for line in lines] == [
        *(False, True, True),
        *(False, False),
    ]
    assert ended.tail == ["start", "3%", "end"]


def test_bytes_that_are_no_text_and_lines_without_end_do_no_harm() -> None:
    lines, _ = run(
        r"import sys; w=sys.stdout.buffer.write; w(b'\xff\xc3'); w(b'\xa4\n');"
        r"w(b'x' * 200_000)"
    )

    assert lines[0] == "\ufffdä"
    assert "".join(lines[1:]) == "x" * 200_000
    assert max(map(len, lines)) <= 65536


def test_the_last_forty_lines_are_the_tail() -> None:
    lines, ended = run("for i in range(100): print(i)")

    assert len(lines) == 100
    assert ended.tail == [str(i) for i in range(60, 100)]


def test_standard_input_is_closed_or_holds_what_was_given() -> None:
    read = python("import sys; print(len(sys.stdin.read()))")

    closed, _ = drive(child.run(read, env=ENV))
    given, _ = drive(child.run(read, env=ENV, stdin=b"x" * 1_000_000))

    assert (closed, given) == (["0"], ["1000000"])


def test_a_child_has_a_session_of_its_own_and_the_environment_it_is_given(
    tmp_path: Path,
) -> None:
    text = "import os; print(os.getsid(0) == os.getpid(), os.getcwd(), *os.environ)"

    lines, _ = drive(child.run(python(text), env={"A": "1"}, cwd=tmp_path))

    own, cwd, *names = lines[0].split()
    assert (own, cwd) == ("True", str(tmp_path))
    assert {"A", INSTANCE_VARIABLE} <= set(names)
    assert "PATH" not in names


@pytest.mark.parametrize(
    ("make", "status", "why"),
    [
        (lambda path: None, 127, "No such file or directory"),
        (lambda path: path.write_text(""), 126, "Permission denied"),
    ],
)
def test_what_cannot_be_started_says_so_as_a_shell_does(
    tmp_path: Path, make: Callable[[Path], object], status: int, why: str
) -> None:
    make(tmp_path / "program")

    lines, ended = drive(child.run([str(tmp_path / "program")], env=ENV))

    assert lines == ended.tail == [f"{tmp_path}/program: {why}"]
    assert (ended.returncode, ended.timed_out) == (status, False)


def test_a_background_child_that_holds_the_output_cannot_hold_the_verdict() -> None:
    started = time.monotonic()

    lines, ended = run(BACKGROUND.format(before="pass", after="print('done')"))

    within(3.0, time.monotonic() - started)
    assert lines[1:] == ["done"]
    assert (ended.returncode, ended.timed_out) == (0, False)
    assert gone(int(lines[0]))


@pytest.mark.parametrize(
    "before",
    ["pass", "os.setsid()", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"],
    ids=["plain", "left the session", "ignores SIGTERM"],
)
def test_the_deadline_ends_everything_within_a_second_and_keeps_the_transcript(
    before: str,
) -> None:
    started = time.monotonic()

    lines, ended = run(BACKGROUND.format(before=before, after="time.sleep(60)"), 2.0)

    took_s = time.monotonic() - started
    assert took_s >= 2.0
    within(3.0, took_s)
    assert ended.timed_out
    assert ended.tail == lines
    assert gone(int(lines[0]))


def test_a_child_that_closes_its_output_and_goes_on_meets_its_deadline() -> None:
    _, ended = run("import os, time; os.close(1); os.close(2); time.sleep(60)", 1.0)

    assert ended.timed_out
    within(2.0, ended.seconds)


def test_a_child_that_never_stops_writing_meets_its_deadline() -> None:
    running = child.run(python("while True: print('y' * 1000)"), env=ENV, timeout_s=1)

    while True:
        try:
            next(running)
        except StopIteration as stop:
            ended: Ended = stop.value
            break

    assert ended.timed_out
    within(2.5, ended.seconds)


def test_a_generator_that_is_closed_early_ends_the_child() -> None:
    running = child.run(
        python(BACKGROUND.format(before="os.setsid()", after="time.sleep(60)")), env=ENV
    )
    grandchild = int(next(running))
    (instance,) = child._RUNNING
    assert members(instance)

    running.close()

    assert members(instance) == []
    assert gone(grandchild)
    assert child._RUNNING == {}


def test_an_interrupt_ends_the_child(tmp_path: Path) -> None:
    text = (
        "import os, pathlib, signal, time\n"
        f"pathlib.Path('me').write_text(os.environ['{INSTANCE_VARIABLE}'])\n"
        f"os.kill({os.getpid()}, signal.SIGINT); time.sleep(60)"
    )

    with pytest.raises(KeyboardInterrupt):
        drive(child.run(python(text), env=ENV, cwd=tmp_path))

    assert members((tmp_path / "me").read_text()) == []
    assert child._RUNNING == {}


def test_ending_all_children_ends_them_and_may_be_asked_twice() -> None:
    texts = ["print(1); import time; time.sleep(60)"] * 2
    running = [child.run(python(text), env=ENV) for text in texts]
    assert [next(r) for r in running] == ["1", "1"]

    child.end_children()
    child.end_children()

    ends = [drive(r) for r in running]
    assert [ended.returncode for _, ended in ends] == [-signal.SIGTERM] * 2
    assert [ended.timed_out for _, ended in ends] == [False, False]


def test_a_lock_that_is_shared_lasts_as_long_as_what_inherited_it(
    tmp_path: Path,
) -> None:
    import fcntl

    text = "import time; print('up'); time.sleep(60)"
    path = tmp_path / "lock"
    lock = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with child.inheriting(lock):
        shared = child.run(python(text), env=ENV)
        next(shared)
    os.close(lock)

    with path.open() as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shared.close()
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_no_descriptor_is_left_open() -> None:
    fds = Path("/proc/self/fd")
    before = len(list(fds.iterdir()))

    run("print(1)")
    run("import time; time.sleep(60)", 0.3)
    child.run(python("print(1)"), env=ENV).close()
    drive(child.run(["/nowhere"], env=ENV))

    assert len(list(fds.iterdir())) == before
