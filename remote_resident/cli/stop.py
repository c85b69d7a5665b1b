"""`tu remote stop`: end a provider's worker, or all of this user's."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_resident.cli import tree
from remote_resident.cli.answer import Answer, Asked
from remote_resident.errors import ProviderError, UsageError

if TYPE_CHECKING:
    from remote_resident.admission import Holder


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
        raise UsageError(f"tu remote stop: {found} found, one of them wanted")
    stopped = _all() if asked.all else _one(asked)
    pids = ", ".join(map(str, stopped))
    return Answer(
        document={"stopped": stopped},
        text=f"stopped pid {pids}" if stopped else "nothing was running",
    )


def _one(asked: Asked) -> list[int]:
    from remote_resident import manifest
    from remote_resident.supervisor import ResidentWorker

    root = tree.data(asked)
    try:
        provider = manifest.find(root, asked.slug)
    except ProviderError:
        # its manifest may have gone, or been broken, since it was started
        found = [holder for holder in _mine() if _is_called(holder, root, asked.slug)]
        if not found:
            raise
        return _ended(found)
    if provider.runtime_mode == "jobs":
        from remote_resident.jobs.starting import starter_of

        return starter_of(provider).stop()
    return ResidentWorker(provider, owned=False).stop()


def _all() -> list[int]:
    """End what this user's workers of any tree are; services are their daemon's."""
    return _ended(_mine())


def _mine() -> list["Holder"]:
    from remote_resident import machine

    return [h for h in machine.holdings() if h.uid == os.geteuid() and h.instance]


def _ended(holders: list["Holder"]) -> list[int]:
    from remote_resident import room

    for holder in holders:
        room.end(holder)
    return sorted(pid for holder in holders for pid in holder.pids)


def _is_called(holder: "Holder", root: Path, name: str) -> bool:
    """Say whether a name, a slug of the tree or a path, is that of a holder."""
    from remote_resident.manifest_path import file_at

    file = file_at(name if "/" in name else f"{root}/manifests/{name}")
    folder = Path(os.path.realpath(os.path.dirname(file)))  # noqa: PTH120
    trees = [folder]
    if folder.parent.name == "manifests":
        trees.append(folder.parent.parent)
    here = holder.tree and Path(os.path.realpath(holder.tree))
    return holder.slug == folder.name and here in trees
