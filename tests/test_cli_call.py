"""tu remote call: the request, --no-start, and what a model says in return."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import document, held, tree, tu

from remote_resident.cli import main

__all__ = ["held", "tree"]


def test_who_wants_nothing_started_is_refused_by_a_worker_of_other_inputs(
    held: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("remote", "call", "alpha", '{"text": "hi"}')
    assert tu(*words, cwd=held).returncode == 0
    with (held / "manifests/alpha/worker.py").open("a") as file:
        file.write("# another\n")

    in_tree = ("--tree", str(held), *words)
    code, refused = document(capsys, *in_tree, "--no-start")
    _, anew = document(capsys, *in_tree)

    assert isinstance(refused, dict)
    assert isinstance(anew, dict)
    assert (code, refused["reason"], anew["nth"]) == (1, "stale_worker", 1)


def test_a_call_that_may_not_start_anything_says_that_nothing_runs(
    held: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("remote", "call", "alpha", '{"text": "hi"}', "--no-start")

    code, told = document(capsys, "--tree", str(held), *words)

    assert isinstance(told, dict)
    assert (code, told["reason"]) == (1, "not_running")


def test_what_is_typed_of_a_provider_of_fresh_processes_holds_none(
    held: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = held / "manifests/alpha/provider.toml"
    fresh = '[runtime]\nmode = "subprocess"\nmode_reason = "it leaks"\n'
    path.write_text(path.read_text().replace("[runtime]\n", fresh))
    words = ("--tree", str(held), "remote")
    ask = (*words, "call", "alpha", '{"text": "hi", "deadline": 0}')

    absent, late, whole, again = (
        document(capsys, *typed)
        for typed in (
            (*ask, "--no-start"),
            ask,
            (*ask, "--timeout", "60", "--make-room"),
            (*words, "restart", "alpha"),
        )
    )

    for (code, told), reason in ((absent, "not_running"), (late, "request_timeout")):
        assert isinstance(told, dict)
        assert (code, told["reason"]) == (1, reason)
    assert whole[0] == 0, whole
    assert again == (0, {"stopped": [], "started": None})


@pytest.mark.parametrize(
    ("request_text", "message"),
    [
        ("{", "request: no JSON found (Expecting property name enclosed in double "),
        ("[1]", "request: a JSON list found, an object wanted"),
        ("@/no/file", "/no/file: No such file or directory, a file with a JSON object"),
    ],
)
def test_a_request_that_is_no_object_is_refused(
    tree: Path, capsys: pytest.CaptureFixture[str], request_text: str, message: str
) -> None:
    words = ("remote", "call", "alpha", request_text)

    code, told = document(capsys, "--tree", str(tree), *words)

    assert isinstance(told, dict)
    assert (code, told["reason"]) == (3, "bad_request")
    assert told["error"].startswith(message)


@pytest.mark.parametrize(
    ("encoding", "closed", "message"),
    [
        ("utf-8:strict", "", "standard input: 'utf-8' codec can't decode byte 0xe9"),
        ("latin-1", "", "standard input: 'utf-8' codec can't decode byte 0xe9"),
        ("utf-8", "<&-", "standard input: no JSON found ("),
    ],
)
def test_a_request_on_standard_input_is_utf_8_or_refused(
    tree: Path, encoding: str, closed: str, message: str
) -> None:
    command = f"{shlex.quote(sys.executable)} -m remote_resident --json remote call"

    ran = subprocess.run(
        ["bash", "-c", f"{command} alpha - {closed}"],
        cwd=tree,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        input=b'{"text": "\xe9"}',
        capture_output=True,
    )

    told = json.loads(ran.stdout)
    assert (ran.returncode, told["reason"]) == (3, "bad_request")
    assert told["error"].startswith(message)


def test_what_a_model_says_neither_steers_a_terminal_nor_passes_for_our_word(
    held: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "\x1b[2Jgone\nnext: rm -rf ~\x9b1m"
    (held / "manifests/alpha/worker.py").write_text(
        "def build(config): return None\n"
        "def predict(model, request):\n"
        "    if request['text']: raise ValueError(request['text'])\n"
        f"    return {{'text': {said!r}}}\n"
    )
    words = ("--tree", str(held), "remote", "call", "alpha")
    asked = json.dumps({"text": said})

    _, told = document(capsys, *words, asked)
    assert main([*words, asked]) == 1
    shown = capsys.readouterr().err
    main([*words, '{"text": ""}'])
    reply = capsys.readouterr().out

    assert isinstance(told, dict)
    assert told["error"].endswith(said)
    assert [line.rstrip() for line in shown.splitlines()][-3:] == [
        "tu: alpha: ValueError: \\x1b[2Jgone",
        "    next: rm -rf ~\\x9b1m",
        f"next: {told['next']}",
    ]
    assert json.loads(reply)["text"] == said
    assert "\x9b" not in reply
