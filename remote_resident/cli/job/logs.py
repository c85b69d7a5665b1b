"""`tu remote job logs`: show what a job wrote."""

from typing import Any

from remote_resident.cli import numbers
from remote_resident.cli.answer import Answer, Asked
from remote_resident.printable import plain


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument("job_id", metavar="ID", help="the job")
    parser.add_argument(
        "--lines", type=numbers.lines, default=400, metavar="N", help="the last N (400)"
    )


def run(asked: Asked) -> Answer:
    """Show its own lines, of a worker's log that all its jobs write to."""
    from remote_resident.jobs.client import JobClient

    lines = JobClient().logs(asked.job_id)
    lines = lines[-asked.lines :] if asked.lines > 0 else []
    document = {"job_id": asked.job_id, "lines": lines}
    return Answer(document=document, text="\n".join(map(plain, lines)))
