"""What a script may not do, found in its text.

The gate is the person who reads the card: a start script is arbitrary code. Findings point
at what is easily overlooked; those that can only be a mistake are refused.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal

from remote_resident.endpoints.engine import (
    ENGINES,
    KEPT,
    Invocation,
    Script,
    assignments,
    leading,
    program,
)
from remote_resident.endpoints.record import (
    CREDENTIALS,
    FIRST_PORT,
    LAST_PORT,
    Endpoint,
)
from remote_resident.endpoints.shell import Command, Word

Kind = Literal["start", "stop"]

REFUSED = frozenset(
    "non_ascii bidi publish credential_value credential_argv login_config rm_service "
    "rm_stop sudo".split()
)
"""The rules whose findings are mistakes."""
SHOWN = frozenset(
    "control host_network no_detach mode_777 cache_outside fixed_port no_guard".split()
)
"""The rules whose findings a person is to judge."""

_BIDI = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)
_PORT = r"\$(?:HOST_PORT|\{HOST_PORT(?::?\?[^}]*)?\})"
_PUBLISHED = re.compile(rf"127\.0\.0\.1:{_PORT}:(?:\$\{{[^}}]*\}}|[^:,=])+")
_IN_SERVICE = re.compile(
    r"\$(?:SERVICE_DIR|\{SERVICE_DIR(?::?\?[^}]*)?\})(?:/.*)?|~(?:/.*)?"
)
_BUILTINS = frozenset(
    "echo printf test [ [[ : export readonly local unset case read set return "
    "declare typeset".split()
)
_REMOVING = frozenset({"rm", "remove", "prune", "system prune", "system reset"}) | {
    f"{kind} {verb}"
    for kind in ("pod", "compose", "kube", "stack")
    for verb in ("rm", "remove", "prune", "down")
}
"""Verbs with which containers are removed."""
_GUARDS = re.compile(r"HostPort|PortBindings|NetworkSettings|\.Ports\b")
_URL_PORT = re.compile(r"(?:127\.0\.0\.1|localhost|0\.0\.0\.0|\[::1?\]):([0-9]{2,5})\b")
_RANGE_PORT = re.compile(r"(?<![\w.:-])(2[0-9]{4})(?![\w./])")
_CACHE_NAME = re.compile(r".*CACHE.*|HF_HOME|TORCH_HOME|XDG_DATA_HOME")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing in a script that a person should look at."""

    script: Kind
    line: int
    rule: str
    text: str
    refused: bool

    def as_dict(self) -> dict[str, object]:
        """Give the finding's JSON shape."""
        return asdict(self)


def lint(script: str, kind: Kind, name: str = "") -> list[Finding]:
    """List what is found in a script, by line; `name` is the endpoint's."""
    seen = _Seen(script, kind, name)
    found = {
        (line, rule, text): Finding(
            script=kind, line=line, rule=rule, text=text, refused=rule in REFUSED
        )
        for judge in _RULES
        for line, rule, text in judge(seen)
    }
    return [found[key] for key in sorted(found)]


def lint_endpoint(endpoint: Endpoint) -> list[Finding]:
    """List what is found in an endpoint's scripts; nothing for a remote one."""
    if endpoint.start is None or endpoint.stop is None:
        return []
    return [
        *lint(endpoint.start, "start", endpoint.name),
        *lint(endpoint.stop, "stop", endpoint.name),
    ]


_Found = Iterator[tuple[int, str, str]]


class _Seen:
    """One script, read once for all rules."""

    def __init__(self, text: str, kind: Kind, name: str) -> None:
        self.text, self.kind, self.name = text, kind, name
        self.script = Script(text)
        self.secrets = _secrets(self.script)
        calls = self.script.invocations
        self.runs = [c for c in calls if c.verb in ("run", "create")]
        self.kept = [c for c in calls if c.verb == KEPT] if self.runs else []
        self.pods = [c for c in calls if c.verb == "pod create"]
        self.services = [run for run in self.runs if self._is_service(run)]

    def _is_service(self, run: Invocation) -> bool:
        """Say whether a container is the service's, not a throw-away one."""
        if run.flag("-d", "--detach", "-P", "--publish-all") or _networked(run):
            return True
        named = [value for value, _ in run.given("--name")]
        alone = len(self.runs) == 1 and not any(
            call.verb in ("start", "restart") for call in self.script.invocations
        )
        return bool(run.given("-p", "--publish")) or self.name in named or alone


def _networked(run: Invocation) -> bool:
    return any(value == "host" for value, _ in run.given("--network", "--net"))


def _secrets(script: Script) -> set[str]:
    """Name the variables that hold a credential: its own, and those set from one."""
    secrets = set(CREDENTIALS)
    grown = True
    while grown:
        grown = False
        for command in script.commands:
            for name, value in (*command.assignments, *assignments(command)):
                if name not in secrets and _gives(value.text, secrets):
                    secrets.add(name)
                    grown = True
    return secrets


def _gives(text: str, secrets: set[str]) -> bool:
    """Say whether a word's expansion holds the value of one of these variables."""
    for name in secrets:
        # not ${#NAME}, its length, nor ${NAME+x}, what stands for it
        if re.search(rf"\$(?:{name}(?!\w)|\{{{name}(?!\w|:?\+))", text):
            return True
    return False


def _characters(seen: _Seen) -> _Found:
    for number, line in enumerate(seen.text.split("\n"), 1):
        strange = sorted({char for char in line if not char.isascii()})
        for char in strange:
            if char in _BIDI:
                said = f"{ascii(char)[1:-1]} found, which changes the order of what is read"
                yield number, "bidi", said
            else:
                yield number, "non_ascii", f"{ascii(char)[1:-1]} found, ASCII wanted"
        controls = sorted(
            {c for c in line if c.isascii() and not c.isprintable()} - {"\t"}
        )
        for char in controls:
            yield number, "control", f"{ascii(char)[1:-1]} found, plain text wanted"


def _publishing(seen: _Seen) -> _Found:
    wanted = "127.0.0.1:${HOST_PORT}:PORT wanted"
    for run in (*seen.runs, *seen.kept, *seen.pods):
        for value, line in run.given("-p", "--publish"):
            if (value or run.verb != KEPT) and not _PUBLISHED.fullmatch(value):
                yield line, "publish", f"-p {_ascii(value)} found, -p {wanted}"
        for _, line in run.given("-P", "--publish-all"):
            yield line, "publish", f"all ports published, {wanted}"
        for value, line in run.given("--network", "--net"):
            if value == "host":
                text = f"--network {value} found, a port published at {wanted}"
                yield line, "host_network", text


def _credential_options(seen: _Seen) -> _Found:
    for call in seen.script.invocations:
        for value, line in call.given("-e", "--env"):
            name, equals, _ = value.partition("=")
            if name in CREDENTIALS and equals:
                text = f"-e {name}=value found, -e {name} wanted: the value is in argv"
                yield line, "credential_value", text
        if call.verb == "login":
            for _, line in call.given("-p", "--password"):
                text = "a password in argv found, --password-stdin wanted"
                yield line, "credential_argv", text


def _credential_argv(seen: _Seen) -> _Found:
    for command in seen.script.commands:
        if program(command.words) in _BUILTINS and not _wrapped(command.words):
            continue
        for word in command.words:
            if _gives(word.text, seen.secrets):
                text = "the credential is an argument, which every user of the host can read"
                yield word.line, "credential_argv", text


def _wrapped(words: list[Word]) -> bool:
    """Say whether a builtin's name is run as a program, whose argv is public."""
    at = leading(words)
    outside = {"env", "xargs", "nohup", "timeout", "nice", "setsid", "sudo", "exec"}
    if any(word.text in outside for word in words[:at]):
        return True
    return at < len(words) and "/" in words[at].text


def _logins(seen: _Seen) -> _Found:
    kept: dict[str, str] = {}
    for command in seen.script.commands:
        for name, value in assignments(command):
            kept[name] = seen.script.expand(value.text)
        for call in seen.script.invocations:
            if call.command is not command or call.verb != "login":
                continue
            own = {n: seen.script.expand(v.text) for n, v in command.assignments}
            if not _scoped(call, {**kept, **own}):
                text = "a login without DOCKER_CONFIG in $SERVICE_DIR: it would be kept"
                yield call.line, "login_config", text


def _scoped(call: Invocation, variables: dict[str, str]) -> bool:
    """Say whether a login is kept in the service's directory and nowhere else."""
    places = [variables.get(n, "") for n in ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE")]
    places += [value for name, value, _ in call.before if name == "--config"]
    places += [value for value, _ in call.given("--authfile", "--compat-auth-file")]
    return any(_in_service(place) for place in places)


def _in_service(path: str) -> bool:
    return _IN_SERVICE.fullmatch(path) is not None and "/.." not in path


def _removals(seen: _Seen) -> _Found:
    for run in seen.services:
        if run.flag("--rm"):
            text = "--rm on the service's container found: it is stopped, never removed"
            yield run.line, "rm_service", text
    if seen.kind == "start":
        return
    for call in seen.script.invocations:
        if call.verb in _REMOVING:
            text = f"{call.verb} in a stop script found: containers are stopped, never removed"
            yield call.line, "rm_stop", text


def _detached(seen: _Seen) -> _Found:
    if seen.kind == "start":
        for run in seen.services:
            if run.verb == "run" and not run.flag("-d", "--detach"):
                yield run.line, "no_detach", "the service's container without -d"


def _modes(seen: _Seen) -> _Found:
    for command in seen.script.commands:
        words = [w.text for w in seen.script.words(command)]
        name = program(command.words)
        if name == "umask" and _masks_nothing(words[-1]):
            text = f"umask {words[-1]} found: others may write"
            yield command.words[0].line, "mode_777", text
        elif name in ("chmod", "mkdir", "install"):
            for word in words:
                if _others_write(word):
                    text = f"mode {_ascii(word)} found: others may write"
                    yield command.words[0].line, "mode_777", text


def _masks_nothing(mask: str) -> bool:
    octal = re.fullmatch(r"[0-7]{1,4}", mask)
    return octal is not None and not int(mask, 8) & 0o002


def _others_write(word: str) -> bool:
    mode = word.removeprefix("--mode=").removeprefix("-m")
    if re.fullmatch(r"[0-7]?[0-7]{3}", mode):
        return bool(int(mode, 8) & 0o002)
    clauses = mode.split(",")
    return all(re.fullmatch(r"[ugoa]*[-+=][rwxXst]*", c) for c in clauses) and any(
        re.match(r"[ug]*[oa][ugoa]*[+=][rxXst]*w", clause) for clause in clauses
    )


def _root(seen: _Seen) -> _Found:
    for command in seen.script.commands:
        words = seen.script.words(command)
        for word in words[: leading(words) + 1]:
            if word.text.rpartition("/")[2] in ("sudo", "doas"):
                yield (
                    word.line,
                    "sudo",
                    f"{_ascii(word.text)} found, this user's own rights wanted",
                )


def _caches(seen: _Seen) -> _Found:
    wanted = "a directory in $SERVICE_DIR wanted"
    for run in seen.runs:
        for source, line in _mounts(run):
            if source and not _in_service(source):
                yield line, "cache_outside", f"{_ascii(source)} mounted, {wanted}"
    for command in seen.script.commands:
        exported = command.words and program(command.words) not in ENGINES
        for name, value in (*command.assignments, *assignments(command)):
            path = seen.script.expand(value.text)
            if exported and _CACHE_NAME.fullmatch(name) and path.startswith("/"):
                text = f"{name}={_ascii(path)} found, {wanted}"
                yield value.line, "cache_outside", text


def _mounts(run: Invocation) -> Iterator[tuple[str, int]]:
    """Give what a container can write to, on the host's side."""
    for value, line in run.given("-v", "--volume"):
        source, _, rest = _cut(value)
        if rest and not re.search(r":(?:\w+,)*ro\b", rest):
            yield source, line
    for value, line in run.given("--mount"):
        fields = dict(part.partition("=")[::2] for part in value.split(","))
        read_only = {"readonly", "ro"} & fields.keys()
        if not read_only and fields.get("type", "volume") != "tmpfs":
            source = fields.get("source", fields.get("src", "an unnamed volume"))
            yield source, line


def _cut(value: str) -> tuple[str, str, str]:
    """Part a mount at its first colon that is not in ${...}."""
    match = re.match(r"((?:\$\{[^}]*\}|[^:])*)(:)(.*)", value, re.DOTALL)
    return (match[1], match[2], ":" + match[3]) if match else (value, "", "")


def _ports(seen: _Seen) -> _Found:
    if seen.kind == "stop":
        return
    if not re.search(r"HOST_PORT", _code(seen)):
        yield 1, "fixed_port", "HOST_PORT is not used: the port is the daemon's to give"
    for command in seen.script.commands:
        for name, value in (*command.assignments, *assignments(command)):
            if name == "HOST_PORT":
                yield value.line, "fixed_port", "HOST_PORT is set, the daemon's wanted"
        yield from _ports_of(seen, command)


def _ports_of(seen: _Seen, command: Command) -> _Found:
    calls = [call for call in seen.script.invocations if call.command is command]
    for call in calls:
        for value, line in call.given("-p", "--publish"):
            if re.search(r"(?:^|:)[0-9]+:", value):
                yield line, "fixed_port", f"-p {_ascii(value)} found, $HOST_PORT wanted"
    if not calls:
        # what a container is told is about its own ports
        for word in _every_word(command):
            yield from _literal_port(word)
        yield from _port_option(command)


def _code(seen: _Seen) -> str:
    """Give the text that is run: no comments, nothing quoted against expansion."""
    return "\n".join(
        word.text
        for command in seen.script.commands
        for word in (*_every_word(command), *command.bodies)
    )


def _every_word(command: Command) -> list[Word]:
    return [*command.words, *(value for _, value in command.assignments)]


def _literal_port(word: Word) -> _Found:
    ports = [m[1] for m in _URL_PORT.finditer(word.text)]
    ports += [
        m[1]
        for m in _RANGE_PORT.finditer(word.text)
        if FIRST_PORT <= int(m[1]) <= LAST_PORT
    ]
    for port in sorted(set(ports)):
        yield word.line, "fixed_port", f"port {port} found, $HOST_PORT wanted"


def _port_option(command: Command) -> _Found:
    texts = [word.text for word in command.words]
    for at, text in enumerate(texts):
        following = texts[at + 1] if at + 1 < len(texts) else ""
        match = re.fullmatch(r"--[\w-]*port(?:=([0-9]{2,5}))?", text)
        if match and (match[1] or re.fullmatch(r"[0-9]{2,5}", following)):
            port = match[1] or following
            text = f"port {port} found, $HOST_PORT wanted"
            yield command.words[at].line, "fixed_port", text


def _guarded(seen: _Seen) -> _Found:
    if seen.kind == "stop" or not seen.services:
        return
    calls = seen.script.invocations
    looked = any(call.verb == "port" for call in calls) or any(
        _GUARDS.search(word.text)
        for call in calls
        if call.verb in ("inspect", "ps", "ls")
        for word in call.command.words
    )
    if not looked:
        text = (
            "nothing compares the port that a container of an earlier start publishes "
            "with $HOST_PORT"
        )
        yield seen.services[0].line, "no_guard", text


def _ascii(text: str) -> str:
    return ascii(text)[1:-1][:120]


_RULES = (
    _characters,
    _publishing,
    _credential_options,
    _credential_argv,
    _logins,
    _removals,
    _detached,
    _modes,
    _root,
    _caches,
    _ports,
    _guarded,
)
