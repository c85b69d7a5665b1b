"""What the host remembers of jobs, in one SQLite file: history, and what to re-attach to."""

import contextlib
import errno
import json
import os
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from remote_resident import places
from remote_resident.daemon.door import tell
from remote_resident.errors import ProviderError
from remote_resident.jobs.job import LIVE, Event, Job

KEPT = 1000
"""So many ended jobs are remembered."""
_LAST = 20
"""So many of a provider's completed jobs say how long the next one takes."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tree TEXT NOT NULL,
    slug TEXT NOT NULL,
    state TEXT NOT NULL,
    seconds REAL,
    job TEXT NOT NULL,
    params TEXT NOT NULL,
    tail TEXT NOT NULL DEFAULT '[]',
    stderr TEXT NOT NULL DEFAULT '[]'
);
CREATE INDEX IF NOT EXISTS by_state ON jobs (state);
CREATE INDEX IF NOT EXISTS by_provider ON jobs (tree, slug, state);
"""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_MARKS = ", ".join("?" for _ in LIVE)


class Records:
    """The file; any thread may call any method."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._unsaved: dict[str, tuple[Job, list[Event], list[str]]] = {}
        """What the file did not take."""
        places.ensure(path.parent)
        self._db = self._opened()

    def add(self, job: Job) -> None:
        """Record a new job, in the place of an ended one of its id.

        Raises ProviderError (`disk_full`, `unreadable`): a job that cannot be recorded
        is not taken.
        """
        params = json.dumps(job.params)
        try:
            with self._lock, self._db:
                self._unsaved.pop(job.job_id, None)
                self._db.execute("DELETE FROM jobs WHERE id = ?", [job.job_id])
                self._db.execute(
                    "INSERT INTO jobs (id, tree, slug, state, job, params) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    [job.job_id, job.tree, job.slug, job.state, _text(job), params],
                )
                self._forget_old()
        except sqlite3.Error as exc:
            raise _unusable(self.path, exc) from None

    def save(self, job: Job, tail: Sequence[Event], stderr: Sequence[str] = ()) -> bool:
        """Record how a job stands; False where it could not be, which is then said.

        It is known here meanwhile, and tried again with the next, or by `save_unsaved`.
        """
        with self._lock:
            self._unsaved[job.job_id] = (job, list(tail), list(stderr))
            try:
                self._save_all()
            except sqlite3.Error as exc:
                # a full disk must not end what runs
                tell(f"{self.path}: job {job.job_id} not recorded: {exc}")
                return False
        return True

    def save_unsaved(self) -> None:
        """Try again to record what could not be recorded, which was said then."""
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._save_all()

    def _save_all(self) -> None:
        for one in list(self._unsaved.values()):
            self._save(*one)
            del self._unsaved[one[0].job_id]

    def _save(self, job: Job, tail: list[Event], stderr: list[str]) -> None:
        seconds = None
        if job.started is not None and job.ended is not None:
            seconds = job.ended - job.started
        with self._db:
            self._db.execute(
                "UPDATE jobs SET state = ?, seconds = ?, job = ?, tail = ?, stderr = ? "
                "WHERE id = ?",
                [
                    job.state,
                    seconds,
                    _text(job),
                    json.dumps(tail, default=str),
                    json.dumps(stderr),
                    job.job_id,
                ],
            )

    def live(self) -> list[Job]:
        """List the jobs that had not ended, oldest first."""
        sql = f"SELECT job, params FROM jobs WHERE state IN ({_MARKS}) ORDER BY number"
        return self._jobs(self._rows(sql, LIVE))

    def get(self, job_id: str) -> Job | None:
        """Give a job with its params; None: not remembered."""
        unsaved = self._unsaved.get(job_id)
        if unsaved is not None:
            return unsaved[0]
        rows = self._rows("SELECT job, params FROM jobs WHERE id = ?", [job_id])
        return next(iter(self._jobs(rows)), None)

    def tail(self, job_id: str) -> list[Event]:
        """Give the last events of a job."""
        unsaved = self._unsaved.get(job_id)
        return self._list("tail", job_id) if unsaved is None else unsaved[1]

    def stderr(self, job_id: str) -> list[str]:
        """Give the last lines that an ended job wrote."""
        unsaved = self._unsaved.get(job_id)
        return self._list("stderr", job_id) if unsaved is None else unsaved[2]

    def all(self, limit: int | None = None) -> tuple[list[Job], int]:
        """List jobs, newest first, without their params, and how many were left out.

        Of more than `limit` those that have not ended come before the others. None: all.
        """
        sql = (
            f"SELECT job, '{{}}', number FROM jobs ORDER BY state IN ({_MARKS}) DESC, "
            "number DESC LIMIT ?"
        )
        rows = self._rows(sql, [*LIVE, -1 if limit is None else limit])
        rows.sort(key=lambda row: row[2], reverse=True)
        ((there,),) = self._rows("SELECT count(*) FROM jobs", [])
        jobs = self._jobs([(job, params) for job, params, _ in rows])
        unsaved = dict(self._unsaved)
        shown = [unsaved[j.job_id][0] if j.job_id in unsaved else j for j in jobs]
        return shown, max(0, there - len(rows))

    def usual_s(self, tree: str, slug: str) -> float | None:
        """Give the mean seconds of a provider's last completed jobs; None: none yet."""
        sql = (
            "SELECT avg(seconds) FROM (SELECT seconds FROM jobs WHERE tree = ? AND "
            "slug = ? AND state = 'completed' ORDER BY number DESC LIMIT ?)"
        )
        rows = self._rows(sql, [tree, slug, _LAST])
        return float(rows[0][0]) if rows and rows[0][0] is not None else None

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def _list(self, column: str, job_id: str) -> list[Any]:
        rows = self._rows(f"SELECT {column} FROM jobs WHERE id = ?", [job_id])
        try:
            found = json.loads(rows[0][0]) if rows else []
        except (ValueError, TypeError) as exc:
            tell(f"{self.path}: {column} of job {job_id} left out: {exc}")
            return []
        return found if isinstance(found, list) else []

    def _jobs(self, rows: Sequence[tuple[Any, ...]]) -> list[Job]:
        """Give the jobs of rows; one that cannot be read keeps nobody from the others."""
        jobs = []
        for row in rows:
            try:
                jobs.append(_job(*row))
            except (ValueError, TypeError, AttributeError) as exc:
                tell(f"{self.path}: the record {row[0]!r:.100} left out: {exc}")
        return jobs

    def _rows(self, sql: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        try:
            with self._lock:
                return self._db.execute(sql, values).fetchall()
        except sqlite3.Error as exc:
            raise _unusable(self.path, exc) from None

    def _forget_old(self) -> None:
        self._db.execute(
            f"DELETE FROM jobs WHERE state NOT IN ({_MARKS}) AND number <= "
            "(SELECT max(number) FROM jobs) - ?",
            [*LIVE, KEPT],
        )

    def _opened(self) -> sqlite3.Connection:
        try:
            try:
                return _connected(self.path)
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError as exc:
                self._set_aside(exc)
            return _connected(self.path)
        except (OSError, sqlite3.Error) as exc:
            raise _unusable(self.path, exc) from None

    def _set_aside(self, exc: sqlite3.Error) -> None:
        """Move a damaged file away: evidence, and history only; no reason to run no jobs."""
        aside = self.path.with_name(f"{self.path.name}.damaged-{int(time.time())}")
        for end in ("-wal", "-shm", ""):
            with contextlib.suppress(FileNotFoundError):
                self.path.with_name(f"{self.path.name}{end}").replace(f"{aside}{end}")
        tell(f"{self.path}: {exc}; moved to {aside}, a new one begun")


def _connected(path: Path) -> sqlite3.Connection:
    # made first: the library would make it as the umask says
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    db = sqlite3.connect(path, timeout=30.0, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.executescript(_SCHEMA)
        ((found,),) = db.execute("PRAGMA quick_check(1)").fetchall()
        if found != "ok":
            raise sqlite3.DatabaseError(found)
    except BaseException:
        db.close()
        raise
    return db


def _text(job: Job) -> str:
    return json.dumps(job.stored(), default=str)


def _job(stored: str, params: str) -> Job:
    said: Mapping[str, Any] = json.loads(stored)
    known = {key: said[key] for key in Job.__slots__ if key in said}
    known["results"] = tuple(known.get("results") or ())
    return Job(**{**known, "params": json.loads(params)})


def _unusable(path: Path, exc: sqlite3.Error | OSError) -> ProviderError:
    from shlex import quote

    said = exc.strerror if isinstance(exc, OSError) else str(exc)
    full = "full" in str(exc) or getattr(exc, "errno", None) in _FULL
    return ProviderError(
        f"{path}: {said}, a database that uid {os.geteuid()} can write wanted",
        reason="disk_full" if full else "unreadable",
        next=f"df -h {quote(str(path.parent))}"
        if full
        else f"ls -ld {quote(str(path))}",
    )
