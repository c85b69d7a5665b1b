"""The graph: order, selection, exit codes, turns, signals, and nothing left behind."""

import io
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_steps import PLAIN_SIGNALS, behave, finish, made, plant, step

from remote_resident.errors import UsageError
from remote_resident.manifest import ProviderManifest
from tasks import graph
from tasks.reporter import Reporter, Results
from tasks.run import Run, find_provider
from tasks.screen import Screen
from tasks.selection import Selection, everything
from tasks.step import STEPS

DEADLINE_S = 30
DOIT = (sys.executable, "-m", "doit")


TRAPS = [
    (
        "setup:nope",
        "setup:nope: no provider 'nope' in {tree}/manifests; near: none, there are "
        "setup:alpha, setup:beta",
    ),
    (
        "setup:alpa",
        "setup:alpa: no provider 'alpa' in {tree}/manifests; near: setup:alpha",
    ),
    ("setup:alpa*", "'setup:alpa*': no task matches; near: setup:alpha"),
    (
        "setup:nope*",
        "'setup:nope*': no task matches; near: none, there are setup:alpha, setup:beta",
    ),
    ("stup:*", "'stup:*': no task matches"),
    ("setup:a=b", "setup:a=b: no provider 'a=b' in {tree}/manifests"),
    ("check:nope", "check:nope: no provider 'nope' in {tree}/manifests"),
    ("report:nope", "report:nope: no provider 'nope' in {tree}/manifests"),
    ("env:nope", "env:nope: no provider 'nope' in {tree}/manifests"),
    ("verify:nope", "verify:nope: no provider 'nope' in {tree}/manifests"),
    ("room:nope", "room:nope: no provider 'nope' in {tree}/manifests"),
    ("lock:nope", "lock:nope: no nope.in in {tree}/locks"),
    ("verify", "verify: no name after it; near: verify:alpha, verify:beta"),
    ("setup:", "setup:: no name after it; near: setup:alpha, setup:beta"),
    ("setup:../alpha", "setup:../alpha: no provider '../alpha' in {tree}/manifests"),
    ("alpha", "'alpha': no such task; near: setup:alpha, check:alpha, "),
    ("x=1", "x=1: no task has a name with '='"),
]

CODES = [
    ({}, 0),
    ({"weights_alpha": "refuse"}, 1),
    ({"weights_alpha": "raise"}, 2),
    ({"weights_alpha": "exit"}, 2),
    ({"weights_alpha": "wrong"}, 2),
    ({"weights_alpha": "probe_raises"}, 2),
    ({"weights_alpha": "refuse", "kit_beta": "raise"}, 2),
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return plant(tmp_path / "a tree", "alpha", "beta")


def reporter() -> Reporter:
    return Reporter(Screen(io.StringIO(), io.StringIO()))


def setup(tree: Path, *names: str) -> Results:
    selection = Selection(names=tuple(("setup", name) for name in names))
    return graph.run(tree, selection, reporter(), steps=step)


def verdicts(results: Results) -> dict[str, list[str]]:
    return {
        slug: [result.verdict for result in steps.values()]
        for slug, steps in results.by_slug.items()
    }


def doit(tree: Path, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*DOIT, *words],
        cwd=tree,
        env={**os.environ, **env},
        text=True,
        capture_output=True,
        timeout=DEADLINE_S,
    )


def rows(text: str) -> list[tuple[str, str, str]]:
    found = map(json.loads, text.splitlines())
    return [(row["slug"], row["step"], row["verdict"]) for row in found]


# -- the chain


def test_steps_are_made_in_order_and_found_present_afterwards(tree: Path) -> None:
    first = setup(tree, "alpha")
    second = setup(tree, "alpha")

    assert made(tree) == [f"{name}:alpha" for name in STEPS]
    assert verdicts(first) == {"alpha": ["done"] * 5}
    # the fakes' providers declare neither lock nor kit nor weights
    idle = ["present", "skipped", "skipped", "skipped", "present"]
    assert verdicts(second) == {"alpha": idle}
    assert (first.exit_code(), second.exit_code()) == (0, 0)


def test_a_chain_stops_at_its_first_refusal_and_others_go_on(tree: Path) -> None:
    behave(tree, environment_alpha="refuse")

    results = setup(tree, "alpha", "beta")

    assert verdicts(results) == {"alpha": ["done", "refused"], "beta": ["done"] * 5}
    assert results.by_slug["alpha"]["environment"].lines == [
        "absent: environment:alpha: nothing found, a file wanted",
        "next: touch environment:alpha",
    ]


@pytest.mark.parametrize(("words", "code"), CODES)
def test_the_exit_code_is_the_worst_of_the_rows(
    tree: Path, words: dict[str, str], code: int
) -> None:
    behave(tree, **words)

    results = setup(tree, "alpha", "beta")

    assert results.exit_code() == code
    assert "smoke" in results.by_slug["beta"] or "kit_beta" in words


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("raise", "ValueError: the step tore"),
        ("exit", "SystemExit: 7"),
        ("wrong", "TypeError: weights: make returned 5, a StepResult wanted"),
        ("probe_raises", "RuntimeError: the probe tore"),
    ],
)
def test_a_step_that_breaks_keeps_its_traceback_and_says_what_to_report(
    tree: Path, word: str, said: str
) -> None:
    behave(tree, weights_alpha=word)

    broken = setup(tree, "alpha", "beta").by_slug["alpha"]["weights"]

    assert (broken.verdict, broken.reason) == ("failed", "internal")
    assert broken.detail == said
    assert broken.lines[0] == "Traceback (most recent call last):"
    assert broken.lines[-1].startswith("  remote-resident ")


def test_one_step_alone_runs_none_of_those_before_it(tree: Path) -> None:
    selection = Selection(names=(("weights", "alpha"),))

    graph.run(tree, selection, reporter(), steps=step, alone=True)

    assert made(tree) == ["weights:alpha"]


# -- selection


def test_only_the_selected_manifest_is_read_and_only_its_tasks_are_made(
    tree: Path,
) -> None:
    plant(tree, *(f"p{number}" for number in range(50)))
    read: list[str] = []

    def find(tree: Path, name: str) -> ProviderManifest:
        read.append(name)
        return find_provider(tree, name)

    run = Run(tree, reporter(), step, find)
    tasks = list(graph.create(run, Selection(names=(("setup", "alpha"),))))

    assert read == ["alpha"]
    assert sorted(task.name for task in tasks) == sorted(
        [*(f"{name}:alpha" for name in STEPS), "setup:alpha"]
    )


def test_an_environment_that_is_selected_too_comes_before_preflight(
    tree: Path,
) -> None:
    def preflight_after(*names: tuple[str, str]) -> list[str]:
        tasks = graph.create(Run(tree, reporter(), step), Selection(names=names))
        found = {task.name: list(task.task_dep) for task in tasks}
        return found["preflight:alpha"]

    assert preflight_after(("setup", "alpha")) == []
    assert preflight_after(("env", "alpha"), ("setup", "alpha")) == ["env:alpha"]
    assert preflight_after(("env", "beta"), ("setup", "alpha")) == []


def test_a_broken_manifest_elsewhere_stops_nobody(tree: Path) -> None:
    (tree / "manifests/beta/provider.toml").write_text("slug = \n")

    assert setup(tree, "alpha").exit_code() == 0


def test_a_broken_manifest_is_named_with_every_fault_and_the_rest_is_set_up(
    tree: Path,
) -> None:
    faulty = tree / "manifests/beta/provider.toml"
    last = len(faulty.read_text().splitlines())
    faulty.write_text(faulty.read_text() + "spam = 1\neggs = 2\n")

    ran = doit(tree, "setup")

    assert ran.returncode == 3
    assert f"manifests/beta/provider.toml:{last + 1}: smoke.spam: " in ran.stdout
    assert f"manifests/beta/provider.toml:{last + 2}: smoke.eggs: " in ran.stdout
    assert "Traceback" not in ran.stdout + ran.stderr
    assert made(tree) == [f"{name}:alpha" for name in STEPS]


@pytest.mark.parametrize(("word", "message"), TRAPS)
def test_what_names_nothing_is_refused_with_what_is_near(
    tree: Path, word: str, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        graph.typed([word], tree)

    wanted = message.format(tree=tree)
    assert str(caught.value).startswith(wanted)


@pytest.mark.parametrize(
    "words",
    [
        ("setup:nope",),
        ("stup:*",),
        ("setup:alpha", "a=b"),
        ("run", "setup:x"),
        ("nope",),
        ("list", "setup:*"),
    ],
)
def test_plain_doit_ends_with_3_where_doit_would_take_it_for_success(
    tree: Path, words: tuple[str, ...]
) -> None:
    ran = doit(tree, *words)

    assert (ran.returncode, ran.stdout, made(tree)) == (3, "", [])
    assert ran.stderr.startswith("doit: ")
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("word", ["check", "setup:capiti", "room:capiti"])
def test_a_home_that_is_none_is_wrong_usage_and_found_before_anything_is_done(
    word: str,
) -> None:
    shipped = Path(__file__).parents[1]

    ran = doit(shipped, word, TU_REMOTE_HOME="here", TU_REMOTE_ROWS="-")

    assert ran.returncode == 3
    assert json.loads(ran.stdout)["verdict"] == "refused"


def test_a_setup_without_its_steps_asks_each_of_them(tree: Path) -> None:
    finish(tree, "preflight:alpha", "environment:alpha")

    ran = doit(tree, "-s", "setup:alpha", TU_REMOTE_ROWS="-")

    assert ran.returncode == 1
    assert rows(ran.stdout) == [
        ("alpha", "preflight", "present"),
        ("alpha", "environment", "skipped"),
        ("alpha", "kit", "refused"),
    ]
    assert made(tree) == []


def test_always_execute_makes_nothing_that_is_there(tree: Path) -> None:
    finish(tree, *(f"{name}:alpha" for name in STEPS))

    assert doit(tree, "-a", "setup:alpha").returncode == 0
    assert made(tree) == []


def test_the_list_has_a_line_for_each_provider_and_command(tree: Path) -> None:
    finish(tree, *(f"{name}:alpha" for name in STEPS))

    listed = doit(tree, "list", "--status").stdout.splitlines()

    names = {line.split()[1]: line.split()[0] for line in listed}
    assert names["setup:alpha"] == "U"
    assert names["setup:beta"] == "R"
    assert set(names) == {
        *("accept", "check", "env", "lock", "report", "room", "setup", "verify"),
        *("setup:alpha", "setup:beta"),
    }
    assert "weights:alpha" in doit(tree, "list", "--all").stdout


def test_everything_that_is_listed_can_be_typed(tree: Path) -> None:
    for word in everything(tree).words():
        assert graph.typed([word], tree) is not None


# -- nothing is left behind


@pytest.mark.parametrize(
    "words",
    [
        ("setup",),
        ("setup:alpha",),
        ("-n", "2", "setup"),
        ("list", "--all", "--status"),
        ("info", "setup:alpha"),
        ("forget", "-a"),
        ("clean", "-a"),
        ("ignore", "setup:alpha"),
        ("reset-dep",),
        ("--db-file", "x.db", "--backend", "json", "setup:alpha"),
    ],
)
def test_no_command_leaves_a_state_file(tree: Path, words: tuple[str, ...]) -> None:
    finish(tree, *(f"{name}:{slug}" for name in STEPS for slug in ("alpha", "beta")))

    def files() -> set[Path]:
        return {p for p in tree.rglob("*") if "__pycache__" not in p.parts}

    before = files()
    ran = doit(tree, *words, PYTHONDONTWRITEBYTECODE="1")

    assert files() == before
    assert "Traceback" not in ran.stderr


# -- the same rows, whoever asks


def test_rows_are_the_same_from_plain_doit_and_from_our_own_run(tree: Path) -> None:
    behave(tree, weights_beta="refuse")
    plain = doit(tree, "setup", TU_REMOTE_ROWS="-")
    for path in (tree / "done").iterdir():
        path.unlink()

    ours = setup(tree, "alpha", "beta")

    told = [(slug, result.step, result.verdict) for slug, result in ours.rows]
    assert rows(plain.stdout) == told
    assert plain.returncode == ours.exit_code() == 1
    assert "refused" in plain.stderr


def test_threads_come_to_the_same_and_leave_the_streams_alone(tree: Path) -> None:
    plant(tree, "gamma", "delta")

    ran = doit(tree, "-n", "4", "setup", TU_REMOTE_ROWS="-")

    assert ran.returncode == 0
    assert len(rows(ran.stdout)) == 4 * len(STEPS)
    assert len(made(tree)) == 4 * len(STEPS)


def test_rows_go_to_the_descriptor_that_is_named(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows"
    with out.open("w") as file:
        subprocess.run(
            [*DOIT, "setup:alpha"],
            cwd=tree,
            env={**os.environ, "TU_REMOTE_ROWS": str(file.fileno())},
            pass_fds=[file.fileno()],
            stdout=subprocess.DEVNULL,
            timeout=DEADLINE_S,
            check=True,
        )

    assert [step for _, step, _ in rows(out.read_text())] == list(STEPS)


@pytest.mark.parametrize("value", ["abc", "99", "-1"])
def test_rows_into_nowhere_are_refused(tree: Path, value: str) -> None:
    ran = doit(tree, "setup:alpha", TU_REMOTE_ROWS=value)

    assert ran.returncode == 3
    assert ran.stderr.splitlines()[0] == (
        f"doit: TU_REMOTE_ROWS: '{value}' found, a file descriptor open for writing, "
        "or -, wanted"
    )


# -- turns and signals


class Running:
    """A doit that runs, and its lines as they come."""

    def __init__(self, tree: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [*PLAIN_SIGNALS, *DOIT, *words],
            cwd=tree,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said: list[str] = []
        # what is waited for may never be said: its end is the deadline
        self.watchdog = threading.Timer(DEADLINE_S, self.process.kill)
        self.watchdog.start()

    def until(self, word: str) -> str:
        """Read up to the line with this word in it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if word in line:
                return line
        raise AssertionError(f"{word!r} not said: {self.said}")

    def ended(self) -> tuple[int, str]:
        """Read to the end."""
        assert self.process.stdout is not None
        self.said += self.process.stdout
        return self.process.wait(DEADLINE_S), "".join(self.said)


@pytest.fixture
def start(tree: Path) -> Iterator[type[Running]]:
    """Start runs that none outlives."""
    started: list[Running] = []

    class Kept(Running):
        def __init__(self, *words: str) -> None:
            super().__init__(tree, *words)
            started.append(self)

    yield Kept  # type: ignore[misc]  # it has its tree already
    (tree / "go").touch()
    for running in started:
        running.watchdog.cancel()
        running.process.kill()
        running.process.wait()
        assert running.process.stdout is not None
        running.process.stdout.close()


def child_of(running: Running) -> int:
    return int(running.until("child ").rsplit("child ", 1)[1])


def gone(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return text.rpartition(")")[2].split()[0] in "ZX"


def test_a_second_setup_waits_for_the_first_and_finds_its_work(
    tree: Path, start: type[Running]
) -> None:
    behave(tree, weights_alpha="wait")
    first = start("setup:alpha")  # type: ignore[arg-type]  # the fixture's has its tree
    child_of(first)

    second = start("setup:alpha")  # type: ignore[arg-type]
    waits = second.until("waiting for")
    (tree / "go").touch()

    assert f"alpha: waiting for pid {first.process.pid}, which sets it up (" in waits
    assert first.ended()[0] == 0
    code, said = second.ended()
    assert code == 0, said
    assert made(tree) == [f"{name}:alpha" for name in STEPS]


def test_what_outlives_a_killed_setup_is_waited_for_too(
    tree: Path, start: type[Running]
) -> None:
    behave(tree, weights_alpha="wait")
    first = start("setup:alpha")  # type: ignore[arg-type]
    child_of(first)
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(DEADLINE_S)

    second = start("setup:alpha")  # type: ignore[arg-type]
    waits = second.until("waiting for")
    (tree / "go").touch()

    assert f"waiting for what pid {first.process.pid} started" in waits
    assert second.ended()[0] == 0


@pytest.mark.parametrize("words", [(), ("-n", "2")], ids=["serial", "threads"])
@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_a_signal_ends_the_child_and_says_what_was_cut(
    tree: Path,
    start: type[Running],
    words: tuple[str, ...],
    signum: signal.Signals,
    code: int,
) -> None:
    behave(tree, weights_alpha="wait")
    running = start(*words, "setup:alpha")  # type: ignore[arg-type]
    child = child_of(running)

    running.process.send_signal(signum)

    ended, said = running.ended()
    assert ended == code
    assert gone(child)
    assert f"cut by {signum.name}" in said
    assert "Traceback" not in said
    assert "weights:alpha" not in made(tree)
    (tree / "go").touch()
    assert setup(tree, "alpha").exit_code() == 0


def test_who_waits_for_a_turn_can_be_interrupted(
    tree: Path, start: type[Running]
) -> None:
    behave(tree, weights_alpha="wait")
    first = start("setup:alpha")  # type: ignore[arg-type]
    child_of(first)
    second = start("setup:alpha")  # type: ignore[arg-type]
    second.until("waiting for")

    second.process.send_signal(signal.SIGINT)

    code, said = second.ended()
    assert code == 130
    assert "Traceback" not in said


def test_a_reader_that_leaves_is_no_error(tree: Path) -> None:
    plant(tree, *(f"p{number}" for number in range(20)))
    pipe = f"{shlex.quote(sys.executable)} -m doit setup | head -n 1; exit ${{PIPESTATUS[0]}}"

    ran = subprocess.run(
        ["bash", "-c", pipe], cwd=tree, text=True, capture_output=True, timeout=60
    )

    assert ran.returncode == 0
    assert "Traceback" not in ran.stderr
    assert "BrokenPipe" not in ran.stderr
    assert len(made(tree)) == 22 * len(STEPS)


def test_the_list_of_what_ships_fits_eighty_columns() -> None:
    tree = Path(__file__).parents[1]
    ran = subprocess.run(
        [sys.executable, "-m", "doit", "list"],
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert [line for line in ran.stdout.splitlines() if len(line) > 80] == []
    assert "setup:capiti" in ran.stdout
