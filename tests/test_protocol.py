"""The protocol's lines: what is sent is what is read, and what is not one is named."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_resident import errors, places
from remote_resident.worker_side import protocol

Pair = tuple[socket.socket, socket.socket]

NOT_ONE_OBJECT = [
    (b"[1]\n", "message of 4 bytes: a list found, one JSON object wanted"),
    (b"{} {}\n", "message of 6 bytes: more after its end at 2 found, one JSON object"),
    (b'{"a": "\xff"}\n', "message of 11 bytes: byte 0xff at 7 found, one JSON object"),
    (b"\n", "message of 1 bytes: no value at 0 found, one JSON object wanted"),
    (b"GET / HTTP/1.1\r\n", "message of 16 bytes: no value at 0 found, one JSON"),
    (b'{"a": NaN}\n', "message of 11 bytes: NaN is not JSON found, one JSON object"),
]

UNSERIALISABLE = [
    ({"a": [1.0, {"b": float("nan")}]}, "a[1].b: NaN found, a JSON value wanted"),
    ({"x": float("-inf")}, "x: -Infinity found, a JSON value wanted"),
    ({"x": {1}}, "x: a set found, a JSON value wanted"),
    ({"x": {(1, 2): 3}}, "x: a key that is a tuple found, a JSON value wanted"),
    ({"x": b"raw"}, "x: a bytes found, a JSON value wanted"),
]

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = socket.socketpair()
    one.settimeout(10)
    other.settimeout(10)
    with one, other:
        yield one, other


@settings(max_examples=40)
@given(st.dictionaries(st.text(), values))
def test_what_is_sent_is_what_is_read(payload: dict[str, object]) -> None:
    line = protocol.encode_line(payload)

    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert protocol.decode_line(line) == payload


def test_a_path_that_is_no_utf8_comes_through(pair: Pair) -> None:
    name = b"/data/\xff".decode(errors="surrogateescape")

    protocol.send_line(pair[0], {"path": name})

    assert protocol.recv_line(pair[1], bytearray()) == {"path": name}


@pytest.mark.parametrize("cut", [1, 7, 8, 9, 20])
def test_lines_are_the_same_wherever_the_stream_is_cut(pair: Pair, cut: int) -> None:
    whole = b'{"a":1}\n{"b":2}\n{"c":3}\n'
    buf = bytearray()
    pair[0].sendall(whole[:cut])
    rest = threading.Timer(0.02, pair[0].sendall, [whole[cut:]])
    rest.start()

    read = [protocol.recv_line(pair[1], buf) for _ in range(3)]

    rest.join()
    assert read == [{"a": 1}, {"b": 2}, {"c": 3}]
    assert buf == b""


def test_an_end_between_messages_is_a_clean_end(pair: Pair) -> None:
    protocol.send_line(pair[0], {"a": 1})
    pair[0].close()
    buf = bytearray()

    assert protocol.recv_line(pair[1], buf) == {"a": 1}
    assert protocol.recv_line(pair[1], buf) is None


def test_an_end_inside_a_message_is_named_with_what_had_arrived(pair: Pair) -> None:
    pair[0].sendall(b'{"a": 1')
    pair[0].close()

    with pytest.raises(protocol.ProtocolError) as caught:
        protocol.recv_line(pair[1], bytearray())

    assert str(caught.value) == (
        "message: its end after 7 bytes found, a newline wanted"
    )
    assert (caught.value.reason, caught.value.received) == ("protocol_error", 7)


@pytest.mark.parametrize(("line", "text"), NOT_ONE_OBJECT)
def test_a_line_that_is_not_one_object_is_named_with_its_size(
    pair: Pair, line: bytes, text: str
) -> None:
    pair[0].sendall(line)

    with pytest.raises(protocol.ProtocolError) as caught:
        protocol.recv_line(pair[1], bytearray())

    assert str(caught.value).startswith(text)
    assert (caught.value.reason, caught.value.received) == (
        "protocol_error",
        len(line),
    )


def test_a_deeply_nested_line_is_an_error_and_not_a_crash() -> None:
    with pytest.raises(protocol.ProtocolError, match=r"^message of 200001 bytes: "):
        protocol.decode_line(b'{"a":' + b"[" * 199_996)


@pytest.mark.parametrize(("payload", "text"), UNSERIALISABLE)
def test_what_json_cannot_hold_is_refused_by_name_before_a_byte_is_sent(
    pair: Pair, payload: dict[str, object], text: str
) -> None:
    with pytest.raises(protocol.ProtocolError) as caught:
        protocol.send_line(pair[0], payload)

    assert (str(caught.value), caught.value.reason) == (text, "bad_request")
    pair[0].close()
    assert pair[1].recv(1) == b""


def test_a_payload_that_contains_itself_is_refused_by_name() -> None:
    inner: list[object] = []
    inner.append(inner)

    with pytest.raises(
        protocol.ProtocolError,
        match=r"^a\.b\[0\]: a value that contains itself found, a JSON value wanted$",
    ):
        protocol.encode_line({"a": {"b": inner}})


def test_a_message_of_the_limit_passes_and_one_byte_more_is_refused() -> None:
    payload: dict[str, object] = {"a": "x" * 92}

    assert len(protocol.encode_line(payload, limit=100)) == 101
    with pytest.raises(protocol.ProtocolError) as caught:
        protocol.encode_line(payload, limit=99)
    assert str(caught.value) == (
        "message: 100 bytes found, at most 99 wanted; send large data as paths"
    )
    assert caught.value.reason == "too_large"


@pytest.mark.parametrize("ended", [True, False], ids=["whole", "endless"])
def test_a_longer_line_is_refused_before_it_is_all_in_memory(
    pair: Pair, ended: bool
) -> None:
    sender = threading.Thread(
        target=_send_quietly, args=(pair[0], b"x" * 5_000_000 + b"\n" * ended)
    )
    sender.start()

    with pytest.raises(protocol.ProtocolError) as caught:
        protocol.recv_line(pair[1], bytearray(), limit=1_000_000)

    pair[1].close()
    sender.join()
    assert caught.value.reason == "too_large"
    assert caught.value.received is not None
    assert caught.value.received <= 1_000_000 + protocol.CHUNK_BYTES


def _send_quietly(sock: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        sock.sendall(data)


def test_a_line_over_the_limit_is_dropped_and_the_next_is_read() -> None:
    lines = protocol.Lines(limit=10)
    lines.feed(b"x" * 8)
    assert lines.take() is None
    lines.feed(b"x" * 8)

    with pytest.raises(protocol.ProtocolError, match=r"^message: over 10 bytes found"):
        lines.take()

    lines.feed(b"x" * 1000)
    assert lines.take() is None
    lines.feed(b"x\n{}\nrest")
    assert lines.take() == b"{}\n"
    assert lines.take() is None
    assert lines.size == 4


def test_the_package_stands_in_where_the_accelerator_is_missing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, scan = protocol._slow_codec()
    monkeypatch.setattr(protocol, "_encode", encode)
    monkeypatch.setattr(protocol, "_scan", scan)
    line = protocol.encode_line({"a": [1, 2.5, "é", None]})

    assert line == b'{"a":[1,2.5,"\\u00e9",null]}\n'
    assert protocol.decode_line(line) == {"a": [1, 2.5, "é", None]}
    with pytest.raises(protocol.ProtocolError, match=r"^a: NaN found"):
        protocol.encode_line({"a": float("nan")})
    with pytest.raises(protocol.ProtocolError, match="NaN is not JSON"):
        protocol.decode_line(b'{"a":NaN}')


def test_the_socket_is_named_after_the_slug_and_the_tree() -> None:
    assert protocol.socket_path("boltz2", "/a/tree", "/run/x") == (
        # sha256 of "/a/tree"
        "/run/x/boltz2-1457cecb.sock"
    )
    assert places.tree_id(Path("/a/tree")) == "1457cecb"


def test_long_slugs_are_cut_and_stay_apart() -> None:
    room = "/run/" + "d" * 55
    slugs = ["s" * 64, "s" * 63 + "t", "s" * 63]
    paths = [protocol.socket_path(slug, "/a/tree", room) for slug in slugs]

    assert len(set(paths)) == 3
    assert all(len(path) <= 107 for path in paths)
    assert all(path.startswith(f"{room}/sss") for path in paths)


def test_a_directory_that_leaves_no_room_is_the_refusal() -> None:
    room = "/" + "d" * 90

    with pytest.raises(protocol.ProtocolError) as caught:
        protocol.socket_path("boltz2", "/a/tree", room)

    assert caught.value.reason == "socket_path"
    assert str(caught.value) == (
        f"{room}: 92 bytes found, at most 81 wanted, for a socket's path has 107"
    )


@pytest.mark.parametrize("name", ["TU_REMOTE_HOME", "XDG_RUNTIME_DIR", "TMPDIR", ""])
def test_without_a_directory_it_is_where_our_side_has_its_sockets(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in ("TU_REMOTE_HOME", "XDG_RUNTIME_DIR", "TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(other, raising=False)
    if name:
        monkeypatch.setenv(name, str(tmp_path))

    named = protocol.socket_path("boltz2", "/a/tree")

    # not `runtime_dir`: what lies at the usual place here may be another's
    where = places._runtime_path(os.environ)
    assert named == protocol.socket_path("boltz2", "/a/tree", where)


def test_every_reason_of_the_workers_side_is_in_the_list() -> None:
    assert set(protocol.REASONS) <= errors.REASONS
