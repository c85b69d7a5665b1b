"""Composed scripts: they follow every rule, and do what they say."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from container_image import PYTHON, Image
from hypothesis import given, settings
from hypothesis import strategies as st
from small_endpoint import free_port
from small_provider import DEADLINE_S, until

from remote_resident.endpoints.compose import Composition, Scripts, compose, write
from remote_resident.endpoints.lint import lint
from remote_resident.errors import UsageError

KEY = "nvapi-very-secret"
PLAIN = Composition(image="registry.example/m:1", port=8000, cache="/opt/cache")
FULL = replace(
    PLAIN,
    env=("A=b c", "Q=it's $HOME"),
    credential_as=("NGC_API_KEY",),
    login="registry.example",
    gpus="all",
    shm_size="16g",
    user="1000:1000",
    arguments=("serve", "--word", 'a "b" $c `d` \\e'),
)


@dataclass(frozen=True, slots=True)
class Host:
    """A fake engine, a service directory, and scripts to run with both."""

    path: Path
    service: Path

    def run(
        self, script: str, *, port: int = 20123, key: str = KEY, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        ended = subprocess.run(
            ["/bin/sh", "-c", script],
            env={
                "PATH": f"{self.path}:/usr/bin:/bin",
                "HOST_PORT": str(port),
                "SERVICE_DIR": str(self.service),
                "HOME": str(self.service),
                "NVIDIA_API_KEY": key,
                "FAKE": str(self.path),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        assert not check or ended.returncode == 0, ended.stderr
        return ended

    def calls(self, verb: str | None = None) -> list[dict[str, Any]]:
        lines = (self.path / "calls").read_text().splitlines()
        calls = [json.loads(line) for line in lines]
        return [call for call in calls if verb in (None, call["argv"][0])]

    def services(self) -> list[list[str]]:
        """Give the runs that were not a throw-away container's."""
        runs = (call["argv"] for call in self.calls("run"))
        return [argv for argv in runs if "--rm" not in argv]

    def container(self) -> dict[str, Any]:
        found = json.loads((self.path / "container.json").read_text())
        assert isinstance(found, dict)
        return found

    def change(self, **values: str) -> None:
        changed = {**self.container(), **values}
        (self.path / "container.json").write_text(json.dumps(changed))


@pytest.fixture
def host(tmp_path: Path, request: pytest.FixtureRequest) -> Host:
    engine = getattr(request, "param", "docker")
    path, service = tmp_path / "bin", tmp_path / "a place/tiny-service"
    path.mkdir()
    service.mkdir(parents=True)
    program = path / engine
    engine_py = Path(__file__).with_name("fake_engine.py")
    # a first line cannot name an interpreter whose path has a blank
    run = f"exec '{sys.executable}' -IS '{engine_py}' \"$@\"\n"
    program.write_text(f"#!/bin/sh\nFAKE='{path}' export FAKE\n{run}")
    program.chmod(0o755)
    (path / "image").touch()
    return Host(path, service)


def scripts(host: Host, wanted: Composition = PLAIN) -> Scripts:
    engine = "docker" if (host.path / "docker").exists() else "podman"
    return compose(replace(wanted, engine=engine))


def test_the_second_start_leaves_a_container_that_runs_alone(host: Host) -> None:
    both = scripts(host)
    host.run(both.start)
    host.run(both.start)

    assert len(host.services()) == 1
    assert host.container()["name"] == "tiny-service"


@pytest.mark.parametrize("state", ["exited", "created"])
def test_a_container_that_stands_is_started_again(host: Host, state: str) -> None:
    both = scripts(host)
    host.run(both.start)
    host.change(state=state)

    host.run(both.start)

    assert host.container()["state"] == "running"
    assert (len(host.services()), len(host.calls("start"))) == (1, 1)


@pytest.mark.parametrize("state", ["paused", "dead"])
def test_a_container_that_cannot_be_started_is_made_anew(
    host: Host, state: str
) -> None:
    both = scripts(host)
    host.run(both.start)
    host.change(state=state)

    host.run(both.start)

    assert host.container()["state"] == "running"
    assert len(host.services()) == 2


def test_a_start_that_fails_is_made_up_by_a_new_container(host: Host) -> None:
    both = scripts(host)
    host.run(both.start)
    host.change(state="exited")
    (host.path / "start_fails").touch()

    host.run(both.start)

    assert len(host.services()) == 2


@pytest.mark.parametrize(
    "changed", [{"port": 20124}, {"key": "another"}], ids=["port", "credential"]
)
def test_a_container_of_another_port_or_credential_is_made_anew(
    host: Host, changed: dict[str, Any]
) -> None:
    both = scripts(host)
    host.run(both.start)

    ended = host.run(both.start, **changed)

    assert ended.stderr == ""
    assert len(host.services()) == 2
    assert host.container()["published"] == f"127.0.0.1:{changed.get('port', 20123)}"
    assert host.container()["env"]["NVIDIA_API_KEY"] == changed.get("key", KEY)


def test_a_container_of_other_options_is_made_anew(host: Host) -> None:
    host.run(scripts(host).start)

    host.run(scripts(host, replace(PLAIN, image="registry.example/m:2")).start)

    assert len(host.services()) == 2


def test_a_container_that_somebody_made_by_hand_is_made_anew(host: Host) -> None:
    host.run(scripts(host).start)
    host.change(label="")

    host.run(scripts(host).start)

    assert len(host.services()) == 2


def test_a_container_that_runs_unpublished_gets_one_more_chance(host: Host) -> None:
    (host.path / "unpublished").write_text("1")

    ended = host.run(scripts(host).start)

    assert len(host.services()) == 2
    assert ended.stderr.endswith("127.0.0.1:20123 is not published: once more\n")


def test_one_that_stays_unpublished_is_an_error(host: Host) -> None:
    (host.path / "unpublished").write_text("9")

    ended = host.run(scripts(host).start, check=False)

    assert ended.returncode == 1
    assert len(host.services()) == 2
    assert ended.stderr.splitlines()[-1] == (
        "tiny-service is running and 127.0.0.1:20123 is not published"
    )


def test_a_run_that_fails_fails_the_start(host: Host) -> None:
    (host.path / "run_fails").touch()

    ended = host.run(scripts(host).start, check=False)

    assert ended.returncode == 125


def test_stopping_keeps_the_container_and_stopping_again_is_well(host: Host) -> None:
    both = scripts(host)
    host.run(both.stop)
    host.run(both.start)

    host.run(both.stop)
    host.run(both.stop)

    assert host.container()["state"] == "exited"
    before = [call["argv"] for call in host.calls("rm")]
    assert len(before) == 1


def test_an_engine_that_does_not_answer_is_no_stop(host: Host) -> None:
    (host.path / "down").touch()

    assert host.run(scripts(host).stop, check=False).returncode != 0


@pytest.mark.parametrize("host", ["docker", "podman"], indirect=True)
def test_the_login_goes_over_stdin_into_the_services_directory(host: Host) -> None:
    (host.path / "image").unlink()
    both = scripts(host, FULL)
    host.run(both.start)

    (login,) = host.calls("login")
    assert login["argv"] == [
        "login", "--username", "$oauthtoken", "--password-stdin", "registry.example"
    ]  # fmt: skip
    assert login["stdin"] == KEY
    assert login["env"]["DOCKER_CONFIG"].startswith(f"{host.service}/")
    assert login["env"]["REGISTRY_AUTH_FILE"].startswith(f"{host.service}/")
    assert len(host.calls("pull")) == 1


def test_an_image_that_is_there_needs_neither_login_nor_pull(host: Host) -> None:
    host.run(scripts(host, FULL).start)

    assert (host.calls("login"), host.calls("pull")) == ([], [])


def test_the_credential_is_in_no_argv_and_in_no_file(host: Host) -> None:
    (host.path / "image").unlink()
    both = scripts(host, FULL)
    ended = host.run(both.start)
    host.run(both.stop)

    assert all(KEY not in " ".join(call["argv"]) for call in host.calls())
    assert KEY not in ended.stdout + ended.stderr
    for path in host.service.rglob("*"):
        assert path.is_dir() or KEY not in path.read_text()
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("host", ["docker", "podman"], indirect=True)
def test_every_option_reaches_the_engine_as_it_was_meant(host: Host) -> None:
    host.run(scripts(host, FULL).start)

    (argv,) = host.services()
    after = argv.index("registry.example/m:1")
    assert tuple(argv[after + 1 :]) == FULL.arguments
    variables = [argv[at + 1] for at, word in enumerate(argv) if word == "-e"]
    assert variables == ["NVIDIA_API_KEY", "NGC_API_KEY", *FULL.env]
    assert argv[argv.index("-v") + 1] == f"{host.service}/cache:/opt/cache"
    assert argv[argv.index("--user") + 1] == "1000:1000"
    assert argv[argv.index("--shm-size") + 1] == "16g"
    devices = {"--gpus": "all", "--device": "nvidia.com/gpu=all"}
    (option,) = devices.keys() & set(argv)
    assert argv[argv.index(option) + 1] == devices[option]
    assert host.container()["env"] == {"NVIDIA_API_KEY": KEY, "NGC_API_KEY": KEY}


def test_a_throw_away_root_container_gives_the_cache_to_the_images_user(
    host: Host,
) -> None:
    host.run(scripts(host).start)

    runs = [call["argv"] for call in host.calls("run")]
    throw_away = runs[0]
    assert "--rm" in throw_away
    assert throw_away[throw_away.index("--user") + 1] == "0"
    assert throw_away[-3:] == [
        'chown -R "$1" /cache && chmod 700 /cache', "sh", "model"
    ]  # fmt: skip
    assert throw_away[throw_away.index("-v") + 1] == f"{host.service}/cache:/cache"


# what is written


TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12)


@settings(max_examples=30)
@given(
    st.builds(
        Composition,
        image=st.just("registry.example/m:1"),
        port=st.integers(1, 65535),
        cache=st.sampled_from([None, "/opt/cache", "/home/model/.cache/x@1"]),
        user=st.sampled_from(["auto", "0", "1000:1000", "model"]),
        engine=st.sampled_from(["docker", "podman"]),
        name=st.sampled_from([None, "tiny-service"]),
        env=st.lists(TEXTS.map("A=".__add__), max_size=3).map(tuple),
        credential_as=st.sampled_from([(), ("NGC_API_KEY",)]),
        login=st.sampled_from([None, "registry.example"]),
        gpus=st.sampled_from([None, "all", "device=0,1"]),
        arguments=st.lists(TEXTS, max_size=3).map(tuple),
    )
)
def test_what_is_composed_has_no_findings(wanted: Composition) -> None:
    both = compose(wanted)

    assert lint(both.start, "start", "tiny-service") == []
    assert lint(both.stop, "stop", "tiny-service") == []
    for script in (both.start, both.stop):
        assert (
            subprocess.run(["/bin/sh", "-n"], input=script, text=True).returncode == 0
        )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("image", "a;b"), ("image", "-x"), ("image", ""), ("port", 0), ("port", 65536),
        ("cache", "cache"), ("cache", "/a:b"), ("cache", "/$(x)"), ("user", "a b"),
        ("user", "$x"), ("name", "tiny"), ("env", ("A",)), ("env", ("1=2",)),
        ("env", ("A=\n",)), ("credential_as", ("a-b",)), ("login", "a b"),
        ("shm_size", "8 g"), ("gpus", "a b"), ("arguments", ("a\nb",)),
        ("stop_grace_s", -1),
    ],
)  # fmt: skip
def test_an_option_that_is_none_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        compose(replace(PLAIN, **{option: value}))

    (problem,) = caught.value.problems
    assert problem.name == option.replace("_", "-")
    assert problem.text.endswith(" wanted") and str(caught.value).isprintable()


def test_the_credential_is_not_taken_as_a_plain_variable_and_not_shown() -> None:
    with pytest.raises(UsageError) as caught:
        compose(replace(PLAIN, env=(f"NVIDIA_API_KEY={KEY}",)))

    assert KEY not in str(caught.value)


def test_another_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "start.sh"
    assert write(path, "one\n")
    assert not write(path, "one\n")

    with pytest.raises(UsageError) as caught:
        write(path, "two\n")

    assert path.read_text() == "one\n"
    assert caught.value.next == f"mv {path} {path}.old"


# a real engine

SERVER = (
    "import signal, http.server as h; signal.signal(15, lambda *a: exit(0)); "
    'open("/opt/cache/mark", "a").write("x"); '
    'h.HTTPServer(("", 8000), h.SimpleHTTPRequestHandler).serve_forever()'
)


@dataclass(frozen=True, slots=True)
class Real:
    """A real engine with one container of these scripts."""

    program: str
    both: Scripts
    service: Path

    def run(self, script: str, port: int) -> None:
        # a rootless engine keeps its images in the home
        home = str(self.service) if os.geteuid() == 0 else os.environ["HOME"]
        ended = subprocess.run(
            ["/bin/sh", "-c", script],
            env={
                "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME": home,
                "HOST_PORT": str(port),
                "SERVICE_DIR": str(self.service),
                "NVIDIA_API_KEY": KEY,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert ended.returncode == 0, ended.stderr

    def ask(self, *words: str) -> str:
        asked = [self.program, *words]
        return subprocess.run(asked, capture_output=True, text=True).stdout.strip()

    def id(self) -> str:
        return self.ask(
            "container", "inspect", "--format", "{{.Id}}", self.service.name
        )

    def state(self) -> str:
        return self.ask(
            "container", "inspect", "--format", "{{.State.Status}}", self.service.name
        )


@pytest.fixture
def real(base_image: Image, tmp_path: Path) -> Iterator[Real]:
    service = tmp_path / f"t{secrets.token_hex(4)}-service"
    service.mkdir()
    program = Path(base_image.program).name
    wanted = Composition(
        image=base_image.name,
        port=8000,
        cache="/opt/cache",
        user="1000:1000",
        engine="docker" if program == "docker" else "podman",
        stop_grace_s=20,
        arguments=(PYTHON, "-c", SERVER),
    )
    host = Real(base_image.program, compose(wanted), service)
    yield host
    host.ask("rm", "--force", "--time", "0", service.name)
    mine = ("run", "--rm", "--user", "0", "-v", f"{service}/cache:/cache")
    host.ask(*mine, base_image.name, "chown", "-R", "0", "/cache")


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.container
def test_a_real_container_is_started_cold_warm_and_after_a_crash(real: Real) -> None:
    port = free_port()
    real.run(real.both.start, port)
    until(lambda: answers(port), "an answer")
    first = real.id()
    cache = (real.service / "cache").stat()

    real.run(real.both.start, port)
    assert real.id() == first

    real.ask("kill", real.service.name)
    until(lambda: real.state() == "exited", "the end")
    real.run(real.both.start, port)
    until(lambda: answers(port), "an answer")
    assert real.id() == first

    real.run(real.both.stop, port)
    assert (real.state(), answers(port)) == ("exited", False)
    real.run(real.both.stop, port)
    assert cache.st_mode & 0o777 == 0o700
    if os.geteuid() == 0:
        assert cache.st_uid == 1000
        assert (real.service / "cache/mark").read_text() == "xx"


@pytest.mark.container
def test_a_real_container_of_another_port_is_made_anew(real: Real) -> None:
    old, new = free_port(), free_port()
    real.run(real.both.start, old)
    first = real.id()

    real.run(real.both.start, new)
    until(lambda: answers(new), "an answer")

    assert real.id() != first
    assert not answers(old)


@pytest.mark.container
def test_a_name_in_use_by_a_container_made_by_hand_is_no_obstacle(
    real: Real, base_image: Image
) -> None:
    port = free_port()
    real.ask("create", "--name", real.service.name, base_image.name, "true")
    assert real.state() == "created"

    real.run(real.both.start, port)

    until(lambda: answers(port), "an answer")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not here")
def test_a_shells_linter_finds_nothing() -> None:
    for wanted in (PLAIN, FULL):
        for script in (compose(wanted).start, compose(wanted).stop):
            checked = subprocess.run(
                ["shellcheck", "-"], input=script, capture_output=True, text=True
            )
            assert checked.stdout == ""
