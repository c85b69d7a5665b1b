"""What a kit's file declares: third-party code at one pinned commit."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote_resident import places
from remote_resident.errors import Problem

_KEYS = ("repository", "commit", "license", "description")
_COMMIT_DIGITS = 40
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """One kit, as its file declares it."""

    repository: str
    """What git fetches from; `file://` for a local mirror."""
    commit: str
    """40 hex digits."""
    license: str
    description: str

    @property
    def checkout(self) -> Path:
        """Name the directory of the checkout, which need not be there."""
        return places.kit_dir(self.commit)


def read(path: Path) -> tuple[Kit | None, list[Problem]]:
    """Read a kit's file; None, and every fault of it, where it is not well formed."""
    import tomllib

    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        return None, [_problem(path, 1, f"no TOML: {error}")]
    found = list(_faults(path, text, content))
    return (None, found) if found else (Kit(**content), [])


def declared(path: Path | None) -> Kit | None:
    """Give the kit of a file; None: no file is named, or it is not well formed."""
    return None if path is None else read(path)[0]


def _faults(path: Path, text: str, content: dict[str, Any]) -> Iterator[Problem]:
    from remote_resident.manifest_lines import key_lines, line_of

    lines = key_lines(text)
    for key, value in content.items():
        if fault := _fault(key, value):
            yield _problem(path, line_of((key,), lines), fault)
    for key in _KEYS:
        if key not in content:
            yield _problem(path, 1, f"{key}: missing")


def _fault(key: str, value: object) -> str | None:
    if key not in _KEYS:
        return f"{key}: unknown key, wanted one of {', '.join(_KEYS)}"
    if not isinstance(value, str) or not value:
        return f"{key}: {value!r}, wanted a string"
    if key == "commit" and not _is_commit(value):
        return f"{key}: {value!r}, wanted {_COMMIT_DIGITS} hex digits"
    return None


def _is_commit(value: str) -> bool:
    return len(value) == _COMMIT_DIGITS and _HEX.issuperset(value)


def _problem(path: Path, line: int, fault: str) -> Problem:
    return Problem(
        step="manifest",
        reason="kit_invalid",
        text=f"kits/{path.name}:{line}: {fault}",
        path=str(path),
        line=line,
    )
