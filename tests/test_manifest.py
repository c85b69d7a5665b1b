"""provider.toml is read strictly; every fault is named with its file and line."""

import os
import re
from dataclasses import FrozenInstanceError, fields, replace
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_resident import manifest, places
from remote_resident.errors import ManifestError, UsageError
from remote_resident.manifest import Expect, WeightFile
from remote_resident.manifest_schema import DEFAULTS

HERE = Path(__file__).parent / "manifests"
ECHO = (HERE / "good" / "echo.toml").read_text()
BAD = sorted((HERE / "bad").glob("*.toml"))


def put(tree: Path, text: str, slug: str = "echo") -> Path:
    folder = tree / "manifests" / slug
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "provider.toml"
    path.write_text(text)
    return path


def faults_of(path: Path, tree: Path) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        manifest.load(path, tree)

    found = [f"{p.reason}: {p.text}" for p in caught.value.problems]
    shown = [text.replace(str(tree), "TREE") for text in found]
    return [text.replace(str(tree.parent), "PARENT") for text in shown]


@pytest.mark.parametrize("case", BAD, ids=lambda path: path.stem)
def test_every_fault_is_named_with_its_line(case: Path, tmp_path: Path) -> None:
    text = case.read_text()
    wanted = re.findall(r"^# ([a-z_]+: .*)$", text, re.MULTILINE)

    assert faults_of(put(tmp_path, text), tmp_path) == wanted


def test_every_kind_of_fault_has_its_file() -> None:
    assert len(BAD) >= 80


def test_the_smallest_provider_has_the_documented_defaults(tmp_path: Path) -> None:
    echo = manifest.load(put(tmp_path, ECHO))

    assert (echo.slug, echo.tree, echo.status) == ("echo", tmp_path, "untested")
    assert (echo.runtime_mode, echo.runtime_max_queue) == ("resident", 16)
    assert echo.runtime_start_timeout_s == 900.0
    assert echo.runtime_request_timeout_s == 3600.0
    assert echo.runtime_orphan_grace_s == 120.0
    assert echo.runtime_idle_timeout_s == 0.0
    assert echo.runtime_launch == "remote_resident.kit_launch:build_command"
    assert (echo.gpu_policy, echo.gpu_shareable, echo.gpu_isolation) == (
        "none",
        True,
        "process",
    )
    assert (echo.env_kind, echo.env_network, echo.env_lock) == ("venv", "none", None)
    assert (echo.smoke_timeout_s, echo.smoke_repeat) == (30.0, 3)
    assert echo.smoke_max_growth_mib == 8.0
    assert echo.smoke_request == {"op": "echo", "text": "hello"}
    assert echo.smoke_expect == (
        Expect(key="text", min=None, max=None, equals="hello", matches=None, len=None),
    )


def test_subprocess_mode_repeats_nothing(tmp_path: Path) -> None:
    mode = 'worker = "worker.py"\nmode = "subprocess"\nmode_reason = "it leaks"'
    text = ECHO.replace('worker = "worker.py"', mode)

    assert manifest.load(put(tmp_path, text)).smoke_repeat == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe", ":1: byte 0xff, wanted UTF-8"),
        (b'slug = "\xc3\x28"', ":1: byte 0xc3, wanted UTF-8"),
        (b"\xef\xbb\xbfslug = 1", ":1: a byte order mark, wanted none"),
    ],
)
def test_what_is_no_text_is_named_as_that(
    content: bytes, said: str, tmp_path: Path
) -> None:
    path = put(tmp_path, "")
    path.write_bytes(content)

    wanted = f"manifest_invalid: manifests/echo/provider.toml{said}"
    assert faults_of(path, tmp_path) == [wanted]


def test_a_directory_where_the_file_should_be_is_named(tmp_path: Path) -> None:
    path = tmp_path / "manifests" / "echo" / "provider.toml"
    path.mkdir(parents=True)

    assert faults_of(path, tmp_path) == [
        "manifest_invalid: manifests/echo/provider.toml: Is a directory, wanted a file"
    ]


def test_no_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "manifests" / "echo" / "provider.toml"

    assert faults_of(path, tmp_path) == [
        "file_missing: manifests/echo/provider.toml: "
        "no such file, wanted a provider.toml"
    ]


@settings(max_examples=200)
@given(
    at=st.integers(0, len(ECHO) - 1),
    cut=st.integers(0, 12),
    put_in=st.text(max_size=8),
)
def test_no_mutation_of_a_manifest_raises_anything_but_its_own_error(
    at: int, cut: int, put_in: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tree = tmp_path_factory.getbasetemp() / "mutated"
    text = ECHO[:at] + put_in + ECHO[at + cut :]
    path = put(tree, "")
    path.write_bytes(text.encode("utf-8", "surrogatepass"))

    try:
        manifest.load(path, tree)
    except ManifestError as error:
        assert error.problems
        assert all(str(path) == problem.path for problem in error.problems)


def test_one_bad_file_does_not_hide_the_others(tmp_path: Path) -> None:
    put(tmp_path, ECHO)
    put(tmp_path, "slug = ", "broken")
    put(tmp_path, ECHO.replace('"echo"', '"other"', 1), "other")

    found = manifest.catalog(str(tmp_path))

    assert found == manifest.catalog(tmp_path) | {"broken": found["broken"]}
    assert list(found) == ["broken", "echo", "other"]
    assert isinstance(found["broken"], ManifestError)
    assert found["other"].slug == "other"  # type: ignore[union-attr]


def test_an_unknown_name_is_refused_with_near_ones(tmp_path: Path) -> None:
    put(tmp_path, ECHO)

    with pytest.raises(UsageError) as caught:
        manifest.find(tmp_path, "ecko")

    text = f"no provider 'ecko' among the 1 of {tmp_path}; near: echo"
    assert (str(caught.value), caught.value.reason) == (text, "unknown_name")


def test_a_directory_outside_the_tree_is_a_provider_of_its_own(tmp_path: Path) -> None:
    tree, own = tmp_path / "tree", tmp_path / "own" / "echo"
    put(tree, ECHO)
    own.mkdir(parents=True)
    (own / "provider.toml").write_text(ECHO)

    outside = manifest.find(tree, str(own))

    assert (outside.tree, outside.lock_tree) == (own, tree)
    assert places.measured_path("echo", outside.tree) != places.measured_path(
        "echo", tree
    )


# -- the interpreter and the weights


def with_lock(tree: Path) -> manifest.ProviderManifest:
    text = ECHO.replace(
        'python = "$ECHO_PYTHON"', 'python = "$ECHO_PYTHON"\nlock = "e"'
    )
    (tree / "locks").mkdir(parents=True)
    (tree / "locks" / "e.lock").write_text("# a lock\n")
    return manifest.load(put(tree, text), tree)


def fake_venv(folder: Path) -> Path:
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.symlink_to("/usr/bin/env")
    (folder / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    return python


def test_a_venvs_python_is_never_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = fake_venv(tmp_path / "venv")
    monkeypatch.setenv("ECHO_PYTHON", str(python))
    echo = manifest.load(put(tmp_path, ECHO))

    assert echo.python_executable() == python
    assert echo.site_packages() == tmp_path / "venv/lib/python3.11/site-packages"


def test_an_unset_variable_falls_back_to_the_made_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ECHO_PYTHON", raising=False)
    echo = with_lock(tmp_path)
    assert echo.python_executable() is None

    python = fake_venv(places.env_dir("e", sha256(b"# a lock\n").hexdigest()))

    assert echo.python_executable() == python


def test_a_changed_lock_has_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ECHO_PYTHON", raising=False)
    echo = with_lock(tmp_path)
    fake_venv(places.env_dir("e", sha256(b"# a lock\n").hexdigest()))

    (tmp_path / "locks" / "e.lock").write_text("# another\n")

    assert echo.python_executable() is None


WEIGHTS = """
[weights]
root_env = "ECHO_WEIGHTS"
root_default = "{env}"

[[weights.file]]
name = "echo/a.bin"
size = 3
sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
"""
"""The digest of b"abc" is the standard's own example (FIPS 180-4)."""


def test_the_weights_variable_wins_over_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = fake_venv(tmp_path / "venv")
    monkeypatch.setenv("ECHO_PYTHON", str(python))
    monkeypatch.delenv("ECHO_WEIGHTS", raising=False)
    echo = manifest.load(put(tmp_path, ECHO + WEIGHTS))
    assert echo.weights_root() == echo.site_packages()

    monkeypatch.setenv("ECHO_WEIGHTS", str(tmp_path / "elsewhere"))

    assert echo.weights_root() == tmp_path / "elsewhere"


def test_weights_are_held_against_their_pins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECHO_WEIGHTS", str(tmp_path / "w"))
    file = tmp_path / "w" / "echo" / "a.bin"
    file.parent.mkdir(parents=True)
    echo = manifest.load(put(tmp_path, ECHO + WEIGHTS))
    assert [file.name for file in echo.weights_file] == ["echo/a.bin"]

    file.write_bytes(b"abc")
    assert echo.verify_weights() == []
    file.write_bytes(b"abd")
    assert [problem.reason for problem in echo.verify_weights()] == ["digest"]
    file.write_bytes(b"ab")
    assert [problem.reason for problem in echo.verify_weights()] == ["size"]
    file.unlink()
    assert [problem.reason for problem in echo.verify_weights()] == ["absent"]


def test_an_unknown_weights_root_is_a_problem_and_not_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ECHO_PYTHON", raising=False)
    monkeypatch.delenv("ECHO_WEIGHTS", raising=False)
    echo = manifest.load(put(tmp_path, ECHO + WEIGHTS))

    assert [problem.reason for problem in echo.verify_weights()] == ["absent"]


# -- files that it names


def test_named_files_that_are_not_there_are_all_listed(tmp_path: Path) -> None:
    lines = 'python = "$ECHO_PYTHON"\nlock = "gone"'
    text = ECHO.replace('python = "$ECHO_PYTHON"', lines)
    echo = manifest.load(put(tmp_path, text))

    found = [(p.reason, p.line, p.text) for p in echo.missing_files()]

    here = "manifests/echo/provider.toml"
    folder = tmp_path / "manifests/echo"
    assert found == [
        (
            "file_missing",
            6,
            f"{here}:6: runtime.worker: {folder}/worker.py: no such file",
        ),
        (
            "lock_missing",
            13,
            f"{here}:13: env.lock: {tmp_path}/locks/gone.lock: no such file",
        ),
    ]


def test_a_worker_that_is_a_symlink_out_of_the_tree_is_refused(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    path = put(tree, ECHO)
    (tmp_path / "outside.py").write_text("")
    (path.parent / "worker.py").symlink_to(tmp_path / "outside.py")

    (problem,) = manifest.load(path).missing_files()

    assert problem.reason == "file_missing"
    assert str(tmp_path / "outside.py") in problem.text


# -- what stands in the way of reading


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    path = put(tmp_path, "")
    path.unlink()
    os.mkfifo(path)

    assert faults_of(path, tmp_path) == [
        "manifest_invalid: manifests/echo/provider.toml: "
        "not a regular file, wanted a file"
    ]


def test_a_path_that_no_file_can_have_is_named(tmp_path: Path) -> None:
    path = tmp_path / "manifests" / "a\0b" / "provider.toml"

    assert faults_of(path, tmp_path) == [
        "manifest_invalid: 'TREE/manifests/a\\x00b/provider.toml': "
        "no path, wanted a file"
    ]


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    path = put(tmp_path, ECHO)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user reads whatever the mode says")

    assert faults_of(path, tmp_path) == [
        "manifest_invalid: manifests/echo/provider.toml: "
        "Permission denied, wanted a file"
    ]


def test_a_file_too_large_for_a_manifest_is_not_read_whole(tmp_path: Path) -> None:
    path = put(tmp_path, "")
    with path.open("wb") as file:
        file.truncate(manifest.MAX_BYTES + 1)

    assert faults_of(path, tmp_path) == [
        "manifest_invalid: manifests/echo/provider.toml: "
        "over 4194304 bytes, wanted a provider.toml"
    ]


def test_a_providers_folder_that_cannot_be_listed_is_not_an_empty_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "manifests").write_text("")

    with pytest.raises(UsageError, match="Not a directory"):
        manifest.catalog(tmp_path)


# -- the request in a file of its own

ASKS_BY_FILE = ECHO.replace('{ op = "echo", text = "hello" }', '"request.json"')


def test_a_request_is_read_from_its_file(tmp_path: Path) -> None:
    path = put(tmp_path, ASKS_BY_FILE)
    (path.parent / "request.json").write_text('{"op": "echo", "n": [1, null]}')

    assert manifest.load(path).smoke_request == {"op": "echo", "n": [1, None]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[1]", "smoke.request: FILE: an array, wanted a JSON object"),
        (f'"{" " * 2**22}"', "smoke.request: FILE: over 4194304 bytes, wanted JSON"),
        ('{"a": NaN}', "smoke.request.a: FILE: nan, wanted a finite number"),
        ('{"op": "sing"}', 'smoke.request.op: "sing", wanted one of predict, echo'),
        (
            "{",
            "smoke.request: FILE: no JSON: Expecting property name enclosed in "
            "double quotes: line 1 column 2 (char 1)",
        ),
    ],
)
def test_a_request_that_cannot_be_sent_is_named(
    content: str, said: str, tmp_path: Path
) -> None:
    path = put(tmp_path, ASKS_BY_FILE)
    (path.parent / "request.json").write_text(content)

    shown = said.replace("FILE", "TREE/manifests/echo/request.json")
    assert faults_of(path, tmp_path) == [
        f"manifest_invalid: manifests/echo/provider.toml:15: {shown}"
    ]


def test_a_request_is_not_read_through_a_symlink_out_of_the_tree(
    tmp_path: Path,
) -> None:
    tree = tmp_path / "tree"
    path = put(tree, ASKS_BY_FILE)
    (tmp_path / "secret.json").write_text("{}")
    (path.parent / "request.json").symlink_to(tmp_path / "secret.json")

    assert faults_of(path, tree) == [
        "file_missing: manifests/echo/provider.toml:15: smoke.request: "
        "TREE/manifests/echo/request.json leads to PARENT/secret.json, "
        "wanted a file inside TREE"
    ]


def test_a_request_that_is_no_file_is_named(tmp_path: Path) -> None:
    path = put(tmp_path, ASKS_BY_FILE)
    os.mkfifo(path.parent / "request.json")

    assert faults_of(path, tmp_path) == [
        "manifest_invalid: manifests/echo/provider.toml:15: smoke.request: "
        "TREE/manifests/echo/request.json: not a regular file, wanted JSON"
    ]


# -- names and trees


def test_a_directory_is_named_without_a_slash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, own = tmp_path / "tree", tmp_path / "own"
    put(tree, ECHO)
    (own / "other").mkdir(parents=True)
    text = ECHO.replace('"echo"', '"other"', 1)
    (own / "other" / "provider.toml").write_text(text)
    monkeypatch.chdir(own)

    assert manifest.find(tree, "other").directory == own / "other"


def test_a_provider_of_another_tree_has_that_trees_locks(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    put(here, ECHO)
    path = put(there, ECHO)

    assert manifest.find(here, str(path.parent)).lock_tree == there


def test_all_that_a_manifest_has_comes_from_a_key_or_a_place(tmp_path: Path) -> None:
    echo = manifest.load(put(tmp_path, ECHO))
    declared = {field.name for field in fields(echo)}

    assert set(vars(echo)) == declared
    places = {"file", "folder", "tree", "lock_tree"}
    assert declared == set(DEFAULTS) | places | {"known", "readings"}


def test_a_manifest_cannot_be_changed(tmp_path: Path) -> None:
    path = put(tmp_path, ECHO)
    echo = manifest.load(path)

    assert echo == manifest.load(path)
    assert len({echo, manifest.load(path)}) == 1
    with pytest.raises(FrozenInstanceError):
        echo.slug = "other"  # type: ignore[misc]


# -- paths with variables in them


def test_variables_inside_a_path_are_put_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = ECHO.replace("$ECHO_PYTHON", "${ECHO_ENVS}/echo/bin/python")
    echo = manifest.load(put(tmp_path, text))
    monkeypatch.setenv("ECHO_ENVS", str(tmp_path / "envs"))

    assert echo.python_executable() == tmp_path / "envs/echo/bin/python"
    assert echo.python_variable() is None

    monkeypatch.setenv("ECHO_ENVS", "")

    assert echo.python_executable() is None


def test_a_home_that_nobody_has_is_no_crash(tmp_path: Path) -> None:
    default = 'root_default = "~nobody-has-this-name/w"'
    text = ECHO + WEIGHTS.replace('root_default = "{env}"', default)
    text = text.replace('root_env = "ECHO_WEIGHTS"\n', "")
    echo = manifest.load(put(tmp_path, text))

    assert [problem.reason for problem in echo.verify_weights()] == ["absent"]


def test_an_unknown_weights_root_says_what_is_unset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ECHO_PYTHON", "ECHO_WEIGHTS", "ECHO_DATA"):
        monkeypatch.delenv(name, raising=False)
    root = WEIGHTS.replace('"{env}"', '"$ECHO_DATA/w"')
    echo = manifest.load(put(tmp_path, ECHO + root))

    (problem,) = echo.verify_weights()

    assert problem.text == (
        "echo: weights root $ECHO_DATA/w: $ECHO_WEIGHTS is unset and "
        "$ECHO_DATA is unset, a directory with 1 files wanted"
    )
    assert problem.next == "export ECHO_WEIGHTS=DIRECTORY"


# -- what is allowed and still said


def test_an_image_without_a_digest_is_a_warning(tmp_path: Path) -> None:
    lines = 'kind = "docker"\nimage = "echo:1"'
    text = ECHO.replace('python = "$ECHO_PYTHON"', lines)
    named = manifest.load(put(tmp_path, text))
    pinned = replace(named, env_image=f"echo@sha256:{'0' * 64}")

    assert named.warnings() == [
        'manifests/echo/provider.toml: env.image: "echo:1" without a digest: '
        "what it names can change"
    ]
    assert pinned.warnings() == []


# -- how it is accepted


def test_sizes_to_accept_are_read_and_are_no_part_of_what_runs(tmp_path: Path) -> None:
    asked = (HERE / "good" / "accept.toml").read_text()
    plain = manifest.load(put(tmp_path / "a", ECHO))
    echo = manifest.load(put(tmp_path / "b", asked))

    assert (echo.accept_sizes, echo.accept_timeout_s) == ((10, 200, 4000), 60)
    assert echo.accept_request == {"op": "echo", "text": "{residues}"}
    assert plain.accept_sizes == ()
    assert manifest.effective_digest(echo) == manifest.effective_digest(plain)


# -- its digest


def test_what_runs_is_in_the_digest_and_what_is_claimed_is_not(tmp_path: Path) -> None:
    echo = manifest.load(put(tmp_path, ECHO))
    digest = manifest.effective_digest(echo)

    claimed = replace(echo, status="verified", verified_on="today", description="x")
    moved = replace(echo, tree=Path("/elsewhere"), folder="/elsewhere/echo")
    changed = replace(echo, runtime_worker_args=("--fast",))
    repinned = replace(
        echo,
        weights_files=(
            WeightFile(
                name="a",
                size=1,
                sha256="0" * 64,
                unpinned_reason=None,
                unpacked_dir=None,
            ),
        ),
    )

    assert manifest.effective_digest(claimed) == digest
    assert manifest.effective_digest(moved) == digest
    assert manifest.effective_digest(changed) != digest
    assert manifest.effective_digest(repinned) != digest


def test_comments_and_order_change_no_digest(tmp_path: Path) -> None:
    one = manifest.load(put(tmp_path / "a", ECHO))
    top, rest = ECHO.split("\n\n", 1)
    turned = "# a comment\n" + "\n".join(reversed(top.splitlines())) + "\n\n" + rest
    other = manifest.load(put(tmp_path / "b", turned))

    assert manifest.effective_digest(one) == manifest.effective_digest(other)


def test_reading_one_manifest_opens_one_file(tmp_path: Path) -> None:
    path = put(tmp_path, ECHO)
    opened: list[str] = []
    watching = [True]

    def watch(event: str, args: tuple[object, ...]) -> None:
        if watching and event == "open" and str(args[0]).startswith(str(tmp_path)):
            opened.append(os.fspath(args[0]))  # type: ignore[arg-type]

    import sys

    sys.addaudithook(watch)
    manifest.load(path, tmp_path)
    watching.clear()

    assert opened == [str(path)]
