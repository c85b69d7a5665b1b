"""When a registration may stand, and what the person who approves it reads."""

import io
from typing import Any

import pytest

from remote_resident.endpoints import card
from remote_resident.endpoints.lint import lint_endpoint
from remote_resident.endpoints.record import Endpoint
from remote_resident.endpoints.register import (
    NeedsApproval,
    decide,
    row,
)
from remote_resident.endpoints.store import Settings, Store
from remote_resident.errors import ProviderError, UsageError

NAME = "tiny-service"
START = """#!/bin/sh
[ "$(docker port tiny-service 80)" = "127.0.0.1:$HOST_PORT" ] && exit
docker run -d --name tiny-service --publish "127.0.0.1:${HOST_PORT}:80" image
"""
STOP = "#!/bin/sh\ndocker stop tiny-service\n"
LOCAL: dict[str, Any] = {
    "name": NAME,
    "url": "http://127.0.0.1:20123",
    "credential": "NVIDIA_API_KEY",
    "skill": "tiny-runbook",
    "start": START,
    "stop": STOP,
    "live": "/ready",
}
REMOTE: dict[str, Any] = {
    "name": "far-service",
    "url": "https://models.example/v1",
    "credential": "NVIDIA_API_KEY",
}


@pytest.fixture
def store() -> Store:
    store = Store()
    store.connect(Settings(mode="local"))
    return store


def url_store() -> Store:
    store = Store()
    settings = Settings(mode="url", host="models.example")
    store.connect(settings)
    return store


def asked(store: Store, fields: dict[str, Any]) -> NeedsApproval:
    found = decide(store, fields)
    assert isinstance(found, NeedsApproval)
    return found


def registered(store: Store, fields: dict[str, Any]) -> Endpoint:
    """Approve what is asked for, and keep it as the daemon does."""
    found = decide(store, fields, asked(store, fields).digest)
    assert isinstance(found, Endpoint)
    store.register(found)
    return found


def refused(store: Store, fields: dict[str, Any], reason: str) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        decide(store, fields, "0" * 64)
    assert caught.value.reason == reason
    return caught.value


def test_nothing_is_registered_until_endpoints_are_connected() -> None:
    error = refused(Store(), LOCAL, "not_connected")

    assert str(error) == "endpoints: not connected, mode local or url wanted"
    assert error.next == (
        "tu remote endpoint connect --mode local --credential-file FILE"
    )


def test_the_other_mode_is_refused_by_the_settings_name(store: Store) -> None:
    assert str(refused(store, REMOTE, "wrong_mode")) == (
        "far-service: url: https://models.example/v1 found in mode local, "
        "mode url wanted"
    )
    assert str(refused(url_store(), LOCAL, "wrong_mode")) == (
        "tiny-service: url: http://127.0.0.1:20123 found in mode url, mode local wanted"
    )


@pytest.mark.parametrize(
    "url",
    [
        "https://other.example/v1",
        "https://models.example:444/v1",
        "https://models.example.evil.example/v1",
        "https://models.example./v1",
    ],
)
def test_the_author_picks_the_path_and_never_the_authority(url: str) -> None:
    refused(url_store(), {**REMOTE, "url": url}, "bad_request")
    asked(url_store(), {**REMOTE, "url": "https://models.example/other/path?x=1"})


def test_new_bytes_need_a_person_and_approved_ones_never_again(store: Store) -> None:
    first = asked(store, LOCAL)
    assert store.registrations().endpoints == {}

    assert decide(store, LOCAL, first.digest) == first.endpoint
    assert decide(store, LOCAL) == first.endpoint


def test_an_approval_of_other_bytes_is_none(store: Store) -> None:
    other = asked(store, {**LOCAL, "ttl_s": 5}).digest

    found = decide(store, LOCAL, other)

    assert isinstance(found, NeedsApproval)
    assert str(found.refusal()) == (
        f"tiny-service: approved {other} found, approval of {found.digest} wanted"
    )
    assert not store.approved(NAME, other)
    assert not store.approved(NAME, found.digest)


@pytest.mark.parametrize(
    "changed",
    [
        {"start": START + "#"},
        {"stop": STOP.replace("stop tiny", "stop  tiny")},
        {"live": "/ready2"},
        {"url": "http://127.0.0.1:20124"},
        {"stop_timeout_s": 121},
    ],
)
def test_any_changed_byte_asks_again(store: Store, changed: dict[str, Any]) -> None:
    registered(store, LOCAL)

    found = asked(store, {**LOCAL, **changed})

    assert found.endpoint.name == NAME
    assert isinstance(decide(store, LOCAL), Endpoint)


def test_going_back_to_bytes_that_were_approved_once_is_silent(store: Store) -> None:
    first = registered(store, LOCAL)
    registered(store, {**LOCAL, "ttl_s": 60})

    assert decide(store, LOCAL) == first


def test_a_port_belongs_to_one_endpoint(store: Store) -> None:
    registered(store, LOCAL)

    error = refused(store, {**LOCAL, "name": "other-service"}, "port_taken")

    assert str(error) == (
        "other-service: url: port 20123 found, which is tiny-service's, another wanted"
    )


def test_mistakes_of_a_script_are_refused_all_at_once_even_if_approved(
    store: Store,
) -> None:
    bad = {
        **LOCAL,
        "start": START + "sudo id # \u202e\n",
        "stop": STOP + "docker rm tiny-service\n",
    }
    endpoint = Endpoint.from_dict(bad)
    store.approve(NAME, endpoint.digest)

    error = refused(store, bad, "lint")

    assert {(p.path, p.line, p.name) for p in error.problems} == {
        ("start", 4, "sudo"),
        ("start", 4, "bidi"),
        ("stop", 3, "rm_stop"),
    }
    assert str(error).startswith("tiny-service: start:4: ")


def test_what_is_only_worth_a_look_is_on_the_card_and_not_refused(store: Store) -> None:
    found = asked(store, {**LOCAL, "start": START + "chmod 777 x\n"})

    assert "start:4: mode 777 found: others may write (mode_777)" in found.card


def test_the_service_directory_is_not_the_authors_to_choose(store: Store) -> None:
    refused(store, {**LOCAL, "service_dir": "/etc"}, "bad_request")


def test_a_damaged_registration_can_be_registered_anew(store: Store) -> None:
    registered(store, LOCAL)
    (store.root / "registrations/tiny-service.json").write_text("{")

    assert isinstance(decide(store, LOCAL), Endpoint)


def test_the_refusal_carries_the_card_and_the_digest_that_approves_it(
    store: Store,
) -> None:
    found = asked(store, LOCAL)
    (problem,) = found.refusal().problems

    assert (problem.text, problem.wanted) == (found.card, found.digest)
    assert found.refusal().reason == "not_approved"
    # the command line has its own; this one must work as it stands
    assert found.refusal().next == f'register(..., approve="{found.digest}")'


# the card


def test_the_card_shows_all_that_is_approved_word_for_word(store: Store) -> None:
    shown = asked(store, {**LOCAL, "vram_budget_gb": 12.5}).card
    lines = shown.splitlines()

    for script in (START, STOP):
        for number, line in enumerate(script.splitlines(), 1):
            assert f"{number} | {line}" in lines
    endpoint = Endpoint.from_dict({**LOCAL, "vram_budget_gb": 12.5})
    for value in (
        "20123",
        endpoint.service_dir,
        "NVIDIA_API_KEY",
        "/ready",
        "12.5 GiB",
    ):
        assert value is not None and value in shown
    assert lines[-1] == f"digest             {endpoint.digest}"


HOSTILE = "echo a\r\x1b[2K\x1b]0;t\x07 \u202eb\u00e9\x9b\u200bz\ud800\n\x0b\x7f\ttab"


def test_the_card_holds_nothing_that_a_terminal_would_act_on() -> None:
    endpoint = Endpoint.from_dict({**LOCAL, "start": HOSTILE})
    shown = card.card(endpoint, lint_endpoint(endpoint))

    assert shown.isascii()
    assert {char for char in shown if not char.isprintable()} == {"\n", "\t"}
    assert r"1 | echo a\r\x1b[2K\x1b]0;t\x07 \u202eb\xe9\x9b\u200bz\ud800" in shown
    assert "(no line end)" in shown


def test_line_breaks_that_only_unicode_knows_start_no_line_of_the_card() -> None:
    start = "a\x0bb\x0cc\x1cd\x85e\u2028f\n"
    shown = card.card(Endpoint.from_dict({**LOCAL, "start": start}), [])

    assert r"1 | a\x0bb\x0cc\x1cd\x85e\u2028f" in shown.split("\n")


@pytest.mark.parametrize(
    ("typed", "approved"),
    [("y\n", True), ("YES\n", True), ("\n", False), ("n\n", False), ("", False),
     ("yes please\n", False)],
)  # fmt: skip
def test_only_a_yes_is_a_yes(typed: str, approved: bool) -> None:
    said = io.StringIO()

    assert card.ask("Approve?", io.StringIO(typed), said) is approved
    assert said.getvalue().startswith("Approve? [y/N] ")


def test_a_pipe_is_nobody_to_ask() -> None:
    assert not card.at_terminal(io.StringIO("y\n"), io.StringIO())


def test_a_row_has_the_contracts_fields(store: Store) -> None:
    endpoint = registered(store, LOCAL)

    found = row(endpoint, "failed", since=5.0, cause="why")

    names = (
        "name url port state since location cause digest credential skill start stop "
        "live service_dir lint"
    )
    assert set(names.split()) <= set(found)
    assert (found["state"], found["since"], found["cause"]) == ("failed", 5.0, "why")
    assert (found["port"], found["lint"]) == (20123, [])


def test_faults_of_the_fields_are_wrong_usage(store: Store) -> None:
    with pytest.raises(UsageError) as caught:
        decide(store, {**LOCAL, "name": "tiny"})
    assert '"tiny-service" wanted' in str(caught.value)
