"""`tu remote job run`: give a provider a job and watch it to its end."""

from typing import Any

from remote_resident.cli import tree
from remote_resident.cli.answer import Answer, Asked
from remote_resident.cli.job import watching
from remote_resident.cli.signals import Cut
from remote_resident.errors import refusal


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
    told = watching.Told()
    with watching.interrupts_kept(told):
        try:
            job = jobs.submit(provider, params, asked.id, asked.device)
        except Cut as cut:
            return _cut_before(asked, cut)
        # Ctrl-C while it was handed over cancels it too
        if asked.detach and told.empty():
            return Answer(document=job, text=job["job_id"])
        return watching.follow(asked, jobs, job["job_id"], cancels=True, told=told)


def _cut_before(asked: Asked, cut: Cut) -> Answer:
    """Give the end of a run that nobody knows of whether its job was taken."""
    next_ = f"tu remote job attach {asked.id}" if asked.id else "tu remote job list"
    error = f"cut by {cut.name}: if the host daemon took the job it runs on"
    document = refusal("interrupted", error, next=next_)
    notes = f"tu: {error}\nnext: {next_}"
    return Answer(document=document, notes=notes, code=cut.exit_code)
