"""Where things live: named without a trace, private, and refused when it is not."""

import errno
import hashlib
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from remote_resident import places
from remote_resident.errors import ProviderError, UsageError

NOBODY = 54321
"""A uid that no account has."""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def tree_at(path: Path) -> Path:
    (path / "manifests").mkdir(parents=True)
    return path


def test_one_variable_moves_everything(home: Path, tmp_path: Path) -> None:
    tree = tree_at(tmp_path / "tree")

    named = [
        Path(places.memo_file("capiti", tree)),
        places.measured_path("capiti", tree),
        places.env_dir("capiti", "a" * 64),
        places.kit_dir("b" * 40),
        places.log_path("capiti", tree),
        places.step_lock_path("capiti", tree),
        places.crash_path("capiti", tree),
    ]

    key = hashlib.sha256(bytes(tree.resolve())).hexdigest()[:8]
    assert [str(p.relative_to(home)) for p in named] == [
        f"cache/digest-memo/capiti-{key}.json",
        f"state/{key}/measured/capiti.toml",
        "cache/envs/capiti-aaaaaaaaaaaaaaaa",
        f"cache/kits/{'b' * 40}",
        f"cache/logs/capiti-{key}.log",
        f"run/setup-capiti-{key}.lock",
        f"state/crashes/capiti-{key}.json",
    ]


def test_naming_a_place_creates_nothing(home: Path, tmp_path: Path) -> None:
    places.memo_file("capiti", tmp_path)
    places.runtime_dir()

    assert list(home.iterdir()) == []


def test_the_xdg_directories_are_used_and_a_relative_one_counts_as_none() -> None:
    environ = {
        "HOME": "/home/ann",
        "XDG_CACHE_HOME": "/fast/cache",
        "XDG_STATE_HOME": "state",
        "XDG_RUNTIME_DIR": "/run/user/7",
        "TU_REMOTE_HOME": "",
    }

    assert places.cache_dir(environ) == Path("/fast/cache/tu-remote")
    assert places.state_dir(environ) == Path("/home/ann/.local/state/tu-remote")
    assert places.runtime_dir(environ) == Path("/run/user/7/tu-remote")


def test_without_a_runtime_directory_each_uid_has_its_own(tmp_path: Path) -> None:
    environ = {"HOME": "/home/ann", "TMPDIR": str(tmp_path)}

    assert places.runtime_dir(environ) == tmp_path / f"tu-remote-{os.geteuid()}"


def test_the_log_directory_can_be_moved_alone(tmp_path: Path) -> None:
    environ = {"TOOLUNIVERSE_REMOTE_LOG_DIR": "/var/log/models"}

    path = places.log_path("capiti", tmp_path, environ)

    assert path.parent == Path("/var/log/models")


def test_two_trees_do_not_share_an_id_and_a_symlink_is_the_same_tree(
    tmp_path: Path,
) -> None:
    one, two = tree_at(tmp_path / "one"), tree_at(tmp_path / "two")
    (tmp_path / "link").symlink_to(one)

    assert places.tree_id(one) != places.tree_id(two)
    assert places.tree_id(one) == places.tree_id(tmp_path / "link")


def test_what_is_made_is_private_whatever_the_umask(home: Path) -> None:
    before = os.umask(0)
    try:
        made = places.ensure(places.cache_dir() / "digest-memo")
    finally:
        os.umask(before)

    assert mode(made) == mode(home / "cache") == 0o700


@pytest.mark.parametrize("found", [0o750, 0o701, 0o777])
def test_a_runtime_directory_open_to_others_is_refused(home: Path, found: int) -> None:
    run = home / "run"
    run.mkdir()
    run.chmod(found)

    with pytest.raises(ProviderError) as refusal:
        places.runtime_dir()

    me = os.geteuid()
    assert str(refusal.value) == (
        f"{run}: a directory of uid {me} with mode {found:04o} found, "
        f"a directory of uid {me} with mode 0700 wanted"
    )
    assert refusal.value.reason == "socket_path"
    assert refusal.value.next == f"chmod 700 {run}"


def test_nobody_is_told_to_close_what_is_everybodys(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run = home / "run"
    run.mkdir()
    run.chmod(0o1777)

    with pytest.raises(ProviderError) as refusal:
        places.runtime_dir()

    assert refusal.value.next == 'export TU_REMOTE_HOME="$HOME/.tu-remote"'


def test_a_symlink_in_place_of_the_runtime_directory_is_refused(home: Path) -> None:
    (home / "elsewhere").mkdir(mode=0o700)
    (home / "run").symlink_to("elsewhere")

    with pytest.raises(ProviderError, match="a symlink of uid"):
        places.runtime_dir()
    with pytest.raises(ProviderError, match="a symlink of uid"):
        places.ensure(home / "run" / "locks")


def test_a_file_in_place_of_the_runtime_directory_is_refused(home: Path) -> None:
    (home / "run").write_text("")

    with pytest.raises(ProviderError, match="a file of uid") as refusal:
        places.runtime_dir()

    assert refusal.value.next == f"mv {home / 'run'} {home / 'run'}.bad"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_another_users_runtime_directory_is_refused(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (home / "run").mkdir(mode=0o700)
    os.chown(home / "run", NOBODY, NOBODY)

    with pytest.raises(ProviderError, match=f"a directory of uid {NOBODY} with") as e:
        places.runtime_dir()

    assert e.value.reason == "socket_path"
    assert e.value.next == 'export TU_REMOTE_HOME="$HOME/.tu-remote"'


def test_what_cannot_be_made_is_a_refusal_with_its_cause(home: Path) -> None:
    (home / "cache").write_text("")

    with pytest.raises(ProviderError) as refusal:
        places.ensure(places.cache_dir() / "kits")

    assert refusal.value.reason == "unreadable"
    assert str(refusal.value).endswith(
        f"a directory that uid {os.geteuid()} can write wanted"
    )


def test_nobody_is_sent_below_a_home_that_is_not_there(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "cache").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "nonexistent"))

    with pytest.raises(ProviderError) as refusal:
        places.ensure(places.cache_dir() / "kits")

    assert refusal.value.next == 'export TU_REMOTE_HOME="$(mktemp -d)"'
    printed = f'{refusal.value.next} && printf %s "$TU_REMOTE_HOME"'
    ran = subprocess.run(
        ["sh", "-c", printed],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        check=True,
        text=True,
    )
    monkeypatch.setenv("TU_REMOTE_HOME", ran.stdout)
    assert places.ensure(places.cache_dir() / "kits").is_dir()


def test_a_full_disk_is_looked_at_where_a_directory_was_wanted(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, mode: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "mkdir", full)

    with pytest.raises(ProviderError) as refusal:
        places.ensure(places.cache_dir() / "kits")

    assert refusal.value.reason == "disk_full"
    assert refusal.value.next == f"df -h {shlex.quote(str(home))}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another uid")
def test_a_uid_without_a_home_still_has_places() -> None:
    environ = {"TMPDIR": "/tmp"}
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            named = f"{places.cache_dir(environ)} {places.runtime_dir(environ)}"
            os.write(write_end, named.encode())
        finally:
            os._exit(0)
    os.close(write_end)

    with os.fdopen(read_end) as said:
        mine = f"/tmp/tu-remote-{NOBODY}"
        assert said.read() == f"{mine}/cache {mine}"
    os.waitpid(child, 0)


def test_the_tree_is_what_was_asked_then_the_variable_then_the_enclosing(
    tmp_path: Path,
) -> None:
    asked, named, enclosing = (tree_at(tmp_path / n) for n in ("a", "b", "c d"))
    inside = enclosing / "manifests" / "echo"
    inside.mkdir()
    environ = {"TU_REMOTE_TREE": str(named)}

    assert places.find_tree(asked, inside, environ) == asked
    assert places.find_tree(None, inside, environ) == named
    assert places.find_tree(None, inside, {}) == enclosing
    assert places.find_tree(None, tmp_path, {}) == places.packaged_tree()


def test_a_named_tree_without_manifests_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as asked:
        places.find_tree(tmp_path)
    with pytest.raises(UsageError) as named:
        places.find_tree(environ={"TU_REMOTE_TREE": f"{tmp_path}/x"})

    assert str(asked.value) == f"--tree {tmp_path}: no manifests/ in it, a tree wanted"
    assert str(named.value) == (
        f"TU_REMOTE_TREE {tmp_path}/x: no such directory, a tree wanted"
    )
    assert asked.value.exit_code == 3


def test_the_packaged_tree_holds_the_manifests() -> None:
    tree = places.packaged_tree()

    assert (tree / "dodo.py").is_file()
    assert (tree / "manifests").is_dir()


def test_standing_in_a_deleted_directory_is_no_crash(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    text = (
        "import os, sys; os.chdir(sys.argv[1]); os.rmdir(sys.argv[1])\n"
        "from remote_resident import places; print(places.find_tree(environ={}))"
    )
    gone.mkdir()

    ran = subprocess.run(
        [sys.executable, "-c", text, str(gone)],
        env={"PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.stdout.strip() == str(places.packaged_tree()), ran.stderr


@pytest.mark.parametrize("below", ["", "cache", "state"])
def test_a_home_that_others_may_write_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    home = tmp_path / "home"
    (home / below).mkdir(mode=0o700, parents=True)
    monkeypatch.setenv("TU_REMOTE_HOME", str(home))
    (home / below).chmod(0o777)

    with pytest.raises(ProviderError) as caught:
        (places.cache_dir if below != "state" else places.state_dir)()

    me = os.geteuid()
    assert str(caught.value) == (
        f"{home / below}: uid {me} with mode 0777 found, "
        f"uid {me} and nobody else who may write wanted"
    )
    assert caught.value.reason == "socket_path"
    assert caught.value.next == f"chmod 700 {home / below}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another's directory")
def test_a_home_of_another_user_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    os.chown(home, 65534, 65534)
    monkeypatch.setenv("TU_REMOTE_HOME", str(home))

    with pytest.raises(ProviderError, match="uid 65534 with mode 0755 found"):
        places.cache_dir()


def test_a_home_that_is_another_in_each_directory_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TU_REMOTE_HOME", "here")

    for place in (places.cache_dir, places.state_dir, places.runtime_dir):
        with pytest.raises(UsageError) as caught:
            place()
        assert str(caught.value) == (
            "TU_REMOTE_HOME: 'here' found, an absolute path wanted"
        )


def test_an_empty_tree_is_no_usage() -> None:
    with pytest.raises(UsageError) as caught:
        places.find_tree("")

    assert (
        str(caught.value) == "--tree: nothing found after it, the path of a tree wanted"
    )
