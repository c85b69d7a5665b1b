"""Write the start and stop scripts of a container that follow every rule.

A start is the same from cold, from warm and after a crash: a container that was made from
these very options, port and credential is started again, any other is made anew. A stop
stops and never removes.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import Literal

from remote_resident.endpoints.record import CREDENTIALS, name_fault
from remote_resident.errors import Problem, ProviderError, UsageError, summary

Engine = Literal["docker", "podman"]
ENGINES: tuple[Engine, ...] = ("docker", "podman")
STOP_GRACE_S = 30
LOGIN_USER = "$oauthtoken"

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,511}")
_INSIDE = re.compile(r"/[A-Za-z0-9._/+@=-]+")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN = re.compile(r"[ -~]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """What a container is made from."""

    image: str
    port: int
    """The one that the service listens on in the container."""
    cache: str | None = None
    """Where the container keeps what it fetches; None: it keeps nothing."""
    user: str = "auto"
    """Who runs in the container, UID, UID:GID or names; auto: the image's own."""
    engine: Engine = "docker"
    name: str | None = None
    """The endpoint; None: what the service directory is called, which is the same."""
    env: tuple[str, ...] = ()
    """NAME=VALUE for the container."""
    credential_as: tuple[str, ...] = ()
    """Further names under which the container gets the credential."""
    login: str | None = None
    """The registry that wants a login before a pull; None: none does."""
    login_user: str = LOGIN_USER
    gpus: str | None = None
    """Which devices, as the engine names them (`all`); None: none."""
    shm_size: str | None = None
    """As the engine writes it (`8g`); None: the engine's own."""
    stop_grace_s: int = STOP_GRACE_S
    """How long it may take to leave by itself."""
    arguments: tuple[str, ...] = ()
    """What follows the image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripts:
    """A start and a stop script."""

    start: str
    stop: str


def compose(wanted: Composition) -> Scripts:
    """Write both scripts. Raises UsageError (`bad_request`) that lists every fault."""
    faults = list(_faults(wanted))
    if faults:
        problems = [
            Problem(step="runtime", reason="bad_request", text=text, name=option)
            for option, text in faults
        ]
        raise UsageError(
            summary(problems),
            reason="bad_request",
            next="tu remote endpoint compose --help",
            problems=problems,
        )
    return Scripts(start=_start(wanted), stop=_stop(wanted))


def write(path: Path, script: str) -> bool:
    """Put a script in a file; False: it was there already.

    Raises UsageError (`bad_request`) where another file is in its place, which stays,
    and ProviderError (`unreadable`) where it cannot be written.
    """
    try:
        with path.open("x", encoding="ascii", newline="") as file:
            file.write(script)
        path.chmod(0o755)
    except FileExistsError:
        if _content(path) == script.encode("ascii"):
            return False
        raise UsageError(
            f"{path}: another file found, none or the same script wanted",
            reason="bad_request",
            next=f"mv {quote(str(path))} {quote(str(path))}.old",
        ) from None
    except OSError as exc:
        raise ProviderError(
            f"{path}: {exc.strerror}, a file that can be written wanted",
            reason="unreadable",
        ) from None
    return True


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _faults(wanted: Composition) -> list[tuple[str, str]]:
    told = [
        ("image", wanted.image, _IMAGE, "an image's name"),
        ("user", wanted.user, _USER, "auto, UID, UID:GID or the image's names"),
        ("cache", wanted.cache or "/c", _INSIDE, "an absolute path in the container"),
        ("login", wanted.login or "r", _IMAGE, "a registry's host"),
        ("login-user", wanted.login_user, re.compile(r"[!-~]+"), "a user's name"),
        ("gpus", wanted.gpus or "all", re.compile(r"[!-~]+"), "all, or devices"),
        (
            "shm-size",
            wanted.shm_size or "1",
            re.compile(r"[0-9]+[bkmgBKMG]?"),
            "a size",
        ),
    ]
    faults = [
        (option, f"--{option}: {value!a} found, {right} wanted")
        for option, value, rule, right in told
        if not rule.fullmatch(value)
    ]
    if not 0 < wanted.port < 65536:
        faults.append(("port", f"--port: {wanted.port} found, 1 to 65535 wanted"))
    if wanted.stop_grace_s < 0:
        found = f"--stop-grace-s: {wanted.stop_grace_s} found"
        faults.append(("stop-grace-s", f"{found}, 0 or more wanted"))
    if wanted.engine not in ENGINES:
        found = f"--engine: {wanted.engine!a} found"
        faults.append(("engine", f"{found}, {' or '.join(ENGINES)} wanted"))
    if wanted.name is not None and (fault := name_fault(wanted.name)):
        faults.append(("name", f"--name: {fault}"))
    return faults + _variable_faults(wanted)


def _variable_faults(wanted: Composition) -> list[tuple[str, str]]:
    faults: list[tuple[str, str]] = []
    for pair in wanted.env:
        name, equals, _ = pair.partition("=")
        if name in (*CREDENTIALS, *wanted.credential_as):
            # not the value: it may be the credential itself
            text = f"--env: {name}=value found, the name alone is passed by itself"
            faults.append(("env", text))
        elif not (equals and _VARIABLE.fullmatch(name) and _PLAIN.fullmatch(pair)):
            faults.append(("env", f"--env: {pair!a} found, NAME=VALUE in ASCII wanted"))
    for name in wanted.credential_as:
        if not _VARIABLE.fullmatch(name):
            text = f"--credential-as: {name!a} found, a variable's name wanted"
            faults.append(("credential-as", text))
    for argument in wanted.arguments:
        if not _PLAIN.fullmatch(argument):
            text = f"argument {argument!a} found, ASCII in one line wanted"
            faults.append(("arguments", text))
    return faults


def _made_from(wanted: Composition) -> str:
    """Give what tells a container of these options from any other."""
    text = json.dumps(asdict(wanted), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _named(wanted: Composition) -> str:
    return f"NAME={wanted.name or '${SERVICE_DIR##*/}'}"


def _stop(wanted: Composition) -> str:
    engine = wanted.engine
    return f"""\
#!/bin/sh
# Stops the container of a managed endpoint. It stays, to be started again.
set -eu
: "${{SERVICE_DIR:?}}"

{_named(wanted)}

# an engine that does not answer is an error, not the absence of a container
found=$({engine} ps --all --quiet --filter "name=^${{NAME}}\\$")
[ -n "$found" ] || exit 0
{engine} stop -t {wanted.stop_grace_s} "$NAME" >/dev/null
"""


def _start(wanted: Composition) -> str:
    parts = [_HEAD, _settings(wanted), _looks(wanted), _pull(wanted)]
    parts += [_own_cache(wanted)] if wanted.cache else []
    parts += [_create(wanted), _main(wanted)]
    return "\n".join(parts)


_HEAD = """\
#!/bin/sh
# Starts the container of a managed endpoint: from cold, from warm, after a crash.
set -eu
umask 077
: "${HOST_PORT:?}" "${SERVICE_DIR:?}"
"""


def _settings(wanted: Composition) -> str:
    lines = [
        _named(wanted),
        f"IMAGE={quote(wanted.image)}",
        f"INSIDE={wanted.port}/tcp",
        f'BINDINGS="{_bindings(wanted)}"',
        f"MADE_FROM={_made_from(wanted)}",
        'KEY_MARK="$SERVICE_DIR/.credential.sha256"',
    ]
    lines += [
        f'export {name}="${{{CREDENTIALS[0]}:-}}"' for name in wanted.credential_as
    ]
    return "\n".join([*lines, ""])


def _bindings(wanted: Composition) -> str:
    bound = f'"{wanted.port}/tcp":[{{"HostIp":"127.0.0.1","HostPort":"$HOST_PORT"}}]'
    return f"{{{bound}}}".replace('"', '\\"')


def _looks(wanted: Composition) -> str:
    engine, key = wanted.engine, CREDENTIALS[0]
    return f"""\
look() {{
    {engine} container inspect --format "$1" "$NAME" 2>/dev/null || echo none
}}

state() {{
    look '{{{{.State.Status}}}}'
}}

# Was it made from these options, for this port, with this credential?
fits() {{
    [ "$(look '{{{{index .Config.Labels "tu-remote.made-from"}}}}')" = "$MADE_FROM" ] &&
        [ "$(look '{{{{json .HostConfig.PortBindings}}}}')" = "$BINDINGS" ] &&
        [ "$(cat "$KEY_MARK" 2>/dev/null)" = "$(key_mark)" ]
}}

key_mark() {{
    printf '%s' "${{{key}:-}}" | sha256sum
}}

published() {{
    {engine} port "$NAME" "$INSIDE" 2>/dev/null |
        grep -qxF "127.0.0.1:$HOST_PORT"
}}
"""


def _pull(wanted: Composition) -> str:
    engine = wanted.engine
    login = ""
    if wanted.login is not None:
        login = f"""\
    # kept in the service's directory, and nowhere else
    mkdir -p "$SERVICE_DIR/login"
    export DOCKER_CONFIG="$SERVICE_DIR/login"
    export REGISTRY_AUTH_FILE="$SERVICE_DIR/login/config.json"
    printf '%s' "${{{CREDENTIALS[0]}:?}}" |
        {engine} login --username {quote(wanted.login_user)} --password-stdin \\
            {quote(wanted.login)}
"""
    return f"""\
pull() {{
    {engine} image inspect "$IMAGE" >/dev/null 2>&1 && return
{login}    {engine} pull "$IMAGE"
}}
"""


def _own_cache(wanted: Composition) -> str:
    engine, user = wanted.engine, wanted.user
    if user == "auto":
        who = f"owner=$({engine} image inspect --format '{{{{.Config.User}}}}' \"$IMAGE\")"
    else:
        who = f"owner={quote(user)}"
    return f"""\
# The cache is the container's user's, and nobody else's: a throw-away root container sets it.
own_cache() {{
    mkdir -p "$SERVICE_DIR/cache"
    {who}
    {engine} run --rm --user 0 --network none --entrypoint /bin/sh \\
        -v "$SERVICE_DIR/cache:/cache" "$IMAGE" \\
        -c 'chown -R "$1" /cache && chmod 700 /cache' sh "${{owner:-0}}"
}}
"""


def _create(wanted: Composition) -> str:
    engine = wanted.engine
    before = ["    pull", "    own_cache"] if wanted.cache else ["    pull"]
    options = [
        '--name "$NAME"',
        '--label "tu-remote.made-from=$MADE_FROM"',
        f'--publish "127.0.0.1:${{HOST_PORT}}:{wanted.port}"',
        *(f"-e {name}" for name in (CREDENTIALS[0], *wanted.credential_as)),
        *(f"-e {quote(pair)}" for pair in wanted.env),
    ]
    if wanted.cache:
        options.append(f'-v "$SERVICE_DIR/cache:{wanted.cache}"')
    if wanted.user != "auto":
        options.append(f"--user {quote(wanted.user)}")
    if wanted.gpus is not None:
        devices = f"nvidia.com/gpu={wanted.gpus}" if engine == "podman" else wanted.gpus
        option = "--device" if engine == "podman" else "--gpus"
        options.append(f"{option} {quote(devices)}")
    if wanted.shm_size is not None:
        options.append(f"--shm-size {wanted.shm_size}")
    arguments = "".join(f" {quote(argument)}" for argument in wanted.arguments)
    lines = [f"        {option} \\" for option in options]
    return "\n".join(
        [
            "create() {",
            *before,
            f'    {engine} rm --force "$NAME" >/dev/null 2>&1 || :',
            '    key_mark >"$KEY_MARK"',
            f"    {engine} run -d \\",
            *lines,
            f'        "$IMAGE"{arguments} >/dev/null',
            "}",
            "",
        ]
    )


def _main(wanted: Composition) -> str:
    engine = wanted.engine
    return f"""\
if fits; then
    case $(state) in
    running) ;;
    created | exited | stopped)
        if ! {engine} start "$NAME" >/dev/null; then
            create
        fi
        ;;
    *) create ;;
    esac
else
    create
fi

if ! published; then
    echo "$NAME is $(state) and 127.0.0.1:$HOST_PORT is not published: once more" >&2
    create
fi
if ! published; then
    echo "$NAME is $(state) and 127.0.0.1:$HOST_PORT is not published" >&2
    {engine} logs --tail 20 "$NAME" >&2 || :
    exit 1
fi
"""
