"""Who owns the endpoints of this host: one lock, one schedule, every caller's ticket.

State is read and changed under the lock alone; what takes time is done on threads
(`acting`), which report back. Registrations are changed in `changes`.
"""

import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence

from remote_resident.endpoints import acting, memory, notes
from remote_resident.endpoints.cell import Cell
from remote_resident.endpoints.record import Endpoint
from remote_resident.endpoints.service import Patience, Service
from remote_resident.endpoints.store import Store
from remote_resident.endpoints.swap import (
    Caller,
    Event,
    Failure,
    Order,
    Phase,
    Schedule,
    State,
    Verb,
)
from remote_resident.endpoints.tickets import Ticket, Word, error_of
from remote_resident.errors import ProviderError

_LONGEST_WAIT_S = 60.0
_ENDINGS = frozenset({Event.STOPPED, Event.STOP_FAILED})


class Owner:
    """The endpoints of this host, what they do now, and who waits for them.

    What is public and no method belongs to `lock`.
    """

    def __init__(
        self,
        store: Store,
        *,
        overtake_s: float,
        by_memory: bool = False,
        host: memory.Host | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.store = store
        self.host = host or memory.Host()
        self.lock = threading.Condition()
        self.endpoints: dict[str, Endpoint] = {}
        self.damaged: dict[str, ProviderError] = {}
        self.schedule = Schedule(overtake_s=overtake_s)
        self.services: dict[str, Service] = {}
        """The last run of each local endpoint."""
        self.endings: dict[str, list[Failure | None]] = {}
        """What every stop of an endpoint came to."""
        self._by_memory = by_memory
        self._patience = patience or Patience()
        self._tickets: dict[int, Ticket] = {}
        self._numbers = itertools.count(1)
        self._states: dict[str, tuple[State, float]] = {}
        self._noting: dict[str, threading.Lock] = {}
        self._ending = False

    # Begin and end

    def begin(self) -> None:
        """Read what is registered and take over what still runs of it."""
        found = self.store.registrations()
        with self.lock:
            self.damaged = dict(found.damaged)
            for endpoint in found.endpoints.values():
                self.take_in(endpoint)
            for name in set(memory.held()) - set(self.schedule.residents()):
                memory.release(name)
            self.carry(self.schedule.decide(time.monotonic()))
        acting.spawn(self._tick, "endpoints: clock")

    def _adopt(self, endpoint: Endpoint) -> None:
        name = endpoint.name
        phase, service = notes.adopted(self.store, endpoint)
        self.schedule.phases[name] = phase
        if (since := notes.since(self.store, name, phase.state)) is not None:
            self._states[name] = (phase.state, since)
        if service is None:
            return
        self.services[name] = service
        if phase.state is State.STARTING:
            self._act(service, acting.resume)
        elif phase.state is State.READY:
            now = time.monotonic()
            self.schedule.ready[name] = self.schedule.used[name] = now
            if service.listener is not None:
                self._act(service, acting.watch)
            else:
                self.carry(self.schedule.happened(name, Event.DIED, now))
        elif phase.state is State.STOPPING:
            begun = service.listener is None
            self._set_off(Order(verb=Verb.CLEAN if begun else Verb.STOP, name=name))
        elif phase.left:
            self._watch_free(service)

    def end(self, *, stop_services: bool) -> None:
        """End every cell and let go; services run on, except with `stop_services`."""
        failure = Failure(reason="stopping", text="the host daemon ends")
        with self.lock:
            self._ending = True
            self.schedule.closed |= set(self.endpoints)
            cells = self._fail(list(self._tickets.values()), failure)
            self.lock.notify_all()
        end_cells(cells, failure)
        if stop_services:
            self._stop_every()
        with self.lock:
            for service in self.services.values():
                service.cut.set()

    def _stop_every(self) -> None:
        with self.lock:
            names = self.schedule.residents()
            for name in names:
                self.carry(self.schedule.ask_stop(name, time.monotonic()))
            found = [self.services[name].endpoint for name in names]
            limit_s = max((e.stop_timeout_s for e in found), default=0.0)
            self.until(
                lambda: all(self.is_down(name) for name in names),
                limit_s + self._patience.settle_s + _LONGEST_WAIT_S,
            )
        for name in names:
            # the process may end before the thread that stopped it has
            self.note_of(name)

    # What is registered; under the lock

    def take_in(self, endpoint: Endpoint) -> None:
        """Take in a registration that was found, and what still runs of it."""
        self.know(endpoint)
        if endpoint.location == "local":
            self._adopt(endpoint)

    def know(self, endpoint: Endpoint) -> None:
        """Take in a registration that is kept."""
        name = endpoint.name
        self.endpoints[name] = endpoint
        self.damaged.pop(name, None)
        self.schedule.ttl_s[name] = endpoint.ttl_s
        if endpoint.location == "local":
            self.schedule.phases.setdefault(name, Phase())
        self._set_mode()

    def forget(self, name: str, why: Failure) -> None:
        """Take in that a registration is removed; who waits for it is refused."""
        known: Sequence[dict[str, object]] = (
            self.endpoints,
            self.damaged,
            self.services,
            self.endings,
            self._states,
        )  # type: ignore[assignment]  # nothing is put in
        for one in known:
            one.pop(name, None)
        self._set_mode()
        self.carry(self.schedule.forget(name, time.monotonic(), why))

    def _set_mode(self) -> None:
        local = [e for e in self.endpoints.values() if e.location == "local"]
        self.schedule.by_memory = self._by_memory and all(map(memory.is_whole, local))

    def is_down(self, name: str) -> bool:
        """Say whether nothing of an endpoint is on its way up or down."""
        state = self.schedule.phase(name).state
        idle = name not in self.schedule.draining
        return idle and state in (State.STOPPED, State.FAILED)

    def state(self, name: str) -> tuple[Phase, float | None, dict[str, object]]:
        """Give a phase, since when (epoch), and its work.

        That is how many cells run and callers wait, and within how many seconds what it
        does now ends.
        """
        with self.lock:
            phase = self.schedule.phase(name)
            since = self._states[name][1] if name in self._states else None
            waiting = sum(1 for c in self.schedule.waiting if c.name == name)
            cells = len(self.schedule.cells(name))
            limit_s = self._limit_s(name)
            return (
                phase,
                since,
                {"cells": cells, "waiting": waiting, "limit_s": limit_s},
            )

    # Callers

    def arrive(self, name: str) -> Ticket:
        """Put a caller in line. Raises ProviderError where it is refused at once."""
        with self.lock:
            if self._ending:
                raise ProviderError("the host daemon ends", reason="stopping")
            now = time.monotonic()
            caller = Caller(ticket=next(self._numbers), name=name, arrived=now)
            ticket = self._tickets[caller.ticket] = Ticket(caller=caller)
            self.schedule.arrive(caller)
            self.carry(self.schedule.decide(now))
            if ticket.failure is not None:
                del self._tickets[caller.ticket]
                raise error_of(ticket.failure)
            return ticket

    def wait(self, ticket: Ticket, timeout_s: float) -> list[Word]:
        """Wait for news of a ticket; give what there is to tell.

        Raises ProviderError where it is refused.
        """
        with self.lock:
            if not ticket.words and not ticket.settled:
                self.lock.wait(timeout_s)
            if ticket.failure is not None:
                raise error_of(ticket.failure)
            return self.words(ticket)

    def words(self, ticket: Ticket) -> list[Word]:
        """Take what there is to tell a ticket."""
        with self.lock:
            self._tell(ticket)
            words = list(ticket.words)
            ticket.words.clear()
            return words

    def attach(self, ticket: Ticket, cell: Cell) -> None:
        """Say which cell a granted ticket is for.

        Raises ProviderError where it is not to start any more.
        """
        with self.lock:
            if ticket.failure is not None:
                raise error_of(ticket.failure)
            ticket.cell = cell

    def leave(self, ticket: Ticket) -> None:
        """Forget a caller whose cell has ended, or who left; as often as liked."""
        with self.lock:
            if self._tickets.pop(ticket.caller.ticket, None) is not None:
                now = time.monotonic()
                self.schedule.leave(ticket.caller.ticket, now)
                self.carry(self.schedule.decide(now))

    def cut_cells(self, name: str, failure: Failure) -> list[Cell]:
        """Give up the tickets that run on an endpoint; give their cells, to be ended."""
        granted = [t for t in self._tickets.values() if t.granted]
        return self._fail([t for t in granted if t.caller.name == name], failure)

    def _fail(self, tickets: list[Ticket], failure: Failure) -> list[Cell]:
        for ticket in tickets:
            ticket.failure = ticket.failure or failure
        return [ticket.cell for ticket in tickets if ticket.cell is not None]

    # What the threads report

    def report(
        self, service: Service, event: Event, failure: Failure | None = None
    ) -> None:
        """Take in what happened to a service."""
        name = service.endpoint.name
        with self.lock:
            if self.services.get(name) is not service:
                return
            if event is Event.DIED:
                self._tell_of_death(name)
            if event in _ENDINGS:
                self.endings.setdefault(name, []).append(failure)
            now = time.monotonic()
            self.carry(self.schedule.happened(name, event, now, failure))
            if event is Event.STOP_FAILED:
                self._watch_free(service)

    def _tell_of_death(self, name: str) -> None:
        failure = Failure(
            reason="worker_died",
            text=f"{name}: its service ended while the cell ran, one that lives wanted",
            next=f"tu remote endpoint logs {name}",
        )
        for cell in self.cut_cells(name, failure):
            timer = threading.Timer(
                self._patience.dying_s, cell.end, [error_of(failure)]
            )
            timer.daemon = True
            timer.start()

    def report_crowded(self, service: Service, crowded: memory.Crowded) -> None:
        """Take in that a service cannot be started before others have left."""
        verdict, name = crowded.verdict, service.endpoint.name
        failure = Failure(
            reason=verdict.reason, text=verdict.text, next="tu remote room"
        )
        with self.lock:
            now = time.monotonic()
            if self.services.get(name) is service:
                self.carry(self.schedule.crowd(name, crowded.names, now, failure))

    def others(self, service: Service) -> list[str]:
        """List the instances that could leave, least recently used first."""
        with self.lock:
            if not self.schedule.by_memory:
                return []
            phases = self.schedule.phases.items()
            ready = [name for name, phase in phases if phase.state is State.READY]
            ready.sort(key=lambda name: self.schedule.used[name])
            return [self.services[name].instance for name in ready]

    def has_failed_start(self, service: Service) -> bool:
        """Say whether a service is stopped because its start failed."""
        with self.lock:
            return self.schedule.phase(service.endpoint.name).failure is not None

    def asked(self, service: Service) -> None:
        """Take in that a start waits for its route now."""
        with self.lock:
            service.asked = True
            self._tell_all()
            self.lock.notify_all()

    def note(self, service: Service) -> None:
        """Write down where a service stands."""
        self.note_of(service.endpoint.name)

    def note_of(self, name: str) -> None:
        """Write down where an endpoint stands; not to be called under the lock."""
        with self.lock:
            noting = self._noting.setdefault(name, threading.Lock())
        # what is written last is what is so last
        with noting:
            with self.lock:
                if name not in self.endpoints:
                    return
                phase, service = self.schedule.phase(name), self.services.get(name)
                _, since = self._states.get(name, (None, None))
            notes.write(self.store, name, phase, service, since)

    # The orders; under the lock

    def carry(self, orders: list[Order]) -> None:
        """Carry out what the schedule wants, and tell everybody."""
        for order in orders:
            if order.verb in (Verb.GRANT, Verb.REFUSE):
                self._answer(order)
            else:
                self._set_off(order)
        for name, phase in self.schedule.phases.items():
            if self._states.get(name, (None, 0.0))[0] is not phase.state:
                self._states[name] = (phase.state, time.time())
        self._tell_all()
        self.lock.notify_all()

    def _answer(self, order: Order) -> None:
        assert order.caller is not None
        ticket = self._tickets.get(order.caller.ticket)
        if ticket is None:
            return
        if order.verb is Verb.GRANT:
            ticket.granted = True
        else:
            ticket.failure = order.failure

    def _set_off(self, order: Order) -> None:
        name = order.name
        new = Service(
            endpoint=self.endpoints[name],
            instance=os.urandom(8).hex(),
            patience=self._patience,
        )
        if order.verb is Verb.START:
            self.services[name] = new
            self._act(new, acting.start)
            return
        one = self.services.setdefault(name, new)
        died = order.verb is Verb.CLEAN
        acting.spawn(lambda: acting.stop(self, one, died=died), f"{name}: stop")

    def _act(self, one: Service, how: Callable[["Owner", Service], None]) -> None:
        name = f"{one.endpoint.name}: {how.__name__}"
        one.thread = acting.spawn(lambda: how(self, one), name)

    def _watch_free(self, one: Service) -> None:
        name = one.endpoint.name

        def over() -> bool:
            with self.lock:
                phase = self.schedule.phase(name)
                current = self.services.get(name) is one and not self._ending
                return not (current and phase.state is State.FAILED and phase.left)

        acting.spawn(lambda: acting.until_free(self, one, over), f"{name}: watch")

    def _tick(self) -> None:
        with self.lock:
            while not self._ending:
                now = time.monotonic()
                if orders := self.schedule.decide(now):
                    self.carry(orders)
                due = self.schedule.next_due(now)
                wait_s = _LONGEST_WAIT_S if due is None else due - now
                self.lock.wait(min(max(wait_s, 0.001), _LONGEST_WAIT_S))

    def until(self, done: Callable[[], bool], limit_s: float | None = None) -> None:
        """Wait until something is so, or the time is over; None: as long as it takes."""
        until = None if limit_s is None else time.monotonic() + limit_s
        while not done():
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return
            self.lock.wait(_LONGEST_WAIT_S if left is None else left)

    # What callers are told; under the lock

    def _tell_all(self) -> None:
        for ticket in self._tickets.values():
            self._tell(ticket)

    def _tell(self, ticket: Ticket) -> None:
        if ticket.failure is None:
            standing = self.schedule.standing(ticket.caller)
            name = standing.name
            ticket.tell(standing, self.services.get(name), self._limit_s(name))

    def _limit_s(self, name: str) -> float | None:
        """Say within how many seconds what an endpoint does now ends; None: not known."""
        service = self.services.get(name)
        state = self.schedule.phase(name).state
        if service is None or state not in _LIMITED:
            return None
        if state is State.STARTING:
            spent = time.time() - service.begun
            return max(0.0, service.endpoint.start_timeout_s - spent)
        if state is State.STOPPING:
            return service.endpoint.stop_timeout_s + self._patience.settle_s
        cells = [t.cell for t in self._tickets.values() if t.caller.name == name]
        ends = [cell.deadline for cell in cells if cell is not None]
        left = max((end - time.monotonic() for end in ends), default=0.0)
        return max(0.0, left) + self.schedule.overtake_s


_LIMITED = frozenset({State.STARTING, State.STOPPING, State.READY})


def end_cells(cells: Sequence[Cell], failure: Failure) -> None:
    """End cells, all at once, and wait until they have ended."""
    error = error_of(failure)
    threads = [threading.Thread(target=cell.end, args=[error]) for cell in cells]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
