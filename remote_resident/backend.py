"""The workers of this process, one a provider: what a program that asks models imports.

Importing starts nothing. What this process starts it owns, and stops at its exit.
"""

import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from remote_resident import file_identity, manifest, places
from remote_resident.supervisor import ResidentWorker, stop_owned

if TYPE_CHECKING:
    from remote_resident.admission import Budget

WARM_VARIABLE = "TOOLUNIVERSE_REMOTE_WARM_MODEL"

_workers: dict[Path, tuple[file_identity.Identity | None, ResidentWorker]] = {}
_guard = threading.Lock()


def worker_for(manifest_path: Path | str) -> ResidentWorker:
    """Give this process's worker of a provider.toml, the same one each time.

    A file that was edited meanwhile gives a worker of the new content. Starts nothing:
    the first request does. Raises ManifestError.
    """
    path = Path(os.path.abspath(manifest_path))  # noqa: PTH100 - no symlink followed
    mark = file_identity.now(path)
    with _guard:
        known = _workers.get(path)
        if known is None or known[0] != mark:
            known = (mark, ResidentWorker(manifest.load(path)))
            _workers[path] = known
    return known[1]


def worker_for_provider_dir(directory: Path | str) -> ResidentWorker:
    """Give the worker of the provider that a directory holds."""
    return worker_for(Path(directory) / manifest.FILE)


def connect(slug: str) -> ResidentWorker:
    """Give the worker of a provider of the tree in force, by slug or directory.

    Its `request` may be called from any thread; one connection is kept between
    requests. Raises UsageError (`unknown_name`), ManifestError.
    """
    tree = places.find_tree()
    path = tree / "manifests" / slug / manifest.FILE
    if "/" not in slug and path.is_file():
        return worker_for(path)
    return worker_for(manifest.find(tree, slug).path)


def running() -> "dict[str, Budget]":
    """Give the budget of each provider whose worker this process has running."""
    from remote_resident.room import budget_of

    return {
        worker.slug: budget_of(worker.manifest)
        for worker in _known()
        if worker.is_running()
    }


def stop_all(grace_s: float = 10.0) -> list[int]:
    """Stop the workers that this process owns, together; the pids that ended.

    Safe to call twice; never raises. The same happens at exit.
    """
    return stop_owned(grace_s)


def log_path_for(slug: str) -> Path:
    """Name the log of a provider's worker, of the tree in force."""
    return places.log_path(slug, places.find_tree())


def warm_if_requested(provider_dir: Path | str | None = None) -> str | None:
    """Load a provider's model ahead of need, where the environment asks for it.

    Only where TOOLUNIVERSE_REMOTE_WARM_MODEL is exactly "1". `provider_dir` None: the
    directory of the program that runs. Gives the slug that is being loaded, None for
    anything else: to load ahead is never a reason to fail. The worker's `status` says
    in `warm` what became of it.
    """
    if os.environ.get(WARM_VARIABLE) != "1":
        return None
    try:
        worker = worker_for_provider_dir(provider_dir or _directory_of_main())
        worker.warm = "loading"
        threading.Thread(target=_warm, args=(worker,), daemon=True).start()
    except Exception:  # the program runs as well without
        return None
    return worker.slug


def _warm(worker: ResidentWorker) -> None:
    from logging import getLogger

    began = time.monotonic()
    try:
        worker.ensure_started()
    except BaseException as exc:  # a launch function's SystemExit ends nothing here
        worker.warm = f"failed: {str(exc) or type(exc).__name__}"
        getLogger(__name__).warning("%s: loading ahead: %s", worker.slug, worker.warm)
        return
    worker.warm = "loaded"
    getLogger(__name__).info(
        "%s: loaded ahead in %s s", worker.slug, time.monotonic() - began
    )


def _directory_of_main() -> Path:
    return Path(str(sys.modules["__main__"].__file__)).absolute().parent


def _known() -> list[ResidentWorker]:
    with _guard:
        return [worker for _, worker in _workers.values()]


def _renew() -> None:
    global _guard
    _guard = threading.Lock()


# another thread may have held it as this process was forked
os.register_at_fork(after_in_child=_renew)
