"""What is declared is well formed, and what was set up still holds, or it is named."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_tree import MANIFEST, look_alike, pin, provider, tree

from remote_resident.errors import UsageError
from tasks import check, claims, findings, measured, verdicts

LONG_AGO = 1_000_000_000
WEIGHTS = """
[weights]
root_default = "{root}"
[[weights.file]]
name = "w"
size = 5
sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
"""
KIT = '[kit]\nname = "k"\npackage = "k_opt"\n'
KIT_FILE = (
    f'repository = "file:///k"\ncommit = "{"c" * 40}"\n'
    'license = "MIT"\ndescription = "A kit."\n'
)


def found(root: Path, **asked: Any) -> list[tuple[str, int | None, str]]:
    return [
        (p.reason, p.line, p.text)
        for one in check.check(root, **asked)
        for p in one.problems
    ]


def reasons(root: Path, **asked: Any) -> list[str]:
    return [reason for reason, _, _ in found(root, **asked)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tree(tmp_path / "t")


@pytest.fixture
def set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a tree whose provider is set up on this machine, all of it old."""
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "w").write_bytes(b"hello")
    look_alike(tmp_path / "env", "a-1.0")
    monkeypatch.setenv("M_PYTHON", str(tmp_path / "env/bin/python"))
    place = tree(tmp_path / "t", toml=MANIFEST + WEIGHTS.format(root=weights))
    for path in [weights, *weights.iterdir()]:
        os.utime(path, (LONG_AGO, LONG_AGO))
    certify(place)
    return place


def certify(root: Path) -> None:
    """Write the report that a smoke would, of how things are."""
    m = provider(root)
    report = measured.Report(
        slug="m",
        machine={"gpus": []},
        inputs=measured.inputs(m, m.check_weights().digests),
        timing={},
        memory={"rss_peak_bytes": 1},
        answer={},
        certified={},
    )
    measured.write(measured.report_path(m), report)


def test_a_good_tree_has_nothing_wrong_and_nothing_installed(root: Path) -> None:
    (one,) = check.check(root)

    assert one.as_dict() == {
        "slug": "m",
        "ok": True,
        "set_up": False,
        "problems": [],
        "from_memo": [],
    }
    assert check.exit_code([one]) == 0


def test_the_shipped_tree_is_well_formed() -> None:
    assert found(Path(__file__).parents[1], machine=False) == []


def test_every_kind_of_fault_is_named_in_one_pass(root: Path) -> None:
    (root / "manifests/m/provider.toml").write_text(MANIFEST + KIT)
    (root / "locks/m.lock").write_text("a==1\n")
    (root / "manifests/m/worker.py").write_text("import torch\n")

    assert sorted(set(reasons(root))) == [
        "kit_invalid",
        "lock_invalid",
        "lock_unhashed",
        "worker_imports",
    ]
    assert check.exit_code(check.check(root)) == 1


@pytest.mark.parametrize(
    ("gone", "reason"),
    [("manifests/m/worker.py", "file_missing"), ("locks/m.lock", "lock_missing")],
)
def test_a_named_file_that_is_not_there_is_named_with_its_line(
    root: Path, gone: str, reason: str
) -> None:
    (root / gone).unlink()
    ((token, line, text),) = found(root)

    assert token == reason
    assert text.startswith(f"manifests/m/provider.toml:{line}: ")
    assert text.endswith(f"{root / gone}: no such file")


@pytest.mark.parametrize(
    ("text", "line", "fault"),
    [
        (KIT_FILE.replace("c" * 40, "C" * 40), 2, f"commit: '{'C' * 40}', wanted"),
        (KIT_FILE.replace("c" * 40, "main"), 2, "commit: 'main', wanted 40 hex digits"),
        (KIT_FILE.replace('"MIT"', "3"), 3, "license: 3, wanted a string"),
        (KIT_FILE + 'branch = "x"\n', 5, "branch: unknown key, wanted one of"),
        (KIT_FILE.replace("description", "# "), 1, "description: missing"),
        ("repository = \n", 1, "no TOML: "),
    ],
)
def test_a_malformed_kit_file_is_named_with_its_line(
    root: Path, text: str, line: int, fault: str
) -> None:
    (root / "manifests/m/provider.toml").write_text(MANIFEST + KIT)
    (root / "kits/k.toml").write_text(text)

    ((reason, at, told),) = found(root)

    assert (reason, at) == ("kit_invalid", line)
    assert told.startswith(f"kits/k.toml:{line}: {fault}")


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("import json\nimport torch\n", 2),
        ("from torch.nn import Module\n", 1),
        ("try:\n    import torch\nexcept ImportError:\n    pass\n", 2),
        ("if True:\n    with open('x'):\n        import numpy as np\n", 3),
        ("class A:\n    import torch\n", 2),
        ("from . import other\n", 1),
        ("def build(:\n", 1),
    ],
)
def test_a_worker_that_imports_its_stack_at_module_level_is_named(
    root: Path, code: str, line: int
) -> None:
    (root / "manifests/m/worker.py").write_text(code)

    ((reason, at, text),) = found(root)

    assert (reason, at) == ("worker_imports", line)
    assert text.startswith(f"manifests/m/worker.py:{line}: ")


def test_a_provider_outside_the_tree_is_named_by_its_own_place(
    root: Path, tmp_path: Path
) -> None:
    away = tmp_path / "n"
    away.mkdir()
    (away / "provider.toml").write_text(MANIFEST.replace('slug = "m"', 'slug = "n"'))
    (away / "worker.py").write_text("import torch\n")

    (one,) = check.check(root, [str(away)], machine=False)

    assert [problem.text.partition(": ")[0] for problem in one.problems] == [
        f"{away}/worker.py:1",
        f"{away}/provider.toml",
    ]


@pytest.mark.parametrize(
    "code",
    [
        "import json, os.path\nfrom worker_base import serve\n",
        "def build(context):\n    import torch\n",
        "async def f():\n    import torch\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n",
    ],
)
def test_a_worker_may_import_the_standard_library_and_its_base(
    root: Path, code: str
) -> None:
    (root / "manifests/m/worker.py").write_text(code)

    assert found(root) == []


def second(root: Path, toml: str) -> None:
    folder = root / "manifests/n"
    folder.mkdir()
    (folder / "provider.toml").write_text(toml)
    (folder / "worker.py").write_text("")


def test_one_operation_claimed_by_two_is_named_at_both(root: Path) -> None:
    second(root, MANIFEST.replace('slug = "m"', 'slug = "n"'))

    checks = check.check(root)

    assert [(one.slug, [p.reason for p in one.problems]) for one in checks] == [
        ("m", ["operation_claimed_twice"]),
        ("n", ["operation_claimed_twice"]),
    ]
    assert "'m' is also claimed by n" in checks[0].problems[0].text
    # also when only one is asked for
    (alone,) = check.check(root, ["n"])
    assert [p.reason for p in alone.problems] == ["operation_claimed_twice"]


@pytest.mark.parametrize("name", ["", "provider.toml"])
def test_a_provider_is_one_however_its_path_is_written(
    root: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "link").symlink_to(root / "manifests")

    for folder in (root / "manifests/m", tmp_path / "link/m"):
        assert (folder / name).exists()
        (one,) = check.check(root, [str(folder / name)])
        assert (one.slug, one.problems) == ("m", [])


def test_a_broken_provider_never_hides_another(root: Path) -> None:
    second(root, "slug = 3\nfoo = 1\n")
    broken, good = sorted(check.check(root), key=lambda one: one.ok)

    assert (broken.slug, good.slug) == ("n", "m")
    assert len(broken.problems) >= 2
    assert {p.reason for p in broken.problems} == {"manifest_invalid"}


def test_an_error_of_our_own_is_that_providers_and_keeps_its_traceback(
    set_up: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object, report: object, **__: object) -> claims.Compared:
        if report is None:
            return claims.Compared()
        raise ZeroDivisionError("of ours")

    second(set_up, MANIFEST.replace('"m"', '"n"').replace('lock = "n"', 'lock = "m"'))
    monkeypatch.setattr(findings, "compared", broken)
    failing, good = check.check(set_up)

    (problem,) = failing.problems
    assert problem.reason == "internal"
    assert "ZeroDivisionError: of ours" in problem.text
    assert good.ok


def test_an_unknown_name_is_refused(root: Path) -> None:
    with pytest.raises(UsageError):
        check.check(root, ["nothing"])


def test_what_was_set_up_and_still_holds_is_so(set_up: Path) -> None:
    for _ in range(2):
        (one,) = check.check(set_up)
        assert (one.problems, one.set_up, one.from_memo) == ([], True, ["w"])


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "weight changed": (
        lambda t: (t / "weights/w").write_bytes(b"HELLO"),
        "digest",
    ),
    "weight gone": (lambda t: (t / "weights/w").unlink(), "absent"),
    "distribution gone": (
        lambda t: next((t / "env/lib").rglob("a-1.0.dist-info")).rename(t / "gone"),
        "lock_unsatisfied",
    ),
    "distribution torn": (
        lambda t: next((t / "env/lib").rglob("INSTALLER")).unlink(),
        "lock_unsatisfied",
    ),
    "interpreter gone": (
        lambda t: (t / "env/bin/python").unlink(),
        "python_missing",
    ),
    "interpreter upgraded": (
        lambda t: (t / "env/pyvenv.cfg").write_text(
            "version = 3.0.0\ninclude-system-site-packages = false\n"
        ),
        "stale",
    ),
    "worker edited": (
        lambda t: (t / "t/manifests/m/worker.py").write_text("import os\n"),
        "stale",
    ),
    "module beside the worker": (
        lambda t: (t / "t/manifests/m/more.py").write_text("import os\n"),
        "stale",
    ),
    "manifest edited": (
        lambda t: (t / "t/manifests/m/provider.toml").write_text(
            (t / "t/manifests/m/provider.toml").read_text().replace("0.1", "0.2")
        ),
        "stale",
    ),
    "lock edited": (
        lambda t: (t / "t/locks/m.lock").write_text(
            (t / "t/locks/m.lock").read_text() + pin("b", "1.0") + "\n"
        ),
        "lock_unsatisfied",
    ),
    "interpreter of the model become unrunnable": (
        lambda t: (
            Path(os.environ["M_PYTHON"]).unlink()
            or Path(os.environ["M_PYTHON"]).touch(0o644)
        ),
        "python_missing",
    ),
    "variable moved": (
        # the fixture puts it back
        lambda t: os.environ.__setitem__("M_PYTHON", str(t / "nowhere")),
        "python_missing",
    ),
}


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_whatever_changes_after_a_good_check_is_noticed(
    set_up: Path, tmp_path: Path, change: str
) -> None:
    assert found(set_up) == []
    act, reason = CHANGES[change]

    act(tmp_path)

    assert reason in reasons(set_up)


def test_a_provider_that_was_wrong_is_looked_at_again(set_up: Path) -> None:
    path = set_up / "manifests/m/worker.py"
    good = path.read_text()
    path.write_text("import torch\n")
    assert "worker_imports" in reasons(set_up)

    path.write_text(good)

    assert reasons(set_up) == []


def test_a_broken_lock_of_what_was_set_up_is_named_once(set_up: Path) -> None:
    lock = set_up / "locks/m.lock"
    lock.write_text(lock.read_text() + "b>=1\n")

    assert reasons(set_up).count("lock_invalid") == 1


def test_a_report_that_contradicts_a_claim_is_said(set_up: Path) -> None:
    path = measured.report_path(provider(set_up))
    path.write_text(
        path.read_text().replace("rss_peak_bytes = 1", f"rss_peak_bytes = {2**40}")
    )

    assert reasons(set_up) == ["over_budget"]
    assert reasons(set_up, machine=False) == []


def test_a_report_of_another_schema_is_refused_not_guessed(set_up: Path) -> None:
    path = measured.report_path(provider(set_up))
    path.write_text("schema = 99\n")

    assert reasons(set_up) == ["stale"]


def test_check_reads_and_writes_nothing_of_the_tree(set_up: Path) -> None:
    before = {path: path.stat() for path in set_up.rglob("*")}

    check.check(set_up)

    after = {path: path.stat() for path in set_up.rglob("*")}
    assert {p: s.st_mtime_ns for p, s in before.items()} == {
        p: s.st_mtime_ns for p, s in after.items()
    }


def test_deep_and_verify_read_what_the_memo_knows(set_up: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tasks import check;"
        "print([one.from_memo for one in {}])"
    )

    def asked(call: str) -> str:
        # a process of its own: what one has read it need not read again
        argv = [sys.executable, "-c", code.format(call), str(set_up)]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    assert asked("check.check(Path(sys.argv[1]))") == "[['w']]\n"
    assert asked("check.check(Path(sys.argv[1]), deep=True)") == "[[]]\n"
    assert asked("check.verify(Path(sys.argv[1]))") == "[[]]\n"


def test_verify_names_what_has_its_size_and_times_and_other_bytes(set_up: Path) -> None:
    (one,) = check.verify(set_up)
    assert one.ok
    path = Path(provider(set_up).weight_paths()[0][1])
    path.write_bytes(b"HELLO")

    (one,) = check.verify(set_up)

    assert [p.reason for p in one.problems] == ["digest"]
    # the whole way back, as the setup names it
    assert (one.problems[0].next or "").endswith(" && doit setup:m")


UNPINNED = WEIGHTS[: WEIGHTS.index("sha256")] + 'unpinned_reason = "nobody says"\n'


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (WEIGHTS, "at its pins"),
        (UNPINNED, "at its pins, 1 of 1 files without one"),
        ("", "no weights declared"),
    ],
)
def test_verify_claims_no_pin_that_is_not_declared(
    set_up: Path, declared: str, said: str
) -> None:
    weights = provider(set_up).weights_root()
    toml = set_up / "manifests/m/provider.toml"
    toml.write_text(MANIFEST + declared.format(root=weights))

    ((_, result),) = verdicts.judged("verify", check.verify(set_up))

    assert (result.verdict, result.detail) == ("present", said)


HEAVY = {"doit", "rich", "requests", "packaging", "asyncio", "importlib.metadata"}


def test_nothing_heavy_is_imported_by_a_check(set_up: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tasks import check;"
        "check.check(Path(sys.argv[1])); print(*sys.modules)"
    )
    argv = [sys.executable, "-c", code, str(set_up)]
    ran = subprocess.run(argv, capture_output=True, text=True, check=True)

    assert not HEAVY & set(ran.stdout.split())


def test_a_home_that_cannot_be_looked_at_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path / "tree")
    monkeypatch.setenv("TU_REMOTE_HOME", str(tmp_path / ("a" * 300)))
    path = measured.report_path(provider(root))

    text = f"m: {path}: File name too long, a path that can be looked at wanted"
    assert found(root) == [("unreadable", None, text)]

    env = {**os.environ, "COLUMNS": "200"}
    for words in (["setup", "m"], ["list"]):
        argv = [sys.executable, "-m", "remote_resident", "remote", *words]
        ran = subprocess.run(
            argv, cwd=root, env=env, capture_output=True, text=True, timeout=60
        )
        said = ran.stdout + ran.stderr
        assert ran.returncode == (1 if words[0] == "setup" else 0), said
        assert "Traceback" not in said
        assert "internal" not in said


def test_an_image_that_can_change_is_said_and_fails_nothing(root: Path) -> None:
    text = MANIFEST.replace(
        'python = "$M_PYTHON"\nlock = "m"', 'kind = "docker"\nimage = "m:1"'
    )
    (root / "manifests/m/provider.toml").write_text(text)

    (one,) = check.check(root)
    ((_, result),) = verdicts.judged("check", [one])

    assert one.ok
    assert result.lines == [
        'note: manifests/m/provider.toml: env.image: "m:1" without a digest: '
        "what it names can change"
    ]


def test_a_wrong_home_is_refused_once_and_not_for_each_provider(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TU_REMOTE_HOME", "here")

    with pytest.raises(UsageError):
        check.check(root)
