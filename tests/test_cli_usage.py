"""Wrong usage, options and help: what was found, what was wanted, what to type."""

import json
from pathlib import Path

import pytest
from command_line import document, tree

from remote_resident.cli import COMMANDS, main

__all__ = ["tree"]

MISTAKES = [
    ([], "no command found, one wanted"),
    ([""], "tu : no such command"),
    (["setup", "alpha"], "tu setup: no such command; near: tu remote setup"),
    (["remote"], "no command found, one wanted"),
    (
        ["remote", "stup"],
        "tu remote stup: no such command; near: tu remote setup, tu remote stop",
    ),
    (["remote", ""], "tu remote : no such command"),
    (
        ["remote", "setup"],
        "tu remote setup: neither a name nor --all found, one of them wanted; "
        "providers: alpha, beta",
    ),
    (
        ["remote", "setup", "alpha", "--all"],
        "tu remote setup: both names and --all found, one of them wanted; "
        "providers: alpha, beta",
    ),
    (
        ["remote", "setup", "alpha", "--only", "nope"],
        "tu remote setup: argument --only: invalid choice: 'nope' (choose from "
        "'preflight', 'environment', 'kit', 'weights', 'smoke')",
    ),
    (
        ["remote", "setup", "alpha", "--nope"],
        "tu remote setup: unrecognized arguments: --nope",
    ),
    (
        ["remote", "setup", "alpha", "--tree"],
        "tu: argument --tree: expected one argument",
    ),
    (["remote", "env"], "tu remote env: the following arguments are required: SLUG"),
    (
        ["remote", "verify"],
        "tu remote verify: the following arguments are required: SLUG",
    ),
]


NUMBERS = [
    (command, option, text)
    for command, option, texts in (
        (["call", "alpha", "{}"], "--timeout", "1e300 2000001 0 -1 nan inf soon"),
        (["endpoint", "run", "a-service", "x"], "--timeout", "1e300 0 nan"),
        (["logs", "alpha"], "--lines", "99999999999999999999 -1 1.5 all"),
        (["job", "logs", "j"], "--lines", "99999999999999999999 -1"),
    )
    for text in texts.split()
]


NAMES = [
    (["setup", "alpa"], "no provider 'alpa' among the 2 of {tree}; near: alpha"),
    (
        ["setup", "zz"],
        "no provider 'zz' among the 2 of {tree}; near: none, there are alpha, beta",
    ),
    (
        ["setup", ""],
        "no provider '' among the 2 of {tree}; near: none, there are alpha, beta",
    ),
    (["check", "alpa"], "no provider 'alpa' among the 2 of {tree}; near: alpha"),
    (["verify", "alpa"], "no provider 'alpa' among the 2 of {tree}; near: alpha"),
    (["env", "alpa"], "no provider 'alpa' among the 2 of {tree}; near: alpha"),
    (["list", "alpa"], "no provider 'alpa' among the 2 of {tree}; near: alpha"),
    (
        ["lock", "alpa"],
        "no 'alpa' among the 0 locks of {tree}; {tree}/locks/NAME.in with the model's "
        "packages wanted",
    ),
    (["setup", "./nowhere"], "./nowhere: no provider.toml there"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES)
def test_wrong_usage_ends_with_3_and_says_what_was_wanted(
    tree: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    code, told = (
        document(capsys, "--tree", str(tree), *words)
        if (words[-1:] != ["--tree"])
        else document(capsys, *words)
    )

    assert code == 3
    assert isinstance(told, dict)
    assert told["error"] == message
    assert (told["ok"], told["reason"], told["problems"]) == (False, "unknown_name", [])
    assert set(told) == {"ok", "reason", "error", "problems", "next"}


@pytest.mark.parametrize(("words", "message"), NAMES)
def test_an_unknown_name_ends_with_3_and_names_what_is_near(
    tree: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    code, told = document(capsys, "--tree", str(tree), "remote", *words)

    assert isinstance(told, dict)
    assert (code, told["error"]) == (3, message.format(tree=tree))


@pytest.mark.parametrize(("command", "option", "number"), NUMBERS)
def test_a_number_without_a_meaning_is_wrong_usage(
    tree: Path,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    option: str,
    number: str,
) -> None:
    at = 2 if command[0] in ("job", "endpoint") else 1
    words = [*command[:at], f"{option}={number}", *command[at:]]

    code, told = document(capsys, "--tree", str(tree), "remote", *words)

    assert isinstance(told, dict)
    assert (code, told["ok"]) == (3, False)
    assert f"argument {option}: {number!r} found" in told["error"]


@pytest.mark.parametrize("words", [[], ["remote"], ["remote", "job"]])
def test_a_command_that_is_missing_is_told_with_what_to_type_next(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(words) == 3

    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"next: {' '.join(['tu', *words])} --help"


@pytest.mark.parametrize(
    "words",
    [
        ["call", "alpha", "no JSON"],
        ["endpoint", "register", "tiny-service", "--url=/x", "--start=/nowhere"],
    ],
)
def test_what_a_command_refuses_as_usage_names_the_help_of_that_command(
    tree: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(["remote", "--tree", str(tree), *words]) == 3

    last = capsys.readouterr().err.splitlines()[-1]
    verb = " ".join(words[: 2 if words[0] == "endpoint" else 1])
    assert last == f"next: tu remote --tree '{tree}' {verb} --help"


def test_a_mistake_is_told_to_people_on_stderr_in_two_lines(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["remote", "--tree", str(tree), "setup", "alpa"]) == 3

    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        f"tu: no provider 'alpa' among the 2 of {tree}; near: alpha",
        f"next: tu remote --tree '{tree}' list",
    ]


@pytest.mark.parametrize("at", range(3))
def test_global_options_may_stand_anywhere(
    tree: Path, capsys: pytest.CaptureFixture[str], at: int
) -> None:
    words = ["remote", "list"]
    words[at:at] = ["--json", "--tree", str(tree), "--quiet", "--no-color"]

    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["slug"] for row in found["providers"]] == ["alpha", "beta"]


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "tu 0.1.0\n"
    assert document(capsys, "--version") == (0, {"version": "0.1.0"})


@pytest.mark.parametrize("words", [[], ["remote"], *(["remote", c] for c in COMMANDS)])
def test_help_is_no_failure_and_one_document(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main([*words, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: tu")
    assert "--tree DIR" in text
    code, told = document(capsys, *words, "-h")
    assert isinstance(told, dict)
    assert (code, told["help"].rstrip()) == (0, text.rstrip())
