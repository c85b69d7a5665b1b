"""One job's events in memory: order, bounds, what goes first, and what JSON cannot hold."""

import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_resident.jobs.worker.context import Context, JobFailed
from remote_resident.jobs.worker.encoding import (
    DEEPEST,
    error_text,
    is_deeper,
    text_of,
)
from remote_resident.jobs.worker.events import CHUNK_BYTES, Events, Share
from remote_resident.jobs.worker.request import Identity, Request, request_of


class Small(Share):
    """A bound that a few events reach."""

    def __init__(self, limit: int) -> None:
        self.bytes = limit


def read(events: Events, after: int = 0) -> list[dict[str, object]]:
    """Take everything that waits after a number."""
    reader, found = events.attach(after), b""
    while True:
        chunk, last = events.take(reader)
        found += chunk
        if last or not chunk:
            events.detach(reader)
            return [json.loads(line) for line in found.splitlines()]


def filled(limit: int, *names: str) -> Events:
    events = Events("j", Small(limit))
    for name in names:
        events.add(name, '"x":"' + "x" * 100 + '"')
    return events


def test_events_come_in_the_order_in_which_they_were_added() -> None:
    events = filled(
        1 << 20, "log", "progress", "custom", "metric", "progress", "result"
    )
    events.end("done", '"status":"completed"')

    assert [(event["seq"], event["event"]) for event in read(events)] == [
        (1, "log"),
        (2, "progress"),
        (3, "custom"),
        (4, "metric"),
        (5, "progress"),
        (6, "result"),
        (7, "done"),
    ]


def test_the_oldest_progress_goes_first() -> None:
    events = filled(1000, "progress", "log", "progress", "log")

    assert [event["seq"] for event in read(events)] == [2, 3, 4]


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (["progress", "progress", "log", "log"], ["log", "log"]),
        (["log", "custom", "metric", "custom"], ["custom", "custom"]),
        (["custom", "result", "custom", "result"], ["result", "result"]),
        (["result", "progress", "log", "progress"], ["result", "log"]),
        (["log", "progress", "progress", "progress"], ["log", "progress"]),
    ],
)
def test_what_goes_first_is_progress_then_chatter_then_custom(
    names: list[str], kept: list[str]
) -> None:
    events = filled(700, *names)
    events.end("error", '"message":"x"')

    assert [event["event"] for event in read(events)] == [*kept, "error"]
    assert events.dropped == 2


def test_what_was_read_goes_before_what_was_not() -> None:
    events = filled(700, "result", "log")
    reader = events.attach()
    events.take(reader)
    for _ in range(2):
        events.add("progress", '"x":"' + "x" * 100 + '"')

    assert [event["event"] for event in read(events)] == ["progress", "progress"]
    assert events.dropped == 0


def test_a_gap_is_told_with_its_exact_count() -> None:
    events = filled(3000, *["progress", "log", "metric"] * 50)
    events.end("done", '"status":"completed"')

    found = read(events)
    told = sum(event.get("dropped", 0) for event in found)  # type: ignore[misc]

    assert told == 151 - len(found) == events.dropped > 0


def test_the_terminal_event_stays_when_all_else_goes() -> None:
    events = filled(1 << 20, "result", "log")
    events.end("done", '"status":"completed"')
    events.forget()

    assert read(events) == [
        {"event": "done", "job_id": "j", "seq": 3, "status": "completed", "dropped": 2}
    ]


def test_nothing_is_taken_after_the_terminal_event() -> None:
    events = filled(1 << 20)

    assert events.end("done", '"status":"completed"')
    assert not events.end("error", '"message":"too late"')
    events.add("log", '"message":"too late"')
    assert [event["event"] for event in read(events)] == ["done"]


def test_one_event_larger_than_the_bound_is_delivered() -> None:
    events = Events("j", Small(1000))
    events.add("custom", f'"payload":"{"x" * 5000}"')

    assert [event["seq"] for event in read(events)] == [1]


def test_all_that_waits_comes_in_one_chunk_up_to_its_size() -> None:
    events = filled(8 << 20, *["log"] * 3000)
    reader = events.attach()
    first, last = events.take(reader)

    assert len(first) >= CHUNK_BYTES > len(first) - 300
    assert not last


def test_the_loop_is_woken_once_for_many_events() -> None:
    calls: list[object] = []
    events = Events("j", Share(), calls.append)
    reader = events.attach()
    events.take(reader)
    for _ in range(100):
        events.add("log", '"message":"x"')

    assert len(calls) == 1


def test_every_event_of_many_threads_is_numbered_and_kept() -> None:
    events = Events("j", Share())

    def add() -> None:
        for _ in range(500):
            events.add("log", '"message":"x"')

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [event["seq"] for event in read(events)] == list(range(1, 4001))


def test_many_live_jobs_share_one_bound() -> None:
    share = Share()
    share.among(1)
    alone = share.bytes
    share.among(1000)

    assert share.bytes * 1000 <= Share.TOTAL_BYTES
    assert alone == Share.MOST_BYTES


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_whatever_a_value_is_its_text_is_strict_json(value: object) -> None:
    text, _ = text_of(value, "value")

    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads(text, parse_constant=refuse)
    assert "\n" not in text


@pytest.mark.parametrize(
    ("value", "text", "replaced"),
    [
        (float("nan"), "null", ["v: nan sent as null"]),
        ([1, float("-inf")], "[1,null]", ["v[1]: -inf sent as null"]),
        ({"a": {"b": {1}}}, '{"a":{"b":"{1}"}}', ["v.a.b: set sent as its repr"]),
        ((1, "x"), '[1,"x"]', []),
        ({1: 2, None: 3}, '{"1":2,"null":3}', []),
        (
            {(1, 2): 3},
            '{"(1, 2)":3}',
            ["v: a key of type tuple sent as its repr"],
        ),
        (b"\xff", "\"b'\\\\xff'\"", ["v: bytes sent as its repr"]),
    ],
)
def test_what_json_cannot_hold_is_replaced_where_it_stands_and_told(
    value: object, text: str, replaced: list[str]
) -> None:
    found, told = text_of(value, "v")

    assert (found, [*told]) == (text, replaced)


def nested(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize("levels", [DEEPEST + 1, 900, 5000])
def test_nesting_that_a_reader_may_not_bear_is_told_by_its_repr(levels: int) -> None:
    text, told = text_of(nested(levels), "v")

    assert text.count("[[") <= DEEPEST or text.startswith('"')
    assert told
    assert not is_deeper(json.loads(text), DEEPEST)


@pytest.mark.parametrize("value", [nested(DEEPEST - 1), [[1]] * 1000])
def test_many_lists_that_are_not_deep_are_sent_as_they_are(value: object) -> None:
    text, told = text_of(value, "v")

    assert (json.loads(text), [*told]) == (value, [])


def test_an_exception_is_told_as_type_and_text() -> None:
    assert error_text(ValueError("no")) == "ValueError: no"
    assert error_text(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert error_text(SystemExit(0)) == "SystemExit: 0"


def test_the_params_come_without_what_is_the_hosts() -> None:
    identity = {"user_id": "u", "org_id": "o", "project_id": "p"}
    body = {"x": 1, "_identity": identity | {"more": 1}, "_alias_overrides": None}
    request = request_of(json.dumps(body).encode())

    assert request.params == {"x": 1}
    assert request.identity == identity
    assert request.identity.user_id == "u"
    assert Identity().project_id is None


@pytest.mark.parametrize(
    ("overrides", "resolved"),
    [
        ({"enabled": True, "overrides": [{"token": "D", "path": "/d"}]}, "/d/x"),
        ({"enabled": True, "overrides": [{"token": "<D>", "path": "/d/"}]}, "/d/x"),
        ({"enabled": False, "overrides": [{"token": "D", "path": "/d"}]}, "<D>/x"),
        ({"enabled": 1, "overrides": [{"token": "D", "path": "/d"}]}, "<D>/x"),
        ({"overrides": [{"token": "D", "path": "/d"}]}, "<D>/x"),
        ({"enabled": True, "overrides": {"D": "/d"}}, "<D>/x"),
        ({"enabled": True, "overrides": [{"token": "D"}]}, "<D>/x"),
        ({"enabled": True, "overrides": [{"token": "D", "path": 3}]}, "<D>/x"),
        ({"enabled": True, "overrides": [{"token": "", "path": "/d"}]}, "<D>/x"),
        ({"enabled": True, "overrides": ["D"]}, "<D>/x"),
        ("D", "<D>/x"),
    ],
)
def test_an_alias_is_resolved_and_a_malformed_one_applies_nothing(
    overrides: object, resolved: str
) -> None:
    request = request_of(json.dumps({"_alias_overrides": overrides}).encode())

    assert request.resolve("<D>/x") == resolved


@pytest.mark.parametrize("url", ["/d/<D>/x", "<D>x", "<E>/x", "https://h/<D>", ""])
def test_what_begins_with_no_alias_stays_as_it_is(url: str) -> None:
    assert Request({}, aliases={"D": "/d"}).resolve(url) == url


def test_an_alias_by_itself_is_its_path() -> None:
    assert Request({}, aliases={"D": "/d/"}).resolve("<D>") == "/d/"


@pytest.mark.parametrize(
    "body",
    [b"[]", b"1", b"null", b"{", b"{} {}", b" ", b"\xff", b'{"x": NaN}', b"[" * 99999],
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"wanted|nested"):
        request_of(body)


def test_a_failure_counts_though_the_plugin_catches_it(tmp_path: object) -> None:
    ctx = Context("j", Request({}), tmp_path, Events("j", Share()))  # type: ignore[arg-type]

    with pytest.raises(JobFailed):
        ctx.fail("first")
    with pytest.raises(JobFailed):
        ctx.fail("second")
    assert ctx.failure == "first"
