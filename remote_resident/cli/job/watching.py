"""A job's events on a screen or a pipe, to the terminal one; and what signals mean."""

import contextlib
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TextIO

from remote_resident.cli.answer import Answer, Asked, silence, unwritable
from remote_resident.cli.signals import Cut
from remote_resident.errors import OK, REFUSED, ProviderError, refusal
from remote_resident.printable import plain

if TYPE_CHECKING:
    from rich.progress import Progress

    from remote_resident.jobs.client import JobClient
    from remote_resident.jobs.job import Event

TERMINAL = ("done", "error")
_ASK_S = 5.0
_INTERRUPTED = 128 + signal.SIGINT

Told = SimpleQueue[Any]
"""Events, an exception that ended the stream, and None for each Ctrl-C."""


def follow(
    asked: Asked,
    jobs: "JobClient",
    job_id: str,
    *,
    cancels: bool,
    told: Told | None = None,
) -> Answer:
    """Show a job to its end; exit code 0 for one that completed, 1 otherwise.

    Ctrl-C cancels where `cancels` says so, and leaves the job running the second time, as
    SIGTERM and a closed terminal do the first. `told` may have a Ctrl-C from before.
    """
    told = Told() if told is None else told
    view = View(asked, job_id)
    threading.Thread(target=_read, args=(jobs, job_id, told), daemon=True).start()
    cancelling: threading.Thread | None = None
    try:
        with _interrupt(lambda *_: told.put(None)), view:
            while True:
                one = told.get()
                if one is None:
                    if cancelling is not None or not cancels:
                        return _left(job_id, cancelling)
                    view.note(f"cancelling {job_id}; Ctrl-C again leaves it running")
                    cancelling = _in_background(jobs, job_id)
                elif isinstance(one, BaseException):
                    raise _cut(one, job_id)
                elif one.get("event") in TERMINAL:
                    return _answer(view, one)
                else:
                    view.show(one)
    except Cut as cut:
        return _left(job_id, cancelling, cut)
    except BrokenPipeError:
        # who read it has left: the job runs on
        silence(asked.stdout)
        return Answer(document={}, code=REFUSED)


def _read(jobs: "JobClient", job_id: str, told: Told) -> None:
    try:
        for event in jobs.events(job_id):
            told.put(event)
    # raised in the thread that waits
    except Exception as exc:
        told.put(exc)


def _in_background(jobs: "JobClient", job_id: str) -> threading.Thread:
    def ask() -> None:
        # it may have ended by now, and the daemon too: the stream tells
        with contextlib.suppress(ProviderError):
            jobs.cancel(job_id)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    return thread


@contextlib.contextmanager
def interrupts_kept(told: Told) -> Iterator[None]:
    """Put the first Ctrl-C into `told`, for who follows; the second raises Cut."""

    def heard(number: int, frame: object) -> None:
        if not told.empty():
            raise Cut(number)
        told.put(None)

    with _interrupt(heard):
        yield


@contextlib.contextmanager
def _interrupt(heard: Callable[[int, object], object]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = signal.signal(signal.SIGINT, heard)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old)


def _cut(exc: BaseException, job_id: str) -> BaseException:
    if not isinstance(exc, ProviderError) or exc.reason != "not_running":
        return exc
    return ProviderError(
        f"job {job_id}: {exc}; the job runs on",
        reason=exc.reason,
        next=f"tu remote job attach {job_id}",
    )


def _left(
    job_id: str, cancelling: threading.Thread | None, cut: Cut | None = None
) -> Answer:
    if cancelling is not None:
        # what was asked for first stands, however quickly the second came
        cancelling.join(_ASK_S)
    next_ = f"tu remote job attach {job_id}"
    by = "" if cut is None else f"cut by {cut.name}: "
    error = f"{by}job {job_id} was left running"
    document = refusal("interrupted", error, next=next_)
    notes = f"tu: {by}job {job_id} runs on\nnext: {next_}"
    code = _INTERRUPTED if cut is None else cut.exit_code
    return Answer(document=document, notes=notes, code=code)


def _answer(view: "View", event: "Event") -> Answer:
    completed = event.get("event") == "done" and event.get("status") == "completed"
    return Answer(
        document=event,
        text="" if completed and not view.results else "\n".join(view.results),
        notes=_ended(event, view),
        code=OK if completed else REFUSED,
    )


def _ended(event: "Event", view: "View") -> str:
    if event.get("event") == "done":
        status = event.get("status")
        said = f"{view.job_id}: {status}"
        quiet = view.asked.quiet and status == "completed"
        return "" if quiet or view.asked.json else said
    message = plain(str(event.get("message")), kept="\t\n")
    lines = [f"tu: {view.job_id}: {message}"]
    if event.get("next"):
        lines.append(f"next: {event['next']}")
    return "\n".join(lines)


class View:
    """What shows the events: a bar on a terminal, lines elsewhere, JSON when asked."""

    def __init__(self, asked: Asked, job_id: str) -> None:
        self.asked = asked
        self.job_id = job_id
        self.results: list[str] = []
        self._bar: Progress | None = None
        self._task: Any = None
        self._last: tuple[object, ...] = ()

    def __enter__(self) -> "View":
        quiet = self.asked.json or self.asked.quiet
        if not quiet and sys.stderr.isatty():
            self._bar = _bar(self.asked.color)
            self._task = self._bar.add_task(self.job_id, total=None)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            # a terminal that was closed takes nothing more
            with contextlib.suppress(OSError):
                self._bar.stop()

    def show(self, event: "Event") -> None:
        """Show one event that is not the last."""
        if self.asked.json:
            _tell(self.asked.stdout, json.dumps(event))
            return
        name = str(event.get("event"))
        if event.get("dropped"):
            self.note(f"{event['dropped']} events were dropped")
        if name == "result":
            self.results.append(plain(str(event.get("run_url"))))
        told = getattr(self, f"_{name}", self._other)(event)
        if told:
            self.note(told)

    def note(self, text: str) -> None:
        """Say a line to people."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        elif not self.asked.quiet or text.startswith("cancelling"):
            _tell(sys.stderr, text)

    def _queued(self, event: "Event") -> str:
        wait = event.get("expected_wait_s")
        told = "" if wait is None else f", about {wait:.0f} s to wait"
        if event.get("waits_for"):
            told += f"; waits for room: {event.get('message')}"
        return self._state(f"queued, position {event.get('position')}{told}")

    def _starting(self, event: "Event") -> str:
        return self._state("starting")

    def _state(self, text: str) -> str:
        if self._bar is None:
            return text
        self._bar.update(self._task, description=text)
        return ""

    def _progress(self, event: "Event") -> str:
        percent, label = event.get("percent"), plain(str(event.get("label") or ""))
        known = isinstance(percent, int | float) and percent >= 0
        if self._bar is not None:
            self._bar.update(
                self._task,
                total=100 if known else None,
                completed=percent if known else 0,
                description=label or self.job_id,
            )
            return ""
        whole = int(percent) if known and percent is not None else None
        if (whole, label) == self._last:
            return ""
        self._last = (whole, label)
        return " ".join(filter(None, ["" if whole is None else f"{whole} %", label]))

    def _metric(self, event: "Event") -> str:
        value = event.get("value")
        said = value if isinstance(value, str) else json.dumps(value)
        return plain(f"{event.get('label')} = {said}")

    def _log(self, event: "Event") -> str:
        return plain(str(event.get("message")))

    def _result(self, event: "Event") -> str:
        return ""

    def _custom(self, event: "Event") -> str:
        return plain(f"{event.get('name')} {json.dumps(event.get('payload'))}")

    def _other(self, event: "Event") -> str:
        return plain(json.dumps(event))


def _tell(stream: TextIO, line: str) -> None:
    """Write a line at once; a full disk is said, and ends no watch."""
    try:
        print(line, file=stream, flush=True)
    except BrokenPipeError:
        raise
    except OSError as exc:
        unwritable(stream, exc)


def _bar(color: bool) -> "Progress":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(stderr=True, no_color=not color)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
