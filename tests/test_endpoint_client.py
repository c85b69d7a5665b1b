"""The Python side: what a program calls, and cells of local and remote endpoints."""

import json
import os
import secrets
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme
from container_image import PYTHON, Image
from endpoint_daemon import end_daemon
from small_endpoint import CANARY, STOP, start_script
from small_provider import until

from remote_resident.endpoints import client, credentials, host
from remote_resident.endpoints.compose import Composition, compose
from remote_resident.endpoints.host import script_text
from remote_resident.endpoints.record import Endpoint
from remote_resident.endpoints.store import Settings, Store
from remote_resident.errors import ProviderError, UsageError

NAME = "tiny-service"


@pytest.fixture
def daemon(home: Path) -> Iterator[None]:
    credentials.save("NVIDIA_API_KEY", CANARY)
    yield
    end_daemon()


def register(**fields: Any) -> dict[str, Any]:
    """Register as a program does that was told the digest."""
    given = {"credential": "NVIDIA_API_KEY", **fields}
    digest = Endpoint.from_dict(given).digest
    return host.model_endpoints.register(**fields, approve=digest)


# a remote endpoint


class Answering(BaseHTTPRequestHandler):
    """Says the path that was asked, where the key is right."""

    def do_GET(self) -> None:
        right = self.headers["Authorization"] == f"Bearer {CANARY}"
        self.send_response(200 if right else 401)
        self.end_headers()
        self.wfile.write(json.dumps({"path": self.path}).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def models(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Give the host of an HTTPS server and the file of the authority that it trusts."""
    authority = trustme.CA()
    file = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    yield f"localhost:{server.server_port}", file
    server.shutdown()
    thread.join()
    server.server_close()


CELL = """
import json, os, ssl, urllib.request
trusting = ssl.create_default_context(cafile={file!r})
key = os.environ["INFER_API_KEY"]
headers = {{"Authorization": f"Bearer {{key}}"}}
asked = urllib.request.Request(f"{{BASE_URL}}/predict", headers=headers)
with urllib.request.urlopen(asked, context=trusting) as answer:
    result = json.load(answer) | {{"same": BASE_URL == os.environ["BASE_URL"]}}
print("my key is", key)
"""


def test_a_cell_reaches_a_remote_endpoint_with_the_key_and_nobody_sees_it(
    daemon: None, models: tuple[str, Path]
) -> None:
    where, file = models
    host.connect("url", host=where)
    row = register(name="far-service", url=f"https://{where}/v1/tiny")

    got = host.compute_provider(
        provider="far-service", code=CELL.format(file=str(file))
    )

    assert got == (
        0,
        "my key is [credential]\n",
        "",
        {"path": "/v1/tiny/predict", "same": True},
    )
    assert (row["location"], row["port"], row["service_dir"]) == ("remote", None, None)


def test_a_remote_endpoint_is_on_the_connected_host_alone(
    daemon: None, models: tuple[str, Path]
) -> None:
    where, _ = models
    host.connect("url", host=where)

    with pytest.raises(UsageError) as caught:
        register(name="far-service", url="https://localhost:1/v1")
    assert str(caught.value) == (
        f"far-service: url: host localhost:1 found, {where} wanted, the connected one"
    )


def test_endpoints_of_the_other_mode_go_on(
    daemon: None, models: tuple[str, Path]
) -> None:
    where, file = models
    host.connect("url", host=where)
    register(name="far-service", url=f"https://{where}/v1/tiny")
    host.connect("local")

    got = host.compute_provider("far-service", code=CELL.format(file=str(file)))

    assert got.result["path"] == "/v1/tiny/predict"
    with pytest.raises(ProviderError) as caught:
        register(name="far2-service", url=f"https://{where}/v1")
    assert caught.value.reason == "wrong_mode"


# a local one


@pytest.fixture
def tiny(daemon: None) -> dict[str, Any]:
    host.connect("local")
    port = host.model_endpoints.free_port()
    return register(
        name=NAME,
        url=f"http://127.0.0.1:{port}",
        skill="tiny-runbook",
        start=start_script(),
        stop=STOP,
        live="/ready",
    )


def test_a_cell_gets_the_url_and_not_the_key(tiny: dict[str, Any]) -> None:
    phases: list[str] = []

    def note(line: Mapping[str, Any]) -> None:
        if line["type"] == "phase":
            phases.append(line["text"])

    code = (
        "import os, sys, urllib.request\n"
        "urllib.request.urlopen(BASE_URL + '/ready').read()\n"
        "print('out'); print('err', file=sys.stderr)\n"
        "result = [BASE_URL, 'INFER_API_KEY' in os.environ, 'NVIDIA_API_KEY' in os.environ]"
    )

    got = host.compute_provider(NAME, code=code, on_line=note)

    assert got == (0, "out\n", "err\n", [tiny["url"], False, False])
    assert phases[0] == f"starting {NAME}"
    assert phases[-1] == "ready"


def test_a_cell_that_fails_is_a_result(tiny: dict[str, Any]) -> None:
    got = host.compute_provider(NAME, code="print('a')\nraise KeyError('b')")

    assert (got.exit_code, got.stdout, got.result) == (1, "a\n", None)
    assert got.stderr.splitlines()[-1] == "KeyError: 'b'"
    assert host.compute_provider(NAME, argv=["sh", "-c", "kill -9 $$"]).exit_code == 137


def test_a_program_is_found_as_its_caller_would(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine"
    mine.write_text("#!/bin/sh\npwd\n")
    mine.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    for word in ("mine", "./mine"):
        assert host.compute_provider(NAME, argv=[word]).stdout == f"{tmp_path}\n"


def test_everything_that_computes_is_listed(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "manifests/broken"
    folder.mkdir(parents=True)
    (folder / "provider.toml").write_text("nothing = 1\n")

    listed = {row["name"]: row for row in host.list_compute(tmp_path)}

    assert set(listed) == {NAME, "broken"}
    for row in listed.values():
        assert {"location", "state", "since"} <= row.keys()
    assert listed[NAME]["location"] == "local"
    assert listed[NAME]["state"] == "stopped"


def test_the_rows_of_what_is_registered_are_there_for_programs(
    tiny: dict[str, Any],
) -> None:
    endpoints = host.model_endpoints

    assert [row["name"] for row in endpoints.list()] == [NAME]
    assert endpoints.show(NAME)["start"] == start_script()
    host.compute_provider(NAME, argv=["true"])
    assert endpoints.show(NAME)["state"] == "ready"
    assert endpoints.stop(NAME)["state"] == "stopped"
    endpoints.remove(NAME)
    assert endpoints.list() == []


def test_a_registration_without_an_approval_or_a_terminal_carries_the_card(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    script = tmp_path / "start.sh"
    script.write_bytes(b"#!/bin/sh\r\nexit\n")
    fields = {key: tiny[key] for key in ("name", "url", "skill", "stop", "live")}

    with pytest.raises(ProviderError) as caught:
        host.model_endpoints.register(**fields, start=script)

    assert caught.value.reason == "not_approved"
    (problem,) = caught.value.problems
    assert r"1 | #!/bin/sh\r" in problem.text
    assert problem.wanted == Endpoint.from_dict(
        {**fields, "credential": "NVIDIA_API_KEY", "start": "#!/bin/sh\r\nexit\n"}
    ).digest  # fmt: skip


SERVER = (
    "import signal, http.server as h; signal.signal(15, lambda *a: exit(0)); "
    'h.HTTPServer(("", 8000), h.SimpleHTTPRequestHandler).serve_forever()'
)


@pytest.fixture
def contained(daemon: None, base_image: Image) -> Iterator[dict[str, Any]]:
    """Register what `compose` writes for a small server; end its container."""
    if os.geteuid() != 0:
        pytest.skip("a rootless engine keeps its images in the scripts' own home")
    name = f"t{secrets.token_hex(4)}-service"
    wanted = Composition(
        image=base_image.name,
        port=8000,
        cache="/opt/cache",
        user="1000:1000",
        engine="docker" if Path(base_image.program).name == "docker" else "podman",
        arguments=(PYTHON, "-c", SERVER),
    )
    scripts = compose(wanted)
    host.connect("local")
    url = f"http://127.0.0.1:{host.model_endpoints.free_port()}"
    given = {"start": scripts.start, "stop": scripts.stop, "live": "/"}
    yield register(name=name, url=url, **given)
    subprocess.run([base_image.program, "rm", "--force", "--time", "0", name])


@pytest.mark.container
def test_a_composed_container_is_swapped_in_stopped_and_started_after_a_crash(
    contained: dict[str, Any], base_image: Image
) -> None:
    name = contained["name"]
    code = "import urllib.request as r; result = r.urlopen(BASE_URL).status"

    def inspect(what: str) -> str:
        words = [base_image.program, "container", "inspect", "--format", what, name]
        return subprocess.run(words, capture_output=True, text=True).stdout.strip()

    assert host.compute_provider(name, code=code).result == 200
    first = inspect("{{.Id}}")
    host.model_endpoints.stop(name)
    assert inspect("{{.State.Status}}") == "exited"
    assert host.compute_provider(name, code=code).result == 200
    subprocess.run([base_image.program, "kill", name], capture_output=True)
    until(lambda: inspect("{{.State.Status}}") == "exited", "the crash")
    until(lambda: host.model_endpoints.show(name)["state"] == "stopped", "its notice")

    assert host.compute_provider(name, code=code).result == 200

    assert inspect("{{.Id}}") == first
    host.model_endpoints.remove(name)
    assert inspect("{{.State.Status}}") == "exited"


# without a daemon


class Recorded:
    """A daemon that answers from a list."""

    def __init__(self, *answers: dict[str, Any] | ProviderError) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, Any]] = []

    def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        self.asked.append((method, path, body))
        answer = self.answers.pop(0)
        if isinstance(answer, ProviderError):
            raise answer
        return answer

    def stream(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> Iterator[dict[str, Any]]:
        self.asked.append((method, path, body))
        for answer in self.answers:
            if isinstance(answer, ProviderError):
                raise answer
            yield answer


def test_until_connected_nothing_is_given() -> None:
    with pytest.raises(ProviderError) as caught:
        host.model_endpoints.free_port()
    assert caught.value.reason == "not_connected"
    assert str(caught.value) == "endpoints: not connected, mode local or url wanted"


def test_ports_are_for_local_endpoints_alone() -> None:
    store = Store()
    store.connect(Settings(mode="url", host="h"))

    with pytest.raises(ProviderError) as caught:
        client.free_port(store)
    assert caught.value.reason == "wrong_mode"
    assert str(caught.value) == "endpoints: mode url found, mode local wanted"


def test_the_credential_is_kept_before_anything_is_asked_and_never_sent() -> None:
    daemon = Recorded({"ok": True})

    client.connect("local", credential=CANARY, daemon=daemon)

    assert credentials.load("NVIDIA_API_KEY") == CANARY
    assert CANARY not in json.dumps(daemon.asked)


@pytest.mark.parametrize(
    ("mode", "where"),
    [("both", None), ("url", None), ("local", "h"), ("url", "https://h"), ("url", "h/x"),
     ("url", "u@h"), ("url", "h:0"), ("url", "H")],
)  # fmt: skip
def test_a_mode_and_a_host_that_do_not_fit_keep_nothing(
    mode: str, where: str | None
) -> None:
    with pytest.raises(UsageError):
        client.connect(mode, host=where, credential=CANARY, daemon=Recorded())

    assert credentials.load("NVIDIA_API_KEY") is None


def test_a_stream_that_ends_without_a_result_is_an_error() -> None:
    daemon = Recorded({"type": "phase", "text": "ready"})

    with pytest.raises(ProviderError) as caught:
        host.compute_provider(NAME, code="1", daemon=daemon)
    assert caught.value.reason == "protocol_error"


def test_a_service_that_died_under_the_cell_is_said_in_its_error() -> None:
    line = {"type": "result", "exit_code": 1, "result": None, "error": "it died"}

    got = host.compute_provider(NAME, code="1", daemon=Recorded(line))

    assert got == (1, "", "it died\n", None)


@pytest.mark.parametrize("given", [{}, {"code": "1", "argv": ["true"]}])
def test_a_cell_is_code_or_a_command(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        host.compute_provider(NAME, **given, daemon=Recorded())


def test_a_port_that_was_given_is_bound_by_nobody() -> None:
    store = Store()
    store.connect(Settings(mode="local"))

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", client.free_port(store)))


def test_a_script_without_an_end_is_refused_and_not_read(tmp_path: Path) -> None:
    endless = tmp_path / "start.sh"
    with endless.open("wb") as file:
        file.truncate(2**40)

    with pytest.raises(UsageError, match="more than 262144 bytes found"):
        script_text(endless)
