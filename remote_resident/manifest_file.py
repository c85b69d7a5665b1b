"""From a provider.toml's bytes to the values that a manifest holds, or to every fault.

Imported where a file is read for the first time, or something is wrong with it.
"""

import errno
import posixpath
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from remote_resident import readings
from remote_resident.errors import ManifestError, Problem, summary
from remote_resident.file_identity import Identity
from remote_resident.manifest_lines import key_lines, line_of
from remote_resident.manifest_path import FILE, File, is_inside, leads_out
from remote_resident.manifest_rules import Fault, Wrong, full_name, json_value, show
from remote_resident.manifest_schema import asked, kit_package
from remote_resident.manifest_schema import read as read_keys

MAX_BYTES = readings.MAX_BYTES
"""No manifest is larger; what is was named by mistake."""
REPEAT = 3


def read(file: File) -> tuple[dict[str, Any], Identity | None]:
    """Give all that one provider.toml declares, and which file that was.

    The content of a request that is named by its path is not looked at: another file
    has it. Raises ManifestError with every fault.
    """
    text, identity = read_text(file)
    values, faults, doubtful = read_keys(_parse(file, text))
    if "slug" not in doubtful:
        faults += _slug_faults(values["slug"], file)
    faults += _leaving(values, file)
    if faults:
        # what is wrong with the request is told with the rest
        if type(values["smoke_request"]) is str and "smoke_request" not in doubtful:
            try:
                _put_request(values, file)
            except Wrong as wrong:
                faults += wrong.faults
        _refuse(file, text, faults)
    if values["smoke_repeat"] is None:
        values["smoke_repeat"] = 0 if values["runtime_mode"] == "subprocess" else REPEAT
    if values["kit_name"] is not None and values["kit_package"] is None:
        values["kit_package"] = kit_package(values["kit_subdir"])
    return values, identity


def read_request(values: dict[str, Any], file: File) -> Identity | None:
    """Put the request's own content in place of its path, and say which file it was.

    None where it may still change unseen. Raises ManifestError.
    """
    try:
        return _put_request(values, file)
    except Wrong as wrong:
        _refuse(file, read_text(file)[0], wrong.faults)


def _slug_faults(slug: str | None, file: File) -> list[Fault]:
    wanted = posixpath.basename(file.directory)
    if slug is None:
        return [Fault(("slug",), f"missing, wanted {wanted!r}")]
    if slug != wanted:
        text = f"{slug!r}, wanted the directory's name {wanted!r}"
        return [Fault(("slug",), text, "slug_mismatch")]
    return []


def read_text(file: File) -> tuple[str, Identity | None]:
    """Give the text of a provider.toml and which file it was. Raises ManifestError."""
    try:
        content, identity = readings.content(file.path)
    except FileNotFoundError:
        text = f"{file.shown}: no such file, wanted a {FILE}"
        _refuse_file(file, text, "file_missing")
    except OSError as exc:
        _refuse_file(file, f"{file.shown}: {exc.strerror}, wanted a file")
    except ValueError:
        # no path holds a NUL, or what the filesystem's encoding cannot say
        _refuse_file(file, f"{file.path!r}: no path, wanted a file")
    if len(content) > MAX_BYTES:
        _refuse_file(file, f"{file.shown}: over {MAX_BYTES} bytes, wanted a {FILE}")
    try:
        return content.decode("utf-8"), identity
    except UnicodeDecodeError as exc:
        line = content.count(b"\n", 0, exc.start) + 1
        found = f"byte 0x{content[exc.start]:02x}, wanted UTF-8"
        _refuse_file(file, f"{file.shown}:{line}: {found}", line=line)


def _parse(file: File, text: str) -> dict[str, Any]:
    if text.startswith("\ufeff"):
        _refuse_file(file, f"{file.shown}:1: a byte order mark, wanted none", line=1)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        said = re.fullmatch(
            r"(.*) \(at (?:line (\d+), column \d+|end of .*)\)", f"{exc}"
        )
        last = text.count("\n") + (not text.endswith("\n"))
        line = int(said[2]) if said and said[2] else last
        found = said[1] if said else str(exc)
        _refuse_file(file, f"{file.shown}:{line}: no TOML: {found}", line=line)
    except RecursionError:
        _refuse_file(file, f"{file.shown}: nested too deep, wanted a flat file")
    except ValueError as exc:
        # Python's own limit on digits, which the parser passes on without a place
        long = re.search(r"[0-9_]{4301}", text)
        line = text.count("\n", 0, long.start()) + 1 if long else 1
        found = f"{file.shown}:{line}: no TOML: {str(exc).partition(':')[0]}"
        _refuse_file(file, found, line=line)


_IN_TREE = (
    ("runtime_worker", ("runtime", "worker")),
    ("runtime_work_root", ("runtime", "work_root")),
    ("env_python", ("env", "python")),
    ("env_sif", ("env", "sif")),
    ("weights_root_default", ("weights", "root_default")),
    ("smoke_script", ("smoke", "script")),
    ("accept_script", ("accept", "script")),
)
"""What must stay inside the tree, unless it is absolute on purpose; the request's file is
looked at where it is read."""


def _leaving(values: Mapping[str, Any], file: File) -> Iterator[Fault]:
    for attr, key in _IN_TREE:
        rel = values[attr]
        if type(rel) is not str or ".." not in rel or rel[0] in "/~${":
            continue
        path = posixpath.normpath(posixpath.join(file.directory, rel))
        if not is_inside(path, file.bound):
            text = f"{rel!r} leads to {path}, wanted a path inside {file.bound}"
            yield Fault(key, text)


def _put_request(values: dict[str, Any], file: File) -> Identity | None:
    """Put the request's own content in place of its path. Raises Wrong."""
    import json

    key, name = ("smoke", "request"), values["smoke_request"]
    path = posixpath.join(file.directory, name)
    if file.beside(name) is None and (real := leads_out(path, file.bound)) is not None:
        text = f"{path} leads to {real}, wanted a file inside {file.bound}"
        raise Wrong([Fault(key, text, "file_missing")])
    try:
        content, identity = _whole(path)
        found = json.loads(content)
    except FileNotFoundError:
        text = f"{path}: no such file, wanted JSON"
        raise Wrong([Fault(key, text, "file_missing")]) from None
    except OSError as exc:
        raise Wrong([Fault(key, f"{path}: {exc.strerror}, wanted JSON")]) from None
    except (ValueError, RecursionError) as exc:
        raise Wrong([Fault(key, f"{path}: no JSON: {exc}")]) from None
    if type(found) is not dict:
        raise Wrong([Fault(key, f"{path}: {show(found)}, wanted a JSON object")])
    try:
        values["smoke_request"] = json_value(found)
    except Wrong as wrong:
        told = [Fault(key + one.path, f"{path}: {one.text}") for one in wrong.faults]
        raise Wrong(told) from None
    if faults := list(asked(values)):
        raise Wrong(faults)
    return identity


def _whole(path: str) -> tuple[bytes, Identity | None]:
    content, identity = readings.content(path)
    if len(content) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"over {MAX_BYTES} bytes")
    return content, identity


def missing(
    file: File, key: str, path: Path, bounds: tuple[str, ...], reason: str
) -> Iterator[Problem]:
    """Say what is wrong with what `key` names; nothing for a file inside of `bounds`."""
    leads = [leads_out(str(path), bound) for bound in bounds]
    real = leads[0]
    if None not in leads:
        found = f"{path} leads to {real}, wanted a file inside {bounds[0]}"
    elif not path.is_file():
        found = f"{path}: no such file" if not path.exists() else f"{path}: no file"
    else:
        return
    line = line_of(tuple(key.split(".")), key_lines(read_text(file)[0]))
    next_ = f"doit lock:{path.stem}" if reason == "lock_missing" else None
    yield Problem(
        step="manifest",
        reason=reason,
        text=f"{file.shown}:{line}: {key}: {found}",
        path=file.path,
        line=line,
        name=key,
        wanted=str(path),
        next=next_,
    )


def _refuse(file: File, text: str, faults: list[Fault]) -> NoReturn:
    lines = key_lines(text)
    problems = [_problem(file, fault, line_of(fault.path, lines)) for fault in faults]
    problems.sort(key=lambda problem: problem.line or 0)
    raise ManifestError(summary(problems), problems=problems) from None


def _problem(file: File, fault: Fault, line: int) -> Problem:
    name = full_name(fault.path)
    return Problem(
        step="manifest",
        reason=fault.reason,
        text=f"{file.shown}:{line}: {name}: {fault.text}",
        path=file.path,
        line=line,
        name=name,
    )


def _refuse_file(
    file: File, text: str, reason: str = "manifest_invalid", line: int | None = None
) -> NoReturn:
    problem = Problem(
        step="manifest", reason=reason, text=text, path=file.path, line=line
    )
    raise ManifestError(text, problems=[problem]) from None
