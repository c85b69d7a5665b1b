"""A cell prints as it goes, ends whole, in its time, and knows what it should."""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_endpoint import CANARY, DEADLINE_S, wait_for

from remote_resident import processes
from remote_resident.endpoints.cell import Cell, Line, Work, end_strays, environment
from remote_resident.errors import ProviderError

URL = "http://127.0.0.1:20001"


def cell(code: str | None = None, **fields: Any) -> Cell:
    own: dict[str, Any] = {"over": lambda: None, "grace_s": 2.0}
    own = {name: fields.pop(name, default) for name, default in own.items()}
    given = {
        "argv": None,
        "code": code,
        "cwd": Path("/"),
        "env": environment(URL, os.environ),
        "timeout_s": DEADLINE_S,
    }
    return Cell(name="a-service", work=Work(**{**given, **fields}), **own)


@contextlib.contextmanager
def running(one: Cell) -> Iterator[Iterator[Line]]:
    one.start()
    try:
        yield (line for line in one.lines() if line is not None)
    finally:
        one.close()


def ran(code: str | None = None, **fields: Any) -> list[Line]:
    with running(cell(code, **fields)) as lines:
        return list(lines)


def text(lines: list[Line], kind: str = "stdout") -> str:
    return "".join(line["text"] for line in lines if line["type"] == kind)


def test_code_has_base_url_as_a_variable_and_in_its_environment() -> None:
    lines = ran("import os; print(BASE_URL); print(os.environ['BASE_URL'])")

    assert text(lines) == f"{URL}\n{URL}\n"
    assert lines[-1] == {"type": "result", "exit_code": 0, "result": None}


def test_a_command_has_base_url_in_its_environment() -> None:
    lines = ran(argv=["sh", "-c", "echo $BASE_URL; echo bad >&2; exit 7"])

    assert (text(lines), text(lines, "stderr")) == (f"{URL}\n", "bad\n")
    assert lines[-1]["exit_code"] == 7


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("result = {'a': [1, None]}", {"a": [1, None]}),
        ("result = float('nan')", "nan"),
        ("result = {1, 2}", "{1, 2}"),
        ("result = 'x' * 3_000_000", "x" * 3_000_000),
        ("result = 5; raise SystemExit(3)", 5),
        ("", None),
    ],
)
def test_the_variable_result_is_the_answer_as_json(code: str, result: object) -> None:
    assert ran(code)[-1]["result"] == result


@pytest.mark.parametrize(
    "code",
    [
        "result = 10 ** 5000",
        "result = []\nfor _ in range(100_000): result = [result]",
        "class A:\n    def __repr__(self): raise KeyError\nresult = A()",
    ],
)
def test_a_result_without_a_repr_is_no_fault_of_the_code(code: str) -> None:
    lines = ran(code)

    assert lines[-1]["exit_code"] == 0
    assert " object at 0x" in lines[-1]["result"]
    assert text(lines, "stderr") == ""


def test_code_is_a_program_of_its_own() -> None:
    code = "import sys, pickle\nclass A: pass\npickle.loads(pickle.dumps(A()))\n"
    code += "print(__name__, sys.path[0] == '', sys.argv)\nboom()\n"
    lines = ran(code)

    assert text(lines) == "__main__ True ['<cell>']\n"
    assert 'File "<cell>", line 5, in <module>\n    boom()\n' in text(lines, "stderr")
    assert lines[-1]["exit_code"] == 1


def test_output_comes_as_it_is_printed(tmp_path: Path) -> None:
    code = f"import time, os\nprint('first')\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)\nprint('last')"
    with running(cell(code)) as lines:
        # a line may come in pieces
        got = ""
        while got != "first\n":
            got += next(lines)["text"]
        (tmp_path / "go").touch()
        assert text(list(lines)).endswith("last\n")


def test_bytes_that_are_no_text_come_through() -> None:
    lines = ran(argv=["printf", r"\377\303\251"])

    assert text(lines).encode("utf-8", "surrogateescape") == b"\xff\xc3\xa9"


def test_a_signal_is_told_as_a_shell_does() -> None:
    assert ran(argv=["sh", "-c", "kill -9 $$"])[-1]["exit_code"] == 137


def test_a_cell_ends_with_everything_that_it_started_also_in_other_sessions() -> None:
    script = (
        "setsid sleep 1000 & (trap '' TERM; setsid sh -c 'sleep 1000; :') & echo $!"
    )
    one = cell(argv=["sh", "-c", script], grace_s=0.3)
    with running(one) as lines:
        assert list(lines)[-1]["exit_code"] == 0
        assert processes.members(one.instance) == []


HIDES = """
import os, sys
if os.fork():
    os.wait()
    sys.exit(5)
os.setsid()
if os.fork():
    os._exit(0)
os.setsid()
argv = ["sh", "-c", "trap '' TERM HUP; echo $$ > pid.new; mv pid.new pid; while :; do sleep 1000; done"]
os.execve("/bin/sh", argv, {"PATH": os.environ["PATH"]})
"""


def is_gone(pid: int) -> bool:
    row = processes.process_table().get(pid)
    return row is None or row.state in "ZX"


@pytest.mark.parametrize("how", ["by itself", "by a stop"])
def test_nothing_outlives_a_cell_also_what_hides_from_its_instance(
    how: str, tmp_path: Path
) -> None:
    waits = "while [ ! -e pid ]; do sleep 0.01; done; cat pid"
    stays = "" if how == "by itself" else "; exec sleep 1000"
    argv = ["sh", "-c", f'"$0" -I -S -c "$1"; {waits}{stays}', sys.executable, HIDES]
    one = cell(argv=argv, cwd=tmp_path)
    one.start()
    try:
        pid = int(
            wait_for(
                lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()
            )
        )
        if how == "by a stop":
            assert pid not in processes.members(one.instance)
            one.end(ProviderError("no more", reason="stopping"))
        with contextlib.suppress(ProviderError):
            list(one.lines())
        assert is_gone(pid)
    finally:
        one.close()


def test_a_worker_of_another_instance_that_a_cell_started_stays(tmp_path: Path) -> None:
    script = "TU_RESIDENT_INSTANCE=another setsid sleep 1000 & echo $!"
    pid = int(text(ran(argv=["sh", "-c", script])))
    try:
        assert not is_gone(pid)
    finally:
        os.kill(pid, 9)


def test_a_cell_gets_no_variable_that_its_parent_has_made() -> None:
    lines = ran(argv=["/usr/bin/env"], env={"PATH": "/bin", "A": "é"})

    names = {line.partition("=")[0] for line in text(lines).splitlines()}
    assert names == {"PATH", "A", "TU_RESIDENT_INSTANCE"}


def test_a_cell_whose_parent_was_killed_is_ended_and_told_as_killed() -> None:
    one = cell(argv=["sh", "-c", "echo up; exec sleep 1000"])
    with running(one) as lines:
        assert next(lines)["text"] == "up\n"
        assert one.process is not None
        one.process.kill()

        assert list(lines)[-1]["exit_code"] == 137
        assert processes.members(one.instance) == []


def test_a_cell_past_its_time_is_ended_and_what_it_printed_is_kept() -> None:
    one = cell(argv=["sh", "-c", "echo so far; sleep 1000"], timeout_s=0.5)
    got: list[Line] = []
    with pytest.raises(ProviderError) as caught, running(one) as lines:
        got.extend(lines)
    assert str(caught.value) == "a-service: cell: no end within 0.5 s, one wanted"
    assert caught.value.reason == "cell_timeout"
    assert caught.value.next == (
        "tu remote endpoint run --timeout 5 a-service -- "
        "sh -c 'echo so far; sleep 1000'"
    )
    assert processes.members(one.instance) == []


def test_a_reader_that_does_not_read_cannot_keep_a_cell_past_its_time() -> None:
    over = threading.Event()
    one = cell(argv=["yes"], timeout_s=0.5, over=over.set)
    with running(one) as lines:
        next(lines)

        assert over.wait(DEADLINE_S)
        assert processes.members(one.instance) == []


def test_a_cell_that_is_not_read_any_more_is_ended() -> None:
    one = cell(argv=["sleep", "1000"])
    with running(one):
        wait_for(lambda: processes.members(one.instance))

    assert processes.members(one.instance) == []


def test_a_cell_that_was_prepared_and_is_not_wanted_any_more_leaves_nothing(
    tmp_path: Path,
) -> None:
    one = cell(argv=["touch", str(tmp_path / "ran")])
    one.prepare()
    one.prepare()
    assert one.process is not None
    pid = one.process.pid
    one.end(ProviderError("no more", reason="stopping"))
    with pytest.raises(ProviderError, match="no more"):
        one.start()
    one.close()

    assert is_gone(pid)
    assert not (tmp_path / "ran").exists()


def test_a_cell_that_was_ended_before_it_started_does_not_start() -> None:
    one = cell(argv=["true"])
    one.end(ProviderError("no more", reason="stopping"))

    with pytest.raises(ProviderError, match="no more"):
        one.start()
    assert one.process is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"argv": ["/nowhere/x"]}, "/nowhere/x: No such file or directory found"),
        ({"argv": ["true"], "cwd": Path("/nowhere")}, "/nowhere: No such file"),
        ({"argv": ["/etc/passwd"]}, "/etc/passwd: Permission denied found"),
    ],
)
def test_what_cannot_be_run_is_named(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ProviderError) as caught:
        ran(**fields)

    assert str(caught.value).startswith(f"a-service: cell: {said}")
    assert caught.value.reason == "cell_failed"


def test_a_cell_inherits_by_allow_list_and_has_a_key_only_if_it_is_given_one() -> None:
    environ = {"PATH": "/bin", "NVIDIA_API_KEY": CANARY, "LD_PRELOAD": "x"}

    assert environment(URL, environ) == {
        "PATH": "/bin",
        "PYTHONUNBUFFERED": "1",
        "BASE_URL": URL,
    }
    assert environment(URL, environ, "key")["INFER_API_KEY"] == "key"


def test_a_key_is_hidden_in_what_a_cell_prints_and_leaves() -> None:
    env = environment(URL, os.environ, CANARY)
    code = "print(INFER_API_KEY[:9], end=''); print(INFER_API_KEY[9:]); result = INFER_API_KEY"
    lines = ran(code, env=env, hide=[CANARY])

    assert text(lines) == "[credential]\n"
    assert lines[-1]["result"] == "[credential]"


def test_a_key_is_hidden_also_as_python_and_json_spell_it() -> None:
    key = 'canary-"0123\\4567'
    env = environment(URL, os.environ, key)
    code = (
        "import json; result = {'a': INFER_API_KEY}; print(result, json.dumps(result))"
    )
    lines = ran(code, env=env, hide=[key])

    assert "0123" not in text(lines)
    assert lines[-1]["result"] == {"a": "[credential]"}


def test_the_cells_of_a_daemon_that_is_gone_are_ended() -> None:
    one = cell(argv=["sleep", "1000"])
    with running(one):
        end_strays()

        assert processes.members(one.instance) == []


def test_descriptors_are_given_back() -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only how many

    ran("result = 1")
    before = count()
    ran("result = 1")

    assert count() == before
