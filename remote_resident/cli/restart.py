"""`tu remote restart`: a fresh worker, whatever came of earlier starts."""

from typing import Any

from remote_resident.cli import tree
from remote_resident.cli.answer import Answer, Asked


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument("slug", metavar="SLUG", help="whose worker")


def run(asked: Asked) -> Answer:
    """End the worker, forget its failed starts, and start it anew."""
    from remote_resident import crashes, manifest, places
    from remote_resident.supervisor import ResidentWorker

    provider = manifest.find(tree.data(asked), asked.slug)
    worker = ResidentWorker(provider, owned=False)
    stopped = worker.stop()
    crashes.History(places.crash_path(provider.slug, provider.tree)).forget()
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
