"""The history of a provider's failed starts, shared by all processes of a user.

It only ever refuses: nothing here makes a step count as done. Whatever a start depends on
is part of `inputs`, so that a change to it forgets the history.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_resident import places
from remote_resident.errors import WorkerStartError

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest

WINDOW_S = 600.0
FAILURES = 3
"""So many failed starts within the window refuse the next."""
FIRST_WAIT_S = 60.0
LONGEST_WAIT_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    inputs: str = ""
    failures: list[float] = field(default_factory=list)
    """Seconds since the epoch, oldest first."""
    refusals: int = 0
    """How often the wait has grown."""
    until: float = 0.0
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """Failed starts of one provider of one tree."""

    path: Path
    clock: Callable[[], float] = time.time

    def refuse(self, manifest: "ProviderManifest", inputs: str) -> None:
        """Raise WorkerStartError (`crash_loop`) while further starts are refused."""
        record = self._read(inputs)
        left = record.until - self.clock()
        # a clock that was put back must not refuse for longer than the longest wait
        if 0 < left <= LONGEST_WAIT_S:
            raise WorkerStartError(
                f"{manifest.slug}: {len(record.failures)} failed starts, the last: "
                f"{record.last_error}; the next start is refused for {left:.1f} s, "
                "until what it starts from changes, or until it is restarted",
                reason="crash_loop",
                next=f"tu remote restart {manifest.named}",
            )

    def failed(self, inputs: str, error: str) -> None:
        """Note a start that failed."""
        now = self.clock()
        with _locked(self.path):
            old = self._read(inputs)
            recent = [t for t in old.failures if now - WINDOW_S <= t <= now]
            failures = [*(old.failures if old.refusals else recent), now]
            refusals, until = old.refusals, 0.0
            if len(failures) >= FAILURES:
                until = now + min(FIRST_WAIT_S * 2**refusals, LONGEST_WAIT_S)
                refusals += 1
            self._write(
                _Record(
                    inputs=inputs,
                    failures=failures[-20:],
                    refusals=min(refusals, 20),
                    until=until,
                    last_error=error,
                )
            )

    def forget(self) -> None:
        """Start anew: a start succeeded, or somebody asked for one."""
        self.path.unlink(missing_ok=True)

    def _read(self, inputs: str) -> _Record:
        try:
            record = _parsed(json.loads(self.path.read_bytes()))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            # damaged or none: history may refuse, but it may not stand in the way
            return _Record(inputs=inputs)
        return record if record.inputs == inputs else _Record(inputs=inputs)

    def _write(self, record: _Record) -> None:
        new = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        new.write_text(json.dumps(asdict(record)), encoding="utf-8")
        new.replace(self.path)


def _parsed(read: dict[str, Any]) -> _Record:
    return _Record(
        inputs=str(read["inputs"]),
        failures=[float(moment) for moment in read["failures"]],
        refusals=int(read["refusals"]),
        until=float(read["until"]),
        last_error=str(read["last_error"]),
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    places.ensure(path.parent)
    # beside the file, which is replaced: a lock on what was replaced excludes nobody
    fd = places.open_lock(path.with_suffix(".lock"))
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
