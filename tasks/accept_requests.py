"""What acceptance asks at each size: a filled table, or what the provider's script says."""

import itertools
import json
import os
import random
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_resident.errors import ExecEnvironmentError, Problem
from tasks import child

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest
    from tasks.child import Ended

STEP = "accept"
SCRIPT_S = 120.0
"""How long a script may take to build one request."""

_RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
_NUCLEOTIDES = "ACGT"
_WORDS = "the cell folds a long chain into one small shape and reads it again".split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """What is asked: at each size, and in the smoke."""

    by_size: Mapping[int, Mapping[str, Any]]
    """Ascending; empty: none declared."""
    plain: Mapping[str, Any]
    """The smoke's request; where its smoke is a script, that of the smallest size."""

    @property
    def largest(self) -> Mapping[str, Any]:
        """Give the request that takes longest."""
        return self.by_size[max(self.by_size)] if self.by_size else self.plain


def build(
    provider: "ProviderManifest", directory: Path
) -> Generator[str, None, Requests | list[Problem]]:
    """Give what is asked, or why that cannot be known; a script runs in `directory`."""
    by_size: dict[int, Mapping[str, Any]] = {}
    for size in provider.accept_sizes:
        if provider.accept_script is None:
            given: dict[str, Any] | Problem = filled(
                provider.accept_request or {}, size
            )
        else:
            given = yield from _said(provider, size, directory)
        if isinstance(given, Problem):
            return [given]
        by_size[size] = {**given, "size": size}
    plain = provider.smoke_request or next(iter(by_size.values()), None)
    if plain is None:
        return [_nothing_to_ask(provider)]
    return Requests(by_size=by_size, plain=plain)


def filled(request: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Fill the places in a request's texts; the same size gives the same request."""
    found = _filled(request, size)
    assert isinstance(found, dict)
    return found


def _filled(value: Any, size: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _filled(item, size) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_filled(item, size) for item in value]
    if value == "{size}":
        return size
    return _text(value, size) if isinstance(value, str) else value


def _text(text: str, size: int) -> str:
    for place, letters in (("{residues}", _RESIDUES), ("{nucleotides}", _NUCLEOTIDES)):
        if place in text:
            drawn = random.Random(size).choices(letters, k=size)
            text = text.replace(place, "".join(drawn))
    if "{words}" in text:
        words = itertools.islice(itertools.cycle(_WORDS), size)
        text = text.replace("{words}", " ".join(words))
    return text.replace("{size}", str(size))


def _said(
    provider: "ProviderManifest", size: int, directory: Path
) -> Generator[str, None, dict[str, Any] | Problem]:
    """Run `<model python> <script> SIZE` and read the JSON object that it prints."""
    from remote_resident import exec_env

    script = provider.resolve(provider.accept_script or "")
    try:
        bind = exec_env.Bind(path=directory, writable=True)
        where = exec_env.from_manifest(provider, [bind])
        env = exec_env.child_env(provider, os.environ)
        argv, env = where.argv([str(script), str(size)], env, os.environ)
    except ExecEnvironmentError as exc:
        return exc.as_problem(STEP)
    lines, ended = child.collected(
        child.run(argv, env=env, cwd=directory, timeout_s=SCRIPT_S)
    )
    request = _object(lines) if ended.returncode == 0 else None
    if request is None:
        return _no_request(provider, size, ended)
    yield f"request of size {size} built in {ended.seconds:.3f} s"
    return request


def _object(lines: list[str]) -> dict[str, Any] | None:
    """Read the object that begins a line, to the end; a long line comes in pieces."""
    for at, line in enumerate(lines):
        if line.startswith("{"):
            try:
                found = json.loads("".join(lines[at:]))
            except ValueError:
                return None
            return found if isinstance(found, dict) else None
    return None


def _no_request(provider: "ProviderManifest", size: int, ended: "Ended") -> Problem:
    if ended.timed_out:
        found = f"no end within {SCRIPT_S} s"
    elif ended.returncode:
        found = f"exit status {ended.returncode}"
    else:
        found = "no JSON object printed"
    tail = "".join(f"\n    {line[:200]}" for line in ended.tail[-10:])
    said = f", its last lines:{tail}" if tail else ""
    return Problem(
        step=STEP,
        reason="request_failed",
        text=f"{provider.slug}: accept.script: {provider.accept_script} {size}: "
        f"{found} found, one request as a JSON object wanted{said}",
        path=str(provider.path),
        name="accept.script",
        wanted=size,
        next=f"doit accept:{provider.slug}",
    )


def _nothing_to_ask(provider: "ProviderManifest") -> Problem:
    return Problem(
        step=STEP,
        reason="manifest_invalid",
        text=f"{provider.slug}: accept.sizes: none declared found, sizes wanted: its "
        "smoke is a script, so that there is no request to repeat",
        path=str(provider.path),
        name="accept.sizes",
    )
