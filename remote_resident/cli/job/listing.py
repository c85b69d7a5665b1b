"""`tu remote job list`: the jobs, the newest first."""

import time
from typing import Any

from remote_resident.cli import numbers, tree
from remote_resident.cli.answer import Answer, Asked

_SHOWN_JOBS = 20
_SHOWN_RESULTS = 3


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument(
        "--limit",
        type=numbers.lines,
        metavar="N",
        help="at most N jobs (20; with --json all that are remembered)",
    )
    parser.add_argument(
        "--results",
        type=numbers.lines,
        metavar="N",
        help="the last N results of each (3; with --json 20)",
    )


def run(asked: Asked) -> Answer:
    """List those that wait and run, and the last that ended."""
    from remote_resident.jobs.client import JobClient

    limit, results = asked.limit, asked.results
    if not asked.json:
        limit = _SHOWN_JOBS if limit is None else limit
        results = _SHOWN_RESULTS if results is None else results
    found = JobClient().listed(limit, results)
    notes = "" if asked.json or asked.quiet else _left_out(found)
    return Answer(document=found, text=_text(found["jobs"]), notes=notes)


def _left_out(found: dict[str, Any]) -> str:
    """Say how much is not shown, and how it is; empty: all is."""
    shown, left_out = len(found["jobs"]), found["left_out"]
    results = max((job["results_left_out"] for job in found["jobs"]), default=0)
    lines = []
    if left_out:
        lines.append(f"{left_out} more jobs: --limit {shown + left_out} shows them")
    if results:
        lines.append("more results of a job: --results N shows its last N")
    return "\n".join(lines)


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
            (job["job_id"], job["slug"], job["state"], moment, took, _why(job))
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
    more = job["results_left_out"]
    earlier = [f"{more} earlier"] if more else []
    return ", ".join([*earlier, *map(str, job["results"])])
