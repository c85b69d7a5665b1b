"""`tu remote job run`: give a provider a job and watch it to its end."""

from typing import Any

from remote_resident.cli import tree
from remote_resident.cli.answer import Answer, Asked
from remote_resident.cli.job import watching


def arguments(parser: Any) -> None:
    """Say what may be typed."""
    parser.add_argument("slug", metavar="SLUG", help="a provider, or a path to one")
    parser.add_argument(
        "--params",
        default="{}",
        metavar="JSON",
        help="a JSON object, @FILE that holds one, or - for standard input ({})",
    )
    parser.add_argument("--id", metavar="ID", help="the job's id, else one is made")
    parser.add_argument(
        "--device",
        default="auto",
        metavar="D",
        help="auto, cpu, or a device's index or UUID (auto)",
    )
    parser.add_argument(
        "--detach", action="store_true", help="do not watch: print the job and leave"
    )


def run(asked: Asked) -> Answer:
    """Submit, then show the events as they come."""
    from remote_resident import manifest
    from remote_resident.cli.call import object_of
    from remote_resident.jobs.client import JobClient

    provider = manifest.find(tree.data(asked), asked.slug)
    params = object_of(asked.params)
    jobs = JobClient()
    job = jobs.submit(provider, params, asked.id, asked.device)
    if asked.detach:
        return Answer(document=job, text=job["job_id"])
    return watching.follow(asked, jobs, job["job_id"], cancels=True)
