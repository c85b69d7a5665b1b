"""One phase of acceptance: a worker of its own, asked, watched, and ended with all of it."""

import contextlib
import os
import re
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote_resident import processes, supervisor
from remote_resident.errors import REASONS, Problem, ProviderError, WorkerRequestError
from tasks import answer
from tasks.answer import Answer
from tasks.trial import Trial

if TYPE_CHECKING:
    from remote_resident.caller_side.start_command import Candidate
    from remote_resident.client import OnEvent
    from remote_resident.supervisor import Started
    from tasks.accept_requests import Requests

STEP = "accept"
LEFT_S = 2.0
"""How long what a worker started may take to end after it."""
_STOP_GRACE_S = 10.0
_INDEX = re.compile(r"\[\d+\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderRow:
    """What one size took."""

    size: int
    peak_gb: float
    """GiB, of everything up to this size."""
    pool: str
    """host or device."""
    seconds: float
    peak_source: str


@dataclass(slots=True, kw_only=True)
class Known:
    """What one phase knows from those before it."""

    requests: "Requests"
    reference: Answer | None = None
    """The first answer to the plain request; None: there was none."""
    varying: frozenset[str] = frozenset()
    """Where identical requests are answered differently, whatever is done in between."""
    ladder: list[LadderRow] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Stage(Trial):
    """One phase under its deadline; `work` does it, and gives what to say of it.

    What is wrong is added to `problems` where the phase can go on, and raised as
    ProviderError where it cannot.
    """

    name: str
    known: Known
    work: "Callable[[Stage], str]"
    problems: list[Problem] = field(default_factory=list)
    text: str = ""
    instances: list[str] = field(default_factory=list)
    """All that were started."""
    asked: int = 0

    # --- behind

    def _work(self) -> None:
        try:
            self.text = self.work(self)
        except BaseException as exc:  # told by whoever waits
            self.error = exc
        finally:
            self._stop()
            self.said.put(None)

    def _admitted(self, candidate: "Candidate") -> object:
        held = Trial._admitted(self, candidate)
        if candidate.instance is not None:
            self.instances.append(candidate.instance)
        return held

    def _stop(self) -> None:
        """Let the worker leave, and end what it leaves behind."""
        worker, self.worker = self.worker, None
        if self.over or worker is None:
            return
        if self.error is None:
            self.at = "stop"
        with contextlib.ExitStack() as stack, contextlib.suppress(ProviderError):
            seen = stack.enter_context(watched(self.instance))
            worker.stop(_STOP_GRACE_S)
            end(seen)

    # --- what a phase does

    def start(self) -> "Started | None":
        """Give a worker of its own, started if there is none any more.

        None: there is a process for each request.
        """
        if self.provider.runtime_mode != "resident":
            return None
        self.at = "start"
        self.worker = self.worker or self.resident()
        self.started = self.worker.ensure_started()
        return self.started

    def answering(self) -> str | None:
        """Give the instance of the worker that answers; None: there is none to ask."""
        if self.worker is None:
            return None
        found = self.worker.ping().get("instance")
        return found if isinstance(found, str) else None

    def ask(
        self,
        what: str,
        request: Mapping[str, Any],
        *,
        output_dir: Path | None = None,
        on_event: "OnEvent | None" = None,
    ) -> Answer:
        """Ask once, and note what is wrong with the answer by itself.

        `output_dir`: None makes one of this request's own.
        """
        if self.over:
            raise WorkerRequestError("the phase is over", reason="stopping")
        self.at = f"{what} request"
        self.asked += 1
        own = output_dir is None
        directory = output_dir or self.corner.directory / f"{self.name}-{self.asked}"
        if own:
            directory.mkdir()
        payload = dict(request)
        if self.provider.env_kind == "venv" or self.provider.outputs:
            payload["output_dir"] = str(directory)
        began = time.monotonic()
        reply = self._reply(payload, on_event)
        seconds = time.monotonic() - began
        self.meter.told(reply.get("_meter"))
        given = Answer(
            reply=reply,
            output_dir=directory,
            files=answer.read_files(directory),
            seconds=seconds,
        )
        if own:
            self._look_at(what, given, request is self.known.requests.plain)
        return given

    def _reply(
        self,
        payload: dict[str, Any],
        on_event: "OnEvent | None",
    ) -> dict[str, Any]:
        if self.worker is not None:
            return self.worker.request(payload, on_event=on_event)
        reply, _ = supervisor.run_once(
            self.provider, payload, log_path=self.corner.log, admit=self._admitted
        )
        return reply

    def _look_at(self, what: str, given: Answer, plain: bool) -> None:
        provider, slug = self.provider, self.provider.slug
        expects = provider.smoke_expect if plain and provider.smoke_request else ()
        for problem in answer.wrong(provider, expects, given):
            said = problem.text.removeprefix(f"{slug}: ")
            self.wrong(problem.reason, f"{what} request: {said}", problem.name)

    def same(self, what: str, one: Answer | None, other: Answer) -> None:
        """Hold two answers to one request against each other, where that is declared.

        Where answers differ by themselves is left out: that is the first phase's to say.
        """
        if one is None or not self.provider.smoke_deterministic:
            return
        texts = [
            text
            for text in answer.differences(one, other)
            if not _is_below(place(text), self.known.varying)
        ]
        if texts:
            more = f"; {len(texts) - 5} more" if len(texts) > 5 else ""
            self.wrong(
                "not_deterministic",
                f"{what}: {'; '.join(texts[:5])}{more} found, identical answers wanted "
                "(smoke.deterministic)",
            )

    def wrong(self, reason: str, text: str, name: str | None = None) -> None:
        """Note one thing that is wrong, each once."""
        problem = Problem(
            step=STEP, reason=reason, text=f"{self.provider.slug}: {text}", name=name
        )
        if problem not in self.problems:
            self.problems.append(problem)

    # --- in front

    def verdict(self) -> list[Problem]:
        """List what is wrong, once the phase has run; empty: it passed.

        Raises what is no refusal of the provider's but a fault of ours.
        """
        slug = self.provider.slug
        if self.timed_out:
            self.wrong(
                "timeout",
                f"{self.at}: no end within {self.limit_s} s found, an end within that "
                "wanted (accept.timeout_s); all of it was ended",
                "accept.timeout_s",
            )
        elif isinstance(self.error, ProviderError):
            said = str(self.error).removeprefix(f"{slug}: ")
            known = self.error.reason in REASONS
            self.wrong(
                self.error.reason if known else "request_failed",
                f"{self.at}: {said}" + ("" if known else f" ({self.error.reason})"),
            )
        elif self.error is not None:
            raise self.error
        return [replace(problem, next=self._next()) for problem in self.problems]

    def _next(self) -> str:
        return f"doit accept:{self.provider.slug}"

    def clear(self) -> None:
        """End whatever is left of any worker of this phase."""
        for instance in self.instances:
            if processes.members(instance):
                self.instance = instance
                self._end(0.0)


def place(difference: str) -> str:
    """Give where two answers differ, the same for each item of a list."""
    return _INDEX.sub("[]", difference.partition(": ")[0])


def _is_below(where: str, varying: frozenset[str]) -> bool:
    return any(
        where == known or where.startswith((f"{known}.", f"{known}["))
        for known in varying
    )


# -- processes, by descriptors: a pid alone may be somebody else's by then


@contextlib.contextmanager
def watched(instance: str | None) -> Iterator[dict[int, int]]:
    """Hold the pidfds of all that belongs to an instance now."""
    held: dict[int, int] = {}
    try:
        for pid in [] if instance is None else processes.members(instance):
            with contextlib.suppress(ProcessLookupError):
                held[pid] = os.pidfd_open(pid)
        yield held
    finally:
        for fd in held.values():
            os.close(fd)


def living(held: Mapping[int, int], within_s: float = 0.0) -> list[int]:
    """List the pids that still live when the time is over."""
    until = time.monotonic() + within_s
    left = dict(held)
    while left:
        wait_s = max(0.0, until - time.monotonic())
        ended, _, _ = select.select(list(left.values()), [], [], wait_s)
        left = {pid: fd for pid, fd in left.items() if fd not in ended}
        if not ended:
            break
    return sorted(left)


def end(held: Mapping[int, int]) -> list[int]:
    """End what still lives; the pids of what had to be."""
    left = living(held)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(held[pid], signal.SIGKILL)
    return left


def seconds_of(answers: Sequence[Answer]) -> str:
    """Write how long each took."""
    return ", ".join(f"{given.seconds or 0.0:.3f}" for given in answers) + " s"
