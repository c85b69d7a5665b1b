"""What was found of providers, as results of a step and with the commands to type next."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from remote_resident.cli import answer
from remote_resident.errors import LOOK, NEXT
from tasks.step import STEPS, StepResult, refused

if TYPE_CHECKING:
    from tasks.check import ProviderCheck

Came = list[tuple[str, StepResult]]
"""What something came to, by slug."""

_AGAIN = {
    **dict.fromkeys(STEPS, "setup"),
    **{verb: verb for verb in ("check", "verify", "env", "accept", "lock")},
    "manifest": "check",
}
"""By step, the command that asks again."""


def judged(step: str, checks: Sequence["ProviderCheck"]) -> Came:
    """Give each provider's findings as the result of a step."""
    return [(c.slug, with_next(c.slug, _judged(step, c))) for c in checks]


def _judged(step: str, found: "ProviderCheck") -> StepResult:
    risks = [f"note: {warning}" for warning in found.warnings]
    notes = [*risks, *(f"note: {note}" for note in found.notes)]
    if not found.ok:
        result = refused(step, found.problems, lines=notes)
        ours = any(problem.reason == "internal" for problem in found.problems)
        return replace(result, reason="internal") if ours else result
    if step != "check":
        return StepResult(step, "present", "; ".join(found.notes) or "at its pins")
    if found.set_up:
        return StepResult(step, "present", "set up on this machine", lines=notes)
    # one line each: a tree has many providers that a machine has not
    elsewhere = "; verified elsewhere" if found.notes else ""
    detail = f"not set up on this machine{elsewhere}"
    return StepResult(step, "present", detail, lines=risks)


def with_next(slug: str, result: StepResult) -> StepResult:
    """Give the same with a command to type next, where a refusal names none.

    It is that of its reason, else the one that asks again when the problems are mended.
    """
    named = any(line.startswith("next: ") for line in result.lines)
    if result.ok or named or result.reason in ("internal", "interrupted"):
        return result
    command, verb = NEXT.get(result.reason, LOOK), _AGAIN.get(result.step)
    if command == LOOK:
        command = f"doit {verb}:{slug}" if verb else ""
    more = [f"next: {command}"] if command else []
    return replace(result, lines=[*result.lines, *more])


def as_tu(
    result: StepResult,
    typed: Mapping[str, str] | None = None,
    tree: str | None = None,
) -> StepResult:
    """Give the same with the commands to type next as `tu` has them."""
    lines = [
        f"next: {answer.as_tu(line[6:], tree, typed)}"
        if line.startswith("next: ")
        else line
        for line in result.lines
    ]
    return replace(result, lines=lines)


def typed_paths(names: Iterable[str]) -> dict[str, str]:
    """Give by slug the names that were typed: slugs, directories, or manifests."""
    return {_slug(name): name for name in names if name}


def _slug(name: str) -> str:
    # a link is not followed, as where the manifest is found
    path = Path(os.path.abspath(name))  # noqa: PTH100
    return path.parent.name if path.name == "provider.toml" else path.name
