"""A dispatch that is wrong: every fault of it is told."""

from typing import Any

import pytest

from remote_resident.endpoints import dispatch
from remote_resident.errors import UsageError

BODIES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["endpoint: missing, an endpoint's name wanted", "argv: neither argv nor code found, one of them wanted"]),
    ({"endpoint": "a", "argv": ["x"], "code": "x"}, ["argv: both argv and code found, one of them wanted"]),
    ({"endpoint": "a", "argv": []}, ["argv: a list of strings, the first a program, wanted"]),
    ({"endpoint": "a", "argv": ["a\0b"]}, ["argv: a list of strings, the first a program, wanted"]),
    ({"endpoint": "a", "code": 1}, ["code: a string of Python code wanted"]),
    ({"endpoint": "a", "code": "x", "cwd": "here"}, ["cwd: an absolute path wanted"]),
    ({"endpoint": "a", "code": "x", "timeout_s": True}, ["timeout_s: seconds above 0 and at most 2000000 wanted"]),
    ({"endpoint": "a", "code": "x", "timeout_s": 0}, ["timeout_s: seconds above 0 and at most 2000000 wanted"]),
    ({"endpoint": "a", "code": "x", "timeout_s": 1e400}, ["timeout_s: seconds above 0 and at most 2000000 wanted"]),
    ({"endpoint": "a", "code": "x", "shell": "x"}, ["shell: no such field"]),
]  # fmt: skip


@pytest.mark.parametrize(("body", "faults"), BODIES)
def test_a_dispatch_that_is_wrong_is_told_every_fault(
    body: dict[str, Any], faults: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        dispatch.wanted(body)

    assert caught.value.reason == "bad_request"
    assert [p.text for p in caught.value.problems] == [f"dispatch: {f}" for f in faults]
