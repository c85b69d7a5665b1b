"""The tasks that doit runs: for each provider the chain of its steps, and the commands.

No state file: doit's store is one that keeps nothing. A task has neither file_dep nor
targets; one callable decides alone whether it is up to date, and its action is Python
that returns what it came to. doit calls the `Ask`, `Make`, `Whole` and `Command`
objects; the reporter shows the results that they leave in the task's node.
"""

import os
import signal
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from remote_resident import places
from remote_resident.cli import signals
from remote_resident.cli.answer import open_streams
from remote_resident.errors import USAGE, ManifestError, UsageError
from remote_resident.manifest_path import slugs as manifest_slugs
from tasks import commands
from tasks import selection as selecting
from tasks.reporter import MANIFEST, Node, Reporter, Results, Rows, streams
from tasks.run import Find, Run, StepModule, find_provider, guarded, step_module
from tasks.run import unreadable as unreadable_result
from tasks.screen import Screen
from tasks.selection import LOCK, WHOLE, Selection, joined
from tasks.step import STEPS, Making, StepResult

if TYPE_CHECKING:
    from doit.task import Task

    from remote_resident.manifest import ProviderManifest

Came = Iterable[tuple[str, StepResult]]
Developer = Mapping[str, tuple[str, Callable[[Path], Making]]]
"""Commands for whoever changes this project: a line of help, and the making."""

_SIGNPOSTS = {
    "env": "Create the environment by the lock: doit env:<slug>",
    "verify": "Read every weight in full: doit verify:<slug>",
    "accept": "Run the acceptance suite: doit accept:<slug>",
    "room": "Say whether it would fit now: doit room:<slug>",
    "lock": "Resolve locks/<name>.in anew: doit lock:<name>",
}
_DOC_WIDTH = 53
"""Columns that `doit list` has for what a task does, beside the names that ship."""
_REMEMBERING = frozenset({"clean", "forget", "ignore", "reset-dep", "dumpdb"})
"""doit's own commands about what it remembers or deletes, which here is nothing."""


class NullCodec:
    """What doit's store is written by: nothing."""

    def decode(self, data: str) -> dict[str, object]:
        """Read nothing."""
        return {}

    def encode(self, data: object) -> str:
        """Write nothing."""
        return ""


# -- what doit calls


@dataclass(slots=True)
class Ask:
    """Whether a step is up to date: it is when its `problems` names none."""

    run: Run
    provider: "ProviderManifest"
    node: Node
    found: StepResult | None = None

    def __call__(self) -> bool:
        self.found = self.run.ask(self.provider, self.node.step)
        self.node.results = [(self.node.slug, self.found)] if self.found.ok else []
        return self.found.ok

    def __repr__(self) -> str:
        return f"problems of {self.node.step}:{self.node.slug}"


@dataclass(slots=True)
class Make:
    """Make a step that is not up to date."""

    ask: Ask

    def __call__(self) -> object:
        found, node = self.ask.found, self.ask.node
        # -a runs also what is up to date; what broke when asked would break again
        if found is None or not (found.ok or found.reason == "internal"):
            found = self.ask.run.make(self.ask.provider, node.step)
        node.results = [(node.slug, found)]
        return _outcome(node.results)

    def __repr__(self) -> str:
        return f"make {self.ask.node.step}:{self.ask.node.slug}"


@dataclass(slots=True)
class Whole:
    """Whether a provider is set up: the word of all its steps, whoever ran them.

    Where the steps ran in this process, what they came to; else (`-s`, `list
    --status`) each is asked.
    """

    run: Run
    provider: "ProviderManifest"
    node: Node

    def __call__(self) -> bool:
        ran = self.run.reporter.results.by_slug.get(self.provider.slug, {})
        if all(step in ran for step in STEPS):
            return all(result.ok for result in ran.values())
        results = self.run.ask_all(self.provider)
        self.node.results = [(self.provider.slug, result) for result in results]
        return all(result.ok for result in results)

    def __repr__(self) -> str:
        return f"problems of every step of {self.provider.slug}"


@dataclass(slots=True)
class Refuse:
    """Say that a provider is not set up: its steps were left out and are not done."""

    whole: Whole

    def __call__(self) -> object:
        return _outcome(self.whole.node.results)

    def __repr__(self) -> str:
        return f"refuse {self.whole.provider.slug}"


@dataclass(slots=True)
class Every:
    """Whether a group is up to date: all its members are."""

    members: Sequence[Callable[[], bool]]

    def __call__(self) -> bool:
        return all(member() for member in self.members)

    def __repr__(self) -> str:
        return f"all of {len(self.members)}"


@dataclass(slots=True)
class Command:
    """Do what a command does, and leave what it came to."""

    node: Node
    call: Callable[[], Came]

    def __call__(self) -> object:
        results: list[tuple[str, StepResult]] = []

        def called() -> StepResult:
            results.extend(self.call())
            return StepResult(self.node.step, "done")

        ended = guarded(self.node.step, called)
        self.node.results = results if ended.ok else [(self.node.slug, ended)]
        return _outcome(self.node.results)

    def __repr__(self) -> str:
        return f"{self.node.step} {self.node.slug}".rstrip()


def _never() -> bool:
    return False


def _outcome(results: Came) -> object:
    """Tell doit that a task did well (None), or that it did not."""
    from doit.exceptions import TaskFailed

    bad = [f"{slug}: {result.reason}" for slug, result in results if not result.ok]
    return TaskFailed(", ".join(bad), report=False) if bad else None


# -- the tasks


def create(
    run: Run,
    selection: Selection,
    *,
    alone: bool = False,
    developer: Developer | None = None,
) -> "Iterator[Task]":
    """Create the tasks of what is selected, and what these need.

    Reads the manifests of the providers selected and no other. `alone`: a step without
    those before it.
    """
    whole = WHOLE in selection.of("setup")
    chained = manifest_slugs(run.tree) if whole else selection.of("setup", *STEPS)
    members: list[Callable[[], bool]] = []
    for name in chained:
        try:
            provider = run.find(run.tree, name)
        except ManifestError as exc:
            run.slugs[name] = Path(name).name
            run.reporter.results.unreadable.append(exc)
            members.append(_never)
            yield from _unreadable(run.slugs[name], name, selection, exc)
            continue
        _keep(run, name, provider)
        after = [f"env:{name}"] if name in selection.of("env") else []
        members.append(whole_of := Whole(run, provider, Node(provider.slug, "setup")))
        yield from _chain(whole_of, after, alone=alone)
    if whole:
        yield _task(
            "setup",
            uptodate=Every(members),
            task_dep=[f"setup:{run.slugs[name]}" for name in chained],
            has_subtask=True,
            doc="Set up every provider; one of them: doit setup:<slug>",
        )
    yield from _commands(run, selection)
    for name, (doc, make) in (developer or {}).items():
        if WHOLE in selection.of(name):
            call = partial(commands.developer, run, name, make)
            yield _command(name, Node(WHOLE, name), call, doc)


def _keep(run: Run, name: str, provider: "ProviderManifest") -> None:
    slug = provider.slug
    if slug in run.providers:
        first, second = run.providers[slug].path, provider.path
        raise UsageError(f"{slug}: {first} and {second} found, one of them wanted")
    run.slugs[name] = slug
    run.providers[slug] = provider


def _chain(whole: Whole, after: list[str], *, alone: bool) -> "Iterator[Task]":
    """Create the steps of a provider, each after the one before, and their sum."""
    run, provider = whole.run, whole.provider
    slug = provider.slug
    for step in STEPS:
        ask = Ask(run, provider, Node(slug, step))
        yield _task(
            f"{step}:{slug}",
            Make(ask),
            node=ask.node,
            uptodate=ask,
            task_dep=[] if alone else after,
            subtask_of=f"setup:{slug}",
            doc=f"The {step} step of {slug}",
        )
        after = [f"{step}:{slug}"]
    yield _task(
        f"setup:{slug}",
        Refuse(whole),
        node=whole.node,
        uptodate=whole,
        task_dep=[f"{step}:{slug}" for step in STEPS],
        doc=_short(provider.description) or f"Set up {slug}",
    )


def _short(text: str) -> str:
    """Cut a description so that its line in `doit list` fits eighty columns."""
    return textwrap.shorten(text, _DOC_WIDTH, placeholder=" …")


def _unreadable(
    slug: str, name: str, selection: Selection, exc: ManifestError
) -> "Iterator[Task]":
    """Create the tasks of a provider whose manifest is broken: each says so."""
    came = [(slug, unreadable_result(exc))]
    count = max(1, len(exc.problems))
    doc = f"Its manifest cannot be read: {count} problem{'s' if count > 1 else ''}"
    for verb in ("setup", *(step for step in STEPS if name in selection.of(step))):
        yield _command(
            f"{verb}:{slug}",
            Node(slug, MANIFEST),
            lambda: came,
            doc,
            subtask_of=None if verb == "setup" else f"setup:{slug}",
        )


def _commands(run: Run, selection: Selection) -> "Iterator[Task]":
    """Create the commands that were named, each for one name or for all."""
    looking = {
        "check": (
            commands.check,
            "Say whether what is declared still holds; read-only",
        ),
        "verify": (commands.verify, _SIGNPOSTS["verify"]),
        "room": (commands.room, _SIGNPOSTS["room"]),
        "report": (commands.report, "Show what this machine measured, as a table"),
    }
    for verb, (look, doc) in looking.items():
        for name in selection.of(verb):
            node = Node(name, verb, shown=verb != "report")
            call = partial(look, run, [name] if name else None)
            yield _command(joined(verb, name), node, call, doc)
    making = {"env": commands.env, "accept": commands.accept, LOCK: commands.lock}
    for verb, make in making.items():
        for name in selection.of(verb):
            call = partial(make, run, name)
            yield _command(f"{verb}:{name}", Node(name, verb), call, _SIGNPOSTS[verb])


def _signposts() -> "Iterator[Task]":
    """Create the lines of `list` for commands that are nothing without a name."""
    for verb, doc in _SIGNPOSTS.items():
        yield _task(verb, uptodate=Every(()), has_subtask=True, doc=doc)


def _command(
    task: str,
    node: Node,
    call: Callable[[], Came],
    doc: str,
    subtask_of: str | None = None,
) -> "Task":
    verb, colon, _ = task.partition(":")
    return _task(
        task,
        Command(node, call),
        node=node,
        uptodate=_never,
        subtask_of=subtask_of or (verb if colon and verb != "setup" else None),
        doc=doc,
    )


def _task(
    name: str,
    action: Callable[[], object] | None = None,
    *,
    uptodate: Callable[[], bool],
    node: Node | None = None,
    **attributes: Any,
) -> "Task":
    from doit.task import Task

    return Task(
        name,
        None if action is None else [action],
        uptodate=[uptodate],
        # captured output would be lost to the live line, and threads would share it
        io={"capture": False},
        meta=None if node is None else {"node": node},
        **attributes,
    )


# -- a run of our own, for the command line


def run(
    tree: Path,
    selection: Selection,
    reporter: Reporter,
    *,
    alone: bool = False,
    steps: Callable[[str], StepModule] = step_module,
    find: Find = find_provider,
) -> Results:
    """Run what is selected, in this process, and give what it came to.

    Names in the selection may be paths to providers' directories. `alone`: a step
    without those before it. Raises UsageError for names that are no providers.
    """
    from doit.cmd_base import TaskLoader2
    from doit.doit_cmd import DoitMain

    this = Run(tree, reporter, steps, find)
    if selection.of("setup"):
        reporter.facts = this.facts
    tasks = list(create(this, selection, alone=alone))
    words = [joined(verb, this.slugs.get(name, name)) for verb, name in selection.names]

    class Loader(TaskLoader2):  # type: ignore[misc]  # doit has no types
        """Hands over what was created."""

        def load_doit_config(self) -> dict[str, object]:
            return _config(reporter)

        def load_tasks(self, cmd: object, pos_args: list[str]) -> "list[Task]":
            return tasks

    # no configuration file: it would be that of wherever the caller stands
    try:
        code = DoitMain(Loader(), config_filenames=()).run(["run", *words])
    except signals.Cut:
        # the reporter has said what was cut, if the run had begun
        if not reporter.results.cut:
            raise
        return reporter.results
    if code == USAGE:
        # doit's word for what broke outside every task; it has said what
        reporter.results.broken = True
    for slug, provider in this.providers.items():
        if places.has_report(slug, provider.tree):
            report = places.measured_path(slug, provider.tree)
            reporter.results.measured[slug] = str(report)
    return reporter.results


def _config(reporter: object) -> dict[str, object]:
    return {
        "backend": "json",
        "dep_file": os.devnull,
        "codec_cls": NullCodec,
        "reporter": reporter,
        "continue": True,
        # a pool of processes hangs for ever when one of them is killed
        "par_type": "thread",
        "default_tasks": ["check"],
    }


# -- plain doit


def for_doit(
    dodo: str | Path,
    argv: Sequence[str] | None = None,
    *,
    steps: Callable[[str], StepModule] = step_module,
    find: Find = find_provider,
) -> tuple[dict[str, object], "Callable[[], Iterator[Task]]"]:
    """Give doit's configuration and the creator of all tasks, for a dodo.py.

    Where the program running is doit itself, what was typed is held against what there
    is (doit takes several kinds of wrong names for success), only what was typed is
    created, and signals end the run with their codes. Raises SystemExit with 3 for
    wrong usage.
    """
    open_streams()
    tree = Path(dodo).resolve().parent
    argv = sys.argv if argv is None else argv
    developer = _developer(tree)
    screen, rows = Screen(), Rows(None)
    selection = None
    if _is_doit(argv[0]):
        try:
            selection = typed(argv[1:], tree, tuple(developer))
            results, for_programs = streams()
        except UsageError as exc:
            _refuse_usage(exc)
        screen, rows = Screen(results), Rows(for_programs)
        _take_signals(runs=selection is not None)

    class Plain(Reporter):
        """The reporter as doit makes it, with the stream that `-o` names."""

        def __init__(self, outstream: Any, options: object) -> None:
            # None: doit took the stream before we opened one in place of a closed one
            if outstream is not None and outstream is not sys.stdout:
                screen.results = outstream
            super().__init__(screen, rows, exits=True)
            this.reporter = self
            if selection is not None and selection.of("setup"):
                self.facts = this.facts

    this = Run(tree, Reporter(screen, rows), steps, find)

    def task_graph() -> "Iterator[Task]":
        wanted = selection or selecting.everything(tree, developer)
        yield from create(this, wanted, developer=developer)
        if selection is None:
            yield from _signposts()

    return _config(Plain), task_graph


def typed(
    words: Sequence[str], tree: Path, others: Iterable[str] = ()
) -> Selection | None:
    """Say what a command line of doit selects; None: it does not run tasks.

    Raises UsageError for what doit would run without a word, or with a traceback.
    """
    command, words = _parsed(words)
    if command in _REMEMBERING:
        raise UsageError(
            f"doit {command}: nothing is remembered in a state file and no task owns a "
            "file: done is what the filesystem shows",
            next="doit list --all --status",
        )
    if command == "run":
        return selecting.select(words or ["check"], tree, others)
    if command in {"list", "info"}:
        named = [word for word in words if word not in _SIGNPOSTS]
        selecting.select(named, tree, others)
        if patterns := [word for word in named if "*" in word]:
            text = f"doit {command}: {patterns[0]!r} found, a name without * wanted"
            raise UsageError(text, next="doit list --all")
    return None


def _parsed(words: Sequence[str]) -> tuple[str, list[str]]:
    """Take a command line apart as doit does: its command, and the names after it."""
    from doit.cmd_base import DodoTaskLoader
    from doit.cmdparse import CmdParseError
    from doit.doit_cmd import DoitMain

    known = {command.get_name(): command for command in DoitMain.DOIT_CMDS}
    before = DodoTaskLoader.cmd_options
    try:
        _, rest = _options(before, words)
    except CmdParseError:
        # as doit does: they are the options of the command `run` then
        rest = list(words)
    name = rest.pop(0) if rest and rest[0] in known else "run"
    if any(word.startswith(("--db-file", "--backend")) for word in rest):
        raise UsageError("--db-file, --backend: no state file is kept, none wanted")
    command = known[name]
    options = (*getattr(command, "base_options", ()), *before, *command.cmd_options)
    try:
        _, names = _options(options, rest)
    except CmdParseError as exc:
        text = (
            str(exc).partition(" (parsing")[0].removeprefix("Error parsing Command: ")
        )
        raise UsageError(f"doit {name}: {text}", next=f"doit help {name}") from None
    return name, names


def _options(options: Any, words: Sequence[str]) -> Any:
    from doit.cmdparse import CmdOption, CmdParse

    return CmdParse([CmdOption(option) for option in options]).parse_only(list(words))


def _is_doit(program: str) -> bool:
    path = Path(program)
    return path.name == "doit" or path.parts[-2:] == ("doit", "__main__.py")


def _developer(tree: Path) -> Developer:
    """Give the commands for whoever changes the project, where this is its checkout."""
    if not (tree / "pyproject.toml").is_file() or not (tree / "tests").is_dir():
        return {}
    from tasks import dev

    return dev.COMMANDS


def _take_signals(*, runs: bool) -> None:
    if runs:
        signals.catch()
    else:
        # a list into head: what is read is enough
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def _refuse_usage(exc: UsageError) -> NoReturn:
    sys.stderr.write(f"doit: {exc}\n")
    if exc.next:
        sys.stderr.write(f"next: {exc.next}\n")
    raise SystemExit(USAGE)
