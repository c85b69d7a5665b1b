"""Jobs as a program asks for them: over the daemon's socket, which is started if need be.

jobs = JobClient()
job = jobs.submit("anneal", {"steps": 100})
for event in jobs.events(job["job_id"]):
    ...
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from remote_resident.daemon.client import DaemonClient, connect
from remote_resident.errors import UsageError
from remote_resident.jobs import environment
from remote_resident.jobs.job import AUTO, Event

if TYPE_CHECKING:
    from remote_resident.manifest import ProviderManifest


class JobClient:
    """What asks for jobs; each method raises ProviderError as the daemon refuses."""

    def __init__(self, daemon: DaemonClient | None = None) -> None:
        self.daemon = connect() if daemon is None else daemon

    def submit(
        self,
        provider: "ProviderManifest | str",
        params: Mapping[str, Any],
        job_id: str | None = None,
        device: str = AUTO,
    ) -> dict[str, Any]:
        """Give a provider a job; it runs on whatever becomes of the caller.

        `provider` may be its slug, in the tree around the caller. Raises UsageError
        for one that is none there, and ManifestError.
        """
        manifest = _found(provider) if isinstance(provider, str) else provider
        inside = manifest.directory == manifest.tree / "manifests" / manifest.slug
        body = {
            "slug": manifest.slug if inside else str(manifest.directory),
            "tree": str(manifest.lock_tree),
            "params": dict(params),
            "job_id": job_id,
            "device": device,
            "environ": environment.named(manifest),
        }
        return self.daemon.call("POST", "/v1/jobs", body)

    def listed(
        self, limit: int | None = None, results: int | None = None
    ) -> dict[str, Any]:
        """Give `jobs`, newest first, and the number that was `left_out`.

        Of more than `limit` those that have not ended come before the others (None:
        all); each has its newest `results` (None: 20).
        """
        asked = {"limit": limit, "results": results}
        words = "&".join(f"{k}={v}" for k, v in asked.items() if v is not None)
        return self.daemon.call("GET", f"/v1/jobs?{words}" if words else "/v1/jobs")

    def job(self, job_id: str) -> dict[str, Any]:
        """Give one job, its params too."""
        return self.daemon.call("GET", _route(job_id))

    def events(self, job_id: str) -> Iterator[Event]:
        """Yield what is kept of a job's events, then what comes; the last is terminal."""
        return self.daemon.stream("GET", _route(job_id, "events"))

    def cancel(self, job_id: str) -> dict[str, Any]:
        """Ask a job to end."""
        return self.daemon.call("POST", _route(job_id, "cancel"))

    def logs(self, job_id: str) -> list[str]:
        """Give the last lines that a job wrote."""
        found: list[str] = self.daemon.call("GET", _route(job_id, "logs"))["lines"]
        return found


def _found(slug: str) -> "ProviderManifest":
    from remote_resident import manifest, places

    return manifest.find(places.find_tree(), slug)


def _route(job_id: str, *more: str) -> str:
    if not job_id:
        raise UsageError("job id: none found, one wanted", reason="bad_job_id")
    return "/".join(["/v1/jobs", quote(job_id, safe=""), *more])
