"""`tu remote stop`: end a provider's worker, or all of this user's."""

import os
from typing import Any

from remote_resident.cli import tree
from remote_resident.cli.answer import Answer, Asked
from remote_resident.errors import UsageError


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument("slug", nargs="?", metavar="SLUG", help="whose worker")
    parser.add_argument(
        "--all", action="store_true", help="every worker of yours on this machine"
    )


def run(asked: Asked) -> Answer:
    """Ask it to leave, let it finish what it has in hand, end what is left."""
    if asked.all == (asked.slug is not None):
        found = "both a name and --all" if asked.all else "neither a name nor --all"
        raise UsageError(
            f"tu remote stop: {found} found, one of them wanted",
            next="tu remote stop --help",
        )
    stopped = _all() if asked.all else _one(asked)
    pids = ", ".join(map(str, stopped))
    return Answer(
        document={"stopped": stopped},
        text=f"stopped pid {pids}" if stopped else "nothing was running",
    )


def _one(asked: Asked) -> list[int]:
    from remote_resident import manifest
    from remote_resident.supervisor import ResidentWorker

    provider = manifest.find(tree.data(asked), asked.slug)
    if provider.runtime_mode == "jobs":
        from remote_resident.jobs.starting import starter_of

        return starter_of(provider).stop()
    return ResidentWorker(provider, owned=False).stop()


def _all() -> list[int]:
    """End what this user's workers of any tree are; services are their daemon's."""
    from remote_resident import machine, room

    mine = [h for h in machine.holdings() if h.uid == os.geteuid() and h.instance]
    for holder in mine:
        room.end(holder)
    return sorted(pid for holder in mine for pid in holder.pids)
