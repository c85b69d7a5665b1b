"""What a registration may be, what is approved of it, and how it is kept."""

import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_resident import places
from remote_resident.endpoints.record import Endpoint, name_fault
from remote_resident.endpoints.store import Settings, Store
from remote_resident.errors import ProviderError, UsageError

LOCAL: dict[str, Any] = {
    "name": "tiny-service",
    "url": "http://127.0.0.1:20123",
    "credential": "NVIDIA_API_KEY",
    "skill": "tiny-runbook",
    "start": "#!/bin/sh\necho start\n",
    "stop": "#!/bin/sh\necho stop\n",
    "live": "/v1/health/ready",
}
REMOTE: dict[str, Any] = {
    "name": "far-service",
    "url": "https://models.example:8443/v1/tiny",
    "credential": "NVIDIA_API_KEY",
}


def refused(fields: dict[str, Any]) -> str:
    with pytest.raises(UsageError) as caught:
        Endpoint.from_dict(fields)
    assert caught.value.reason == "bad_request"
    return str(caught.value)


def test_a_registration_is_read_back_as_it_was() -> None:
    for fields in (LOCAL, REMOTE):
        endpoint = Endpoint.from_dict(fields)

        assert (
            Endpoint.from_dict(json.loads(json.dumps(endpoint.as_dict()))) == endpoint
        )


def test_what_is_not_said_has_the_contracts_values() -> None:
    endpoint = Endpoint.from_dict(LOCAL)

    assert (endpoint.location, endpoint.port) == ("local", 20123)
    assert (endpoint.start_timeout_s, endpoint.stop_timeout_s) == (1800, 120)
    assert (endpoint.ttl_s, endpoint.vram_budget_gb, endpoint.ram_budget_gb) == (
        0,
        None,
        None,
    )
    assert endpoint.service_dir == str(places.cache_dir() / "services/tiny-service")


def test_a_remote_endpoint_has_no_port_and_no_directory_here() -> None:
    endpoint = Endpoint.from_dict(REMOTE)

    assert (endpoint.location, endpoint.port, endpoint.service_dir) == (
        "remote",
        None,
        None,
    )
    assert endpoint.authority == "models.example:8443"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "other-service"),
        ("url", "http://127.0.0.1:20124"),
        ("skill", "other"),
        ("start", LOCAL["start"] + " "),
        ("stop", LOCAL["stop"].replace("stop", "stoq")),
        ("live", "/v1/health/live"),
        ("start_timeout_s", 1801),
        ("stop_timeout_s", 119.5),
        ("ttl_s", 1),
        ("vram_budget_gb", 0),
        ("ram_budget_gb", 1.5),
    ],
)
def test_one_changed_byte_of_any_field_is_another_digest(
    field: str, value: Any
) -> None:
    digest = Endpoint.from_dict(LOCAL).digest

    assert Endpoint.from_dict({**LOCAL, field: value}).digest != digest
    assert Endpoint.from_dict(dict(reversed(LOCAL.items()))).digest == digest


def test_the_digest_does_not_tell_whole_numbers_from_their_floats() -> None:
    whole = Endpoint.from_dict({**LOCAL, "ttl_s": 60, "vram_budget_gb": 4})
    floats = Endpoint.from_dict({**LOCAL, "ttl_s": 60.0, "vram_budget_gb": 4.0})

    assert whole.digest == floats.digest


def test_a_script_of_any_characters_has_a_digest() -> None:
    assert len(Endpoint.from_dict({**LOCAL, "start": "\u202e\ud800\x1b"}).digest) == 64


@given(st.text(max_size=80))
def test_a_name_is_only_what_a_path_and_a_container_can_be_called(name: str) -> None:
    if name_fault(name) is None:
        assert name.endswith("-service") and len(name) <= 63
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_")


WRONG_NAMES = ["boltz2", "-service", "Boltz2-service", "a/b-service", "a-service\n", ""]


@pytest.mark.parametrize("name", WRONG_NAMES)
def test_a_name_that_is_none_is_refused(name: str) -> None:
    assert "name: " in refused({**LOCAL, "name": name})


def test_a_bare_models_name_is_refused_with_the_one_that_is_meant() -> None:
    assert refused({**LOCAL, "name": "boltz2"}) == (
        'endpoint: name: "boltz2" found, "boltz2-service" wanted'
    )


WRONG_URLS = [
    "http://localhost:20123",
    "http://127.0.0.2:20123",
    "http://0.0.0.0:20123",
    "http://[::1]:20123",
    "http://127.0.0.1:19999",
    "http://127.0.0.1:30000",
    "http://127.0.0.1",
    "http://127.0.0.1:20123/",
    "http://127.0.0.1:20123/v1",
    "http://127.0.0.1:020123",
    "http://u@127.0.0.1:20123",
    "http://127.0.0.1:20123\n",
    "http://127.1:20123",
    "https://127.0.0.1:20123",
    "ftp://127.0.0.1:20123",
    "",
]


@pytest.mark.parametrize("url", WRONG_URLS)
def test_a_url_of_another_form_is_no_endpoint_of_this_host(url: str) -> None:
    assert "tiny-service: " in refused({**LOCAL, "url": url})


@pytest.mark.parametrize(
    "url",
    [
        "https://u:p@models.example/x",
        "https://models.example\\@evil.example/x",
        "https://models.example#@evil.example/",
        "https://models.example?@evil.example/",
        "https://Models.example/",
        "https://models.example:99999/",
        "https://models.example/a b",
        "https://models.example/a\nb",
        "https://m\u00f6dels.example/",
        "https:///x",
    ],
)
def test_a_remote_url_whose_authority_could_be_misread_is_refused(url: str) -> None:
    assert "far-service: url: " in refused({**REMOTE, "url": url})


@pytest.mark.parametrize("field", ["start", "stop", "live"])
def test_scripts_and_readiness_go_with_an_endpoint_of_this_host(field: str) -> None:
    without = {key: value for key, value in LOCAL.items() if key != field}

    assert refused(without) == (
        f"tiny-service: {field}: missing, wanted for an endpoint of this host"
    )
    assert refused({**REMOTE, field: LOCAL[field]}) == (
        f"far-service: {field}: found, none wanted for a remote endpoint"
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("credential", "AWS_SECRET"),
        ("credential", None),
        ("start_timeout_s", 0),
        ("start_timeout_s", -1),
        ("start_timeout_s", True),
        ("start_timeout_s", float("nan")),
        ("stop_timeout_s", float("inf")),
        ("stop_timeout_s", "5"),
        ("stop_timeout_s", 10**400),
        ("start_timeout_s", 2_000_001),
        ("stop_timeout_s", 1e300),
        ("ttl_s", 2_000_001),
        ("ttl_s", -1),
        ("vram_budget_gb", -0.5),
        ("ram_budget_gb", "8"),
        ("live", "ready"),
        ("live", "/a b"),
        ("live", "/a\r\nHost: x"),
        ("skill", "a\x1b[2J"),
        ("start", "a\0b"),
        ("start", 5),
        ("start", "#" * 300_000),
        ("port", 20123),
        ("\x1b[2J", 1),
    ],
)
def test_a_value_that_is_none_is_refused_by_its_fields_name(
    field: str, value: Any
) -> None:
    said = refused({**LOCAL, field: value})

    assert said.isprintable()
    assert field in said or not field.isprintable()


def test_every_fault_of_a_registration_is_listed() -> None:
    with pytest.raises(UsageError) as caught:
        Endpoint.from_dict({"name": "x", "url": "http://localhost:1", "ttl_s": -1})

    assert {problem.name for problem in caught.value.problems} == {
        "name",
        "url",
        "credential",
        "ttl_s",
        "start",
        "stop",
        "live",
    }


# the store


@pytest.fixture
def store() -> Store:
    return Store()


def put(store: Store, fields: dict[str, Any]) -> Endpoint:
    endpoint = Endpoint.from_dict(fields)
    store.approve(endpoint.name, endpoint.digest)
    store.register(endpoint)
    return endpoint


def test_what_was_registered_is_there_for_the_next_process(store: Store) -> None:
    endpoint = put(store, LOCAL)

    assert Store().registrations().endpoints == {"tiny-service": endpoint}
    assert Store().approved("tiny-service", endpoint.digest)
    store.remove("tiny-service")
    assert Store().registrations().endpoints == {}
    assert Store().approved("tiny-service", endpoint.digest)


def test_nothing_connected_is_no_mode(store: Store) -> None:
    assert store.settings() == Settings()
    settings = Settings(mode="url", host="h")
    store.connect(settings)
    assert Store().settings() == settings
    store.disconnect()
    assert Store().settings() == Settings()


def test_what_was_approved_for_one_name_is_not_for_another(store: Store) -> None:
    endpoint = put(store, LOCAL)

    assert not store.approved("other-service", endpoint.digest)


def test_every_file_is_this_users_alone(store: Store) -> None:
    put(store, LOCAL)
    store.connect(Settings(mode="local"))
    store.set_note("tiny-service", {"state": "ready"})

    for path in store.root.rglob("*"):
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path


DAMAGE = [
    b"",
    b"{",
    b"[]",
    b"{}",
    b'{"record": 5}',
    b'{"record": {}}',
    b"\xff",
    b"[" * 9999,
]


@pytest.mark.parametrize("content", DAMAGE)
def test_a_damaged_registration_is_named_and_the_others_are_read(
    store: Store, content: bytes
) -> None:
    put(store, LOCAL)
    other = put(store, {**LOCAL, "name": "b-service", "url": "http://127.0.0.1:20124"})
    path = store.root / "registrations/tiny-service.json"
    path.write_bytes(content)

    found = store.registrations()

    assert found.endpoints == {"b-service": other}
    (error,) = found.damaged.values()
    assert str(error).startswith(f"{path}: ")
    assert error.reason == "unreadable"
    assert path.read_bytes() == content


def test_bytes_that_nobody_approved_are_not_believed(store: Store) -> None:
    put(store, LOCAL)
    path = store.root / "registrations/tiny-service.json"
    path.write_text(path.read_text().replace("echo start", "echo other"))

    found = store.registrations()

    assert found.endpoints == {}
    assert "bytes that nobody approved" in str(found.damaged["tiny-service"])


def test_a_registration_under_anothers_name_is_not_believed(store: Store) -> None:
    put(store, LOCAL)
    registrations = store.root / "registrations"
    (registrations / "tiny-service.json").rename(registrations / "b-service.json")

    assert set(store.registrations().damaged) == {"b-service"}


def test_registering_anew_keeps_the_damaged_file_as_evidence(store: Store) -> None:
    endpoint = put(store, LOCAL)
    path = store.root / "registrations/tiny-service.json"
    path.write_bytes(b"{")

    store.register(endpoint)

    assert store.registrations().endpoints == {"tiny-service": endpoint}
    assert Path(f"{path}.damaged").read_bytes() == b"{"


@pytest.mark.parametrize("content", [*DAMAGE[:3], b'{"approved": 5}'])
def test_damaged_approvals_are_neither_believed_nor_overwritten(
    store: Store, content: bytes
) -> None:
    endpoint = put(store, LOCAL)
    path = store.root / "approvals/tiny-service.json"
    path.write_bytes(content)

    for act in (store.approved, store.approve):
        with pytest.raises(ProviderError, match="wanted") as caught:
            act("tiny-service", endpoint.digest)
        assert caught.value.next == f"mv {path} {path}.damaged"
    assert path.read_bytes() == content


@pytest.mark.parametrize("content", [b"{", b'{"mode": "both"}', b'{"x": 1}'])
def test_damaged_settings_are_no_disconnection(store: Store, content: bytes) -> None:
    store.connect(Settings(mode="local"))
    (store.root / "settings.json").write_bytes(content)

    with pytest.raises(ProviderError, match=r"settings\.json"):
        store.settings()


@pytest.mark.parametrize("kind", ["registrations", "approvals", "notes"])
def test_what_is_no_plain_file_is_damaged_and_never_waited_for(
    store: Store, kind: str
) -> None:
    put(store, LOCAL)
    path = store.root / kind / "tiny-service.json"
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)

    with pytest.raises(ProviderError) as caught:
        (store.note if kind == "notes" else store.registration)("tiny-service")
    assert str(caught.value).startswith(f"{path}: no plain file found")


def test_a_file_that_cannot_be_looked_at_is_damaged(store: Store) -> None:
    put(store, LOCAL)

    with pytest.raises(ProviderError, match="File name too long found"):
        store.registration("x" * 300)


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "", "a\0b"])
def test_no_name_leads_out_of_the_store(store: Store, name: str) -> None:
    for act in (store.remove, store.note, lambda name: store.approve(name, "0" * 64)):
        with pytest.raises(ValueError, match="found"):
            act(name)


def test_what_cannot_be_written_leaves_what_was_there(store: Store) -> None:
    in_the_way = store.root / "notes/tiny-service.json"
    in_the_way.mkdir(parents=True)

    with pytest.raises(ProviderError) as caught:
        store.set_note("tiny-service", {"a": 1})

    assert caught.value.reason == "unreadable"
    assert str(in_the_way) in str(caught.value)
    assert list((store.root / "notes").iterdir()) == [in_the_way]


def test_writers_of_one_file_never_leave_half_of_it(store: Store) -> None:
    def write(number: int) -> None:
        for _ in range(20):
            store.set_note("tiny-service", {"by": number, "text": "x" * 5000 * number})

    threads = [threading.Thread(target=write, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        note = store.note("tiny-service")
        assert note is None or note["text"] == "x" * 5000 * note["by"]
    for thread in threads:
        thread.join()


def test_approvals_of_many_threads_are_all_kept(store: Store) -> None:
    digests = [f"{n:064d}" for n in range(16)]
    threads = [
        threading.Thread(target=store.approve, args=("a-service", d)) for d in digests
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert all(store.approved("a-service", digest) for digest in digests)
