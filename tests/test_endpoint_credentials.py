"""Credentials: kept for this user alone, and never seen."""

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_resident import places
from remote_resident.endpoints import credentials
from remote_resident.endpoints.redaction import HIDDEN, Redaction
from remote_resident.errors import ProviderError, UsageError

NAME = "NVIDIA_API_KEY"
VALUE = "nvapi-0123456789-SECRET/+x"


class Ring:
    """A keyring that keeps passwords in memory, as the package of that name does."""

    class errors:  # noqa: N801 - the package's own name
        class KeyringError(Exception):
            pass

    def __init__(self, priority: float = 5, locked: bool = False) -> None:
        self.priority, self.locked = priority, locked
        self.kept: dict[tuple[str, str], str] = {}

    def get_keyring(self) -> "Ring":
        return self

    def _open(self) -> None:
        if self.locked:
            raise self.errors.KeyringError("locked")

    def set_password(self, service: str, user: str, value: str) -> None:
        self._open()
        self.kept[service, user] = value

    def get_password(self, service: str, user: str) -> str | None:
        self._open()
        return self.kept.get((service, user))

    def delete_password(self, service: str, user: str) -> None:
        self._open()
        if self.kept.pop((service, user), None) is None:
            raise self.errors.KeyringError("none")


NO_RING = Ring(priority=0)


def kept_path() -> Path:
    return places.state_dir() / "endpoints/credentials" / NAME


def test_without_a_keyring_a_file_of_this_user_alone_keeps_it() -> None:
    where = credentials.save(NAME, VALUE, keyring=NO_RING)

    assert where == str(kept_path())
    assert stat.S_IMODE(kept_path().stat().st_mode) == 0o600
    assert credentials.load(NAME, keyring=NO_RING) == VALUE
    credentials.forget(NAME, keyring=NO_RING)
    assert credentials.load(NAME, keyring=NO_RING) is None
    assert not kept_path().exists()


def test_the_systems_keyring_keeps_it_where_there_is_one() -> None:
    ring = Ring()
    credentials.save(NAME, "old", keyring=NO_RING)

    assert credentials.save(NAME, VALUE, keyring=ring) == "keyring"

    assert not kept_path().exists()
    assert credentials.load(NAME, keyring=ring) == VALUE
    credentials.forget(NAME, keyring=ring)
    assert credentials.load(NAME, keyring=ring) is None


def test_a_keyring_that_does_not_open_is_no_reason_to_lose_it() -> None:
    ring = Ring(locked=True)

    assert credentials.save(NAME, VALUE, keyring=ring) == str(kept_path())
    assert credentials.load(NAME, keyring=ring) == VALUE
    kept_path().unlink()
    with pytest.raises(ProviderError, match="keyring: KeyringError"):
        credentials.load(NAME, keyring=ring)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_file_that_others_can_read_is_not_believed(mode: int) -> None:
    credentials.save(NAME, VALUE, keyring=NO_RING)
    kept_path().chmod(mode)

    with pytest.raises(ProviderError) as caught:
        credentials.load(NAME, keyring=NO_RING)
    assert caught.value.next == f"chmod 600 {kept_path()}"
    assert VALUE not in str(caught.value)


def test_another_name_than_a_familys_is_refused() -> None:
    for act in (credentials.load, credentials.forget):
        with pytest.raises(UsageError):
            act("AWS_SECRET", keyring=NO_RING)
    with pytest.raises(UsageError) as caught:
        credentials.save("../x", VALUE, keyring=NO_RING)
    assert str(caught.value) == "credential: '../x' found, NVIDIA_API_KEY wanted"


@pytest.mark.parametrize(
    "content", ["", "\n", "two words", "two\nlines", "caf\u00e9", "a\0b"]
)
def test_a_file_that_holds_no_credential_is_refused_and_not_shown(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "key"
    path.write_text(content, encoding="utf-8")

    with pytest.raises(UsageError) as caught:
        credentials.from_file(str(path))
    assert caught.value.reason == "bad_request"
    assert str(caught.value).startswith(f"{path}: ")
    assert "words" not in str(caught.value) and "caf" not in str(caught.value)


def test_the_line_end_of_a_file_is_not_the_credentials(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{VALUE}\r\n")

    assert credentials.from_file(str(tmp_path / "key")) == VALUE


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory found"):
        credentials.from_file(str(tmp_path / "none"))


def test_text_is_shown_without_it_also_as_a_url_spells_it() -> None:
    hide = Redaction([VALUE, None, ""])

    shown = hide.text(f"a {VALUE} b nvapi-0123456789-SECRET%2F%2Bx c")

    assert shown == f"a {HIDDEN} b {HIDDEN} c"


@given(
    st.text(st.sampled_from("ab"), min_size=1, max_size=6),
    st.lists(st.text(st.sampled_from("abx"), max_size=7), max_size=8),
)
def test_no_cut_of_a_stream_lets_it_through(secret: str, pieces: list[str]) -> None:
    hide = Redaction([secret])
    mark = HIDDEN.encode()

    shown = b"".join(hide.feed(piece.encode()) for piece in pieces) + hide.end()

    assert all(secret.encode() not in part for part in shown.split(mark))
    assert shown.replace(mark, b"") == "".join(pieces).replace(secret, "").encode()


def test_what_cannot_be_its_begin_is_not_held_back() -> None:
    hide = Redaction([VALUE])

    assert hide.feed(b"ready\n") == b"ready\n"
    assert hide.feed(b"key nvapi-0") == b"key "
    assert hide.feed(b"9") == b"nvapi-09"
