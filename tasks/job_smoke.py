"""The smoke of a provider of jobs: its request as a job's params, its end as the answer."""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from remote_resident import unix_http
from remote_resident.errors import WorkerRequestError
from remote_resident.jobs import asking
from remote_resident.jobs.starting import starter_of
from remote_resident.spawn import exit_hint
from tasks.answer import Answer, read_files
from tasks.trial import Trial

if TYPE_CHECKING:
    from remote_resident.caller_side.held import Held
    from remote_resident.jobs.starting import JobStarter

_ENDED_S = 5.0
_STOP_GRACE_S = 10.0


@dataclass(slots=True, kw_only=True)
class JobTrial(Trial):
    """What was seen while a provider's worker ran its jobs; no daemon has a part in it."""

    def _work(self) -> None:
        try:
            self._run_jobs()
        except BaseException as exc:  # told by whoever waits
            self.error = exc
        finally:
            self.said.put(None)

    def _run_jobs(self) -> None:
        provider, corner = self.provider, self.corner
        starter = starter_of(
            provider,
            admit=self._admitted,
            socket_path=corner.socket,
            log_path=corner.log,
            # each job has the directory of its name there
            state_root=corner.directory,
            owned=True,
        )
        self.at = "start"
        held = starter.hold("", None)
        try:
            self.started = held.started
            self.said.put(f"ready after {held.started.spawn_to_ready_s or 0.0:.3f} s")
            for number in range(provider.smoke_repeat + 1):
                name = "first" if number == 0 else f"held-{number}"
                self.at = f"{name} request"
                answer = self._job(name, starter, held)
                self.answers.append((name, answer))
                self.said.put(f"{name} job {answer.seconds:.3f} s")
            self.meter.read()
            self.meter.read_devices(provider)
            self.at = "stop"
        finally:
            if not self.over:
                held.end(_STOP_GRACE_S)

    def _job(self, name: str, starter: "JobStarter", held: "Held") -> Answer:
        directory = self.corner.directory / name
        began = time.monotonic()
        reply = self._reply(name, starter, held)
        seconds = time.monotonic() - began
        self.meter.told({"rss_bytes": _resident(held.started.pid)})
        return Answer(
            reply=reply,
            output_dir=directory,
            files=read_files(directory) if directory.is_dir() else {},
            seconds=seconds,
        )

    def _reply(self, name: str, starter: "JobStarter", held: "Held") -> dict[str, Any]:
        """Give the terminal event with the results and the last metrics.

        Raises WorkerRequestError for a job that did not complete.
        """
        results: list[Any] = []
        metrics: dict[str, Any] = {}
        for event in self._events(name, starter, held):
            kind = event.get("event")
            if kind == "result":
                results.append(event.get("run_url"))
            elif kind == "metric":
                metrics[str(event.get("label"))] = event.get("value")
            elif kind == "done" and event.get("status") == "completed":
                # its id and its number are the trial's own
                told = {k: v for k, v in event.items() if k not in ("job_id", "seq")}
                return {**told, "results": results, "metrics": metrics}
            elif kind in ("done", "error"):
                said = event.get("message") or f"ended as {event.get('status')}"
                raise self._failed(str(said), "request_failed")
        ended = held.wait_end(_ENDED_S)
        how = (
            exit_hint(held.returncode()) if ended else "its stream ended and it runs on"
        )
        raise self._failed(f"no terminal event; the worker: {how}", "worker_died")

    def _events(
        self, name: str, starter: "JobStarter", held: "Held"
    ) -> Iterator[dict[str, Any]]:
        connection = unix_http.UnixConnection(starter.socket_path)
        route, params = f"/jobs/{quote(name)}/run", self.provider.smoke_request or {}
        cut = (OSError, HTTPException, unix_http.Cut)
        with (
            contextlib.suppress(*cut),
            unix_http.asked(connection, "POST", route, params) as answer,
        ):
            if answer.status >= 300:
                said = answer.read(4096).decode(errors="replace")
                raise self._failed(f"refused, {answer.status}: {said}", "bad_request")
            for line in unix_http.lines(answer):
                yield json.loads(line)

    def _failed(self, said: str, reason: str) -> WorkerRequestError:
        text = f"{self.provider.slug}: {said}; log {self.corner.log}"
        return WorkerRequestError(text, reason=reason)

    def _capture_stacks(self) -> None:
        """Take the worker's stacks by a signal, in a fraction of a second or not at all."""
        self.stacks = self._signalled_stacks()

    def _leader(self) -> int | None:
        """Find the worker itself, also in a container."""
        if self.provider.env_kind == "venv":
            return Trial._leader(self)
        # what is started here is a client: by the kernel's word who accepts
        return asking.peer(self.corner.socket)


def _resident(pid: int) -> int | None:
    """Give a process's resident bytes; None: it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
