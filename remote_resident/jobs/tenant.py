"""Jobs in the host daemon: the routes under /v1/jobs.

POST /v1/jobs               {"slug", "tree", "params"?, "job_id"?, "device"?} -> 201
GET  /v1/jobs               {"jobs": [job], "left_out"}, newest first;
                            ?limit=N jobs, ?results=N results of each (20)
GET  /v1/jobs/{id}          the job, its params too
GET  /v1/jobs/{id}/events   its events as lines, the last one terminal
POST /v1/jobs/{id}/cancel   {"cancelling", "job_id", "state"}
GET  /v1/jobs/{id}/logs     {"job_id", "lines"}
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remote_resident.daemon.tenant import Document, Lines, Reply, Request, Route
from remote_resident.errors import UsageError
from remote_resident.jobs.host import JobHost
from remote_resident.jobs.job import AUTO, Job
from remote_resident.jobs.waiting import NOWHERE

LISTED_RESULTS = 20
"""So many results of each job are in a list that asks for no other number."""
_DIGITS = 9
_KINDS: Mapping[type, str] = {dict: "an object", str: "a text"}


class Jobs:
    """The tenant."""

    name = "jobs"

    def __init__(self, host: JobHost | None = None) -> None:
        self._host = host

    @property
    def host(self) -> JobHost:
        """Give the host; it opens its records at first use, not in a refused daemon."""
        if self._host is None:
            self._host = JobHost()
        return self._host

    def routes(self) -> list[Route]:
        """Give the routes."""
        return [
            ("POST", "/v1/jobs", self.submit),
            ("GET", "/v1/jobs", self.list),
            ("GET", "/v1/jobs/{id}", self.show),
            ("GET", "/v1/jobs/{id}/events", self.events),
            ("POST", "/v1/jobs/{id}/cancel", self.cancel),
            ("GET", "/v1/jobs/{id}/logs", self.logs),
        ]

    def begin(self) -> None:
        """Take up what an earlier daemon left."""
        self.host.begin()

    def end(self, stop_services: bool) -> None:
        """Let go."""
        self.host.end(stop_services)

    def submit(self, request: Request) -> Reply:
        """Take a job."""
        slug, tree = _field(request, "slug", str), _field(request, "tree", str)
        if not Path(tree).is_absolute():
            raise UsageError(
                f"tree: {tree!r} found, an absolute path wanted", reason="bad_request"
            )
        job = self.host.submit(
            slug,
            _field(request, "params", dict, {}),
            _field(request, "job_id", str, None),
            _field(request, "device", str, AUTO),
            tree=Path(tree),
            environ=_field(request, "environ", dict, {}),
        )
        return Reply(201, self._shown(job))

    def list(self, request: Request) -> Document:
        """List the jobs."""
        limit = _count(request, "limit", None)
        most = _count(request, "results", LISTED_RESULTS) or 0
        places = self.host.places()
        jobs, left_out = self.host.jobs(limit)
        shown = [{**j.as_dict(most), **places.get(j.job_id, NOWHERE)} for j in jobs]
        return {"jobs": shown, "left_out": left_out}

    def show(self, request: Request) -> Document:
        """Show one job."""
        job = self.host.job(request.names["id"])
        return {**self._shown(job), "params": dict(job.params)}

    def events(self, request: Request) -> Lines:
        """Stream a job's events."""
        return Lines(self.host.lines(request.names["id"]))

    def cancel(self, request: Request) -> Document:
        """Ask a job to end."""
        job = self.host.cancel(request.names["id"])
        cancelling = job.live or job.state == "cancelled"
        return {"cancelling": cancelling, "job_id": job.job_id, "state": job.state}

    def logs(self, request: Request) -> Document:
        """Give what a job wrote."""
        job_id = request.names["id"]
        return {"job_id": job_id, "lines": self.host.stderr(job_id)}

    def _shown(self, job: Job) -> Document:
        return {**job.as_dict(), **self.host.place(job.job_id)}


def _count(request: Request, name: str, default: int | None) -> int | None:
    said = request.query.get(name)
    if said is None:
        return default
    # not int(): it takes blanks, signs and other digits than these
    if not (said.isascii() and said.isdigit() and len(said) <= _DIGITS):
        raise UsageError(
            f"{name}: {said!r} found, an integer from 0 of at most {_DIGITS} digits "
            "wanted",
            reason="bad_request",
        )
    return int(said)


def _field(request: Request, name: str, kind: type, *default: Any) -> Any:
    value = request.body.get(name)
    if value is None and default:
        return default[0]
    if isinstance(value, str) and "\0" in value:
        raise UsageError(
            f"{name}: {value!r} found, a text without NUL wanted", reason="bad_request"
        )
    if not isinstance(value, kind):
        found = "none" if value is None else type(value).__name__
        raise UsageError(
            f"{name}: {found} found, {_KINDS[kind]} wanted", reason="bad_request"
        )
    return value
