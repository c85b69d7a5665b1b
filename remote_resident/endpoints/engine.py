"""What a script asks of a container engine: the invocations among its commands."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import PurePosixPath

from remote_resident.endpoints.shell import LITERAL, Command, Word, commands, is_name

ENGINES = frozenset({"docker", "podman", "nerdctl"})
SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh"})
_WRAPPERS = frozenset(
    "if then else elif do while until ! { time exec env command nohup nice setsid "
    "xargs timeout eval builtin stdbuf ionice sudo doas".split()
)
_COMPOSERS = frozenset({"docker-compose", "podman-compose"})
"""Programs that are an engine's `compose`."""
_KINDS = frozenset("container compose system pod image volume kube stack".split())
_VERBS = frozenset(
    "run create start stop kill rm remove prune restart login logout ps port inspect pull "
    "exec logs build images rmi wait cp down up info version unshare".split()
)
_FLAGS = frozenset(
    "-d --detach -i --interactive -t --tty --rm --init --privileged --read-only -P "
    "--publish-all --no-healthcheck --oom-kill-disable --sig-proxy --tls-verify "
    "--replace -q --quiet --disable-content-trust --no-hosts --rmi --env-host "
    "--http-proxy --use-api-socket --rootfs --read-only-tmpfs --passwd "
    "--unsetenv-all".split()
)
"""Options of run and create that take no value; every other one takes one."""
_OWN_FLAGS = frozenset(
    "-r --remote -D --debug --tls --tlsverify --syslog --noout "
    "--transient-store".split()
)
"""Options of an engine itself, before the verb, that take no value."""
KEPT = "(options)"
"""The verb of options that a script keeps in an array or in its parameters."""
_EXPANSION = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")
_THE_DAEMONS = frozenset({"HOST_PORT", "SERVICE_DIR"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """One call of an engine."""

    line: int
    verb: str
    """run, rm, pod rm, ...; empty where none was found; KEPT: options for some run."""
    options: list[tuple[str, str, int]]
    """Each option's name, value (empty for a flag) and line, up to the image."""
    arguments: list[str]
    """The image and what follows, or what else is no option."""
    before: list[tuple[str, str, int]]
    """The options before the verb."""
    command: Command

    def given(self, *names: str) -> list[tuple[str, int]]:
        """Give the values and lines of the options of these names."""
        return [(value, line) for name, value, line in self.options if name in names]

    def flag(self, *names: str) -> bool:
        """Say whether a flag is given and not switched off."""
        return any(value not in ("false", "0") for value, _ in self.given(*names))


class Script:
    """A script as its commands, variables of one literal value put in."""

    def __init__(self, text: str) -> None:
        self.commands = _all(commands(text), depth=0)
        self.values = _constants(self.commands)
        self.invocations = [
            call for command in self.commands for call in self._invocations(command)
        ]

    def expand(self, text: str) -> str:
        """Put in the variables that have one literal value; HOME is the service's."""
        # a value may hold others; one that holds itself ends with the count
        for _ in range(5):
            filled = _EXPANSION.sub(self._value, text)
            if filled == text or len(filled) > 10_000:
                break
            text = filled
        return text

    def words(self, command: Command) -> list[Word]:
        """Give a command's words as it gets them, as far as the text tells."""
        words: list[Word] = []
        for word in command.words:
            filled = self.expand(word.text)
            if filled != word.text and not word.quoted:
                words += [Word(part, word.line) for part in filled.split()]
            else:
                words.append(Word(filled, word.line, word.quoted))
        return words

    def _value(self, match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return "$SERVICE_DIR" if name == "HOME" else self.values.get(name, match[0])

    def _invocations(self, command: Command) -> list[Invocation]:
        words = self.words(command)
        for at, word in enumerate(words):
            if is_lookup(words[:at]):
                continue
            if _is_engine(word.text):
                return [invocation(words[at + 1 :], word.line, command)]
            if PurePosixPath(word.text).name in _COMPOSERS:
                rest = [Word("compose", word.line), *words[at + 1 :]]
                return [invocation(rest, word.line, command)]
        first = leading(words)
        if first < len(words):
            word, rest = words[first], words[first + 1 :]
            verbs = {w.text for w in rest[:2]} & (_VERBS | _KINDS)
            if word.text.startswith("$") and verbs:
                # an engine whose name only a run would tell
                return [invocation(rest, word.line, command)]
            if kept := _kept_options(words[first:]):
                return [invocation([Word(KEPT, word.line), *kept], word.line, command)]
        return []


def _kept_options(words: list[Word]) -> list[Word]:
    texts = [word.text for word in words]
    if texts[0] == "set" and "--" in texts:
        return words[texts.index("--") + 1 :]
    return words if texts[0].startswith("-") else []


def leading(words: list[Word]) -> int:
    """Count the words before the program's name: keywords, wrappers, their options."""
    at = 0
    while at < len(words) and words[at].text in _WRAPPERS:
        wrapper = words[at].text
        at += 1
        while at < len(words) and _belongs(words[at].text, wrapper):
            at += 1
    return at


def program(words: list[Word]) -> str:
    """Name the program that a command runs; empty: none."""
    at = leading(words)
    return PurePosixPath(words[at].text).name if at < len(words) else ""


def is_lookup(before: list[Word]) -> bool:
    """Say whether an engine's name is only looked up, printed or compared."""
    return program(before) in {
        "which",
        "type",
        "echo",
        "printf",
        "test",
        "[",
        "case",
    } or ([word.text for word in before[-2:]] in (["command", "-v"], ["command", "-V"]))


def invocation(words: list[Word], line: int, command: Command) -> Invocation:
    """Read the words after an engine's name."""
    before, at = _options(words, 0, _OWN_FLAGS)
    verb = words[at].text if at < len(words) else ""
    at += 1
    if verb in _KINDS:
        own, at = _options(words, at)
        before += own
        if at < len(words):
            verb, at = f"{verb} {words[at].text}", at + 1
    options, at = _options(words, at)
    if verb.rpartition(" ")[2] not in ("run", "create"):
        # options and arguments may be mixed
        more: list[str] = []
        while at < len(words):
            more.append(words[at].text)
            found, at = _options(words, at + 1)
            options += found
        arguments = more
    else:
        arguments = [word.text for word in words[at:]]
    return Invocation(
        line=line,
        verb=verb.removeprefix("container "),
        options=options,
        arguments=arguments,
        before=before,
        command=command,
    )


def _options(
    words: list[Word], at: int, flags: frozenset[str] = _FLAGS
) -> tuple[list[tuple[str, str, int]], int]:
    found: list[tuple[str, str, int]] = []
    while at < len(words) and words[at].text.startswith("-"):
        text, line = words[at].text, words[at].line
        at += 1
        if text == "--":
            break
        following = words[at].text if at < len(words) else ""
        pairs, takes = _split(text, following, flags)
        found += [(name, value, line) for name, value in pairs]
        at += takes
    return found, at


def _split(
    text: str, following: str, flags: frozenset[str]
) -> tuple[list[tuple[str, str]], int]:
    """Read one word of options: its pairs, and whether the next word is its value."""
    name, equals, value = text.partition("=")
    if text.startswith("--"):
        if equals or name in flags or following.startswith("-"):
            return [(name, value)], 0
        return [(name, following)], 1
    pairs: list[tuple[str, str]] = []
    for at, letter in enumerate(text[1:], 1):
        rest = text[at + 1 :]
        if f"-{letter}" in flags and not rest.startswith("="):
            pairs.append((f"-{letter}", ""))
        elif rest:
            return [*pairs, (f"-{letter}", rest.removeprefix("="))], 0
        else:
            return [*pairs, (f"-{letter}", following)], 1
    return pairs, 0


def _belongs(text: str, wrapper: str) -> bool:
    """Say whether a word is still the wrapper's own: an option, a setting, a time."""
    if text.startswith("-"):
        return True
    name, equals, _ = text.partition("=")
    if wrapper in ("env", "sudo", "doas") and equals:
        return is_name(name)
    return wrapper == "timeout" and text[:1].isdigit()


def _is_engine(text: str) -> bool:
    return PurePosixPath(text).name in ENGINES and not text.endswith("/")


def _all(found: list[Command], depth: int) -> list[Command]:
    """Add what shells are given as a text: `sh -c TEXT`, eval, a here-document."""
    everything: list[Command] = []
    for command in found:
        everything.append(command)
        if depth < 5:
            for text, line in _scripts(command):
                everything += _all(commands(text, line, 1), depth + 1)
    return everything


def _scripts(command: Command) -> list[tuple[str, int]]:
    name = program(command.words)
    texts = [word.text for word in command.words]
    scripts: list[tuple[str, int]] = []
    if name in SHELLS:
        flags = [at for at, text in enumerate(texts) if re.fullmatch(r"-\w*c", text)]
        scripts += [
            (texts[at + 1], command.words[at + 1].line)
            for at in flags
            if at + 1 < len(texts)
        ]
    if "eval" in texts[:1]:
        scripts.append((" ".join(texts[1:]), command.words[0].line))
    for body in command.bodies:
        if name in SHELLS or re.match(r"#!.*sh\b", body.text):
            scripts.append((body.text, body.line))
    return [(text.replace(LITERAL, "$"), line) for text, line in scripts]


_DECLARES = frozenset({"export", "readonly", "local", "declare", "typeset"})


def assignments(command: Command) -> list[tuple[str, Word]]:
    """Give what a command sets and keeps: assignments alone, or export's."""
    if not command.words:
        return command.assignments
    if command.words[0].text not in _DECLARES:
        return []
    return [
        (name, Word(value, word.line, word.quoted))
        for word in command.words[1:]
        for name, equals, value in [word.text.partition("=")]
        if equals and is_name(name)
    ]


def _constants(found: list[Command]) -> dict[str, str]:
    """Give the variables that are set once, to a value that the text tells."""
    times: Counter[str] = Counter()
    values: dict[str, str] = {}
    for command in found:
        for name, value in assignments(command):
            times[name] += 1
            values[name] = value.text
        texts = [word.text for word in command.words]
        if texts[:1] in (["for"], ["read"]):
            times.update({name: 2 for name in texts[1:] if is_name(name)})
    return {
        name: value
        for name, value in values.items()
        if times[name] == 1 and name not in _THE_DAEMONS
    }
