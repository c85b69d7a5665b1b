"""`tu remote job openapi`: the OpenAPI document of a job worker's routes."""

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

from remote_resident.cli import tree
from remote_resident.cli.answer import Answer, Asked
from remote_resident.errors import ProviderError

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest

_LIMIT_S = 300.0


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument("slug", metavar="SLUG", help="whose worker's")


def run(asked: Asked) -> Answer:
    """Ask the worker in the provider's own environment; no job is run."""
    from remote_resident import manifest
    from remote_resident.jobs.provider import refuse_mode

    provider = manifest.find(tree.data(asked), asked.slug)
    refuse_mode(provider)
    document = _document(provider)
    return Answer(document=document, text=json.dumps(document, indent=2))


def _document(provider: "ProviderManifest") -> dict[str, Any]:
    from remote_resident import exec_env
    from remote_resident.jobs.starting import WORKER

    environment = exec_env.from_manifest(provider, [exec_env.Bind(path=WORKER)])
    folder = {"PYTHONPATH": str(provider.directory)} if environment.contained else {}
    env = exec_env.child_env(provider, os.environ, folder)
    entry = ["--entry", str(provider.runtime_entry), "--id", provider.slug]
    argv, env = environment.argv([str(WORKER), "--openapi", *entry], env)
    try:
        told = subprocess.run(
            argv,
            env=env,
            cwd=provider.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
        found = json.loads(told.stdout) if told.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired) as exc:
        raise _none(provider, str(exc)) from None
    if not isinstance(found, dict):
        said = told.stderr.decode(errors="replace").strip().split("\n")[-1]
        raise _none(provider, f"exit status {told.returncode}: {said}")
    return found


def _none(provider: "ProviderManifest", said: str) -> ProviderError:
    return ProviderError(
        f"{provider.slug}: {said} found, an OpenAPI document of its worker wanted",
        reason="start_failed",
        next=f"tu remote setup {provider.named}",
    )
