"""Locks are exact, hashed, and say how to build; nothing else gets through."""

import hashlib
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tree import HEADER, drive, lock_text, pin, tree, wheel

from tasks import lock

H = "a" * 64
K = "b" * 64

FAULTS = [
    ("a>=1.0 --hash=sha256:" + H, "'a>=1.0' found, an exact pin name==version wanted"),
    ("a==1.* --hash=sha256:" + H, "'a==1.*' found, an exact pin name==version wanted"),
    ("a==1,<2 --hash=sha256:" + H, "'a==1,<2' found, an exact pin name==version wanted"),
    ("a===1 --hash=sha256:" + H, "'a===1' found, an exact pin name==version wanted"),
    ("a", "'a' found, an exact pin name==version wanted"),
    ("-i x", "the option -i found, an exact pin name==version wanted"),
    ("-f x", "the option -f found, an exact pin name==version wanted"),
    ("-r other.txt", "the option -r found, an exact pin name==version wanted"),
    ("-e .", "the option -e found, an exact pin name==version wanted"),
    ("a @ file:///s3cret/a.whl", "a from an address found, an exact pin name==version wanted"),
    ("git+ssh://me:s3cret@h/a", "a requirement from an address found, an exact pin name==version wanted"),
    (f"a==1 --hash=sha256:{H[:-1]}", f"a==1: --hash=sha256:{H[:-1]} found, 64 hex digits wanted"),
]  # fmt: skip


def write(folder: Path, text: str) -> Path:
    path = folder / "locks/m.lock"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def texts(path: Path) -> list[str]:
    return [problem.text for problem in lock.problems(path)]


def test_a_lock_is_read_as_pip_reads_it(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        HEADER.replace("# recipe", "# platforms: linux-x86_64\n# recipe")
        + f"\nTyping.Extensions[x]==4.1 ; python_version < '3.12' \\\n"
        f"    --hash=sha256:{H} \\\n    --hash=sha256:{K}\n"
        f"# words\nb_c==2.0+cpu --hash sha256:{K}  # words\n",
    )

    found = lock.parse(path)

    assert found.problems == ()
    assert [(p.name, p.version, p.hashes, p.marker, p.line) for p in found.pins] == [
        ("typing-extensions", "4.1", (H, K), "python_version < '3.12'", 8),
        ("b-c", "2.0+cpu", (K,), "", 12),
    ]
    assert found.platforms == ("linux-x86_64",)
    assert found.recipe[0].endswith("-m venv ~/envs/m")
    assert len(found.recipe) == 3
    assert found.digest == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(("line", "fault"), FAULTS)
def test_only_exact_hashed_pins_get_through(
    tmp_path: Path, line: str, fault: str
) -> None:
    path = write(tmp_path, lock_text(pin("z", "1"), line))

    problems = lock.problems(path)

    assert [p.text for p in problems] == [f"locks/m.lock:7: {fault}"]
    assert {(p.reason, p.line, p.path) for p in problems} == {
        ("lock_invalid", 7, str(path))
    }


def test_a_pin_without_a_sha256_is_unhashed(tmp_path: Path) -> None:
    path = write(tmp_path, lock_text("a==1", f"b==2 --hash=sha512:{H}{H}"))

    assert [(p.reason, p.line, p.next) for p in lock.problems(path)] == [
        ("lock_unhashed", 6, "doit lock:m"),
        ("lock_unhashed", 7, "doit lock:m"),
    ]
    assert texts(path)[0] == (
        "locks/m.lock:6: a==1: no --hash=sha256: found, at least one wanted"
    )


def test_every_fault_of_a_lock_is_named_in_one_pass(tmp_path: Path) -> None:
    path = write(tmp_path, f"a==1\nA==2 --hash=sha256:{H}\nb\n")

    assert texts(path) == [
        "locks/m.lock: header: no '# requires-python:' line found, one wanted",
        "locks/m.lock: header: no '# recipe:' with commands below it found, one wanted",
        "locks/m.lock:1: a==1: no --hash=sha256: found, at least one wanted",
        "locks/m.lock:2: a found again, pinned once wanted (line 1)",
        "locks/m.lock:3: 'b' found, an exact pin name==version wanted",
    ]


def test_a_requires_python_that_is_no_range_is_named(tmp_path: Path) -> None:
    header = HEADER.replace(HEADER.split("\n")[0], "# requires-python: three")
    path = write(tmp_path, lock_text(pin("a", "1"), header=header))

    assert texts(path) == [
        "locks/m.lock: header: requires-python 'three' found, a version range wanted"
    ]


def test_a_missing_an_empty_and_a_damaged_lock_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "locks/m.lock"
    assert [p.reason for p in lock.problems(path)] == ["lock_missing"]

    write(tmp_path, HEADER)
    assert texts(path) == ["locks/m.lock: no pin found, one wanted"]

    path.write_bytes(HEADER.encode() + b"\xff")
    assert texts(path) == [
        f"locks/m.lock: byte 0xff at offset {len(HEADER)} found, UTF-8 wanted"
    ]

    path.unlink()
    path.mkdir()
    assert texts(path) == [
        "locks/m.lock: unreadable (Is a directory) found, a lock wanted"
    ]


@given(st.text(max_size=200))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    lock.parse_bytes(Path("locks/m.lock"), text.encode("utf-8", "surrogatepass"))


def test_what_is_written_is_read_back_the_same(tmp_path: Path) -> None:
    path = write(tmp_path, lock_text(pin("a", "1", K, H), pin("b", "2") + ""))
    pins = lock.parse(path).pins

    again = lock.parse_bytes(path, (HEADER + lock.formatted(pins)).encode()).pins

    assert [(p.name, p.version, set(p.hashes)) for p in again] == [
        (p.name, p.version, set(p.hashes)) for p in pins
    ]


def test_the_shipped_locks_are_well_formed() -> None:
    paths = sorted((Path(__file__).parents[1] / "locks").glob("*.lock"))

    assert paths
    assert [p for path in paths for p in lock.problems(path)] == []


UV = Path(sys.executable).with_name("uv").exists() or shutil.which("uv")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a package index on disk, which pip's configuration names."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_INDEX_URL", folder.as_uri())
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    return folder


def publish(index: Path, name: str, *versions: str) -> list[str]:
    """Put wheels into the index, with their digests in its page; gives the digests."""
    digests = [wheel(index / name, name, version) for version in versions]
    files = [f"{name}-{version}-py3-none-any.whl" for version in versions]
    links = zip(files, digests, strict=True)
    page = "".join(f'<a href="{f}#sha256={digest}">{f}</a>' for f, digest in links)
    (index / name / "index.html").write_text(f"<!DOCTYPE html><body>{page}</body>")
    return digests


@pytest.mark.skipif(not UV, reason="uv, the resolver, is not installed")
def test_a_lock_is_resolved_anew_under_its_header(tmp_path: Path, index: Path) -> None:
    root = tree(tmp_path / "a tree", pin("alpha", "1.0"))
    _, digest = publish(index, "alpha", "1.0", "1.1")
    publish(index, "beta", "2.0")
    (root / "locks/m.in").write_text(
        f"alpha>=1.0\n# without dependencies\nbeta==2.0 --hash=sha256:{H}\n"
    )

    _, result = drive(lock.resolve(root, "m"))

    assert result.verdict == "done", result
    assert result.lines == ["alpha 1.0 -> 1.1", "beta absent -> 2.0"]
    found = lock.parse(root / "locks/m.lock")
    assert found.problems == ()
    assert found.header == HEADER
    assert [(p.name, p.version, set(p.hashes)) for p in found.pins] == [
        ("alpha", "1.1", {digest}),
        ("beta", "2.0", {H}),
    ]
    assert "://" not in (root / "locks/m.lock").read_text()
    assert drive(lock.resolve(root, "m"))[1].verdict == "present"


@pytest.mark.skipif(not UV, reason="uv, the resolver, is not installed")
def test_what_cannot_be_resolved_leaves_the_lock_as_it_was(
    tmp_path: Path, index: Path
) -> None:
    root = tree(tmp_path)
    before = (root / "locks/m.lock").read_bytes()
    (root / "locks/m.in").write_text("nowhere==9\n")

    _, result = drive(lock.resolve(root, "m"))

    assert (result.verdict, result.reason) == ("failed", "install_failed")
    assert any("nowhere" in line for line in result.lines)
    assert (root / "locks/m.lock").read_bytes() == before
    assert sorted(p.name for p in (root / "locks").iterdir()) == ["m.in", "m.lock"]


def test_an_unknown_lock_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    root = tree(tmp_path)
    (root / "locks/m.in").write_text("a==1\n")

    _, result = drive(lock.resolve(root, "n"))

    assert (result.verdict, result.reason) == ("refused", "unknown_name")
    assert result.detail == "locks/n.in: no such file found, one of m wanted"


def test_the_resolver_is_told_the_index_that_pip_is_configured_for() -> None:
    asked = {"PIP_INDEX_URL": "file:///somewhere", "PATH": "/bin"}

    assert lock.uv_environment(asked)["UV_DEFAULT_INDEX"] == "file:///somewhere"
    own = {**asked, "UV_DEFAULT_INDEX": "file:///uv"}
    assert lock.uv_environment(own) == own
