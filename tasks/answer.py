"""What a model answered, and why that is not what was declared."""

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from remote_resident.errors import Problem

if TYPE_CHECKING:
    from remote_resident.manifest import Expect, ProviderManifest

MIB = 2**20
WARM_UP = 2
"""Requests whose memory says nothing of the next: caches fill, allocators settle."""

_OURS = frozenset({"_meter", "id", "output_dir", "ok"})
_SHOWN = 5
_TEXT_LIMIT = 120
_PART = re.compile(r"\[(-?\d+)\]|([^.\[\]]+)")


class _Missing:
    """The value of a key path that leads nowhere; no JSON value is it."""


MISSING = _Missing()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFile:
    """One file that a prediction wrote."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one request came to."""

    reply: Mapping[str, object]
    output_dir: Path
    files: Mapping[str, OutputFile] = field(default_factory=dict)
    """By the name relative to `output_dir`."""
    seconds: float | None = None


def wrong(
    provider: "ProviderManifest", expects: Sequence["Expect"], given: Answer
) -> list[Problem]:
    """List what is wrong with an answer: its keys, its files, and what is expected."""
    slug = provider.slug
    return [
        *missing_keys(slug, provider.output_keys, given.reply),
        *missing_outputs(slug, provider.outputs, given),
        *unmet(slug, expects, given.reply),
    ]


def table(provider: "ProviderManifest", given: Answer) -> dict[str, object]:
    """Give what a report keeps of an answer: what was expected of it, and its files."""
    values = looked_at(provider.smoke_expect, given.reply)
    return {
        "values": {key: shown(value) for key, value in values.items()},
        "files": {name: asdict(file) for name, file in given.files.items()},
    }


def lookup(reply: object, key_path: str) -> object:
    """Follow a dotted path, `[i]` or `.i` for a list; MISSING where it leads nowhere."""
    value = reply
    for index, name in _PART.findall(key_path):
        if isinstance(value, Mapping):
            value = value.get(name or index, MISSING)
        else:
            value = _item(value, index or name)
    return value


def unmet(slug: str, expects: Sequence["Expect"], reply: object) -> list[Problem]:
    """List every expectation that an answer does not meet."""
    problems = []
    for expect in expects:
        value = lookup(reply, expect.key)
        for wanted, text in _unmet(expect, value):
            problems.append(
                Problem(
                    step="smoke",
                    reason="answer_wrong",
                    text=f'{slug}: smoke.expect."{expect.key}": '
                    f"{_said(value)} found, {text} wanted",
                    name=expect.key,
                    wanted=_scalar(wanted),
                    found=_scalar(value),
                )
            )
    return problems


def looked_at(expects: Sequence["Expect"], reply: object) -> dict[str, object]:
    """Give the values that the expectations are about, by key path."""
    values = {expect.key: lookup(reply, expect.key) for expect in expects}
    return {key: value for key, value in values.items() if value is not MISSING}


def missing_keys(slug: str, keys: Sequence[str], reply: object) -> list[Problem]:
    """List every key of `output_keys` that a reply lacks."""
    return [
        Problem(
            step="smoke",
            reason="keys_missing",
            text=f"{slug}: output_keys: no {key!r} in the reply",
            name=key,
            wanted=key,
        )
        for key in keys
        if lookup(reply, key) is MISSING
    ]


def missing_outputs(slug: str, globs: Sequence[str], answer: Answer) -> list[Problem]:
    """List every glob of `outputs` that no file, or an empty one, stands for."""
    problems = []
    for glob in globs:
        found = _matching(glob, answer)
        empty = [name for name in found if not answer.files[name].size]
        if found and not empty:
            continue
        text = (
            f"{slug}: outputs: {', '.join(empty)}: 0 bytes found in "
            f"{answer.output_dir}, a file with content wanted"
            if empty
            else f"{slug}: outputs: no file for {glob!r} found in {answer.output_dir}"
        )
        problems.append(
            Problem(
                step="smoke",
                reason="outputs_missing",
                text=text,
                path=str(answer.output_dir),
                name=glob,
                wanted=glob,
                found=", ".join(empty) or None,
            )
        )
    return problems


def differences(one: Answer, other: Answer) -> list[str]:
    """Say where two answers to one request differ; empty: they are identical.

    Identical are the replies without what this project adds to them, where a path below
    the output directory counts by its relative name, and the files by name and digest.
    """
    texts = list(_differ("reply", _comparable(one), _comparable(other)))
    for name in sorted({*one.files, *other.files}):
        left, right = one.files.get(name), other.files.get(name)
        if left != right:
            texts.append(f"file {name}: {_file(left)} and {_file(right)}")
    return texts


def not_identical(slug: str, what: str, one: Answer, other: Answer) -> list[Problem]:
    """Give one problem that names the first differences, none where there are none."""
    texts = differences(one, other)
    if not texts:
        return []
    more = f"; {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return [
        Problem(
            step="smoke",
            reason="not_deterministic",
            text=f"{slug}: {what}: {'; '.join(texts[:_SHOWN])}{more} found, "
            "identical answers wanted (smoke.deterministic)",
            name=what,
        )
    ]


def shown(value: object) -> object:
    """Give a value as a report keeps it: numbers and texts whole, the rest as JSON."""
    return value if isinstance(value, str | int | float) else _said(value)


def growth_mib(rss_bytes: Sequence[int | None]) -> float | None:
    """Give the MiB that one held request adds to the next; None: not measured.

    `rss_bytes` is one reading after each request, in order. The first two requests are
    warm-up; the median of the consecutive differences from there on is a leak, and a
    single step of a cache is not.
    """
    steps = [
        later - sooner
        for sooner, later in itertools.pairwise(rss_bytes[WARM_UP - 1 :])
        if sooner is not None and later is not None
    ]
    import statistics

    return statistics.median(steps) / MIB if steps else None


def read_files(directory: Path) -> dict[str, OutputFile]:
    """Give size and digest of every regular file below a directory, by relative name."""
    import hashlib

    found = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            name = path.relative_to(directory).as_posix()
            found[name] = OutputFile(size=path.stat().st_size, sha256=digest)
    return found


def _item(value: object, index: str) -> object:
    if not isinstance(value, list) or not re.fullmatch(r"-?\d+", index):
        return MISSING
    at = int(index)
    return value[at] if -len(value) <= at < len(value) else MISSING


def _unmet(expect: "Expect", value: object) -> Iterator[tuple[object, str]]:
    """Yield what was wanted, as a value and in words, for each condition not met."""
    if expect.min is not None and not (_number(value) >= expect.min):
        yield expect.min, f"at least {expect.min}"
    if expect.max is not None and not (_number(value) <= expect.max):
        yield expect.max, f"at most {expect.max}"
    if expect.equals is not None and not _same(value, expect.equals):
        yield expect.equals, _said(expect.equals)
    if expect.matches is not None and not (
        isinstance(value, str) and re.search(expect.matches, value)
    ):
        yield expect.matches, f"a text that matches {expect.matches!r}"
    if expect.len is not None and _length(value) != expect.len:
        yield expect.len, f"length {expect.len}"


def _number(value: object) -> float:
    """Give a number as it is, and NaN, which no bound holds, for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return value


def _length(value: object) -> int | None:
    return len(value) if isinstance(value, str | list | dict) else None


def _same(one: object, other: object) -> bool:
    # True == 1 in Python, and not in JSON
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return one == other


def _comparable(answer: Answer) -> dict[str, object]:
    roots = (str(answer.output_dir), answer.output_dir.as_uri())
    return {
        key: _relative(value, roots)
        for key, value in answer.reply.items()
        if key not in _OURS
    }


def _relative(value: object, roots: tuple[str, ...]) -> object:
    """Name what lies in the output directory, a path or a file URL, from there."""
    if isinstance(value, str):
        for root in roots:
            if value == root or value.startswith(root + "/"):
                return "{output_dir}" + value[len(root) :]
    if isinstance(value, list):
        return [_relative(item, roots) for item in value]
    if isinstance(value, dict):
        return {key: _relative(item, roots) for key, item in value.items()}
    return value


def _differ(where: str, one: object, other: object) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*one, *other]):
            yield from _differ(
                f"{where}.{key}", one.get(key, MISSING), other.get(key, MISSING)
            )
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from _differ(f"{where}[{index}]", left, right)
    elif not _same(one, other):
        yield f"{where}: {_said(one)} and {_said(other)}"


def _matching(glob: str, answer: Answer) -> list[str]:
    found = (p.relative_to(answer.output_dir) for p in answer.output_dir.glob(glob))
    return sorted(p.as_posix() for p in found if p.as_posix() in answer.files)


def _file(found: OutputFile | None) -> str:
    return f"{found.size} bytes {found.sha256}" if found else "no file"


def _said(value: object) -> str:
    if value is MISSING:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _TEXT_LIMIT else f"{text[:_TEXT_LIMIT]}..."


def _scalar(value: object) -> str | int | float | None:
    if value is MISSING or isinstance(value, bool):
        return None if value is MISSING else str(value).lower()
    return value if isinstance(value, str | int | float) else _said(value)
