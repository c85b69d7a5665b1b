"""The reports of earlier runs: what "slower since the driver update" is seen in.

They lie in `measured/<slug>/` beside the current report, and make no step count as done.
"""

import re
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from remote_resident import whole_file
from remote_resident.errors import ProviderError
from tasks import report_file
from tasks.report_file import Report

KEPT = 50
"""How many reports of one provider are kept; the oldest go."""

_NAME = re.compile(r"\d{8}T\d{6}Z(-\d{2})?")


def directory(path: Path) -> Path:
    """Name the history of the report at a path."""
    return path.with_name(path.name.removesuffix(".toml"))


def moment(report: Report) -> datetime | None:
    """Say when a report was certified, in UTC; None: it does not say."""
    said = report.certified.get("at")
    if isinstance(said, str):
        try:
            said = datetime.fromisoformat(said)
        except ValueError:
            return None
    if not isinstance(said, datetime):
        return None
    try:
        # without a zone it is what the clock of Greenwich said
        zoned = said if said.tzinfo else said.replace(tzinfo=UTC)
        return zoned.astimezone(UTC)
    except OverflowError:
        return None


def keep(path: Path, report: Report, text: str) -> None:
    """Keep a report that is about to stand at `path`, and the one that stands there.

    The latter may come from a version that kept none. What does not say when it was
    certified is not kept. Raises ProviderError as `measured.write` does.
    """
    folder = directory(path)
    with suppress(OSError, ProviderError):
        before = report_file.read(path)
        if before is not None:
            _add(folder, before, path.read_text(encoding="utf-8"))
    _add(folder, report, text)
    for old in _files(folder)[:-KEPT]:
        with suppress(OSError):
            old.unlink()


def read(path: Path) -> tuple[list[Report], list[str]]:
    """Read the history of the report at a path, oldest first, and name what is damaged."""
    reports, damaged = [], []
    for file in _files(directory(path))[-KEPT:]:
        try:
            report = report_file.read(file)
        except ProviderError as exc:
            damaged.append(str(exc))
            continue
        if report is None:
            continue
        if moment(report) is None:
            damaged.append(f"{file}: no certified.at found, a time wanted")
        else:
            reports.append(report)
    return sorted(reports, key=_order), damaged


def _order(report: Report) -> datetime:
    return moment(report) or datetime.min.replace(tzinfo=UTC)


def _add(folder: Path, report: Report, text: str) -> None:
    at = moment(report)
    if at is None:
        return
    # not strftime, which writes a year before 1000 in fewer digits
    stamp = at.isoformat(timespec="seconds")[:19]
    for name in _names(f"{stamp.replace('-', '').replace(':', '')}Z"):
        file = folder / f"{name}.toml"
        try:
            if file.read_text(encoding="utf-8") == text:
                return
        except (FileNotFoundError, NotADirectoryError):
            whole_file.write(file, text.encode())
            return
        except (OSError, UnicodeDecodeError):
            continue


def _names(name: str) -> list[str]:
    """Give the names for reports of one second, in the order they are used."""
    return [name, *(f"{name}-{number:02}" for number in range(2, 100))]


def _files(folder: Path) -> list[Path]:
    """List the files of a history, oldest first; what else lies there is not ours."""
    try:
        found = [
            path
            for path in folder.iterdir()
            if path.suffix == ".toml" and _NAME.fullmatch(path.stem) and path.is_file()
        ]
    except OSError:
        return []
    return sorted(found, key=lambda path: path.stem)
