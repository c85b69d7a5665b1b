"""What a step of the setup comes to: its result, its progress, its exit code."""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace

from remote_resident.errors import OK, OUR_ERROR, REFUSED, Problem

STEPS = ("preflight", "environment", "kit", "weights", "smoke")
"""The steps of a setup, in order."""

GOOD = frozenset({"present", "done", "skipped"})


@dataclass(frozen=True, slots=True)
class Progress:
    """What a live line may show of work in hand; gone when the work is over."""

    text: str
    done: float | None = None
    total: float | None = None
    """None: not known."""
    unit: str = ""
    """bytes, s, or what else is counted."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step of one provider came to."""

    step: str
    verdict: str
    """present, done, skipped, refused (found before acting) or failed (acted)."""
    detail: str = ""
    reason: str = ""
    lines: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Say whether the chain may go on."""
        return self.verdict in GOOD

    def timed(self, seconds: float) -> "StepResult":
        """Give the same result with the seconds it took."""
        return replace(self, seconds=seconds)

    def as_dict(self) -> dict[str, object]:
        """Give the JSON shape of a step's result."""
        return {
            "step": self.step,
            "verdict": self.verdict,
            "reason": self.reason,
            "detail": self.detail,
            "lines": self.lines,
            "seconds": self.seconds,
        }


Making = Generator[str | Progress, None, StepResult]
"""What `make` is: lines that stay, progress that does not, and the result."""


def refused(
    step: str, problems: Sequence[Problem], detail: str = "", lines: Iterable[str] = ()
) -> StepResult:
    """Build the result of a step that found problems before it acted."""
    return _unmet(step, "refused", problems, detail, lines)


def failed(
    step: str, problems: Sequence[Problem], detail: str = "", lines: Iterable[str] = ()
) -> StepResult:
    """Build the result of a step that acted and does not hold."""
    return _unmet(step, "failed", problems, detail, lines)


def _unmet(
    step: str,
    verdict: str,
    problems: Sequence[Problem],
    detail: str,
    lines: Iterable[str],
) -> StepResult:
    nexts = dict.fromkeys(p.next for p in problems if p.next)
    return StepResult(
        step,
        verdict,
        detail=detail or problems[0].text,
        reason=problems[0].reason,
        lines=[
            *(f"{p.reason}: {p.text}" for p in problems),
            *lines,
            *(f"next: {command}" for command in nexts),
        ],
    )


def exit_code(results: Iterable[StepResult]) -> int:
    """Give the exit code of what was run: 0 all ok, 1 refused or failed, 2 our error."""
    code = OK
    for result in results:
        if result.reason == "internal":
            return OUR_ERROR
        if not result.ok:
            code = REFUSED
    return code
