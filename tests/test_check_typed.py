"""A plain `tu remote check` takes a short way, and it leads where the long one does."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from remote_resident import cli, later
from remote_resident.cli import check, typed
from remote_resident.cli.answer import Answer, Asked

DEADLINE_S = 60
LOADED = (
    "import sys; from remote_resident.cli import main; code = main(sys.argv[1:]);"
    "print(*[n for n, m in sys.modules.items() if hasattr(type(m), 'mro') "
    "and type(m).__name__ != '_Later'], file=sys.stderr); sys.exit(code)"
)
NEVER = {
    *("doit", "rich", "requests", "asyncio", "argparse", "gettext", "inspect"),
    *("shutil", "textwrap", "hashlib", "json", "tomllib", "ast", "pickle"),
    *("tasks.graph", "tasks.commands", "tasks.lock", "tasks.ladder", "tasks.env"),
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """Give what the check was asked, which it is not to do."""
    seen: list[dict[str, object]] = []

    def run(asked: Asked) -> Answer:
        seen.append(dict(vars(asked)))
        return Answer(document={})

    monkeypatch.setattr(check, "run", run)
    return seen


@pytest.mark.parametrize(
    "words",
    [
        "remote check",
        "--json remote check",
        "remote check --json --quiet --no-color",
        "remote --tree T check",
        "remote check --tree T alpha beta",
        "remote check alpha --json beta",
        "remote check --deep --no-machine alpha",
        "--tree T --tree U remote check",
    ],
)
def test_a_plain_check_is_read_as_argparse_reads_it(
    words: str, asked: list[dict[str, object]]
) -> None:
    plain = cli._plain_check(words.split())
    typed.answer(words.split(), sys.stdout)

    assert plain is not None
    assert [{**plain, "stdout": sys.stdout}] == asked


@pytest.mark.parametrize(
    "words",
    [
        "",
        "remote",
        "remote chek",
        "remote check -h",
        "remote check --dep",
        "remote check --tree",
        "remote check --tree=T",
        "remote check --tree --json",
        "remote --deep check",
        "remote check alpha --deep",
        "remote check alpha --deep beta",
        "remote check -- alpha",
        "remote check --version",
        "check remote",
        "remote setup alpha",
    ],
)
def test_what_is_not_plainly_a_check_is_left_to_argparse(words: str) -> None:
    assert cli._plain_check(words.split()) is None


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in ("manifests/alpha", "locks", "kits"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "manifests/alpha/worker.py").write_text("def build(config): ...\n")
    (tmp_path / "manifests/alpha/provider.toml").write_text(
        'slug = "alpha"\n[runtime]\nworker = "worker.py"\n[host]\n'
        'ram_budget_gb = 0.1\n[env]\npython = "$ALPHA_PYTHON"\n'
        '[smoke]\nrequest = { op = "predict" }\n'
    )
    return tmp_path


def ran(argv: list[str], tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv, "remote", "check", "--tree", str(tree)],
        text=True,
        capture_output=True,
        timeout=DEADLINE_S,
    )


def test_an_up_to_date_check_loads_nothing_that_it_does_not_use(
    tree: Path,
) -> None:
    # what is younger is not kept
    youngest = max(path.stat().st_ctime for path in tree.rglob("*"))
    time.sleep(max(0.0, youngest + 2.1 - time.time()))
    ran(["-c", LOADED], tree)
    again = ran(["-c", LOADED], tree)

    assert again.returncode == 0
    assert not NEVER & set(again.stderr.split())


def test_a_check_that_leaves_at_once_has_said_all_and_gives_its_code(
    tree: Path,
) -> None:
    good = ran(["-m", "remote_resident"], tree)
    (tree / "manifests/alpha/worker.py").unlink()
    bad = ran(["-m", "remote_resident"], tree)

    assert good.stdout.splitlines() == [
        "✓ present  alpha  check        not set up on this machine"
    ]
    assert (good.returncode, bad.returncode) == (0, 1)
    assert (
        "file_missing: manifests/alpha/provider.toml:3: runtime.worker: " in bad.stdout
    )


def test_a_module_that_is_not_used_is_not_loaded_and_is_whole_when_it_is() -> None:
    script = (
        "import sys; from remote_resident import later; later.load('colorsys');"
        "import colorsys; print('hls_to_rgb' in vars(colorsys));"
        "from colorsys import hls_to_rgb; import colorsys as again;"
        "print(hls_to_rgb(0, 1, 0), again is sys.modules['colorsys'],"
        "colorsys.rgb_to_hls is again.rgb_to_hls)"
    )
    told = subprocess.run(
        [sys.executable, "-c", script],
        text=True,
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )

    assert told.stdout.splitlines() == ["False", "(1, 1, 1) True True"]


def test_a_module_that_is_loaded_stays_what_it_is() -> None:
    before = sys.modules["json"]
    later.load("json")

    assert sys.modules["json"] is before
