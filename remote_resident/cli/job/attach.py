"""`tu remote job attach`: watch a job that runs, or see how one ended."""

from typing import Any

from remote_resident.cli.answer import Answer, Asked
from remote_resident.cli.job import watching


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument("job_id", metavar="ID", help="the job")


def run(asked: Asked) -> Answer:
    """Show what is kept of its events, then what comes; Ctrl-C leaves it running."""
    from remote_resident.jobs.client import JobClient

    return watching.follow(asked, JobClient(), asked.job_id, cancels=False)
