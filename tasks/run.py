"""One run over one tree: asks the steps, drives them, and turns what is raised into
results."""

import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from remote_resident import places
from remote_resident.cli import signals
from remote_resident.errors import ManifestError, Problem, ProviderError
from tasks import reporter as reporting
from tasks.reporter import MANIFEST, Reporter
from tasks.screen import Facts
from tasks.step import STEPS, Making, Progress, StepResult, failed, refused
from tasks.turn import turn

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest

Find = Callable[[Path, str], "ProviderManifest"]
"""Tree and slug, or a path to a provider's directory -> the manifest."""

_DECLARED = {"environment": "lock", "kit": "kit", "weights": "weights"}
"""What a step that may be idle looks after."""
_LOOKS = frozenset({"preflight", "check", "verify", "room", "report"})
"""Those that never act: whatever they find is found before anything was done."""


class StepModule(Protocol):
    """What a step of the setup is made of."""

    def problems(
        self, provider: "ProviderManifest", /, **progress: Any
    ) -> list[Problem]: ...
    def make(self, provider: "ProviderManifest", /) -> Making: ...


def step_module(step: str) -> StepModule:
    """Give the module of a step."""
    module: Any = import_module(f"tasks.{step}")
    return module  # type: ignore[no-any-return]  # a module is known by its functions


def find_provider(tree: Path, name: str) -> "ProviderManifest":
    """Give a provider of the tree, or of a directory. Raises ProviderError."""
    from remote_resident import manifest

    return manifest.find(tree, name)


@dataclass(slots=True)
class Run:
    """What one run knows; `steps` and `find` are its only ways to the outside."""

    tree: Path
    reporter: Reporter
    steps: Callable[[str], StepModule] = step_module
    find: Find = find_provider
    providers: dict[str, "ProviderManifest"] = field(default_factory=dict)
    """By slug, those whose manifest was read."""
    slugs: dict[str, str] = field(default_factory=dict)
    """By what was typed: a slug, or a path to a provider's directory."""
    _asked: dict[str, list[StepResult]] = field(default_factory=dict)

    def ask(self, provider: "ProviderManifest", step: str) -> StepResult:
        """Find out whether a step is done; read-only."""
        began = time.monotonic()

        def asked() -> StepResult:
            found = self._problems(provider, step)
            return refused(step, found) if found else _standing(provider, step)

        return guarded(step, asked).timed(time.monotonic() - began)

    def _problems(self, provider: "ProviderManifest", step: str) -> list[Problem]:
        module = self.steps(step)
        if step != "weights":
            return module.problems(provider)
        # what the memo does not know is read here, and that can take its time

        def progress(done: float, total: float) -> None:
            read = Progress("reading", done, total, "bytes")
            self.reporter.screen.progress(provider.slug, step, read)

        return module.problems(provider, progress=progress)

    def ask_all(self, provider: "ProviderManifest") -> list[StepResult]:
        """Find out how far a provider is set up, up to the first step that is not.

        Asked once: for a run in which none of its steps is made.
        """
        if provider.slug not in self._asked:
            results = self._asked[provider.slug] = []
            for step in STEPS:
                results.append(self.ask(provider, step))
                if not results[-1].ok:
                    break
        return self._asked[provider.slug]

    def make(self, provider: "ProviderManifest", step: str) -> StepResult:
        """Bring a step to what is declared, in this provider's turn."""
        began = time.monotonic()

        def made() -> StepResult:
            module = self.steps(step)
            # preflight only looks and refuses: there is nothing to take turns at
            if step == "preflight":
                return self.drive(provider.slug, step, module.make(provider))
            with self.turn(provider):
                # asked again: another setup may have made it since, waited for or not
                if (found := self.ask(provider, step)).ok:
                    return found
                return self.drive(provider.slug, step, module.make(provider))

        return guarded(step, made).timed(time.monotonic() - began)

    def drive(self, slug: str, step: str, making: Making) -> StepResult:
        """Let a step be made, and show what it says meanwhile."""
        from tasks.child import Passing

        screen = self.reporter.screen
        try:
            while True:
                said = next(making)
                if isinstance(said, Progress):
                    screen.progress(slug, step, said)
                elif isinstance(said, Passing):
                    screen.progress(slug, step, Progress(said))
                else:
                    screen.output(said)
        except StopIteration as end:
            if isinstance(end.value, StepResult):
                return end.value
            wrong = f"{step}: make returned {end.value!r}, a StepResult wanted"
            raise TypeError(wrong) from None
        finally:
            # a cut leaves the generator where it stands: its own cleaning up runs here
            making.close()

    @contextmanager
    def turn(self, provider: "ProviderManifest") -> Iterator[None]:
        """Hold a provider's turn, and let what is started in it hold it too."""
        from tasks import child

        path = places.step_lock_path(provider.slug, provider.tree)
        note = self.reporter.screen.note
        with turn(path, provider.slug, note) as fd, child.inheriting(fd):
            yield

    def facts(self, slug: str) -> Facts:
        """Say where a provider's report is and what the model answered."""
        smoke = self.reporter.results.by_slug.get(slug, {}).get("smoke")
        if smoke is None or not smoke.ok:
            return ()
        from tasks import measured

        path = measured.report_path(self.providers[slug])
        try:
            report = measured.read(path)
        except ProviderError:
            return ()
        return () if report is None else [("measured", str(path)), *_answer(report)]


def guarded(step: str, call: Callable[[], StepResult]) -> StepResult:
    """Turn what is raised into a result, so that other providers go on.

    doit aborts the whole run on an exception; SystemExit may come from any library.
    """
    try:
        return call()
    except signals.Cut:
        raise
    except ManifestError as exc:
        return unreadable(exc)
    except ProviderError as exc:
        told = refused if step in _LOOKS else failed
        return told(step, exc.problems or [exc.as_problem(step)])
    except (Exception, SystemExit) as exc:
        lines = "".join(traceback.format_exception(exc)).splitlines()
        return reporting.internal(step, lines)


def unreadable(exc: ManifestError) -> StepResult:
    """Build the result for a provider whose manifest cannot be read."""
    return refused(MANIFEST, exc.problems or [exc.as_problem(MANIFEST)], str(exc))


def _standing(provider: "ProviderManifest", step: str) -> StepResult:
    """Build the result of a step that has nothing to do."""
    idle = {
        "environment": provider.env_kind == "venv" and not provider.env_lock,
        "kit": not provider.kit_name,
        "weights": not provider.weights_files,
    }
    if idle.get(step):
        return StepResult(step, "skipped", f"no {_DECLARED[step]} declared")
    return StepResult(step, "present")


def _answer(report: Any) -> Iterator[tuple[str, str]]:
    import json

    values = report.answer.get("values")
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield "answer", f"{key} = {json.dumps(value, default=str)}"
