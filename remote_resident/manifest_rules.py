"""The rules that a single value of a provider.toml obeys.

A rule takes what the TOML parser gave and returns what the manifest holds, or raises
`Wrong` with every fault of that value.
"""

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from remote_resident.printable import escaped

KeyPath = tuple[str | int, ...]

_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_LOWER = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
_SLUG = _LOWER | frozenset("_-")
_NAME = _BARE | frozenset(".")
_STEERS = frozenset(
    "\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)
"""What is no control character by category and still moves text about on a screen."""
_LARGEST = sys.float_info.max
LONGEST_S = 2_000_000
"""Of a time to wait: the kernel counts it as milliseconds in 31 bits."""
_INT64 = 2**63
_SHOWN = 80
_MAX_NAME = 64
_SHA256 = 32
"""Bytes."""


_KEY_PATH = re.compile(r"(?:[^.\[\]]+|\[-?\d+\])(?:\.[^.\[\]]+|\.?\[-?\d+\])*")
_VARIABLE = re.compile(r"\$(?:\w+|\{\w+\})")


class Fault(NamedTuple):
    """One thing that is wrong at one place of a file."""

    path: KeyPath
    text: str
    """What was found, what was wanted."""
    reason: str = "manifest_invalid"


class Wrong(Exception):
    """A rule refuses a value; the paths of its faults begin below the rule's key."""

    def __init__(self, faults: str | list[Fault]) -> None:
        super().__init__(faults)
        self.faults = [Fault((), faults)] if isinstance(faults, str) else faults


Rule = Callable[[Any], Any]


class Key(NamedTuple):
    """A key of the file: the attribute that it becomes, its rule, its default."""

    attr: str
    rule: Rule
    default: Any = None


# what a fault says


def quoted(text: str) -> str:
    """Show a string in double quotes, cut where it is long, safe on a terminal."""
    shown = text[:_SHOWN].replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped(shown, kept="")}{"…" if len(text) > _SHOWN else ""}"'


def show(value: object) -> str:
    """Show a value as it stands in TOML; arrays, tables and dates by their kind."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        # Python refuses to write a very long integer in decimal
        return str(value) if abs(value) < _INT64 else "an integer of over 64 bits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list):
        return "an array"
    return "a table" if isinstance(value, dict) else "a date or time"


def full_name(path: KeyPath) -> str:
    """Write a key's full name, as in `weights.file[2].sha256`."""
    name = ""
    for part in path:
        if isinstance(part, int):
            name += f"[{part}]"
        else:
            plain = part and _BARE.issuperset(part)
            name += ("." if name else "") + (part if plain else quoted(part))
    return name


def unknown(path: KeyPath, value: object, known: Mapping[str, Any]) -> Fault:
    """Build the fault of a key that is not in its table, with the closest one."""
    name = str(path[-1])
    close = get_close_matches(name, known, 1, 0.0)
    kind = "table" if _is_table(value) else "key"
    closest = full_name((*path[:-1], close[0])) if close else "none"
    return Fault(path, f"unknown {kind}, closest known is {closest}")


def _is_table(value: object) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(item, dict) for item in value)
    )


# strings


def text(value: Any) -> str:
    """Accept a string without control characters."""
    # most of what is read ends here, hence the short way first
    if type(value) is str and value.isprintable():
        return value
    if type(value) is not str:
        raise Wrong(f"{show(value)}, wanted a string")
    _refuse_control(value)
    return value


def _refuse_control(value: str) -> None:
    for char in value:
        if char < " " or "\x7f" <= char < "\xa0" or char in _STEERS:
            raise Wrong(
                f"{quoted(value)}, wanted no control character (U+{ord(char):04X})"
            )


def filled(value: Any) -> str:
    """Accept a string that is not empty."""
    if type(value) is str and value and value.isprintable():
        return value
    if found := text(value):
        return found
    raise Wrong('"", wanted a string that is not empty')


def argument(value: Any) -> str:
    """Accept what can stand in argv or in an environment variable."""
    if type(value) is not str:
        hint = f': "{show(value)}"' if type(value) in (int, float, bool) else ""
        raise Wrong(f"{show(value)}, wanted a string{hint}")
    if "\0" in value:
        raise Wrong(f"{quoted(value)}, wanted no control character (U+0000)")
    return value


def slug(value: Any) -> str:
    """Accept a provider's name."""
    if not (
        0 < len(filled(value)) <= _MAX_NAME
        and value[0] in _LOWER
        and _SLUG.issuperset(value)
    ):
        raise Wrong(
            f"{quoted(value)}, wanted up to 64 of a-z 0-9 _ - that begin "
            "with a letter or digit"
        )
    return str(value)


def name(value: Any) -> str:
    """Accept a name that is one component of a path, and one word of an argv."""
    if not (_NAME.issuperset(filled(value)) and value[0] not in ".-"):
        raise Wrong(
            f"{quoted(value)}, wanted a name of letters, digits, _ - . that begins "
            "with none of - ."
        )
    return str(value)


def operation(value: Any) -> str:
    """Accept what a caller may ask for by `op`."""
    if name(value) in ("ping", "stop", "stacks"):
        raise Wrong(f"{quoted(value)}, wanted none of ping, stop, stacks")
    return str(value)


def variable(value: Any) -> str:
    """Accept the name of an environment variable."""
    if not (filled(value).isidentifier() and value.isascii()):
        raise Wrong(f"{quoted(value)}, wanted the name of an environment variable")
    return str(value)


def variable_or_prefix(value: Any) -> str:
    """Accept the name of an environment variable, or how several begin."""
    variable(value[:-1] if filled(value).endswith("*") else value)
    return str(value)


def module(value: Any) -> str:
    """Accept the dotted name of a Python module."""
    if not _is_dotted(filled(value)):
        raise Wrong(f"{quoted(value)}, wanted the name of a Python package")
    return str(value)


def function(value: Any) -> str:
    """Accept what names a function or class of a module."""
    before, colon, after = filled(value).partition(":")
    if not (colon and _is_dotted(before) and _is_dotted(after)):
        raise Wrong(f'{quoted(value)}, wanted "module:name"')
    return str(value)


def _is_dotted(value: str) -> bool:
    return all(part.isidentifier() for part in value.split("."))


def version(value: Any) -> str:
    """Accept a version, which a TOML number cannot hold."""
    if type(value) in (int, float):
        raise Wrong(f'{show(value)}, wanted a version in quotes, as in "580.65"')
    if not all(p.isascii() and p.isdecimal() for p in filled(value).split(".")):
        raise Wrong(f'{quoted(value)}, wanted a version, as in "580.65"')
    return str(value)


def sha256(value: Any) -> str:
    """Accept a SHA-256; the manifest holds it in lower case."""
    try:
        # a blank between bytes is passed over, and counted by the first length
        right = len(filled(value)) == 2 * _SHA256 == 2 * len(bytes.fromhex(value))
    except ValueError:
        right = False
    if not right:
        raise Wrong(f"{quoted(value)} of {len(value)} characters, wanted 64 hex digits")
    return str(value).lower()


def root(value: Any) -> str:
    """Accept where weights are by default; `{env}` is the one placeholder."""
    if "{" in filled(value).replace("{env}", "").replace("${", ""):
        raise Wrong(f"{quoted(value)}, wanted no placeholder but {{env}}")
    return str(value)


def no_address(value: Any) -> str:
    """Accept an argument in which no address stands."""
    if "://" in argument(value):
        raise Wrong(f"{quoted(value)}, wanted no address: the program has it")
    return str(value)


def choice(*options: str) -> Rule:
    """Make the rule of a word from a closed list."""

    def check(value: Any) -> str:
        if type(value) is not str or value not in options:
            raise Wrong(f"{show(value)}, wanted one of {', '.join(options)}")
        return value

    return check


# paths: whether one leaves the tree is seen where the tree is known


def relative(value: Any) -> str:
    """Accept a path that is not absolute."""
    if filled(value)[0] in "/~$":
        raise Wrong(f"{quoted(value)}, wanted a path relative to the manifest")
    return str(value)


def inner(value: Any) -> str:
    """Accept a path that stays in whatever it is relative to."""
    if filled(value)[0] in "/~":
        raise Wrong(f"{quoted(value)}, wanted a relative path")
    if ".." in value and ".." in value.split("/"):
        raise Wrong(f'{quoted(value)}, wanted a path without ".."')
    return str(value)


def inner_file(value: Any) -> str:
    """Accept the path of a file that stays in whatever it is relative to."""
    if inner(value).rpartition("/")[2] in ("", "."):
        raise Wrong(f"{quoted(value)}, wanted the path of a file")
    return str(value)


def interpreter(value: Any) -> str:
    """Accept a path, or a variable that holds one."""
    if filled(value)[0] == "$" and not _VARIABLE.match(value):
        raise Wrong(f"{quoted(value)}, wanted a path or $NAME")
    return str(value)


# numbers


def boolean(value: Any) -> bool:
    """Accept true and false."""
    if value is not True and value is not False:
        raise Wrong(f"{show(value)}, wanted true or false")
    return value


def count(value: Any) -> int:
    """Accept an integer that is 0 or more."""
    if type(value) is not int or not 0 <= value < _INT64:
        raise Wrong(f"{show(value)}, wanted an integer, 0 or more")
    return value


def size(value: Any) -> int:
    """Accept an integer that is 1 or more."""
    if type(value) is not int or not 1 <= value < _INT64:
        raise Wrong(f"{show(value)}, wanted an integer, 1 or more")
    return value


def positive(value: Any) -> float:
    """Accept a finite number above 0."""
    if type(value) not in (float, int) or not 0 < value <= _LARGEST:
        raise Wrong(f"{show(value)}, wanted a finite number above 0")
    return float(value)


def not_negative(value: Any) -> float:
    """Accept a finite number that is 0 or more."""
    if type(value) not in (float, int) or not 0 <= value <= _LARGEST:
        raise Wrong(f"{show(value)}, wanted a finite number, 0 or more")
    return float(value)


def seconds(value: Any) -> float:
    """Accept a time that can be waited."""
    if type(value) not in (float, int) or not 0 < value <= LONGEST_S:
        raise Wrong(f"{show(value)}, wanted seconds, above 0 and at most {LONGEST_S}")
    return float(value)


def seconds_or_none(value: Any) -> float:
    """Accept a time that can be waited, or 0."""
    if type(value) not in (float, int) or not 0 <= value <= LONGEST_S:
        raise Wrong(f"{show(value)}, wanted seconds, from 0 to {LONGEST_S}")
    return float(value)


def finite(value: Any) -> float:
    """Accept a finite number."""
    if type(value) not in (float, int) or not -_LARGEST <= value <= _LARGEST:
        raise Wrong(f"{show(value)}, wanted a finite number")
    return float(value)


# arrays and tables


def array(rule: Rule, *, distinct: bool = False) -> Rule:
    """Make the rule of an array, each item of which obeys `rule`."""

    def check(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise Wrong(f"{show(value)}, wanted an array")
        try:
            items = tuple(map(rule, value))
        except Wrong:
            raise Wrong(list(_faults_of(rule, enumerate(value)))) from None
        if distinct and len(set(items)) < len(items):
            raise Wrong(list(_repeated(items)))
        return items

    return check


def mapping(key_rule: Rule, value_rule: Rule) -> Rule:
    """Make the rule of a table whose keys are free, within `key_rule`."""

    def check(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Wrong(f"{show(value)}, wanted a table")
        try:
            for part, item in value.items():
                key_rule(part)
                value_rule(item)
        except Wrong:
            faults = [
                *_faults_of(key_rule, ((key, key) for key in value)),
                *_faults_of(value_rule, value.items()),
            ]
            raise Wrong(faults) from None
        return value

    return check


def _faults_of(rule: Rule, items: Any) -> Iterator[Fault]:
    for part, item in items:
        try:
            rule(item)
        except Wrong as wrong:
            yield from (f._replace(path=(part, *f.path)) for f in wrong.faults)


def _repeated(items: tuple[Any, ...]) -> Iterator[Fault]:
    first: dict[Any, int] = {}
    for index, item in enumerate(items):
        if first.setdefault(item, index) != index:
            yield Fault((index,), f"{show(item)} twice, wanted each once")


def closed(keys: Mapping[str, Key]) -> Rule:
    """Make the rule of a table whose keys are all known; it fills in the defaults."""
    defaults = {key.attr: key.default for key in keys.values()}

    def check(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Wrong(f"{show(value)}, wanted a table")
        result = defaults.copy()
        faults: list[Fault] = []
        for part, item in value.items():
            key = keys.get(part)
            if key is None:
                faults.append(unknown((part,), item, keys))
                continue
            try:
                result[key.attr] = key.rule(item)
            except Wrong as wrong:
                faults += (f._replace(path=(part, *f.path)) for f in wrong.faults)
        if faults:
            raise Wrong(faults)
        return result

    return check


# values that travel to the worker, or are compared with what it answered


def json_value(value: Any) -> Any:
    """Accept what a JSON line can hold, whole and finite."""
    kind = type(value)
    if kind is dict:
        _json_items(value.items())
    elif kind is list:
        _json_items(list(enumerate(value)))
    elif kind is float:
        finite(value)
    elif kind is int:
        if not -_INT64 <= value < _INT64:
            raise Wrong(f"{show(value)}, wanted one of 64 bits")
    elif kind is not str and kind is not bool and value is not None:
        raise Wrong(f"{show(value)}, wanted what JSON can hold")
    return value


def _json_items(items: Collection[tuple[str | int, Any]]) -> None:
    try:
        for _, item in items:
            json_value(item)
    except Wrong:
        raise Wrong(list(_faults_of(json_value, items))) from None


def key_path(value: Any) -> str:
    """Accept the way to a value in an answer: names with dots, `[i]` into a list."""
    path = filled(value)
    if _KEY_PATH.fullmatch(path) is None:
        raise Wrong("wanted names with dots between, [0] for the first of a list")
    return path


def pattern(value: Any) -> str:
    """Accept a regular expression that compiles."""
    if type(value) is not str:
        raise Wrong(f"{show(value)}, wanted a regular expression")
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError) as exc:
        raise Wrong(
            f"{quoted(value)}, wanted a regular expression that compiles: {exc}"
        ) from None
    return value
