"""What was found of providers, as results of a step and with the commands to type next."""

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.step import StepResult, refused

if TYPE_CHECKING:
    from tasks.check import ProviderCheck

Came = list[tuple[str, StepResult]]
"""What something came to, by slug."""

_NEXT = re.compile(
    r"^(next: (?:.* && )?)doit (setup|check|report|room|env|verify|accept|lock):(\S+)$"
)


def judged(step: str, checks: Sequence["ProviderCheck"]) -> Came:
    """Give each provider's findings as the result of a step."""
    return [(found.slug, _judged(step, found)) for found in checks]


def _judged(step: str, found: "ProviderCheck") -> StepResult:
    risks = [f"note: {warning}" for warning in found.warnings]
    notes = [*risks, *(f"note: {note}" for note in found.notes)]
    if not found.ok:
        result = refused(step, found.problems, lines=notes)
        ours = any(problem.reason == "internal" for problem in found.problems)
        return replace(result, reason="internal") if ours else result
    if step != "check":
        return StepResult(step, "present", "at its pins")
    if found.set_up:
        return StepResult(step, "present", "set up on this machine", lines=notes)
    # one line each: a tree has many providers that a machine has not
    elsewhere = "; verified elsewhere" if found.notes else ""
    detail = f"not set up on this machine{elsewhere}"
    return StepResult(step, "present", detail, lines=risks)


def as_tu(result: StepResult, typed: Mapping[str, str] | None = None) -> StepResult:
    """Give the same with the commands to type next as `tu` has them.

    Those of doit work in a checkout, those of `tu` in any directory. `typed` has the
    names that stand for slugs: a provider outside the tree has its path alone.
    """

    def told(found: re.Match[str]) -> str:
        before, verb, name = found.groups()
        if verb != "lock":
            name = shlex.quote((typed or {}).get(name, name))
        return f"{before}tu remote {verb} {name}"

    return replace(result, lines=[_NEXT.sub(told, line) for line in result.lines])


def typed_paths(names: Iterable[str]) -> dict[str, str]:
    """Give by slug the names that were typed: slugs, directories, or manifests."""
    return {_slug(name): name for name in names if name}


def _slug(name: str) -> str:
    # a link is not followed, as where the manifest is found
    path = Path(os.path.abspath(name))  # noqa: PTH100
    return path.parent.name if path.name == "provider.toml" else path.name
