"""Answers of a check that still stand: nothing that they rest on has changed since.

Kept is only that a provider was right, never that it was wrong, with the identity (size,
modification and change time, inode) of every file and directory that was looked at, and
with the variables and the driver that it depends on. One that cannot be told by such
signs (a kit, a container, archives that are used unpacked, an interpreter that has to be
asked) is not kept. Nothing heavy is imported before an answer is missing: all that a
check of an unchanged host costs is here.
"""

# a Path for each of some thousand looks costs more than they do
# ruff: noqa: PTH116, PTH118, PTH120, PTH123, PTH208

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_resident import places

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest
    from tasks.check import ProviderCheck

SETTLED_S = 2.0
"""A file that changed later than this before the check could still change unseen."""

Answer = dict[str, Any]
"""What is kept of a provider: `set_up`, `from_memo`, `operations`, and what they rest on:
`paths`, `stamp` and `environ`."""
Identity = tuple[int, int, int, int]

_NVIDIA = "/proc/driver/nvidia"
_EVERYWHERE = ("HOME", "TU_REMOTE_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")


def slugs(tree: Path) -> list[str]:
    """List the providers of a tree, as `manifest.slugs` does."""
    folder = os.path.join(tree, "manifests")
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(
        name for name in names if os.path.lexists(f"{folder}/{name}/provider.toml")
    )


class Answers:
    """The kept answers of one tree; a file that is damaged, or another code's, is none."""

    def __init__(self, tree: Path) -> None:
        self._path = places.cache_dir() / "check" / f"{places.tree_id(tree)}.json"
        self._code = _code()
        self._answers = self._read()

    def held(self, wanted: Iterable[str]) -> dict[str, Answer]:
        """Give the answers that still stand."""
        found = ((slug, self._answers.get(slug)) for slug in wanted)
        return {slug: answer for slug, answer in found if answer and _stands(answer)}

    def keep(
        self,
        checks: Sequence["ProviderCheck"],
        loaded: Mapping[str, "ProviderManifest | Exception"],
        before_ns: int,
    ) -> None:
        """Keep what was found right and rests on nothing that changed after `before_ns`."""
        changed = False
        for check in checks:
            provider = loaded.get(check.slug)
            if provider is None:
                continue
            answer = None
            if check.ok and not isinstance(provider, Exception):
                answer = _answer(check, provider, before_ns)
            changed |= self._answers.get(check.slug) != answer
            if answer is None:
                self._answers.pop(check.slug, None)
            else:
                self._answers[check.slug] = answer
        if changed:
            self._write()

    def _read(self) -> dict[str, Answer]:
        import json

        try:
            content = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        if not isinstance(content, dict) or content.get("code") != self._code:
            return {}
        answers = content.get("answers")
        return answers if isinstance(answers, dict) else {}

    def _write(self) -> None:
        """Write all of it to a new file and rename it; where that fails, it is not kept."""
        import json

        from remote_resident.errors import ProviderError

        fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            places.ensure(self._path.parent)
            fresh.write_text(json.dumps({"code": self._code, "answers": self._answers}))
            fresh.replace(self._path)
        except (OSError, ProviderError):
            with suppress(OSError):
                fresh.unlink(missing_ok=True)


def _code() -> str:
    """Give what an answer rests on besides its provider: code, interpreter, driver."""
    runtime = os.path.dirname(places.__file__)
    folders = (os.path.dirname(__file__), runtime, f"{runtime}/worker_side")
    files = [f"{folder}/{name}" for folder in folders for name in os.listdir(folder)]
    told = [_identity(path) for path in sorted(files) if path.endswith(".py")]
    environ = [os.environ.get(name) for name in _EVERYWHERE]
    driver = (
        _listed(f"{_NVIDIA}/gpus"),
        _identity(_NVIDIA) and _text(f"{_NVIDIA}/version"),
    )
    return sha256(
        repr((sys.version, sys.prefix, told, environ, driver)).encode()
    ).hexdigest()


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _identity(path: str) -> Identity | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def _stamp(paths: Iterable[str]) -> str:
    return sha256(repr([_identity(path) for path in paths]).encode()).hexdigest()


def _stands(answer: Answer) -> bool:
    try:
        environ, paths, stamp = answer["environ"], answer["paths"], answer["stamp"]
        same = all(os.environ.get(name) == value for name, value in environ.items())
        return bool(same and _stamp(paths) == stamp)
    except (KeyError, TypeError, AttributeError):
        return False


def _answer(
    check: "ProviderCheck", provider: "ProviderManifest", before_ns: int
) -> Answer | None:
    """Build what is kept of a provider that was found right; None: nothing can be."""
    from tasks import measured

    report = measured.report_path(provider)
    paths = [str(path) for path in _declared(provider)]
    if check.set_up:
        here = _here(provider)
        if here is None:
            return None
        paths += [str(path) for path in here]
    found = {path: _identity(path) for path in dict.fromkeys(paths)}
    there = _identity(str(report))
    if (there is not None) != check.set_up:
        return None
    for identity in (*found.values(), *([there] if there else [])):
        if identity is None or max(identity[1:3]) >= before_ns:
            return None
    rests_on = [*found, str(report)]
    return {
        "set_up": check.set_up,
        "from_memo": check.from_memo,
        "operations": list(provider.operations),
        "environ": {name: os.environ.get(name) for name in _variables(provider)},
        "paths": rests_on,
        "stamp": _stamp(rests_on),
    }


def _declared(provider: "ProviderManifest") -> list[Path]:
    """List what a provider declares with: its directory, and what it names outside."""
    from tasks import measured

    inside = [p for p in provider.directory.rglob("*") if "__pycache__" not in p.parts]
    named = [provider.lock_path(), provider.kit_file(), _request_file(provider)]
    return [
        provider.directory,
        *inside,
        *(path for path in named if path is not None),
        # what the report's own keys are made of
        *measured._worker_files(provider),
        *measured._smoke_files(provider),
    ]


def _request_file(provider: "ProviderManifest") -> Path | None:
    """Name the file that the smoke's request was read from; None: it is in the manifest."""
    import tomllib

    smoke = tomllib.loads(provider.path.read_text(encoding="utf-8"))["smoke"]
    request = smoke.get("request")
    return provider.resolve(request) if isinstance(request, str) else None


def _here(provider: "ProviderManifest") -> list[Path] | None:
    """List what this machine has of a provider; None: more than its files tell."""
    from tasks import environment, lock

    unpacked = any(file.unpacked_dir for file in provider.weights_files)
    if provider.env_kind != "venv" or provider.kit_name is not None or unpacked:
        return None
    paths = [path for _, path in provider.weight_paths()]
    if paths:
        paths.append(places.memo_path(provider.slug, provider.tree))
    python = provider.python_executable()
    site = environment.site_packages(python) if python else None
    if python is None or site is None or not environment.is_plain(python):
        return None
    prefix = python.parent.parent
    paths += [python, prefix / "pyvenv.cfg", prefix / "lib", site]
    pins = provider.lock_path()
    if pins is not None:
        pinned = {pin.name for pin in lock.parse(pins).pins}
        paths += [
            site / name
            for name in _listed(str(site))
            if name.endswith(".dist-info") and _distribution(name) in pinned
        ]
    return paths


def _distribution(dist_info: str) -> str:
    from tasks import lock

    return lock.normalised(dist_info.removesuffix(".dist-info").rpartition("-")[0])


def _variables(provider: "ProviderManifest") -> set[str]:
    """Name the variables that say where a provider's things are."""
    import re

    texts = (provider.env_python, provider.weights_root_default)
    named = re.findall(r"\$\{?(\w+)", " ".join(text or "" for text in texts))
    own = (provider.weights_root_env, provider.python_variable())
    return {*named, *(name for name in own if name)}
