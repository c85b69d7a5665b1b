"""Build the worker's command, with or without a kit.

How a kit engages is asked of the kit itself, in the interpreter that it lives in. A kit is
a package `<package>` with one or both of these modules:

- `<package>.worker_launch`: the worker runs as `python -m <package>.worker_launch
  <options> -- script args`;
- `<package>._autoload`: imported at interpreter start by the kit's `.pth`; the worker is
  then a plain script, and `<PACKAGE>=<mode>` in its environment engages it.

The first that is there has `resolve(mode)`, which gives a mapping: `route` (a string or
None) and `attach` (strings) for the launcher's options, `row` (name -> value) of the
variables that the mode sets, `absent` of names and prefixes (`NAME_*`) that must not be
there. Each may be left out. A mode that cannot be had on this host ends the process with
its words and a status other than 0; 3 is the custom.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from remote_resident.errors import KitUnavailable
from remote_resident.exec_env import (
    DEVICE_VARIABLE,
    ExecEnvironment,
    allowed,
    child_env,
)
from remote_resident.processes import INSTANCE_VARIABLE, end_all

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest

LEVERS_VARIABLE = "MODEL_OPT_LEVERS_OFF"
"""The kit's levers that stay off, separated by commas."""
PROBE_LIMIT_S = 120.0
"""A kit may import its framework to answer; one that has not by then is unavailable."""

_TAIL_LINES = 10
_MARK = "tu-kit-answer "
# a kit may print while it is imported: the last line with the mark is the answer
_PROBE = f"""\
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import importlib, importlib.util, json
package, mode = sys.argv[1:]
def there(name):
    return importlib.util.find_spec(package + "." + name) is not None
launcher = there("worker_launch")
if not launcher and not there("_autoload"):
    sys.exit(package + ": neither worker_launch nor _autoload in it")
name = package + (".worker_launch" if launcher else "._autoload")
told = importlib.import_module(name).resolve(mode or None)
answer = {{
    "launcher": launcher,
    "route": told.get("route"),
    "attach": list(told.get("attach") or ()),
    "row": dict(told.get("row") or {{}}),
    "absent": list(told.get("absent") or ()),
}}
print("\\n{_MARK}" + json.dumps(answer), flush=True)
"""

Extra = dict[str, str | None]
"""Variables on top of the allow-list; None removes a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One start, as the function that builds its command sees it."""

    manifest: "ProviderManifest"
    environment: ExecEnvironment
    instance: str
    script: tuple[str, ...]
    """worker_base.py and all its arguments, the provider's own among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KitAnswer:
    """What a kit said of a mode."""

    options: tuple[str, ...] = ()
    """The launcher's options; empty where there is no launcher."""
    row: Mapping[str, str] = field(default_factory=dict)
    """The variables that the mode sets, also those whose adapter will decline here."""
    launcher: str | None = None
    """The module that launches the worker; None: the kit loads itself."""
    absent: tuple[str, ...] = ()
    """Names and prefixes that the kit's own pins want absent."""


@dataclass(frozen=True, slots=True)
class _Ended:
    status: int | None
    """None: it had not ended at the limit."""
    output: str
    limit_s: float

    def how(self) -> str:
        if self.status is None:
            return f"no end within {self.limit_s} s"
        return f"exit status {self.status}" + ("" if self.status else " and no answer")


Builder = Callable[[Launch], tuple[list[str], Extra]]
"""Gives the argv as it is called where the code runs, and the variables to add."""


def build_command(worker: Launch) -> tuple[list[str], Extra]:
    """Build the worker's command: plain, or as the declared kit says when it is asked.

    Raises KitUnavailable where the kit refuses, and ExecEnvironmentError.
    """
    manifest, python = worker.manifest, worker.environment.inner_python
    package = kit_package(manifest)
    if package is None:
        return [python, *worker.script], {}
    conditions = _conditions(worker, package)
    under = child_env(manifest, os.environ, conditions)
    answer = ask_kit(
        worker.environment,
        package,
        manifest.kit_mode,
        manifest.kit_levers_off,
        under=under,
    )
    # what the kit wants absent is known only now, and [kit] env is load-bearing
    extra: Extra = {**conditions, **answer.row, **dict(manifest.kit_env)}
    extra |= _without(answer.absent, {**under, **_known(extra)})
    if answer.launcher is None:
        return [python, *worker.script], extra
    launch = ["-m", answer.launcher, *answer.options, "--"]
    return [python, *launch, *worker.script], extra


def ask_kit(
    env: ExecEnvironment,
    package: str,
    mode: str | None,
    levers_off: Sequence[str] = (),
    *,
    under: Mapping[str, str] | None = None,
    limit_s: float = PROBE_LIMIT_S,
) -> KitAnswer:
    """Ask a kit, in its own interpreter, how it engages in a mode; runs one process.

    `under` is the environment that the worker will have; None: what it has of the
    caller's, by the allow-list, when nothing is declared. Raises KitUnavailable with the
    exit status and the kit's last lines where it refuses, says nothing that can be read,
    or has not answered within `limit_s`; ExecEnvironmentError as `env.argv` does.
    """
    variables = dict(_caller_s(env) if under is None else under)
    if mode is not None:
        variables[package.upper()] = mode
    if levers_off:
        variables[LEVERS_VARIABLE] = ",".join(levers_off)
    # an instance of its own: ending the probe must not end the worker
    variables[INSTANCE_VARIABLE] = instance = os.urandom(8).hex()
    argv, environ = env.argv(["-c", _PROBE, package, mode or ""], variables)
    where = f"{env.slug}: kit {package}" + (f", mode {mode}" if mode else "")
    try:
        ended = _run(argv, environ, limit_s, (instance, env.container_cli()))
    except OSError as exc:
        text = f"{where}: {argv[0]}: {exc.strerror} found, a program wanted"
        raise KitUnavailable(text) from None
    answers = [t for t in ended.output.splitlines() if t.startswith(_MARK)]
    if ended.status == 0 and answers:
        return _answer(json.loads(answers[-1][len(_MARK) :]), package)
    raise KitUnavailable(
        f"{where}: {ended.how()} found, an answer wanted{_said(ended.output)}"
    )


def _caller_s(env: ExecEnvironment) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if allowed(name)}
    return {**inherited, **env.cache_env()}


def kit_package(manifest: "ProviderManifest") -> str | None:
    """Name the kit's package, as the manifest gives it; None without a kit."""
    return manifest.kit_package if manifest.kit_name else None


def _answer(told: dict[str, Any], package: str) -> KitAnswer:
    row = {str(name): str(value) for name, value in told["row"].items()}
    absent = tuple(map(str, told["absent"]))
    if not told["launcher"]:
        return KitAnswer(row=row, absent=absent)
    options = [] if told["route"] is None else ["--route", str(told["route"])]
    if told["attach"]:
        options += ["--attach", *map(str, told["attach"])]
    return KitAnswer(
        options=tuple(options),
        row=row,
        launcher=f"{package}.worker_launch",
        absent=absent,
    )


def _conditions(worker: Launch, package: str) -> Extra:
    """Give what the probe and the worker have in common on top of the allow-list."""
    manifest = worker.manifest
    declared, kept = package.upper(), dict(manifest.kit_env)
    stray = [f"{declared}_*", LEVERS_VARIABLE, *manifest.kit_env_absent]
    extra = _without(stray, child_env(manifest, os.environ))
    extra = {name: value for name, value in extra.items() if name not in kept}
    if manifest.kit_mode is not None:
        extra[declared] = manifest.kit_mode
    if manifest.kit_levers_off:
        extra[LEVERS_VARIABLE] = ",".join(manifest.kit_levers_off)
    if device := _device(worker.script):
        extra[DEVICE_VARIABLE] = device
    return extra


def _device(script: Sequence[str]) -> str | None:
    """Find the admitted device among the worker's own options."""
    ours = script[: script.index("--")] if "--" in script else script
    for flag, value in pairwise(ours):
        if flag == "--device":
            return value
    return None


def _without(rules: Iterable[str], names: Iterable[str]) -> Extra:
    """Give the removal of every name that one of the rules, names or prefixes, meets."""
    rules = tuple(rules)
    exact = {rule for rule in rules if not rule.endswith(("*", "_"))}
    prefixes = tuple(rule.rstrip("*") for rule in rules if rule not in exact)
    return {name: None for name in names if name in exact or name.startswith(prefixes)}


def _known(extra: Extra) -> dict[str, str]:
    return {name: value for name, value in extra.items() if value is not None}


def _run(
    argv: list[str],
    environ: dict[str, str],
    limit_s: float,
    marks: tuple[str, str | None],
) -> "_Ended":
    """Run the probe to its end or the limit; nothing of it is left afterwards."""
    import subprocess
    import tempfile

    instance, container_cli = marks
    # a file, not a pipe: what the kit leaves running could keep that open
    with tempfile.TemporaryFile() as output:
        probe = subprocess.Popen(
            argv,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status: int | None = None
        try:
            status = probe.wait(limit_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            end_all(
                instance, grace_s=0.0, container_cli=container_cli, session=probe.pid
            )
            probe.wait()
        output.seek(0)
        return _Ended(status, output.read().decode("utf-8", "replace"), limit_s)


def _said(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    shown = "".join(f"\n    {line}" for line in lines[-_TAIL_LINES:])
    return f", its last words:{shown}" if shown else ", and it said nothing"
