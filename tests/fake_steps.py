"""Steps for tests of the graph: done is a file, and a word in a file says what happens.

`<tree>/behave.json` maps `<step>:<slug>` to one of the words in `make` and `problems`;
what is made leaves `<tree>/done/<step>:<slug>`, and its making `<tree>/made`, a line each.
"""

import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from remote_resident.errors import Problem
from remote_resident.manifest import ProviderManifest
from tasks import child
from tasks.step import Making, Progress, StepResult, refused

PLAIN_SIGNALS = ("env", "--default-signal=INT,TERM")
"""A shell's background job ignores SIGINT, and so would all that a test starts in it."""

WAITING = """
import pathlib, sys, time
tree = pathlib.Path(sys.argv[1])
print("child", __import__("os").getpid(), flush=True)
while not (tree / "go").exists():
    time.sleep(0.02)
"""

MANIFEST = """
slug = "{slug}"
description = "Answers with what it was asked."
operations = ["{slug}"]
[runtime]
worker = "worker.py"
[host]
ram_budget_gb = 0.1
[env]
python = "{python}"
[smoke]
request = {{ op = "{slug}", text = "hello" }}
timeout_s = 30
expect."text" = {{ equals = "hello" }}
"""

DODO = """
import sys
sys.path[:0] = [{root!r}, {tests!r}]
import fake_steps
from tasks import graph
DOIT_CONFIG, task_graph = graph.for_doit(__file__, steps=fake_steps.step)
"""


def plant(tree: Path, *slugs: str) -> Path:
    """Make a tree with these providers and a dodo.py that runs these steps."""
    for name in ("manifests", "locks", "kits", "done"):
        (tree / name).mkdir(parents=True, exist_ok=True)
    for slug in slugs:
        home = tree / "manifests" / slug
        home.mkdir()
        text = MANIFEST.format(slug=slug, python=sys.executable)
        (home / "provider.toml").write_text(text)
        (home / "worker.py").write_text("")
    tests = Path(__file__).resolve().parent
    text = DODO.format(root=str(tests.parent), tests=str(tests))
    (tree / "dodo.py").write_text(text)
    return tree


def behave(tree: Path, **words: str) -> None:
    """Say how steps behave: `weights_a="refuse"` is for the weights of a."""
    named = {name.replace("_", ":", 1): word for name, word in words.items()}
    (tree / "behave.json").write_text(json.dumps(named))


def finish(tree: Path, *names: str) -> None:
    """Let steps be done already."""
    for name in names:
        (tree / "done" / name).touch()


def made(tree: Path) -> list[str]:
    """List what was made, in order."""
    log = tree / "made"
    return log.read_text().split() if log.exists() else []


def step(name: str) -> SimpleNamespace:
    """Give the module of a step."""
    return SimpleNamespace(problems=partial(problems, name), make=partial(make, name))


def problems(
    name: str, provider: ProviderManifest, *, progress: object = None
) -> list[Problem]:
    """Name what is wrong: the file that is not there."""
    word = _word(name, provider)
    if word == "probe_raises":
        raise RuntimeError("the probe tore")
    done = provider.tree / "done" / f"{name}:{provider.slug}"
    if done.exists():
        return []
    text = f"{done.name}: nothing found, a file wanted"
    return [Problem(step=name, reason="absent", text=text, next=f"touch {done.name}")]


def make(name: str, provider: ProviderManifest) -> Making:
    """Do what the word says; without one, what is wanted."""
    word, tree = _word(name, provider), provider.tree
    if word == "raise":
        raise ValueError("the step tore")
    if word == "exit":
        sys.exit(7)
    if word == "wrong":
        return 5  # type: ignore[return-value]  # what it must not do
    if word == "refuse":
        return refused(name, problems(name, provider))
    yield Progress("making", 1, 2, "bytes")
    yield f"making {name}"
    if word == "wait":
        argv = [sys.executable, "-c", WAITING, str(tree)]
        ended = yield from child.run(argv, env={})
        if ended.returncode != 0:
            return StepResult(name, "failed", reason="fetch_failed")
    with (tree / "made").open("a") as log:
        log.write(f"{name}:{provider.slug}\n")
    finish(tree, f"{name}:{provider.slug}")
    return StepResult(name, "done", detail="made")


def _word(name: str, provider: ProviderManifest) -> str | None:
    words = provider.tree / "behave.json"
    if not words.exists():
        return None
    found = json.loads(words.read_text()).get(f"{name}:{provider.slug}")
    assert found is None or isinstance(found, str)
    return found
