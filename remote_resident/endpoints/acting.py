"""The hands of the owner: starts, watches and stops services, each on a thread.

What comes of it is reported to the owner, which alone decides. A thread acts for one
`Service`; what it reports of a service that is not the current one any more is ignored.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from remote_resident.daemon.door import tell
from remote_resident.endpoints import credentials, listener, memory, remains, service
from remote_resident.endpoints.readiness import NotReady, NotWanted, Watch, identify
from remote_resident.endpoints.scripts import Run
from remote_resident.endpoints.service import Service
from remote_resident.endpoints.swap import Event, Failure
from remote_resident.errors import ProviderError

_WATCH_S = 1.0
"""How often a service is looked at whose processes have not ended: it may close its port,
and the first process of a container is not always known."""
_TWICE_S = 0.1
_FREE_FIRST_S, _FREE_LAST_S = 0.25, 2.0
"""How often what a failed stop left is looked for: each look may ask an engine."""


class Owner(Protocol):
    """Whom a thread reports to."""

    host: memory.Host

    def report(
        self, service: Service, event: Event, failure: Failure | None = None
    ) -> None:
        """Take in what happened to a service."""

    def report_crowded(self, service: Service, crowded: memory.Crowded) -> None:
        """Take in that others must leave first."""

    def note(self, service: Service) -> None:
        """Write down where a service stands, for the next daemon."""

    def others(self, service: Service) -> list[str]:
        """List the instances that could leave for it, least recently used first."""

    def has_failed_start(self, service: Service) -> bool:
        """Say whether it is stopped because its start failed."""

    def asked(self, service: Service) -> None:
        """Take in that a start waits for its route now."""


def spawn(target: Callable[[], None], name: str) -> threading.Thread:
    """Run something on a thread; a bug of ours is told and ends that thread alone."""

    def run() -> None:
        try:
            target()
        except Exception as exc:  # the owner and its other services go on
            tell(name, exc)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def start(owner: Owner, one: Service, spent_s: float | None = None) -> None:
    """Start a service, wait until it is ready, then watch it until it is stopped.

    `spent_s` is how long ago another daemon began the start; None: nobody has.
    """
    try:
        if spent_s is None:
            _begin(owner, one)
        left_s = one.endpoint.start_timeout_s - (spent_s or 0.0)
        _until_ready(owner, one, time.monotonic() + left_s)
    except NotWanted:
        return
    except memory.Crowded as exc:
        owner.report_crowded(one, exc)
    except NotReady as exc:
        owner.report(one, Event.START_FAILED, _of_start(one, exc.reason, str(exc)))
    except ProviderError as exc:
        failure = Failure(reason=exc.reason, text=str(exc), next=exc.next)
        owner.report(one, Event.REFUSED, failure)
        with _going_on(one):
            owner.note(one)
    except Exception as exc:
        # callers must be told, and what may have been started must be stopped
        text = f"{one.endpoint.name}: {type(exc).__name__}: {exc}"
        owner.report(one, Event.START_FAILED, _of_start(one, "internal", text))
        raise
    else:
        watch(owner, one)


def resume(owner: Owner, one: Service) -> None:
    """Go on with a start that another daemon began."""
    start(owner, one, max(0.0, time.time() - one.begun))


def _of_start(one: Service, reason: str, text: str) -> Failure:
    return Failure(
        reason=reason, text=text, next=f"tu remote endpoint logs {one.endpoint.name}"
    )


def _begin(owner: Owner, one: Service) -> None:
    endpoint = one.endpoint
    service.refuse_stranger(one)
    credential = credentials.load(endpoint.credential)
    if credential is None:
        raise ProviderError(
            f"{endpoint.name}: {endpoint.credential}: no credential found, one wanted",
            reason="not_connected",
            next="tu remote endpoint connect --mode local --credential-file FILE",
        )
    one.hide = credential
    with memory.admitted(endpoint, one.instance, owner.host, owner.others(one)):
        if one.cut.is_set():
            raise NotWanted
        # before the first process: whoever comes after a crash must know of it
        owner.note(one)
        try:
            one.run = Run.begin(
                endpoint, "start", one.instance, credential=credential, hide=credential
            )
        except OSError as exc:
            raise NotReady(
                reason="start_failed",
                text=f"{endpoint.name}: start cannot be run: {exc}",
            ) from None


def _until_ready(owner: Owner, one: Service, deadline: float) -> None:
    owner.asked(one)
    watching = Watch(
        endpoint=one.endpoint,
        instance=one.instance,
        run=one.run,
        deadline=deadline,
        cut=one.cut.is_set,
        dead_s=one.patience.dead_s,
    )
    one.listener = watching.until_ready()
    owner.report(one, Event.READY)


def watch(owner: Owner, one: Service) -> None:
    """Watch a service that is ready until it is to be stopped, or has died."""
    with _going_on(one):
        memory.hold(one.endpoint, one.instance, service.pids(one), loading=False)
    one.orphans = service.orphans(one)
    with _going_on(one):
        owner.note(one)
    while not one.cut.is_set():
        try:
            # the table of processes is not read at one instant: look twice
            if _is_dead(one, _WATCH_S) and _is_dead(one, _TWICE_S):
                owner.report(one, Event.DIED)
                return
        except OSError:
            # no descriptor is free: nothing was seen
            time.sleep(_TWICE_S)


@contextlib.contextmanager
def _going_on(one: Service) -> Iterator[None]:
    """Tell what cannot be written down; a full disk must not stop what is being done."""
    try:
        yield
    except ProviderError as exc:
        tell(f"{one.endpoint.name}: not written down", exc)


def _is_dead(one: Service, within_s: float) -> bool:
    """Wait for a sign of its end, and say whether it has ended; not of one to be stopped."""
    return not one.cut.wait(within_s, one.telling()) and not _is_there(one)


def _is_there(one: Service) -> bool:
    if one.listener is not None and listener.still_there(one.listener, one.port):
        return True
    found = identify(one.endpoint, one.instance, one.env())
    if found is not None:
        # it has opened its port anew
        one.listener = found
    return found is not None


def stop(owner: Owner, one: Service, *, died: bool = False) -> None:
    """Stop a service and see it through; of one that `died` clean up what is left."""
    one.cut.set()
    if one.thread is not None:
        one.thread.join()
    # beside the stop: who comes after a crash finds a service that ends either way
    spawn(lambda: owner.note(one), f"{one.endpoint.name}: note")
    try:
        failure = _stopped(owner, one, died=died)
    except Exception as exc:
        # who waits for the end must be told
        failure = remains.failure(one.endpoint, f"{type(exc).__name__}: {exc}", ())
        tell(f"{one.endpoint.name}: stop", exc)
    if failure is None:
        _report_gone(owner, one, Event.STOPPED)
        return
    owner.report(one, Event.STOP_FAILED, failure)
    with _going_on(one):
        owner.note(one)


def _stopped(owner: Owner, one: Service, *, died: bool) -> Failure | None:
    """Stop it as it has to be; None: stopped, else why not."""
    if one.listener is None and one.run is not None:
        # it never was ready: what still tries to start it is ended first
        one.run.end()
    if not listener.is_open(one.port) and _is_gone(owner, one):
        return None
    if died or owner.has_failed_start(one):
        return _cleaned(one)
    return service.stop(one)


def _report_gone(owner: Owner, one: Service, event: Event) -> None:
    """Report that nothing is left of it."""
    with _going_on(one):
        memory.release(one.endpoint.name)
    owner.report(one, event)
    with _going_on(one):
        owner.note(one)


def _is_gone(owner: Owner, one: Service) -> bool:
    """Say whether there is nothing to stop; a start that failed is stopped all the same."""
    return not owner.has_failed_start(one) and not service.left(one)


def _cleaned(one: Service) -> Failure | None:
    """Stop what a start that failed or a service that died has left, whatever it says."""
    failure = service.stop(one, settle=False)
    service.sweep(one)
    rest = service.left(one, one.patience.swept_s)
    if not rest:
        return None
    return failure or remains.failure(one.endpoint, "stop returned 0", rest)


def until_free(owner: Owner, one: Service, over: Callable[[], bool]) -> None:
    """Report when nothing is left of a service whose stop failed, until `over`.

    Where nothing was left from the first, it is the script that failed: that stays.
    """
    if not service.left(one):
        return
    pause_s = _FREE_FIRST_S
    while not over():
        if not listener.is_open(one.port) and not service.left(one):
            _report_gone(owner, one, Event.GONE)
            return
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _FREE_LAST_S)
