"""Turn what a plugin emits into JSON text, whatever it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii
from math import isfinite

quoted = encode_basestring_ascii
# a value that is not JSON raises here and takes the slow way below
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode

NOTHING: Sequence[str] = ()
DEEPEST = 100
"""Nesting beyond which a value is told by its repr: readers have limits too."""
LONGEST_BITS = 10_000
"""Length of an integer that Python still turns into decimal digits."""


def text_of(value: object, where: str) -> tuple[str, Sequence[str]]:
    """Encode a value, and tell what in it was replaced, `where` being its name."""
    # the plain ones by hand: most events hold nothing else
    kind = type(value)
    if kind is str:
        return quoted(value), NOTHING  # type: ignore[arg-type]  # a str by its type
    if kind is float and isfinite(value):  # type: ignore[arg-type]  # a float
        return repr(value), NOTHING
    if kind is int and -(1 << 53) < value < 1 << 53:  # type: ignore[operator]  # an int
        return repr(value), NOTHING
    if value is None:
        return "null", NOTHING
    try:
        text = _encode(value)
    # a plugin's own mapping may raise anything; the stream never breaks for one value
    except Exception:
        return _text_of_rest(value, where)
    if text.count("[") + text.count("{") > DEEPEST and is_deeper(value, DEEPEST):
        return _text_of_rest(value, where)
    return text, NOTHING


def is_deeper(value: object, levels: int) -> bool:
    """Say whether lists and objects of JSON lie in one another more than so often."""
    level = [value]
    for _ in range(levels + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, (list, tuple, dict))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(level)


def _text_of_rest(value: object, where: str) -> tuple[str, Sequence[str]]:
    copy = _Copy()
    try:
        return _encode(copy.of(value, where)), copy.replaced
    except Exception:  # as above: a subclass of dict or list
        found = f"{where}: {type(value).__name__} sent as its repr"
        return quoted(_repr(value)), [found]


class _Copy:
    """A copy of a value with everything replaced in it that JSON cannot hold."""

    def __init__(self) -> None:
        self.replaced: list[str] = []
        self._within: set[int] = set()
        """What is being copied: a value that holds itself is told by its repr."""

    def of(self, value: object, where: str) -> object:
        if value is None or isinstance(value, (str, bool)):
            return value
        if isinstance(value, float) and isfinite(value):
            return float(value)
        if isinstance(value, float):
            return self._instead(where, repr(value), "null", None)
        if isinstance(value, int) and value.bit_length() < LONGEST_BITS:
            return int(value)
        if id(value) in self._within or len(self._within) >= DEEPEST:
            return self._instead(where, type(value).__name__, "its repr", _repr(value))
        self._within.add(id(value))
        try:
            return self._of_many(value, where)
        finally:
            self._within.discard(id(value))

    def _of_many(self, value: object, where: str) -> object:
        if isinstance(value, (list, tuple)):
            return [self.of(item, f"{where}[{i}]") for i, item in enumerate(value)]
        if isinstance(value, dict):
            return {
                self._key(key, where): self.of(item, f"{where}.{key}")
                for key, item in tuple(value.items())
            }
        return self._instead(where, type(value).__name__, "its repr", _repr(value))

    def _key(self, key: object, where: str) -> str:
        if isinstance(key, str):
            return key
        if key is None or isinstance(key, (bool, int)):
            return _encode(key)
        text = _repr(key)
        self._instead(where, f"a key of type {type(key).__name__}", "its repr", text)
        return text

    def _instead(self, where: str, found: str, what: str, value: object) -> object:
        self.replaced.append(f"{where}: {found} sent as {what}")
        return value


def _repr(value: object) -> str:
    try:
        return str(repr(value))
    # somebody else's __repr__ may raise anything
    except Exception:
        return f"<{type(value).__name__} without a repr>"


def error_text(exc: BaseException) -> str:
    """Say an exception as "Type: text"."""
    try:
        text = str(exc)
    # somebody else's __str__ may raise anything
    except Exception:
        text = ""
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__
