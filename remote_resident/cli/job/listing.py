"""`tu remote job list`: the jobs, the newest first."""

import time
from typing import Any

from remote_resident.cli import tree
from remote_resident.cli.answer import Answer, Asked
from remote_resident.cli.job.watching import plain

_SHOWN_RESULTS = 3


def arguments(parser: Any) -> None:
    """Say what may be typed: nothing of its own."""


def run(asked: Asked) -> Answer:
    """List those that wait and run, and the last that ended."""
    from remote_resident.jobs.client import JobClient

    jobs = JobClient().jobs()
    return Answer(document={"jobs": jobs}, text=_text(jobs))


def _text(jobs: list[dict[str, Any]]) -> str:
    if not jobs:
        return "no jobs"
    lines = [("job", "provider", "state", "began", "took", "")]
    for job in jobs:
        began = job["started"] or job["created"]
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(began))
        ended = job["ended"]
        took = "-" if ended is None else f"{ended - began:.1f} s"
        lines.append(
            (job["job_id"], job["slug"], job["state"], moment, took, plain(_why(job)))
        )
    return tree.columns(lines)


def _why(job: dict[str, Any]) -> str:
    """Say in a phrase how a job stands."""
    if job["position"] is not None:
        wait = job["expected_wait_s"]
        told = "" if wait is None else f", about {wait:.0f} s"
        return f"position {job['position']}{told}"
    if job["message"] is not None:
        return str(job["message"]).partition("\n")[0]
    progress = job["progress"] or {}
    percent = progress.get("percent")
    if job["ended"] is None and isinstance(percent, int | float) and percent >= 0:
        return f"{percent:.0f} % {progress.get('label') or ''}".rstrip()
    results = list(map(str, job["results"]))
    shown, more = results[:_SHOWN_RESULTS], len(results) - _SHOWN_RESULTS
    return ", ".join([*shown, f"{more} more"] if more > 0 else shown)
