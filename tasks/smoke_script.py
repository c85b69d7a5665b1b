"""The smoke of a provider that is asked by a script of its own."""

import json
import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_resident.errors import ExecEnvironmentError, Problem
from tasks import answer, child
from tasks.step import StepResult, failed, refused

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest
    from tasks.child import Ended

STEP = "smoke"

Ran = tuple[str, dict[str, dict[str, object]]]


def run(provider: "ProviderManifest") -> Generator[str, None, StepResult | Ran]:
    """Run `<model python> <script>` under the deadline, in an output directory.

    It stands in that directory, ends with 0 when all is well, and may print its answer
    as a JSON object on its last line. Its memory is not known.
    """
    from tasks.trial import CUTS, clear_corner, make_corner

    corner = make_corner(provider)
    keep = True
    try:
        command = _command(provider, corner.directory)
        if isinstance(command, Problem):
            keep = False
            return refused(STEP, [command], lines=["nothing was started"])
        argv, env = command
        limit_s = provider.smoke_timeout_s
        ended = yield from child.run(
            argv, env=env, cwd=corner.directory, timeout_s=limit_s
        )
        given = answer.Answer(
            reply=last_json(ended.tail),
            output_dir=corner.directory,
            files=answer.read_files(corner.directory),
            seconds=ended.seconds,
        )
        found = _wrong(provider, ended, given)
        if found:
            said = [f"  {line}" for line in ended.tail]
            lines = ["its last lines:", *said] if said else []
            kept = f"kept: {corner.directory}"
            return failed(STEP, found, lines=[*lines, kept])
        keep = False
        return f"script {ended.seconds:.3f} s", _tables(provider, given)
    except CUTS:
        keep = False
        raise
    finally:
        clear_corner(corner, keep=keep)


def last_json(lines: Sequence[str]) -> dict[str, Any]:
    """Give the last line as a JSON object; empty where it is none."""
    try:
        found = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _command(
    provider: "ProviderManifest", directory: Path
) -> tuple[list[str], dict[str, str]] | Problem:
    from remote_resident import exec_env

    script = provider.resolve(provider.smoke_script or "")
    root = provider.weights_root()
    extra: dict[str, str | None] = {"TU_REMOTE_OUTPUT_DIR": str(directory)}
    if provider.weights_root_env and root is not None:
        extra[provider.weights_root_env] = str(root)
    try:
        bind = exec_env.Bind(path=directory, writable=True)
        where = exec_env.from_manifest(provider, [bind])
        env = exec_env.child_env(provider, os.environ, extra)
        return where.argv([str(script)], env, os.environ)
    except ExecEnvironmentError as exc:
        return exc.as_problem(STEP)


def _wrong(
    provider: "ProviderManifest", ended: "Ended", given: answer.Answer
) -> list[Problem]:
    slug, script = provider.slug, provider.smoke_script
    if ended.timed_out:
        limit = provider.smoke_timeout_s
        text = (
            f"{slug}: {script}: no end within {limit} s found, an end within that "
            "wanted (smoke.timeout_s); all of it was ended"
        )
        return [_problem(provider, "timeout", text, limit)]
    if ended.returncode != 0:
        text = f"{slug}: {script}: exit status {ended.returncode} found, 0 wanted"
        return [_problem(provider, "request_failed", text, 0)]
    return answer.wrong(provider, provider.smoke_expect, given)


def _problem(
    provider: "ProviderManifest", reason: str, text: str, wanted: float
) -> Problem:
    return Problem(
        step=STEP,
        reason=reason,
        text=text,
        name="smoke.script",
        wanted=wanted,
        next=f"doit setup:{provider.slug}",
    )


def _tables(
    provider: "ProviderManifest", given: answer.Answer
) -> dict[str, dict[str, object]]:
    return {
        "timing": {"fresh_s": given.seconds, "total_s": given.seconds},
        "memory": {
            "ram_budget_gb": provider.host_ram_budget_gb,
            "vram_budget_gb": provider.gpu_vram_budget_gb,
        },
        "answer": answer.table(provider, given),
    }
