"""What a look at one provider finds: is it well formed, does its set-up still hold."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from remote_resident import places
from remote_resident.errors import Problem, ProviderError, UsageError
from remote_resident.manifest_path import File
from tasks import environment, installed, measured, pins
from tasks.claims import compared
from tasks.report_file import ACCEPTED

if TYPE_CHECKING:
    from ast import stmt

    from remote_resident.manifest import ProviderManifest
    from tasks.ladder import Acceptance

Claims = Mapping[str, Sequence[str]]
"""Operation -> the slugs of the providers that claim it."""
Progress = Callable[[int, int], object]

_ALLOWED = sys.stdlib_module_names | {"worker_base"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderCheck:
    """What a look at one provider came to."""

    slug: str
    problems: list[Problem] = field(default_factory=list)
    set_up: bool = False
    """True: this machine has a measured report of it."""
    from_memo: list[str] = field(default_factory=list)
    """Weights whose digest was not computed now."""
    notes: tuple[str, ...] = ()
    """What is worth knowing of its claims, and wrong nowhere."""
    warnings: tuple[str, ...] = ()
    """What the manifest declares that is allowed and still a risk: it fails nothing."""

    @property
    def ok(self) -> bool:
        """Say whether nothing is wrong."""
        return not self.problems

    def as_dict(self) -> dict[str, object]:
        """Give the JSON shape of a provider's check."""
        return {
            "slug": self.slug,
            "ok": self.ok,
            "set_up": self.set_up,
            "problems": [problem.as_dict() for problem in self.problems],
            "from_memo": self.from_memo,
        }


def guarded(slug: str, look: Callable[[], ProviderCheck]) -> ProviderCheck:
    """Keep one provider's failure, also one of ours, from hiding the others."""
    try:
        return look()
    except UsageError:
        # of what was typed or exported, not of one provider
        raise
    except ProviderError as error:
        found = error.problems or [error.as_problem("manifest", f"{slug}: {error}")]
        return ProviderCheck(slug=slug, problems=list(found))
    except Exception as error:
        import traceback

        told = "".join(traceback.format_exception(error)).rstrip()
        text = f"{slug}: an error of this program's own:\n{told}"
        problem = Problem(step="manifest", reason="internal", text=text)
        return ProviderCheck(slug=slug, problems=[problem])


def whole(
    provider: "ProviderManifest | Exception",
    claims: Claims,
    *,
    machine: bool,
    deep: bool,
) -> ProviderCheck:
    """Look at one provider: what it declares, and with `machine` what is here of it.

    Raises the error that stands for a provider which could not be read.
    """
    if isinstance(provider, Exception):
        raise provider
    with provider.readings.one_look():
        return _whole(provider, claims, machine=machine, deep=deep)


def _whole(
    provider: "ProviderManifest", claims: Claims, *, machine: bool, deep: bool
) -> ProviderCheck:
    problems = [
        *provider.missing_files(),
        *_lock_problems(provider),
        *_kit_problems(provider),
        *_worker_imports(provider),
        *_shared_operations(provider, claims),
    ]
    if not machine:
        return ProviderCheck(
            slug=provider.slug,
            problems=_distinct(problems),
            warnings=tuple(provider.warnings()),
        )
    return _machine(provider, problems, deep=deep)


def _distinct(problems: list[Problem]) -> list[Problem]:
    """Give each once: a lock is read for what is declared and for what is installed."""
    said: dict[tuple[str, str], Problem] = {}
    for problem in problems:
        said.setdefault((problem.reason, problem.text), problem)
    return list(said.values())


# -- what is declared


def _lock_problems(provider: "ProviderManifest") -> list[Problem]:
    file = provider.lock_file()
    if file is None:
        return []
    found = pins.read(file, provider.readings)[1]
    # one that is not there is named already, with its place in the manifest
    return [problem for problem in found if problem.reason != "lock_missing"]


def _kit_problems(provider: "ProviderManifest") -> list[Problem]:
    path = provider.kit_name and provider.kit_file()
    if not path:
        return []
    from remote_resident import kits

    return kits.read(path)[1] if path.is_file() else []


def _worker_imports(provider: "ProviderManifest") -> Iterator[Problem]:
    """Name what the worker imports before `build`, besides the standard library."""
    if provider.runtime_worker is None:
        return
    file = provider.within(provider.runtime_worker)
    try:
        imported = provider.readings.of(file, "imports", _foreign_imports)
    except OSError as error:
        # one that is not there is named already, with its place in the manifest
        if Path(file).is_file():
            yield _import_problem(provider, file, 1, f"cannot be parsed: {error}")
        return
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        fault = f"cannot be parsed: {getattr(error, 'msg', error)}"
        yield _import_problem(provider, file, line, fault)
        return
    for line, name in imported:
        fault = (
            f"imports {name} at module level, the standard library or "
            "worker_base wanted: import it inside build"
        )
        yield _import_problem(provider, file, line, fault)


def _foreign_imports(source: bytes) -> list[tuple[int, str]]:
    """List line and name of what a worker imports and may not; raises SyntaxError."""
    import ast

    found = _imported(ast.parse(source).body)
    return [(n, name) for n, name in found if name.partition(".")[0] not in _ALLOWED]


def _import_problem(
    provider: "ProviderManifest", path: str, line: int, fault: str
) -> Problem:
    # as the manifest itself is shown: within its tree, if it stands in one
    around = File(str(provider.path)).tree
    shown = path.removeprefix(f"{around}/") if around else path
    return Problem(
        step="manifest",
        reason="worker_imports",
        text=f"{shown}:{line}: {fault}",
        path=path,
        line=line,
    )


def _imported(body: "Sequence[stmt]") -> Iterator[tuple[int, str]]:
    """Yield line and name of each import that runs when the module is loaded."""
    import ast

    for node in body:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." * node.level + (node.module or "")
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _imported(_blocks(node))


def _blocks(node: "stmt") -> "list[stmt]":
    import ast

    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return list(node.orelse)
    blocks = [*getattr(node, "body", ()), *getattr(node, "orelse", ())]
    blocks += getattr(node, "finalbody", ())
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        blocks += part.body
    return blocks


def _shared_operations(
    provider: "ProviderManifest", claims: Claims
) -> Iterator[Problem]:
    for operation in provider.operations:
        others = [slug for slug in claims[operation] if slug != provider.slug]
        if others:
            text = (
                f"{File(str(provider.path)).shown}: operations: {operation!r} "
                f"is also claimed by {', '.join(others)}, one provider wanted"
            )
            yield Problem(
                step="manifest",
                reason="operation_claimed_twice",
                text=text,
                path=str(provider.path),
                name=operation,
            )


# -- what this machine has


def _machine(
    provider: "ProviderManifest", declared: list[Problem], *, deep: bool
) -> ProviderCheck:
    """Hold what was set up here against what is declared now."""
    file = places.measured_file(provider.slug, provider.tree)
    if provider.readings.recall(file, "report") is None and not measured.there(
        Path(file)
    ):
        notes = compared(provider, None, state="missing").notes
        return ProviderCheck(
            slug=provider.slug,
            problems=_distinct(declared),
            notes=notes,
            warnings=tuple(provider.warnings()),
        )
    weights = provider.check_weights(deep=deep)
    python = provider.python_file()
    kept = provider.readings
    site = installed.see(python, kept) if python else installed.NOTHING
    held, notes = _report(provider, file, weights.digests, site)
    problems = [
        *declared,
        *environment.problems(provider, site=site),
        *_kit_here(provider),
        *_cured(provider, weights.problems),
        *held,
    ]
    return ProviderCheck(
        slug=provider.slug,
        problems=_distinct(problems),
        set_up=True,
        from_memo=weights.from_memo,
        notes=notes,
        warnings=tuple(provider.warnings()),
    )


def _cured(provider: "ProviderManifest", found: list[Problem]) -> list[Problem]:
    if not found:
        return found
    from tasks import weights

    return weights.cured(provider, found)


def _kit_here(provider: "ProviderManifest") -> list[Problem]:
    if provider.kit_name is None:
        return []
    from tasks import kit

    return kit.problems(provider)


def _report(
    provider: "ProviderManifest",
    file: str,
    weights: Mapping[str, str],
    site: installed.Site,
) -> tuple[list[Problem], tuple[str, ...]]:
    """Say what is wrong with a report, and what else is worth knowing of it."""
    try:
        report = measured.read(file, provider.readings)
    except ProviderError as error:
        return [_stale(provider, str(error))], ()
    if report is None:
        return [], ()
    changes = measured.differs(provider, report, weights=weights, site=site)
    state = "stale" if changes else "current"
    accepted, damaged = _accepted(file)
    held = compared(provider, report, state=state, acceptance=accepted)
    problems = [*held.problems]
    if changes:
        problems.insert(0, _stale(provider, f"{provider.slug}: {'; '.join(changes)}"))
    return problems, (*held.notes, *damaged)


def _accepted(report: str) -> "tuple[Acceptance | None, list[str]]":
    """Give what lies beside a report; most providers have nothing there."""
    if not os.path.lexists(f"{report.removesuffix('.toml')}{ACCEPTED}"):
        return None, []
    from tasks import ladder

    return ladder.found(Path(report))


def _stale(provider: "ProviderManifest", text: str) -> Problem:
    return Problem(
        step="smoke",
        reason="stale",
        text=text,
        path=str(measured.report_path(provider)),
        next=f"doit setup:{provider.slug}",
    )


def weights(
    provider: "ProviderManifest | Exception", progress: Progress | None
) -> ProviderCheck:
    """Read every weight of one provider. Raises as `whole` does."""
    if isinstance(provider, Exception):
        raise provider
    found = provider.check_weights(deep=True, progress=progress)
    return ProviderCheck(
        slug=provider.slug,
        problems=_cured(provider, found.problems),
        set_up=measured.there(measured.report_path(provider)),
        from_memo=found.from_memo,
        notes=tuple(_not_pinned(provider)),
    )


def _not_pinned(provider: "ProviderManifest") -> Iterator[str]:
    """Say which weights no pin speaks of."""
    files = provider.weights_files
    without = sum(file.sha256 is None for file in files)
    if not files:
        yield "no weights declared"
    elif without:
        yield f"at its pins, {without} of {len(files)} files without one"
