"""What is registered, changed and removed while endpoints run: stopped first, then done."""

import contextlib
import threading
import time
from collections.abc import Iterator

from remote_resident.endpoints import memory
from remote_resident.endpoints.owner import Owner, end_cells
from remote_resident.endpoints.record import Endpoint
from remote_resident.endpoints.service import left
from remote_resident.endpoints.swap import Event, Failure, State
from remote_resident.endpoints.tickets import error_of
from remote_resident.errors import ProviderError, UsageError


class Changes:
    """Changes of registrations, one at a time for each name."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._store = owner.store
        self._turns: dict[str, threading.Lock] = {}

    def known(self, name: str) -> Endpoint | None:
        """Give an endpoint; None: its registration is damaged.

        Raises UsageError (`unknown_name`, near names named).
        """
        owner = self._owner
        with owner.lock:
            self.look_again(name)
            if name in owner.endpoints or name in owner.damaged:
                return owner.endpoints.get(name)
            names = sorted({*owner.endpoints, *owner.damaged})
        from difflib import get_close_matches

        near = get_close_matches(name, names)
        wanted = f", {' or '.join(near)} wanted" if near else ""
        raise UsageError(
            f"{name!a}: no such endpoint found{wanted}", next="tu remote endpoint list"
        )

    def look_again(self, name: str) -> None:
        """See whether a damaged registration was moved aside, or put right."""
        owner = self._owner
        with owner.lock:
            if name not in owner.damaged:
                return
            try:
                found = self._store.registration(name)
            except ProviderError as exc:
                owner.damaged[name] = exc
                return
            if found is None:
                del owner.damaged[name]
            else:
                owner.take_in(found)
                owner.carry(owner.schedule.decide(time.monotonic()))

    @contextlib.contextmanager
    def turn(self, name: str) -> Iterator[None]:
        """Hold a name's registration: nobody else changes it until the block ends."""
        with self._owner.lock:
            lock = self._turns.setdefault(name, threading.Lock())
        with lock:
            yield

    def register(self, endpoint: Endpoint) -> None:
        """Put a registration in force, in its turn; what its name had is stopped first.

        The same bytes again clear a failure and start nothing. Raises ProviderError
        (`stop_failed`) where the old bytes' own stop does; they stay registered then.
        """
        name = endpoint.name
        if self._owner.endpoints.get(name) != endpoint:
            with self._closed(name):
                self._bring_down(name)
                self._store.register(endpoint)
                with self._owner.lock:
                    self._owner.know(endpoint)
                self._clear(name)
        else:
            self._clear(name)

    def remove(self, name: str) -> None:
        """Stop an endpoint and forget it, in its turn.

        Raises UsageError (`unknown_name`), ProviderError (`stop_failed`) where
        something of it is left.
        """
        self.known(name)
        with self._closed(name):
            self._bring_down(name)
            self._store.remove(name)
            memory.release(name)
            gone = Failure(
                reason="unknown_name",
                text=f"{name!a}: removed while a caller waited, an endpoint wanted",
                next="tu remote endpoint list",
            )
            with self._owner.lock:
                self._owner.forget(name, gone)

    def stop(self, name: str, *, now: bool = False) -> None:
        """Stop an endpoint once its cells have ended; `now` ends them.

        Its own stop is tried again where it had failed. Raises UsageError
        (`unknown_name`), ProviderError (`stop_failed`).
        """
        self.known(name)
        owner = self._owner
        ended = Failure(
            reason="stopping",
            text=f"{name}: cell: ended by a stop, one that ends by itself wanted",
        )
        with owner.lock:
            owner.until(lambda: owner.schedule.phase(name).state is not State.STOPPING)
            before = len(owner.endings.get(name, ()))
            owner.carry(owner.schedule.ask_stop(name, time.monotonic()))
            cells = owner.cut_cells(name, ended) if now else []
        end_cells(cells, ended)
        with owner.lock:
            # whoever waited may have had it started again by now
            owner.until(
                lambda: owner.is_down(name) or len(owner.endings.get(name, ())) > before
            )
            failure = (owner.endings.get(name) or [None])[before:][:1]
        if failure and failure[0] is not None:
            raise error_of(failure[0])

    def _bring_down(self, name: str) -> None:
        """Stop what runs of a name, once its cells have ended.

        Raises ProviderError (`stop_failed`) where something of it is left; of one that
        is failed so already its stop is not tried again.
        """
        owner = self._owner
        with owner.lock:
            owner.until(lambda: owner.schedule.phase(name).state is not State.STOPPING)
            if owner.schedule.phase(name).state is not State.FAILED:
                owner.carry(owner.schedule.ask_stop(name, time.monotonic()))
                owner.until(lambda: owner.is_down(name))
            phase = owner.schedule.phase(name)
        if self._is_left(name) and phase.failure is not None:
            raise error_of(phase.failure)

    def _is_left(self, name: str) -> bool:
        with self._owner.lock:
            phase = self._owner.schedule.phase(name)
            service = self._owner.services.get(name)
        return phase.left and service is not None and bool(left(service))

    def _clear(self, name: str) -> None:
        """Clear a failure of which nothing is left."""
        owner = self._owner
        with owner.lock:
            is_failed = owner.schedule.phase(name).state is State.FAILED
        if not is_failed or self._is_left(name):
            return
        memory.release(name)
        with owner.lock:
            if owner.schedule.phase(name).state is State.FAILED:
                now = time.monotonic()
                owner.carry(owner.schedule.happened(name, Event.CLEAR, now))
        owner.note_of(name)

    @contextlib.contextmanager
    def _closed(self, name: str) -> Iterator[None]:
        """Let nobody start it, nor a cell on it, until the block ends."""
        owner = self._owner
        with owner.lock:
            owner.schedule.closed.add(name)
        try:
            yield
        finally:
            with owner.lock:
                owner.schedule.closed.discard(name)
                owner.carry(owner.schedule.decide(time.monotonic()))
