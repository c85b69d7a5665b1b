"""What a measured report rests on: digests, versions and pins, as they are now.

For a report they are read from the bytes; for a look at whether a report still holds,
from what is kept of files that did not change.
"""

import functools
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from remote_resident import interpreters, readings
from remote_resident.errors import ProviderError
from remote_resident.readings import Readings
from tasks import installed as seen

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest

_HEX_DIGITS = 64
_WORKER_SIDE = os.path.join(os.path.dirname(readings.__file__), "worker_side")  # noqa: PTH118, PTH120


def inputs(
    provider: "ProviderManifest",
    weights: Mapping[str, str | None],
    kept: Readings | None = None,
    site: seen.Site | None = None,
) -> dict[str, object]:
    """Give what a report rests on, as it is now.

    `weights` maps each declared file to its digest, None where it is not known. `kept`:
    None: every digest is computed from bytes that are read now. `site`: what was seen of
    the environment already. A value of None stands for what is not there or cannot be
    read. Raises ProviderError (`stale`) where the manifest is not any more what was
    loaded.
    """
    python = provider.python_file()
    small = Readings() if kept is None else kept
    if site is None:
        site = seen.see(python, small) if python else seen.NOTHING
    distributions = installed(site)
    lock = provider.lock_file()
    return {
        "manifest": _manifest(provider, kept),
        "lock": None if lock is None else _digest(lock, small),
        "worker": _digest_all("worker", _worker_files(provider, small), small),
        "smoke": _digest_all("smoke", _smoke_files(provider, small), small),
        "worker_side": _worker_side(),
        "kit_commit": _kit_commit(provider),
        "interpreter": interpreter_version(python, site.layout),
        "distributions": None
        if distributions is None
        else _digest_of(
            "distributions", tuple(distributions.items()), small, distributions
        ),
        "distributions_count": None if distributions is None else len(distributions),
        "installed": distributions or {},
        "weights": dict(weights),
    }


def installed(site: seen.Site) -> dict[str, str] | None:
    """Give name and version of every installed distribution; None: not known."""
    found = site.versions
    if not found and not site.plain:
        return None
    return {name: _versions(found[name]) for name in sorted(found)}


def _versions(found: list[str]) -> str:
    return found[0] if len(found) == 1 else " and ".join(sorted(found))


def interpreter_version(
    python: str | None, layout: interpreters.Layout | None = None
) -> str | None:
    """Give an interpreter's version as its environment states it; None: not known."""
    if python is None:
        return None
    settings = layout.settings if layout else interpreters.settings(Path(python))
    stated = settings.get("version") or settings.get("version_info")
    if stated:
        return stated
    import re

    named = re.search(r"(\d+\.\d+)$", os.path.realpath(python))
    return named.group(1) if named else None


def changes(was: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Say what inputs changed; empty: none."""
    # what is not known is not in a report
    if was == {key: value for key, value in now.items() if value is not None}:
        return []
    return list(_differ(was, now))


def changed(name: str, was: object, now: object) -> Iterator[str]:
    """Say what changed, if it did."""
    if was != now:
        yield f"{name} {_short(was)} -> {_short(now)}"


def _differ(was: Mapping[str, object], now: Mapping[str, object]) -> Iterator[str]:
    for key, value in now.items():
        if key == "installed" or key.startswith("distributions"):
            continue
        before = was.get(key)
        if isinstance(value, dict):
            before = before if isinstance(before, dict) else {}
            for name in dict.fromkeys([*before, *value]):
                yield from changed(f"{key}.{name}", before.get(name), value.get(name))
        else:
            yield from changed(key, before, value)
    yield from _installed_differ(was, now)


def _installed_differ(
    was: Mapping[str, object], now: Mapping[str, object]
) -> Iterator[str]:
    """Name the packages where both lists are known, and the digests otherwise."""
    key = "distributions"
    if was.get(key) == now.get(key):
        return
    before, after = was.get("installed"), now.get("installed")
    if not isinstance(before, dict) or not isinstance(after, dict) or not after:
        yield from changed(key, was.get(key), now.get(key))
        return
    for name in sorted({*before, *after}):
        yield from changed(name, before.get(name), after.get(name))


def _short(value: object) -> str:
    if value is None:
        return "none"
    text = str(value)
    is_digest = len(text) == _HEX_DIGITS and set("0123456789abcdef").issuperset(text)
    return text[:12] if is_digest else text


def _manifest(provider: "ProviderManifest", kept: Readings | None) -> str:
    from remote_resident import manifest

    loaded = manifest.effective_digest(provider)
    if kept is not None:
        return loaded
    again = manifest.load(provider.path, provider.lock_tree, afresh=True)
    found = manifest.effective_digest(again)
    if found != loaded:
        raise ProviderError(
            f"{provider.path}: changed since it was loaded: {_short(found)} found, "
            f"{_short(loaded)} wanted",
            reason="stale",
            next=f"doit setup:{provider.slug}",
        )
    return found


def _worker_files(provider: "ProviderManifest", kept: Readings) -> list[str]:
    """List the worker and the modules beside it, which it may import."""
    beside = set(_modules(provider.folder, kept))
    for script in (provider.smoke_script, provider.accept_script):
        if script:
            beside.discard(provider.within(script))
    if provider.runtime_worker:
        beside.add(provider.within(provider.runtime_worker))
    return sorted(beside)


def _modules(folder: str, kept: Readings) -> Iterator[str]:
    try:
        entries = kept.listing(folder)
    except OSError:
        return
    for name, is_directory in entries:
        if is_directory:
            yield from _modules(f"{folder}/{name}", kept)
        elif name.endswith(".py"):
            yield f"{folder}/{name}"


def _smoke_files(provider: "ProviderManifest", kept: Readings) -> list[str]:
    """List the script, and the provider's files that a request names."""
    if provider.smoke_script:
        return [provider.within(provider.smoke_script)]
    folder = provider.folder
    try:
        there = {name for name, _ in kept.listing(folder)}
    except OSError:
        there = set()
    # a plain name that is not listed is no file
    texts = (t for t in _texts(provider.smoke_request) if t in there or "/" in t)
    named = {posixpath.join(folder, text) for text in texts}
    return sorted(filter(_is_file, named))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _is_file(path: str) -> bool:
    try:
        return os.path.isfile(path)  # noqa: PTH113 - asked for every text of a request
    except ValueError:
        # a text of a request is any text: one with a NUL
        return False


def _kit_commit(provider: "ProviderManifest") -> str | None:
    if provider.kit_name is None:
        return None
    from remote_resident import kits

    kit = kits.declared(provider.kit_file())
    return None if kit is None else kit.commit


@functools.cache
def _worker_side() -> str | None:
    """Give the digest of this program's own side of a worker, as this process found it."""
    kept = readings.of("_worker_side", _WORKER_SIDE)
    with os.scandir(_WORKER_SIDE) as entries:
        files = sorted(e.path for e in entries if e.name.endswith(".py"))
    found = _digest_all("worker_side", files, kept)
    kept.save()
    return found


def _digest(path: str, kept: Readings) -> str | None:
    try:
        return kept.digest(path)
    except OSError:
        return None


def _digest_all(what: str, paths: Sequence[str], kept: Readings) -> str | None:
    """Give one digest for several files by name and content; None for no file."""
    if not paths:
        return None
    parts = tuple((posixpath.basename(path), _digest(path, kept)) for path in paths)
    return _digest_of(what, parts, kept, parts)


def _digest_of(
    what: str, parts: tuple[object, ...], kept: Readings, value: object
) -> str:
    def made() -> str:
        import json

        text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
        return readings.sha256(text.encode())

    return kept.worked(what, parts, made)
