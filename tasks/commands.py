"""What the graph does besides setting up: check, verify, report, room, env, accept, lock.

Each gives what it came to by slug, and leaves showing it to the reporter.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from remote_resident.errors import Problem
from tasks.step import STEPS, Making, Progress, StepResult, refused
from tasks.verdicts import Came, judged

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest
    from tasks.run import Run


def check(run: "Run", names: Sequence[str] | None) -> Came:
    """Say whether what is declared still holds; None: of every provider."""
    from tasks import check as checking

    return judged("check", checking.check(run.tree, names))


def verify(run: "Run", names: Sequence[str] | None) -> Came:
    """Read every weight in full."""
    from tasks import check as checking

    def progress(done: int, total: int) -> None:
        read = Progress("reading", done, total, "bytes")
        run.reporter.screen.progress(names[0] if names else "", "verify", read)

    return judged("verify", checking.verify(run.tree, names, progress=progress))


def report(run: "Run", names: Sequence[str] | None) -> Came:
    """Show the measured reports as a table, which stands for the rows, and as a page."""
    from tasks import page, reported
    from tasks import report as reports

    entries = reported.of_tree(run.tree, names)
    rows = [entry.row() for entry in entries]
    screen = run.reporter.screen
    screen.show(reports.table(rows, screen.width(), color=screen.styled()))
    path = page.place(rows[0]["slug"] if names else None)
    page.write(path, entries)
    screen.say(f"page: {path}")
    return [
        (row["slug"], StepResult("report", "present", row["state"])) for row in rows
    ]


def room(run: "Run", names: Sequence[str] | None) -> Came:
    """Say whether providers would fit beside what this machine holds now."""
    from remote_resident.room import room_for

    came = []
    for name in names or ():
        provider = run.find(run.tree, name)
        verdict = room_for(provider)
        result = StepResult("room", "present", verdict.text)
        if not verdict.admit:
            problem = Problem(
                step="runtime",
                reason=verdict.reason,
                text=verdict.text,
                next="tu remote ps",
            )
            result = refused("room", [problem])
        came.append((provider.slug, result))
    return came


def env(run: "Run", name: str) -> Came:
    """Create a provider's environment, in its turn."""
    from tasks import env as environments

    provider = run.find(run.tree, name)
    with run.turn(provider):
        return driven(run, provider.slug, "env", environments.make(provider))


def accept(run: "Run", name: str) -> Came:
    """Put a provider that is set up through the acceptance suite, in its turn."""
    from tasks import accept as accepting

    provider = run.find(run.tree, name)
    slug = provider.slug

    def show(result: StepResult) -> None:
        run.reporter.record(slug, result)

    with run.turn(provider):
        if not_set_up := _not_set_up(run, provider):
            return [(slug, not_set_up)]
        return driven(run, slug, "accept", accepting.make(provider, on_phase=show))


def _not_set_up(run: "Run", provider: "ProviderManifest") -> StepResult | None:
    """Say which step of the setup does not hold; None: all do."""
    for step in STEPS:
        found = run.ask(provider, step)
        if not found.ok:
            text = f"{provider.slug}: its {step} step does not hold"
            lines = [line for line in found.lines if not line.startswith("next: ")]
            return StepResult(
                "accept",
                "refused",
                text,
                found.reason,
                [*lines, f"next: doit setup:{provider.slug}"],
            )
    return None


def lock(run: "Run", name: str) -> Came:
    """Resolve a lock anew."""
    from tasks import lock as locks

    return driven(run, name, "lock", locks.resolve(run.tree, name))


def driven(run: "Run", name: str, step: str, making: Making) -> Came:
    """Let something be made, and say how long it took."""
    began = time.monotonic()
    result = run.drive(name, step, making)
    return [(name, result.timed(time.monotonic() - began))]


def developer(run: "Run", name: str, make: Callable[[Path], Making]) -> Came:
    """Do something to this project itself."""
    return driven(run, "", name, make(run.tree))
