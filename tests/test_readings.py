"""What files read as is remembered; no change to one is ever hidden by that."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_check import WEIGHTS, certify

from remote_resident import kept_file, manifest, readings
from remote_resident.file_identity import Identity
from remote_resident.readings import Readings
from tests.small_tree import MANIFEST, look_alike, tree

ASKS_BY_FILE = MANIFEST.replace('{ op = "m" }', '"request.json"')
SETTLED_S = 2.0
"""A file that was younger than this when it was read is not recorded."""


def age(*paths: Path) -> None:
    """Wait until files are old enough to be recorded: no clock can be set for that."""
    changed = max(path.stat().st_ctime for path in paths)
    time.sleep(max(0.0, changed + SETTLED_S + 0.05 - time.time()))


def once(store: Path, file: Path) -> tuple[list[bytes], bytes]:
    """Read a file as a new process would; gives what was really read, and the value."""
    read: list[bytes] = []

    def reading(data: bytes) -> bytes:
        read.append(data)
        return data.upper()

    kept = Readings(str(store))
    value = kept.of(str(file), "upper", reading)
    kept.save()
    return read, value


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "m"


@pytest.fixture(scope="module")
def aged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make files and trees that are old enough, waiting once for all."""
    folder = tmp_path_factory.mktemp("aged")
    for number in range(20):
        (folder / f"{number}").write_bytes(b"one")
    tree(folder / "good")
    for name in ("asks", "asks_otherwise"):
        asks = tree(folder / name, toml=ASKS_BY_FILE)
        (asks / "manifests/m/request.json").write_text('{"op": "m"}')
    tree(folder / "broken", toml=MANIFEST.replace("0.1", '"much"'))
    age(*folder.rglob("*"))
    return folder


@pytest.fixture(scope="module")
def files(aged: Path) -> Iterator[Path]:
    return iter([aged / f"{number}" for number in range(20)])


@pytest.fixture
def file(files: Iterator[Path]) -> Path:
    """Give a file of this test's own that is old enough."""
    return next(files)


def test_a_file_that_is_the_same_is_read_once(store: Path, file: Path) -> None:
    assert once(store, file) == ([b"one"], b"ONE")
    assert once(store, file) == ([], b"ONE")


def test_an_edit_whose_size_and_times_were_put_back_is_noticed(
    store: Path, file: Path
) -> None:
    before = file.stat()
    once(store, file)
    file.write_bytes(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert once(store, file) == ([b"two"], b"TWO")


def test_a_file_put_in_its_place_with_its_times_is_noticed(
    store: Path, file: Path, tmp_path: Path
) -> None:
    before = file.stat()
    other = tmp_path / "other"
    other.write_bytes(b"two")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    once(store, file)
    other.replace(file)

    assert once(store, file) == ([b"two"], b"TWO")


def test_a_young_file_is_not_recorded(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "young"
    for content in (b"one", b"two"):
        path.write_bytes(content)
        assert once(store, path)[0] == [content]
    assert not store.exists()


def test_a_file_that_is_gone_is_not_remembered(store: Path, file: Path) -> None:
    once(store, file)
    file.unlink()

    with pytest.raises(FileNotFoundError):
        once(store, file)


@pytest.mark.parametrize("damage", [b"", b"\0" * 99, b"xyz", b"{}"])
def test_damage_to_what_is_kept_costs_one_reading(
    store: Path, file: Path, damage: bytes
) -> None:
    once(store, file)
    store.write_bytes(damage)

    assert once(store, file) == ([b"one"], b"ONE")
    assert once(store, file) == ([], b"ONE")


def test_one_flipped_byte_of_what_is_kept_is_noticed(store: Path, file: Path) -> None:
    once(store, file)
    whole = store.read_bytes()
    for place in range(0, len(whole), 101):
        store.write_bytes(
            whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        )
        assert once(store, file) == ([b"one"], b"ONE")


def test_what_other_code_kept_is_not_believed(store: Path, file: Path) -> None:
    once(store, file)
    assert kept_file.load(str(store), readings._code()) is not None
    assert kept_file.load(str(store), f"{readings._code()}more") is None


def test_what_cannot_be_written_is_not_kept(tmp_path: Path, file: Path) -> None:
    (tmp_path / "no directory").write_text("")

    assert once(tmp_path / "no directory" / "m", file)[0] == [b"one"]


def test_in_one_look_a_file_is_looked_at_once_and_afterwards_anew(file: Path) -> None:
    kept = Readings()
    kept.of(str(file), "length", len)
    with kept.one_look():
        assert kept.recall(str(file), "length") == 3
        file.write_bytes(b"four")
        assert kept.recall(str(file), "length") == 3
    assert kept.recall(str(file), "length") is None


# -- a check that is up to date

LOOK = """
import sys
opened = []
sys.addaudithook(lambda event, found: opened.append(str(found[0])) if event == "open" else None)
from pathlib import Path
from tasks import check
root = Path(sys.argv[1])
(one,) = check.check(root)
assert one.ok and one.set_up, one
names = ("provider.toml", "request.json", "m.lock", "worker.py", "m.toml", "pyvenv.cfg", "/w")
print(*sorted({n for o in opened for n in names if o.endswith(n)}), sep=",")
print(*sys.modules, sep=",")
"""
HEAVY = {
    *("doit", "rich", "requests", "packaging", "asyncio", "importlib.metadata"),
    *("tomllib", "json", "difflib", "email", "subprocess", "threading"),
    *("remote_resident.admission", "remote_resident.machine", "remote_resident.nvidia"),
    *("remote_resident.exec_env", "remote_resident.kits", "tasks.kit", "tasks.lock"),
    *("remote_resident.manifest_schema", "remote_resident.supervisor", "tasks.smoke"),
}


@pytest.mark.parametrize("own_file", [False, True], ids=["inline", "own-file"])
def test_an_up_to_date_check_opens_no_file_and_loads_no_parser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_file: bool
) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "w").write_bytes(b"hello")
    look_alike(tmp_path / "env", "a-1.0")
    monkeypatch.setenv("M_PYTHON", str(tmp_path / "env/bin/python"))
    toml = ASKS_BY_FILE if own_file else MANIFEST
    root = tree(tmp_path / "t", toml=toml + WEIGHTS.format(root=weights))
    (root / "manifests/m/request.json").write_text('{"op": "m"}')
    os.utime(weights / "w", (1e9, 1e9))
    certify(root)
    age(*(p for p in Path(os.environ["TU_REMOTE_HOME"]).rglob("*")))

    def look() -> tuple[set[str], set[str]]:
        argv = [sys.executable, "-c", LOOK, str(root)]
        ran = subprocess.run(argv, capture_output=True, text=True, check=True)
        opened, modules = ran.stdout.splitlines()
        return set(filter(None, opened.split(","))), set(modules.split(","))

    first, _ = look()
    again, modules = look()

    assert {"provider.toml", "m.lock", "worker.py", "m.toml", "pyvenv.cfg"} <= first
    assert ("request.json" in first) == own_file
    assert again == set()
    assert HEAVY & modules == set()


def test_a_request_that_changed_is_read_anew_with_all_that_follows_from_it(
    aged: Path,
) -> None:
    path = aged / "asks/manifests/m/provider.toml"

    def asked() -> tuple[object, str]:
        readings.forget()
        found = manifest.load(path)
        digest = manifest.effective_digest(found)
        found.readings.save()
        return found.smoke_request, digest

    first, again = asked(), asked()
    (path.parent / "request.json").write_text('{"op": "m", "text": "hullo"}')
    changed = asked()

    assert first == again == ({"op": "m"}, first[1])
    assert changed == ({"op": "m", "text": "hullo"}, changed[1])
    assert changed[1] != first[1]


def test_a_request_is_asked_anew_of_a_manifest_that_changed(aged: Path) -> None:
    path = aged / "asks_otherwise/manifests/m/provider.toml"
    first = manifest.load(path)
    first.readings.save()
    path.write_text(ASKS_BY_FILE.replace('"m"]', '"n"]'))

    readings.forget()
    with pytest.raises(manifest.ManifestError, match='op: "m", wanted one of predict'):
        manifest.load(path)


def test_a_broken_manifest_is_read_each_time_with_all_its_faults(aged: Path) -> None:
    path = aged / "broken/manifests/m/provider.toml"
    said = []
    for _ in range(2):
        readings.forget()
        with pytest.raises(manifest.ManifestError) as caught:
            manifest.load(path)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_what_is_certified_is_read_from_bytes_and_not_remembered(
    aged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks import inputs

    one = manifest.load(aged / "good/manifests/m/provider.toml")
    remembered = inputs.inputs(one, {}, one.readings)
    opened: list[str] = []
    real = readings.content

    def counted(
        file: str, limit: int = readings.MAX_BYTES
    ) -> tuple[bytes, Identity | None]:
        opened.append(Path(file).name)
        return real(file, limit)

    monkeypatch.setattr(readings, "content", counted)

    assert inputs.inputs(one, {}, one.readings) == remembered
    assert opened == []
    assert inputs.inputs(one, {}) == remembered
    assert {"provider.toml", "m.lock", "worker.py"} <= set(opened)


def test_a_directory_is_listed_again_when_an_entry_comes_or_goes(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "folder"
    (folder / "below").mkdir(parents=True)
    (folder / "a.py").touch()
    kept = Readings()

    first = kept.listing(str(folder))
    (folder / "b.py").touch()
    second = kept.listing(str(folder))
    (folder / "a.py").rename(folder / "c.py")

    assert first == (("a.py", False), ("below", True))
    assert second == (("a.py", False), ("b.py", False), ("below", True))
    assert [name for name, _ in kept.listing(str(folder))] == ["b.py", "below", "c.py"]


def test_a_directory_that_changed_just_now_is_not_kept(tmp_path: Path) -> None:
    _, identity = readings.listed(str(tmp_path))

    assert identity is None


def test_a_settled_directory_is_not_listed_again() -> None:
    # of the standard library: nobody changes it meanwhile
    folder = str(Path(os.__file__).parent / "email")
    kept, said = Readings(), []

    for _ in range(2):
        kept.of_listing(folder, "said", lambda names: said.append(names) or len(names))

    assert len(said) == 1
