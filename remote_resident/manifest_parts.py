"""What a manifest has several of: weights, peaks, expectations; and how it is kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class WeightFile:
    """One file of a model's weights, with its pin."""

    name: str
    """Relative to the weights root."""
    size: int | None
    """Bytes; None: not known."""
    sha256: str | None
    """64 lower-case hex digits; None: not pinned, and `unpinned_reason` says why."""
    unpinned_reason: str | None
    unpacked_dir: str | None
    """Relative to the weights root; None: the file is used as it is."""


@dataclass(frozen=True, kw_only=True)
class LadderStep:
    """A peak that was measured at one size of the input."""

    size: int
    peak_gb: float
    """GiB."""


@dataclass(frozen=True, kw_only=True)
class Expect:
    """What one value of a right answer looks like; None: not looked at."""

    key: str
    """The path of the value in the reply."""
    min: float | None
    max: float | None
    equals: Any
    matches: str | None
    len: int | None


def made(cls: type[T], values: dict[str, Any]) -> T:
    """Make a frozen dataclass of all its values, which become its own.

    Assignments that are each checked would cost a third of what the parser takes; hence
    the classes of a manifest have no slots.
    """
    instance = object.__new__(cls)
    object.__setattr__(instance, "__dict__", values)
    return instance


_MADE = (
    ("weights_files", WeightFile),
    ("smoke_expect", Expect),
    ("gpu_ladder", LadderStep),
    ("host_ladder", LadderStep),
)
"""Attributes that are several of a class of their own."""


def plain(values: Mapping[str, Any], names: Sequence[str]) -> tuple[Any, ...]:
    """Give the values as marshal can write them: without their names."""
    several = {
        name: tuple(tuple(vars(one).items()) for one in values[name])
        for name, _ in _MADE
    }
    return tuple(({**values, **several})[name] for name in names)


def unplain(kept: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
    """Give the values again, by name."""
    values = dict(zip(names, kept, strict=True))
    for name, kind in _MADE:
        if found := values[name]:
            values[name] = tuple(made(kind, dict(one)) for one in found)
    return values
