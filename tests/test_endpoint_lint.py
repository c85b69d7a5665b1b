"""What the text of a script shows: each rule, where it bites and where it does not."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_resident.endpoints.lint import REFUSED, SHOWN, Kind, lint
from remote_resident.endpoints.shell import commands

NAME = "tiny-service"
RUN = 'docker run -d -p "127.0.0.1:${HOST_PORT}:8000"'
GOOD_START = f"""#!/bin/sh
set -eu
# a comment may say sudo docker run -p 80:80
if [ "$(docker port {NAME} 8000)" = "127.0.0.1:$HOST_PORT" ]; then exit 0; fi
mkdir -p "$SERVICE_DIR/cache"
export DOCKER_CONFIG="$SERVICE_DIR/docker"
printf '%s' "$NVIDIA_API_KEY" | docker login --username u --password-stdin registry
docker run --rm --user 0 -v "$SERVICE_DIR/cache:/c" image chown 1000 /c
docker run -d --name {NAME} \\
  --publish="127.0.0.1:${{HOST_PORT}}:8000" \\
  -e NVIDIA_API_KEY \\
  -v "$SERVICE_DIR/cache:/opt/cache" \\
  image --port 8000
"""
GOOD_STOP = f"""#!/bin/sh
docker stop --time 20 {NAME}
"""


def found(script: str, kind: Kind = "start") -> set[tuple[int, str]]:
    return {(finding.line, finding.rule) for finding in lint(script, kind, NAME)}


def start(line: str) -> str:
    """Put a line into a script that is otherwise as it should be; it is line 4."""
    return f'#!/bin/sh\nset -eu\ndocker port {NAME} | grep "$HOST_PORT"\n{line}\n'


BAD = [
    ("non_ascii", "echo caf\u00e9"),
    ("non_ascii", "# a comment \u00e9"),
    ("bidi", "# \u202e txet"),
    ("bidi", "echo 'a\u2066b'"),
    ("control", "echo a\x1b[2J"),
    ("control", "echo a\r"),
    ("publish", "docker run -d -p 8000:8000 i"),
    ("publish", "docker run -d -p ${HOST_PORT}:8000 i"),
    ("publish", "docker run -d -p 0.0.0.0:${HOST_PORT}:8000 i"),
    ("publish", "docker run -d -p=0.0.0.0:${HOST_PORT}:8000 i"),
    ("publish", "docker run -dp 0.0.0.0:${HOST_PORT}:8000 i"),
    ("publish", "docker run -d --publish 127.0.0.1:9000:8000 i"),
    ("publish", "podman run -d --publish=[::]:$HOST_PORT:80 i"),
    ("publish", "podman container create -P i"),
    ("publish", "docker run -d --publish-all i"),
    ("publish", "docker run -d -p '127.0.0.1:${HOST_PORT}:8000' i"),
    ("publish", "docker run -d -p localhost:${HOST_PORT}:8000 i"),
    ("publish", 'P=80:80\ndocker run -d -p "$P" i'),
    ("publish", 'P=80:80; docker run -d -p "$P" i; P="127.0.0.1:$HOST_PORT:80"'),
    ("publish", 'ARGS="-d -p 80:80"; docker run $ARGS i'),
    ("publish", 'set -- -d -p 80:80; docker run "$@" i'),
    ("publish", 'A=(-d -p 80:80)\ndocker run "${A[@]}" i'),
    ("publish", '"$ENGINE" run -d -p 80:80 i'),
    ("publish", "sh -c 'docker run -d -p 80:80 i'"),
    ("publish", "x=$(docker run -d -p 80:80 i)"),
    ("publish", "x=`docker run -d -p 80:80 i`"),
    ("publish", 'echo "${x:-$(docker run -d -p 80:80 i)}"'),
    ("publish", "bash <<'END'\ndocker run -d -p 80:80 i\nEND"),
    ("publish", "cat <<END\n$(docker run -d -p 80:80 i)\nEND"),
    ("publish", "cat >r <<'END'\n#!/bin/sh\ndocker run -d -p 80:80 i\nEND"),
    ("publish", "sudo docker --log-level debug run -d \\\n  -p \\\n 80:80 i"),
    ("publish", "env A=b nohup docker run -d -p 80:80 i &"),
    ("publish", "podman --remote run -d -p 80:80 i"),
    ("publish", "docker -D run -d -p 80:80 i"),
    ("publish", "podman pod create -p 80:80 n"),
    ("credential_value", f"{RUN} -e NVIDIA_API_KEY=abc i"),
    ("credential_value", f'{RUN} --env "NVIDIA_API_KEY=$NVIDIA_API_KEY" i'),
    ("credential_value", f"{RUN} --env=NVIDIA_API_KEY=abc i"),
    ("credential_value", f"{RUN} -eNVIDIA_API_KEY=abc i"),
    ("credential_argv", f'{RUN} -e "NGC_KEY=$NVIDIA_API_KEY" i'),
    ("credential_argv", f'{RUN} i --key "${{NVIDIA_API_KEY}}"'),
    ("credential_argv", f'{RUN} i --key "${{NVIDIA_API_KEY:?none}}"'),
    ("credential_argv", 'curl -H "Authorization: Bearer $NVIDIA_API_KEY" u'),
    ("credential_argv", 'K=$NVIDIA_API_KEY; L="a$K"; curl -H "$L" u'),
    ("credential_argv", 'env NGC_KEY="$NVIDIA_API_KEY" docker start n'),
    ("credential_argv", '/bin/echo "$NVIDIA_API_KEY"'),
    ("credential_argv", 'sh -c "echo $NVIDIA_API_KEY"'),
    ("credential_argv", "sh -c 'curl -u a:$NVIDIA_API_KEY u'"),
    ("credential_argv", 'curl -H "A: $(printenv NVIDIA_API_KEY)" u'),
    ("credential_argv", 'curl -H "A: `echo $NVIDIA_API_KEY | base64`x" u'),
    ("credential_argv", 'K=$(printf %s "$NVIDIA_API_KEY"); curl -H "A: $K" u'),
    ("credential_argv", "docker login -u u -p abc"),
    ("credential_argv", "docker login --password=abc"),
    ("login_config", "docker login --password-stdin"),
    ("login_config", "DOCKER_CONFIG=/tmp/x docker login --password-stdin"),
    ("login_config", 'export DOCKER_CONFIG="$SERVICE_DIR/../x"; docker login'),
    ("login_config", "docker login; export DOCKER_CONFIG=$SERVICE_DIR/d"),
    ("login_config", "podman login --authfile /tmp/a r"),
    ("rm_service", f"{RUN} --rm i"),
    ("rm_service", f"docker run --rm --name {NAME} i"),
    ("rm_service", "exec docker run --rm i"),
    ("rm_service", "docker run --rm --network host i"),
    ("no_detach", 'docker run -p "127.0.0.1:${HOST_PORT}:8000" i'),
    ("host_network", "docker run -d --network=host i"),
    ("mode_777", 'mkdir -m 777 "$SERVICE_DIR/c"'),
    ("mode_777", 'chmod -R 0777 "$SERVICE_DIR"'),
    ("mode_777", 'chmod a+rwx "$SERVICE_DIR"'),
    ("mode_777", 'chmod u+x,o+w "$SERVICE_DIR"'),
    ("mode_777", "umask 000"),
    ("sudo", "sudo id"),
    ("sudo", "/usr/bin/sudo -n id"),
    ("sudo", "echo x | xargs sudo rm"),
    ("sudo", "if ! sudo id; then :; fi"),
    ("sudo", "(cd /; sudo id)"),
    ("cache_outside", f"{RUN} -v /data/cache:/opt/cache i"),
    ("cache_outside", f"{RUN} -v named:/opt/cache i"),
    ("cache_outside", f'{RUN} --volume="$SERVICE_DIR/../x:/opt/cache" i'),
    ("cache_outside", f"{RUN} --mount type=bind,src=/data,dst=/opt/cache i"),
    ("cache_outside", "export HF_HOME=/data/hf"),
    ("fixed_port", "docker run -d -p 127.0.0.1:8000:8000 i"),
    ("fixed_port", "HOST_PORT=20123"),
    ("fixed_port", "python3 -m http.server 20123"),
    ("fixed_port", "serve --port 8000"),
    ("fixed_port", "curl http://127.0.0.1:8000/ready"),
]


@pytest.mark.parametrize(("rule", "line"), BAD)
def test_a_mistake_is_found_where_it_stands(rule: str, line: str) -> None:
    lines = {at for at, found_rule in found(start(line)) if found_rule == rule}

    assert lines
    assert all(4 <= at <= 4 + line.count("\n") for at in lines)


GOOD = [
    f"{RUN} i",
    f"{RUN} -e NVIDIA_API_KEY i",
    'docker run -d --publish=127.0.0.1:${HOST_PORT}:8000/tcp "i"',
    'docker run -d -p 127.0.0.1:$HOST_PORT:"${CPORT:-8000}" i',
    'P="127.0.0.1:${HOST_PORT}:80"; docker run -d -p "$P" i',
    'docker run -d -p "127.0.0.1:${HOST_PORT:?no port}:8000" i',
    f'{RUN} -v "$SERVICE_DIR/c:/c" -v ~/d:/d -v /etc/localtime:/etc/localtime:ro i',
    f'{RUN} --mount "type=bind,source=${{SERVICE_DIR}}/c,target=/c" i',
    f"{RUN} i server -p 80:80 --rm -e NVIDIA_API_KEY=x --port 8000",
    "docker run --rm --user 0 i chown 1 /c; docker start n",
    "docker rm old",
    "docker rm -f n; docker create --name n i; docker start n",
    'NGC_KEY="$NVIDIA_API_KEY" docker start n',
    'export NGC_KEY="$NVIDIA_API_KEY"; docker start n',
    '[ -n "$NVIDIA_API_KEY" ] || exit 1',
    ': "${NVIDIA_API_KEY:?none}"',
    'curl --key "${NVIDIA_API_KEY:+set}" --n "${#NVIDIA_API_KEY}" u',
    "grep '$NVIDIA_API_KEY' f",
    'printf %s "$NVIDIA_API_KEY" | DOCKER_CONFIG="$SERVICE_DIR/d" docker login',
    "docker --config ${SERVICE_DIR}/d login --password-stdin <<E\n$NVIDIA_API_KEY\nE",
    'D="$SERVICE_DIR/a"; podman login --authfile "$D/auth.json" r',
    'REGISTRY_AUTH_FILE="$HOME/a.json" podman login r',
    "chmod 700 x; chmod u+rwx,go-rwx y; chmod 755 z; umask 077",
    "echo 'sudo docker run -p 80:80'",
    "command -v docker >/dev/null",
    "command -v docker-compose >/dev/null",
    'curl "u/$(echo "$NVIDIA_API_KEY" | sha256sum)"',
    'curl "u/$(echo "${#NVIDIA_API_KEY}" "$HOST_PORT")"',
    "echo $(printenv NVIDIA_API_KEY) >/dev/null",
    "cat >f <<'END'\nsudo docker run -p 80:80 i\nEND",
    "apt-get install sudo",
    'python3 server.py --port "$HOST_PORT" &',
    "mkdir -p a; ssh -p 22 h",
    "set -e; case $1 in -p) P=1;; esac",
]


@pytest.mark.parametrize("line", GOOD)
def test_what_is_no_mistake_is_not_found(line: str) -> None:
    assert {rule for _, rule in found(start(line))} == set()


def test_scripts_that_follow_every_rule_have_no_findings() -> None:
    assert lint(GOOD_START, "start", NAME) == []
    assert lint(GOOD_STOP, "stop", NAME) == []


@pytest.mark.parametrize(
    "line",
    [
        "docker rm n",
        "docker stop n && docker rm -f n",
        "podman container rm n",
        "docker ps -aq | xargs docker rm",
        "docker container prune -f",
        "docker compose down",
        "docker compose -f x.yaml --profile p down",
        "docker-compose -f x.yaml down",
        "podman --remote rm n",
        "podman pod rm p",
        "podman kube down x.yaml",
        "docker stack rm s",
        "sh -c 'docker rm n'",
    ],
)
def test_a_stop_script_that_removes_a_container_is_refused(line: str) -> None:
    (finding,) = lint(f"#!/bin/sh\n{line}\n", "stop", NAME)

    assert (finding.rule, finding.line, finding.refused) == ("rm_stop", 2, True)


def test_stopping_is_not_removing() -> None:
    assert lint("docker stop n || docker kill n; rm -f x; docker rmi i", "stop") == []


def test_a_start_script_that_uses_no_port_of_the_daemons_is_found() -> None:
    script = "#!/bin/sh\n# $HOST_PORT\nserve &\n"

    assert found(script) == {(1, "fixed_port")}


def test_a_start_script_without_a_look_at_the_published_port_is_found() -> None:
    assert found(f"#!/bin/sh\n{RUN} i\n") == {(2, "no_guard")}


@pytest.mark.parametrize(
    "look",
    [
        "docker port n 8000",
        "docker inspect -f '{{(index .NetworkSettings.Ports \"8000/tcp\")}}' n",
        "docker ps --format '{{.Ports}}'",
    ],
)
def test_a_look_at_the_published_port_is_a_guard(look: str) -> None:
    assert found(f"#!/bin/sh\n{look}\n{RUN} i\n") == set()


def test_what_is_refused_is_what_can_only_be_a_mistake() -> None:
    tried = {rule for rule, _ in BAD} | {"rm_stop", "no_guard"}

    assert tried == REFUSED | SHOWN
    for rule, line in BAD:
        for finding in lint(start(line), "start", NAME):
            assert finding.refused == (finding.rule in REFUSED), rule


def test_a_finding_shows_nothing_raw() -> None:
    script = "docker run -d -p '\x1b[2J\u202e:1' i\n"

    for finding in lint(script, "start", NAME):
        assert finding.text.isascii() and finding.text.isprintable()


SHELLISH = st.text(
    st.sampled_from(list("abX10 \t\n\r;&|(){}<>$'\"`\\#=-!*/:.,[]~\u202e\ue000"))
)
PIECES = st.lists(
    st.sampled_from(
        "docker podman run -p -d --rm --publish= -e NVIDIA_API_KEY= $NVIDIA_API_KEY "
        "$( ) ${ } ` ' \" \\ <<E <<-'E' E sh -c eval set -- X=1 $X sudo chmod 777 a "
        "login --mount -v : , = ; && \n # (( )) <( >".split(" ")
    ),
    max_size=60,
).map(" ".join)


@settings(max_examples=300)
@given(st.one_of(st.text(), SHELLISH, PIECES), st.sampled_from(["start", "stop"]))
def test_any_text_is_read_to_its_end(text: str, kind: Kind) -> None:
    for finding in lint(text, kind, NAME):
        assert 1 <= finding.line <= text.count("\n") + 1
        assert finding.rule in REFUSED | SHOWN


@pytest.mark.parametrize(
    "piece",
    ["$(", "`", "(", "${a:-", "<<E\n", "sh -c '", "\\", '"$(', "$(echo $A "],
)
def test_a_text_that_nests_without_end_is_read(piece: str) -> None:
    # several times what any stack of calls would bear
    commands(piece * 5_000)


def test_a_variable_that_grows_with_every_use_is_not_followed_for_ever() -> None:
    script = "\n".join(f'V{n}="$V{n + 1}$V{n + 1}"' for n in range(60)) + '\necho "$V0"'
    began = time.process_time()

    lint(script, "start", NAME)

    assert time.process_time() - began < 20
