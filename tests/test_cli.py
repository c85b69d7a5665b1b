"""The command line: one document, the exit codes, and nobody's mistake a traceback."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_steps import PLAIN_SIGNALS, plant

from remote_resident import manifest, places
from remote_resident.cli import COMMANDS, main
from remote_resident.cli.tree import columns

TU = (sys.executable, "-m", "remote_resident")
DEADLINE_S = 60
HEAVY = {"doit", "rich", "requests", "asyncio", "importlib.metadata", "tasks.graph"}

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


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return plant(tmp_path / "a tree", "alpha", "beta")


def document(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, object]:
    """Run a command line with --json; stdout must be one document and nothing else."""
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def tu(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*TU, *words], cwd=cwd, text=True, capture_output=True, timeout=DEADLINE_S
    )


# -- wrong usage


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


@pytest.mark.parametrize("name", ["nowhere", "a tree/manifests"])
def test_a_tree_without_manifests_is_refused(
    tree: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code, told = document(capsys, "--tree", str(tree.parent / name), "remote", "list")

    assert code == 3
    assert isinstance(told, dict)
    assert told["error"].startswith(f"--tree {tree.parent / name}: no ")


# -- options


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


# -- commands


def test_a_list_says_what_each_provider_is_and_a_broken_one_too(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "manifests/beta/provider.toml").write_text("slug =\n")

    _, told = document(capsys, "--tree", str(tree), "remote", "list")

    assert told == {
        "providers": [
            {
                "slug": "alpha",
                "description": "Answers with what it was asked.",
                "mode": "resident",
                "status": "untested",
                "set_up": False,
                "gpu_policy": "none",
                "ok": True,
            },
            {
                "slug": "beta",
                "description": None,
                "mode": None,
                "status": None,
                "set_up": False,
                "gpu_policy": None,
                "ok": False,
            },
        ]
    }


def test_a_setup_answers_in_its_own_shape_also_when_it_is_refused(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tree / "manifests/alpha/provider.toml"
    manifest.write_text(manifest.read_text().replace(sys.executable, "/no/python"))

    code, told = document(capsys, "--tree", str(tree), "remote", "setup", "alpha")

    assert code == 1
    assert isinstance(told, dict)
    (result,) = told["results"]
    assert (told["ok"], result["ok"], result["measured"]) == (False, False, None)
    (step,) = result["steps"]
    assert set(step) == {"step", "verdict", "reason", "detail", "lines", "seconds"}
    assert (step["step"], step["verdict"], step["reason"]) == (
        "preflight",
        "refused",
        "python_missing",
    )


def test_a_provider_that_cannot_be_read_is_a_failure_with_every_fault(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tree / "manifests/beta/provider.toml"
    manifest.write_text(manifest.read_text() + "spam = 1\neggs = 2\n")

    code, told = document(capsys, "--tree", str(tree), "remote", "setup", "beta")

    assert code == 3
    assert isinstance(told, dict)
    assert (told["ok"], told["reason"]) == (False, "manifest_invalid")
    assert [problem["name"] for problem in told["problems"]] == [
        "smoke.spam",
        "smoke.eggs",
    ]


def test_a_directory_stands_for_a_slug(
    tree: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    outside = plant(tmp_path / "other", "gamma") / "manifests" / "gamma"

    code, told = document(
        capsys, "--tree", str(tree), "remote", "setup", str(outside), "--only", "kit"
    )

    assert code == 0
    assert isinstance(told, dict)
    (result,) = told["results"]
    assert result["slug"] == "gamma"
    assert [(s["step"], s["verdict"]) for s in result["steps"]] == [("kit", "skipped")]


@pytest.mark.parametrize("typed", ["./my own/gamma", "gamma"])
def test_the_next_command_names_a_provider_as_it_was_typed(
    tree: Path, tmp_path: Path, typed: str
) -> None:
    home = tmp_path / "other" if typed.startswith(".") else tree
    manifest = plant(home, "gamma") / "manifests" / "gamma" / "provider.toml"
    pinned = f'name = "a.bin"\nsha256 = "{"0" * 64}"\nsize = 1'
    weights = f'[weights]\nroot_default = "/no/such"\n[[weights.file]]\n{pinned}\n'
    manifest.write_text(f"{manifest.read_text()}\n{weights}")
    if home != tree:
        (tmp_path / "my own").symlink_to(manifest.parents[1])

    words = ("--tree", str(tree), "remote", "setup", typed, "--only", "weights")
    ran = tu(*words, cwd=tmp_path)

    assert ran.returncode == 1
    nexts = [line for line in ran.stdout.splitlines() if "next: " in line]
    assert nexts
    again = f"tu remote --tree {shlex.quote(str(tree))} setup {shlex.quote(typed)}"
    assert all(again in line for line in nexts)
    assert "doit" not in ran.stdout


def test_check_gives_the_findings_of_doit_check(tree: Path) -> None:
    beta = tree / "manifests/beta"
    (beta / "provider.toml").write_text("slug =\n")
    (tree / "manifests/alpha/worker.py").write_text("import numpy\n")

    ours = tu("remote", "check", "--tree", str(tree), cwd=Path("/"))
    plain = subprocess.run(
        [sys.executable, "-m", "doit", "check"],
        cwd=tree,
        text=True,
        capture_output=True,
        timeout=DEADLINE_S,
    )

    as_tu = f"tu remote --tree '{tree}' check "
    assert ours.stdout == plain.stdout.replace("doit check:", as_tu)
    assert "worker_imports: manifests/alpha/worker.py:1: imports numpy" in ours.stdout
    assert (ours.returncode, plain.returncode) == (1, 1)


def test_an_up_to_date_check_imports_nothing_heavy(tree: Path) -> None:
    script = (
        "import sys; from remote_resident.cli import main; code = main(sys.argv[1:]);"
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, "remote", "check", "--tree", str(tree)],
        text=True,
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )

    assert not HEAVY & set(ran.stderr.split())


# -- workers

ECHO = """
def build(config):
    print("built", flush=True)
    return []

def predict(model, request):
    model.append(request)
    return {"text": request["text"], "nth": len(model)}
"""


@pytest.fixture
def held(tree: Path) -> Iterator[Path]:
    """A tree whose alpha answers, and whose worker ends with the test."""
    (tree / "manifests/alpha/worker.py").write_text(ECHO)
    yield tree
    tu("remote", "stop", "alpha", cwd=tree)


def test_a_worker_outlives_the_call_is_listed_and_stopped(held: Path) -> None:
    def ask(*words: str) -> Any:
        ran = tu("--json", "remote", *words, cwd=held)
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    def holders() -> list[Any]:
        return [h for h in ask("ps")["holders"] if h["tree"] == str(held)]

    asked = '{"text": "hi"}'

    first, second = ask("call", "alpha", asked), ask("call", "alpha", asked)
    (holder,) = holders()
    log = ask("logs", "alpha", "--lines", "1000")["lines"]
    restarted = ask("restart", "alpha")
    stopped = ask("stop", "alpha")

    assert [first["nth"], second["nth"]] == [1, 2]
    assert (holder["slug"], holder["state"], holder["requests"]) == (
        "alpha",
        "ready",
        2,
    )
    assert holder["budget"] == {"vram_gb": 0.0, "ram_gb": 0.1, "source": "declared"}
    assert [line for line in log if "built" in line]
    assert holder["pid"] in restarted["stopped"]
    assert restarted["started"] in stopped["stopped"]
    assert holders() == []
    assert ask("stop", "alpha") == {"stopped": []}


@pytest.mark.parametrize(
    ("name", "text"), [("alpha", None), ("./manifests/alpha/", "slug = 1")]
)
def test_a_worker_is_stopped_by_its_name_also_without_a_readable_manifest(
    held: Path, name: str, text: str | None
) -> None:
    file = held / "manifests/alpha/provider.toml"
    whole = file.read_text()
    assert tu("remote", "call", "alpha", '{"text": "hi"}', cwd=held).returncode == 0
    file.unlink()
    if text is not None:
        file.write_text(text)

    stopped = tu("remote", "stop", name, "--json", cwd=held)
    again = tu("remote", "stop", name, cwd=held)
    file.write_text(whole)

    assert (stopped.returncode, again.returncode) == (0, 3)
    assert len(json.loads(stopped.stdout)["stopped"]) == 1


def test_who_wants_nothing_started_is_refused_by_a_worker_of_other_inputs(
    held: Path,
) -> None:
    words = ("remote", "call", "alpha", '{"text": "hi"}')
    assert tu(*words, cwd=held).returncode == 0
    with (held / "manifests/alpha/worker.py").open("a") as file:
        file.write("# another\n")

    refused = tu(*words, "--no-start", "--json", cwd=held)

    assert (refused.returncode, json.loads(refused.stdout)["reason"]) == (
        1,
        "stale_worker",
    )
    assert json.loads(tu(*words, "--json", cwd=held).stdout)["nth"] == 1


def test_a_holder_above_its_budget_is_named_by_ps_and_room(
    held: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = held / "manifests/alpha/provider.toml"
    text = path.read_text()
    # an interpreter alone takes some ten times as much
    path.write_text(text.replace("ram_budget_gb = 0.1", "ram_budget_gb = 0.001"))
    assert path.read_text() != text
    words = ("--tree", str(held), "remote")

    assert tu("remote", "call", "alpha", '{"text": "hi"}', cwd=held).returncode == 0
    _, told = document(capsys, *words, "ps")
    shown = []
    for command in (["ps"], ["room"], ["room", "alpha"]):
        main([*words, *command])
        shown.append(capsys.readouterr().out)

    assert isinstance(told, dict)
    (holder,) = [row for row in told["holders"] if row["tree"] == str(held)]
    (over,) = holder["over_budget"]
    assert over.startswith("RAM peak 0.0")
    assert over.endswith("GiB, above its budget of 0.001 GiB")
    pid = holder["pid"]
    for text, start in zip(
        shown,
        (
            f"alpha, pid {pid}: RAM peak 0.0",
            f"alpha, held by pid {pid}: RAM peak 0.0",
            f"alpha, held by pid {pid}: RAM peak 0.0",
        ),
        strict=True,
    ):
        assert [line for line in text.splitlines() if line.startswith(start)]


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


def test_room_gives_the_verdict_with_its_numbers(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, told = document(capsys, "--tree", str(tree), "remote", "room", "alpha")
    _, every = document(capsys, "--tree", str(tree), "remote", "room")

    assert isinstance(told, dict)
    assert isinstance(every, dict)
    assert (told["slug"], told["need_gb"]) == ("alpha", 0.1)
    assert [verdict["slug"] for verdict in every["verdicts"]] == ["alpha", "beta"]


def test_room_says_that_a_provider_is_held_already(
    held: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--tree", str(held), "remote")
    assert tu("remote", "call", "alpha", '{"text": "hi"}', cwd=held).returncode == 0
    _, told = document(capsys, *words, "room", "alpha")
    _, other = document(capsys, *words, "room", "beta")

    assert isinstance(told, dict)
    assert isinstance(other, dict)
    (own,) = [row for row in told["holders"] if row["tree"] == str(held)]
    said = f"alpha is held already by pid {own['pids'][0]}: a call is answered there"
    assert [note.startswith(said) for note in told["notes"]].count(True) == 1
    assert not any("held already" in note for note in other["notes"])


def test_room_names_every_provider_also_whose_manifest_cannot_be_read(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "manifests/beta/provider.toml").write_text("slug = [")
    words = ("--tree", str(tree), "remote", "room")
    _, every = document(capsys, *words)
    main([*words])
    lines = capsys.readouterr().out.splitlines()

    assert isinstance(every, dict)
    assert [verdict["slug"] for verdict in every["verdicts"]] == ["alpha"]
    assert every["unreadable"]["beta"].startswith("manifests/beta/provider.toml:1: ")
    assert [line.split()[:2] for line in lines[1:3]][1] == ["beta", "no"]
    assert f"beta: {every['unreadable']['beta']}" in lines


def test_room_in_a_tree_without_providers_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "manifests").mkdir()

    main(["--tree", str(tmp_path), "remote", "room"])
    assert capsys.readouterr().out == "no providers\n"


# -- what to type next


def test_the_printed_command_works_for_a_provider_outside_the_tree(
    tree: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "my own" / "alpha"
    folder.parent.mkdir()
    (tree / "manifests/alpha").rename(folder)
    (folder / "worker.py").write_text(
        "def build(config): raise OSError('torn')\ndef predict(model, request): ...\n"
    )
    monkeypatch.chdir(tree)

    def typed(*words: str) -> dict[str, Any]:
        _, told = document(capsys, *words)
        assert isinstance(told, dict)
        return told

    def typed_next(told: dict[str, Any]) -> dict[str, Any]:
        return typed(*shlex.split(told["next"])[1:])

    ask = ("remote", "call", "../my own/alpha", "{}")
    absent, *failed = typed(*ask, "--no-start"), *(typed(*ask) for _ in range(4))

    assert [told["reason"] for told in failed] == ["start_failed"] * 3 + ["crash_loop"]
    assert failed[-1]["next"] == f"tu remote restart {shlex.quote(str(folder))}"
    # started anew, in spite of all that failed
    assert typed_next(failed[-1])["reason"] == "start_failed"
    assert typed_next(absent)["reason"] == "start_failed"
    assert "OSError: torn" in typed_next(failed[0])["lines"]


@pytest.mark.parametrize("stands", ["in force", "in another tree", "outside"])
def test_a_provider_is_named_as_it_can_be_typed(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stands: str
) -> None:
    found = manifest.load(tree / "manifests/alpha/provider.toml")
    folder = shlex.quote(str(found.directory))
    if stands == "in force":
        monkeypatch.setenv("TU_REMOTE_TREE", str(tree))
        assert found.named == "alpha"
    elif stands == "in another tree":
        assert found.named == folder
    else:
        own = tmp_path / "own"
        own.mkdir()
        (tree / "manifests/alpha").rename(own / "alpha")
        path = own / "alpha" / "provider.toml"
        folder = shlex.quote(str(path.parent))
        assert manifest.load(path, tree).named == folder
        locked = replace(manifest.load(path, tree), env_lock="alpha")
        assert locked.named == f"{folder} --tree {shlex.quote(str(tree))}"


# -- where it stands


def test_code_in_a_tree_is_never_run(tree: Path) -> None:
    trap = "raise SystemExit('the code of the tree ran')\n"
    (tree / "tasks").mkdir()
    for name in ("tasks/__init__.py", "tasks/graph.py", "tasks/check.py", "dodo.py"):
        (tree / name).write_text(trap)
    (tree / "pyproject.toml").write_text("[tool.doit]\nreporter = 'json'\n")

    for words in (["check"], ["setup", "alpha", "--only", "kit"], ["list"]):
        ran = tu("remote", *words, cwd=tree)
        assert (ran.returncode, "the tree ran" in ran.stderr) == (0, False), ran.stderr


def test_no_file_is_left_where_the_caller_stands(tree: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()

    tu("remote", "setup", "alpha", "--only", "kit", "--tree", str(tree), cwd=here)
    tu("remote", "list", "--tree", str(tree), cwd=here)

    assert list(here.iterdir()) == []
    assert not list(tree.glob(".doit*"))


# -- how it ends


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_a_signal_ends_the_fetch_and_leaves_one_document(
    tree: Path, signum: signal.Signals, code: int
) -> None:
    manifest = tree / "manifests/alpha/provider.toml"
    fetch = "import os, time; print('child', os.getpid(), flush=True); time.sleep(600)"
    manifest.write_text(
        manifest.read_text()
        + f'[weights]\nroot_default = "{tree}/weights"\nfetch = ["-c", "{fetch}"]\n'
        + '[[weights.file]]\nname = "w.bin"\nsize = 4\nunpinned_reason = "a test"\n'
    )
    process = subprocess.Popen(
        [
            *PLAIN_SIGNALS,
            *TU,
            "--json",
            "remote",
            "--tree",
            str(tree),
            "setup",
            "alpha",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    pid = next(
        int(line.rsplit("child ", 1)[1]) for line in process.stderr if "child " in line
    )

    process.send_signal(signum)
    out, err = process.communicate(timeout=DEADLINE_S)

    assert process.returncode == code
    cut = json.loads(out)["results"][0]["steps"][-1]
    assert (cut["step"], cut["reason"]) == ("weights", "interrupted")
    assert cut["detail"] == f"cut by {signum.name}"
    assert "Traceback" not in err
    assert not Path(f"/proc/{pid}").exists()


def test_our_own_error_ends_with_2_its_traceback_and_what_to_report(
    tree: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(tree: Path) -> list[str]:
        raise LookupError("torn")

    monkeypatch.setattr("remote_resident.manifest_path.slugs", broken)

    code = main(["remote", "list", "--json", "--tree", str(tree)])

    told = capsys.readouterr()
    assert code == 2
    assert json.loads(told.out) == {
        "ok": False,
        "reason": "internal",
        "error": "LookupError: torn",
        "problems": [],
        "next": None,
    }
    assert "Traceback (most recent call last):" in told.err
    assert "Report the lines above with:" in told.err


def test_a_reader_that_leaves_is_no_error(tree: Path) -> None:
    plant(tree, *(f"p{number:04}" for number in range(400)))
    command = f"{shlex.quote(sys.executable)} -m remote_resident remote list"

    ran = subprocess.run(
        ["bash", "-c", f"{command} | head -n 1; exit ${{PIPESTATUS[0]}}"],
        cwd=tree,
        text=True,
        capture_output=True,
        timeout=DEADLINE_S,
    )

    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_printing_library_does_not_spoil_the_document(
    tree: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def prints(tree: Path) -> list[str]:
        print("noise")
        return []

    monkeypatch.setattr("remote_resident.manifest_path.slugs", prints)

    assert document(capsys, "--tree", str(tree), "remote", "list") == (
        0,
        {"providers": []},
    )


def test_names_that_no_terminal_can_show_are_escaped(tree: Path) -> None:
    ran = subprocess.run(
        [*TU, "remote", "setup", "gr\u00fc\u00df"],
        cwd=tree,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=DEADLINE_S,
    )

    assert ran.returncode == 3
    assert b"no provider 'gr\\xfc\\xdf'" in ran.stderr


def test_a_log_is_followed_until_a_signal(tree: Path) -> None:
    log = places.log_path("alpha", tree)
    places.ensure(log.parent)
    log.write_text("one\ntwo\n")
    process = subprocess.Popen(
        [*PLAIN_SIGNALS, *TU, "remote", "logs", "alpha", "--follow", "--lines", "1"],
        cwd=tree,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None

    first = process.stdout.readline()
    with log.open("a") as file:
        file.write("three\n")
    second = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)

    assert (first, second) == ("two\n", "three\n")
    assert (process.returncode, err) == (130, "tu: cut by SIGINT\n")


@pytest.mark.parametrize("full", [False, True], ids=["left", "full"])
def test_a_log_is_followed_while_somebody_takes_it(tree: Path, full: bool) -> None:
    log = places.log_path("alpha", tree)
    places.ensure(log.parent)
    log.write_text("one\n")
    read, write = os.pipe()
    os.close(read)
    out = os.open("/dev/full", os.O_WRONLY) if full else write
    followed = subprocess.run(
        [*TU, "remote", "logs", "alpha", "--follow"],
        cwd=tree,
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
        timeout=DEADLINE_S,
    )
    for end in {out, write}:
        os.close(end)

    lost = "standard output: No space left on device: what follows is lost\n"
    assert (followed.returncode, followed.stderr) == ((1, lost) if full else (0, ""))


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


@pytest.mark.parametrize("words", ["doit setup:alpha", "remote_resident remote list"])
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&-"])
def test_a_closed_stream_is_nobody_listening(
    tree: Path, words: str, closed: str
) -> None:
    command = f"{shlex.quote(sys.executable)} -m {words} {closed}"

    ran = subprocess.run(["bash", "-c", command], cwd=tree, capture_output=True)

    assert (ran.returncode, b"Traceback" in ran.stderr) == (0, False)


@pytest.mark.parametrize(
    "words",
    [
        "remote_resident remote list --json",
        "remote_resident remote report",
        "remote_resident remote verify alpha",
        "doit report",
    ],
)
def test_a_full_disk_under_the_output_is_said_and_no_success(
    tree: Path, words: str
) -> None:
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            [sys.executable, "-m", *words.split()],
            cwd=tree,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )

    assert (ran.returncode, ran.stderr) == (
        1,
        "standard output: No space left on device: what follows is lost\n",
    )


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


def test_a_table_shows_what_another_s_process_is_called_on_one_line() -> None:
    assert columns([("a\x1b[2J\nb", "c")]) == "a\\x1b[2J\\nb  c"


def test_control_codes_of_a_model_reach_no_terminal(tree: Path) -> None:
    log = places.log_path("alpha", tree)
    places.ensure(log.parent)
    log.write_text("\x1b[2Jgone\tnow\r\n")
    argv = [*TU, "remote", "logs", "alpha"]
    ours, theirs = os.openpty()
    try:
        subprocess.run(argv, cwd=tree, stdout=theirs, check=True, timeout=DEADLINE_S)
        shown = os.read(ours, 4096)
    finally:
        os.close(theirs)
        os.close(ours)
    piped = subprocess.run(argv, cwd=tree, capture_output=True, check=True)

    assert shown == b"\\x1b[2Jgone\tnow\r\n"
    assert piped.stdout.startswith(b"\x1b[2Jgone")
