"""`tu remote restart`: a fresh worker, whatever came of earlier starts."""

from typing import TYPE_CHECKING, Any

from remote_resident.cli import tree
from remote_resident.cli.answer import Answer, Asked

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument("slug", metavar="SLUG", help="whose worker")


def run(asked: Asked) -> Answer:
    """End the worker, forget its failed starts, and start it anew."""
    from remote_resident import manifest
    from remote_resident.supervisor import ResidentWorker

    provider = manifest.find(tree.data(asked), asked.slug)
    if provider.runtime_mode == "jobs":
        return _jobs(provider)
    worker = ResidentWorker(provider, owned=False)
    stopped = worker.stop()
    worker.forget_failures()
    if provider.runtime_mode == "subprocess":
        return _later(stopped, "each call starts its own process")
    screen = tree.screen(asked)
    screen.started(provider.slug, "start")
    try:
        started = worker.ensure_started()
    finally:
        screen.close()
    was = f"stopped pid {', '.join(map(str, stopped))}; " if stopped else ""
    return Answer(
        document={"stopped": stopped, "started": started.pid},
        text=f"{was}started pid {started.pid}",
    )


def _jobs(provider: "ProviderManifest") -> Answer:
    """End a job worker; the host starts the next one when a job asks for it."""
    from remote_resident.jobs.starting import starter_of

    starter = starter_of(provider)
    stopped = starter.stop()
    starter.crashes.forget()
    return _later(stopped, "the next job starts a new one")


def _later(stopped: list[int], next_start: str) -> Answer:
    was = f"stopped pid {', '.join(map(str, stopped))}; " if stopped else ""
    return Answer(
        document={"stopped": stopped, "started": None}, text=f"{was}{next_start}"
    )
