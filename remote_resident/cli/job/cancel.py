"""`tu remote job cancel`: ask a job to end."""

from typing import Any

from remote_resident.cli.answer import Answer, Asked


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument("job_id", metavar="ID", help="the job")


def run(asked: Asked) -> Answer:
    """Ask; a job that runs ends a little later, by itself."""
    from remote_resident.jobs.client import JobClient

    said = JobClient().cancel(asked.job_id)
    live = said["state"] in ("starting", "running")
    text = f"{asked.job_id}: {'cancelling' if live else said['state']}"
    return Answer(document=said, text=text)
