"""A host of jobs in this process, small providers for it, and files that steer their jobs."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import small_jobs

from remote_resident import machine, spawn
from remote_resident.jobs.host import JobHost
from remote_resident.jobs.job import Event, Job
from remote_resident.jobs.lane import Lane
from remote_resident.processes import end_all

WAIT_S = 60.0


def until(true: Callable[[], object], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, f"not within {WAIT_S} s: {what}"
        time.sleep(0.01)


def events(host: JobHost, job: Job | str) -> list[Event]:
    """Read a job's events to the terminal one."""
    end = time.monotonic() + WAIT_S
    found: list[Event] = []
    for event in host.events(job if isinstance(job, str) else job.job_id):
        assert time.monotonic() < end, found
        if event is not None:
            found.append(event)
    return found


class Site:
    """A host, a tree of small providers, and files by which jobs are steered."""

    def __init__(self, tmp: Path) -> None:
        self.tmp = tmp
        self.tree = tmp / "a tree"
        self.hosts: list[JobHost] = []

    def provider(self, slug: str = "tiny", **tables: Any) -> str:
        small_jobs.write(self.tree, slug, **tables)
        return slug

    def host(self, **options: Any) -> JobHost:
        host = JobHost(**{"admit": None, **options})
        self.hosts.append(host)
        host.begin()
        return host

    def file(self, name: str) -> Path:
        return self.tmp / name

    def steered(self, name: str, does: str = "waits") -> dict[str, Any]:
        """Give the params of a job that says when it began and waits to be let go."""
        return {
            "does": does,
            "began": str(self.file(f"{name}.began")),
            "go": str(self.file(f"{name}.go")),
        }

    def submit(self, host: JobHost, slug: str, name: str, does: str = "waits") -> Job:
        params = self.steered(name, does)
        return host.submit(slug, params, name, tree=self.tree)

    def began(self, name: str) -> int:
        """Wait until a job runs; give its worker's pid."""
        path = self.file(f"{name}.began")
        until(lambda: path.exists() and path.read_text(), f"{name} runs")
        return int(path.read_text())

    def go(self, name: str) -> None:
        self.file(f"{name}.go").touch()

    def lane(self, host: JobHost, slug: str) -> Lane:
        return host._board.lanes[(str(self.tree), slug)]

    def end(self) -> None:
        """End what was started."""
        for host in self.hosts:
            host._board.over.set()
        mine = [h for h in machine.holdings() if h.tree == str(self.tree)]
        for holder in mine:
            assert holder.instance is not None
            end_all(holder.instance, grace_s=0.0)
        for child in spawn._CHILDREN:
            child.poll()


@contextmanager
def sites(tmp: Path) -> Iterator[Site]:
    """Give a site; its hosts and workers are ended with the block."""
    made = Site(tmp)
    try:
        yield made
    finally:
        made.end()
