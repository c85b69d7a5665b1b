"""Who is resident, who waits, who is stopped: decided here, done elsewhere.

Nothing here reads a clock, a process or a file. `move` is the transition table of one
endpoint; `Schedule` is the queue of callers and, with the table, the decision. Whoever
owns a schedule tells it what happened, under its own lock, and carries out the orders
that come back.

The queue is one line, in order of arrival. A caller whose endpoint is ready goes at
once, unless somebody ahead needs that endpoint off the device: then callers of the
resident may go first for `overtake_s`, counted from when both the one ahead had come
and the resident was ready, and no longer. What is loaded next is always what the first
in line asks for.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

OVERTAKE_S = 30.0


class State(Enum):
    """What an endpoint of this host is doing."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    FAILED = "failed"


class Event(Enum):
    """What can happen to an endpoint."""

    LOAD = "load"
    """It is its callers' turn."""
    REFUSED = "refused"
    """Nothing was started: a stranger on the port, no room."""
    READY = "ready"
    START_FAILED = "start_failed"
    STOP = "stop"
    STOPPED = "stopped"
    """Its stop was seen through: exit status 0, the port closed, its processes gone."""
    STOP_FAILED = "stop_failed"
    DIED = "died"
    """It ended although nobody stopped it."""
    GONE = "gone"
    """Nothing of it is left, whatever its stop said."""
    CLEAR = "clear"
    """It was registered anew, and nothing of it is left."""


class Act(Enum):
    """What is to be done besides a change of state."""

    START = "start"
    STOP = "stop"
    CLEAN = "clean"
    """See what a dead service left, and stop that."""
    REFUSE = "refuse"
    """Tell its callers why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why callers are refused."""

    reason: str
    text: str
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """An endpoint's state and what must be remembered with it."""

    state: State = State.STOPPED
    failure: Failure | None = None
    """Why it is failed, or will be once it is stopped; None: it is not."""
    left: bool = False
    """Something of it may still hold the device, so that nothing else is started."""
    start: Failure | None = None
    """Why its start had failed, where its stop failed too: all that stays once nothing
    is left."""

    @property
    def resident(self) -> bool:
        """Say whether it may hold the device."""
        return self.state in _RESIDENT or self.left


_RESIDENT = frozenset({State.STARTING, State.READY, State.STOPPING})


@dataclass(frozen=True, slots=True)
class Move:
    """One entry of the table."""

    to: State
    acts: tuple[Act, ...] = ()


_S, _E = State, Event
_TABLE: Mapping[State, Mapping[Event, Move]] = {
    _S.STOPPED: {
        _E.LOAD: Move(_S.STARTING, (Act.START,)),
    },
    _S.STARTING: {
        _E.REFUSED: Move(_S.STOPPED, (Act.REFUSE,)),
        _E.READY: Move(_S.READY),
        _E.START_FAILED: Move(_S.STOPPING, (Act.STOP,)),
        _E.STOP: Move(_S.STOPPING, (Act.REFUSE, Act.STOP)),
    },
    _S.READY: {
        _E.STOP: Move(_S.STOPPING, (Act.STOP,)),
        _E.DIED: Move(_S.STOPPING, (Act.CLEAN,)),
    },
    _S.STOPPING: {
        _E.STOPPED: Move(_S.STOPPED),
        _E.GONE: Move(_S.STOPPED),
        _E.STOP_FAILED: Move(_S.FAILED, (Act.REFUSE,)),
    },
    _S.FAILED: {
        _E.LOAD: Move(_S.FAILED, (Act.REFUSE,)),
        _E.STOP: Move(_S.STOPPING, (Act.STOP,)),
        _E.GONE: Move(_S.STOPPED),
        _E.CLEAR: Move(_S.STOPPED),
    },
}
"""What is not here changes nothing: it came too late, or is so already."""


def move(
    phase: Phase, event: Event, failure: Failure | None = None
) -> tuple[Phase, tuple[Act, ...]]:
    """Give the phase after an event, and what is to be done.

    `failure` says why, for START_FAILED, STOP_FAILED and REFUSED. A start that failed
    is stopped first and failed then; what a stop says besides does not hide it.
    """
    entry = _TABLE[phase.state].get(event)
    if entry is None:
        return phase, ()
    if phase.state is State.FAILED:
        return _from_failed(phase, event, entry)
    if event is Event.START_FAILED:
        return Phase(state=entry.to, failure=failure), entry.acts
    if event is Event.STOP_FAILED:
        return _stop_failed(phase, failure), entry.acts
    if entry.to is State.STOPPED and phase.failure is not None:
        # the start had failed: now nothing of it is left
        return Phase(state=State.FAILED, failure=phase.failure), (Act.REFUSE,)
    return Phase(state=entry.to), entry.acts


def _stop_failed(phase: Phase, failure: Failure | None) -> Phase:
    first = phase.failure
    if first is not None and failure is not None:
        text, then = f"{first.text}; {failure.text}", failure.next or first.next
        failure = replace(first, text=text, next=then)
    return Phase(state=State.FAILED, failure=failure or first, left=True, start=first)


def _from_failed(
    phase: Phase, event: Event, entry: Move
) -> tuple[Phase, tuple[Act, ...]]:
    if event is Event.LOAD:
        return phase, entry.acts
    if event is Event.GONE and phase.start is not None:
        return Phase(state=State.FAILED, failure=phase.start), ()
    return Phase(state=entry.to), entry.acts


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Somebody who wants a cell to be run on an endpoint."""

    ticket: int
    name: str
    arrived: float
    """On the clock that the schedule is told the time by."""


class Verb(Enum):
    """What an order is to do."""

    START = "start"
    STOP = "stop"
    CLEAN = "clean"
    GRANT = "grant"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One thing for the owner of a schedule to do, in the order given."""

    verb: Verb
    name: str
    caller: Caller | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What stands between a caller and its cell."""

    state: State | None
    """Of `name`; None: it has its turn."""
    name: str
    requests: int
    """How many callers it works for or waits for besides."""


@dataclass(slots=True)
class Schedule:
    """The endpoints of a host and the line before them."""

    overtake_s: float = OVERTAKE_S
    by_memory: bool = False
    """Several may be resident, as many as there is memory for."""
    phases: dict[str, Phase] = field(default_factory=dict)
    waiting: list[Caller] = field(default_factory=list)
    """In order of arrival."""
    running: dict[int, Caller] = field(default_factory=dict)
    ttl_s: dict[str, float] = field(default_factory=dict)
    """How long each stays with nobody asking; absent or 0: for good."""
    draining: set[str] = field(default_factory=set)
    """To be stopped as soon as its cells have ended."""
    closed: set[str] = field(default_factory=set)
    """Being changed: not loaded, no new cell."""
    crowded: dict[str, frozenset[str]] = field(default_factory=dict)
    """Which residents must leave before there is memory for one."""
    used: dict[str, float] = field(default_factory=dict)
    """When it became ready or its last cell ended."""
    ready: dict[str, float] = field(default_factory=dict)
    """Since when it is ready."""

    def phase(self, name: str) -> Phase:
        """Give an endpoint's phase; one that is not known is stopped."""
        return self.phases.get(name, _STOPPED)

    def arrive(self, caller: Caller) -> None:
        """Put a caller at the end of the line."""
        self.waiting.append(caller)

    def leave(self, ticket: int, now: float) -> None:
        """Forget a caller: it left the line, or its cell has ended."""
        self.waiting = [one for one in self.waiting if one.ticket != ticket]
        done = self.running.pop(ticket, None)
        if done is not None:
            self.used[done.name] = now
        wanted = {caller.name for caller in self.waiting}
        for name in self.crowded.keys() - wanted:
            del self.crowded[name]

    def ask_stop(self, name: str, now: float) -> list[Order]:
        """Stop an endpoint once its cells have ended; a start is cut short."""
        if self.phase(name).state not in (State.STOPPED, State.STOPPING):
            self.draining.add(name)
        return self.decide(now)

    def cells(self, name: str) -> list[Caller]:
        """List whose cells run on an endpoint."""
        return [one for one in self.running.values() if one.name == name]

    def residents(self) -> list[str]:
        """List who may hold the device."""
        return [name for name, phase in self.phases.items() if phase.resident]

    def forget(self, name: str, now: float, failure: Failure) -> list[Order]:
        """Drop an endpoint that is no longer registered; its callers are refused."""
        self.phases.pop(name, None)
        for known in (self.ttl_s, self.crowded, self.used, self.ready):
            known.pop(name, None)
        self.draining.discard(name)
        self.closed.discard(name)
        return [*self._refuse(name, failure), *self.decide(now)]

    def crowd(
        self, name: str, others: Iterable[str], now: float, failure: Failure
    ) -> list[Order]:
        """Take back a start for which there is no memory while others are resident.

        Its callers wait until `others` have left; where none of them is resident they
        are refused.
        """
        here = frozenset(others) & set(self.residents()) - {name}
        if not here:
            return self.happened(name, Event.REFUSED, now, failure)
        self.phases[name] = _STOPPED
        self.draining.discard(name)
        if any(caller.name == name for caller in self.waiting):
            self.crowded[name] = here
        return self.decide(now)

    def happened(
        self, name: str, event: Event, now: float, failure: Failure | None = None
    ) -> list[Order]:
        """Take an event in and give what is to be done about it."""
        before = self.phase(name)
        after, acts = move(before, event, failure)
        self.phases[name] = after
        if after.state is State.READY and before.state is not State.READY:
            self.ready[name] = self.used[name] = now
        if after.state in (State.STOPPED, State.STOPPING):
            self.draining.discard(name)
        if before.resident and not after.resident:
            # whoever waits for memory looks again
            self.crowded.clear()
        orders = list(self._orders(name, acts, after.failure or failure))
        return [*orders, *self.decide(now)]

    def _orders(
        self, name: str, acts: Iterable[Act], failure: Failure | None
    ) -> Iterator[Order]:
        for act in acts:
            if act is Act.REFUSE:
                yield from self._refuse(name, failure)
            else:
                yield Order(verb=Verb[act.name], name=name)

    def _refuse(self, name: str, failure: Failure | None) -> list[Order]:
        out = [caller for caller in self.waiting if caller.name == name]
        for caller in out:
            self.leave(caller.ticket, 0.0)
        return [
            Order(verb=Verb.REFUSE, name=name, caller=caller, failure=failure)
            for caller in out
        ]

    def decide(self, now: float) -> list[Order]:
        """Give what the rules want done now; asked again, it gives nothing more."""
        orders: list[Order] = []
        while more := [
            *self._refusals(),
            *self._grants(now),
            *self._stops(now),
            *self._loads(now),
        ]:
            orders += more
        return orders

    def _refusals(self) -> list[Order]:
        """Refuse whose endpoint is failed, or cannot be started for one that is."""
        blocker = self._blocker()
        orders: list[Order] = []
        for caller in list(self.waiting):
            phase = self.phase(caller.name)
            if caller.name in self.draining or caller.name in self.closed:
                continue
            if phase.state is State.FAILED:
                orders += self._refuse(caller.name, phase.failure)
            elif blocker is not None and phase.state is State.STOPPED:
                orders += self._refuse(caller.name, blocker)
        return orders

    def _blocker(self) -> Failure | None:
        for name, phase in self.phases.items():
            if phase.state is State.FAILED and phase.left and phase.failure:
                return Failure(
                    reason="stop_failed",
                    text=f"{phase.failure.text}; nothing else is started meanwhile",
                    next=phase.failure.next or f"tu remote endpoint stop {name}",
                )
        return None

    def _grants(self, now: float) -> list[Order]:
        orders = []
        for caller in list(self.waiting):
            if self._may_go(caller, now):
                self.waiting.remove(caller)
                self.running[caller.ticket] = caller
                orders.append(Order(verb=Verb.GRANT, name=caller.name, caller=caller))
        return orders

    def _may_go(self, caller: Caller, now: float) -> bool:
        name = caller.name
        if self.phase(name).state is not State.READY:
            return False
        if name in self.draining or name in self.closed:
            return False
        until = self._overtaking_ends(caller)
        return until is None or now < until

    def _overtaking_ends(self, caller: Caller) -> float | None:
        """Say until when a caller may go before who is ahead; None: nobody is."""
        for other in self.waiting:
            if other.ticket == caller.ticket:
                return None
            if self._wants_gone(other, caller.name):
                return max(other.arrived, self.ready[caller.name]) + self.overtake_s
        return None

    def _wants_gone(self, caller: Caller, resident: str) -> bool:
        """Say whether a caller can have its turn only when a resident has left."""
        name = caller.name
        if name == resident or name in self.closed:
            return False
        if self.phase(name).state is not State.STOPPED:
            return False
        if self.by_memory:
            return resident in self.crowded.get(name, ())
        return True

    def _stops(self, now: float) -> list[Order]:
        orders: list[Order] = []
        for name in list(self.phases):
            if self._to_stop(name, now):
                phase, acts = move(self.phase(name), Event.STOP)
                cut = self.phase(name).state is State.STARTING
                self.phases[name] = phase
                self.draining.discard(name)
                orders += self._orders(name, acts, _cut(name) if cut else None)
        return orders

    def _to_stop(self, name: str, now: float) -> bool:
        state = self.phase(name).state
        if name in self.draining and state in (State.STARTING, State.FAILED):
            return True
        if state is not State.READY or self.cells(name):
            return False
        if name in self.draining:
            return True
        return (
            any(self._wants_gone(caller, name) for caller in self.waiting)
            or self._is_over(name, now)
            or self._is_too_many(name)
        )

    def _is_over(self, name: str, now: float) -> bool:
        ttl_s = self.ttl_s.get(name, 0.0)
        return 0 < ttl_s <= now - self.used[name] and not self._asked_for(name)

    def _asked_for(self, name: str) -> bool:
        return any(caller.name == name for caller in self.waiting)

    def _is_too_many(self, name: str) -> bool:
        """Say whether it is the one of several to leave where one alone may stay."""
        if self.by_memory:
            return False
        ready = [n for n in self.residents() if self.phases[n].state is State.READY]
        idle = [n for n in ready if not self.cells(n)]
        return len(ready) > 1 and name == min(idle, key=lambda n: self.used[n])

    def _loads(self, now: float) -> list[Order]:
        orders: list[Order] = []
        for caller in list(self.waiting):
            if self._to_load(caller.name):
                self.phases[caller.name], acts = move(
                    self.phase(caller.name), Event.LOAD
                )
                orders += self._orders(caller.name, acts, None)
            elif caller.name in self.crowded:
                # nobody behind takes what it waits for
                break
        return orders

    def _to_load(self, name: str) -> bool:
        if self.phase(name).state is not State.STOPPED:
            return False
        if name in self.closed or name in self.draining or name in self.crowded:
            return False
        return self.by_memory or not self.residents()

    def next_due(self, now: float) -> float | None:
        """Give when time alone changes the decision; None: it does not."""
        due = [
            self.used[name] + ttl_s
            for name, ttl_s in self.ttl_s.items()
            if ttl_s > 0 and self.phase(name).state is State.READY
        ]
        for caller in self.waiting:
            if self.phase(caller.name).state is State.READY:
                until = self._overtaking_ends(caller)
                due += [] if until is None else [until]
        return min((when for when in due if when > now), default=None)

    def standing(self, caller: Caller) -> Standing:
        """Say what stands between a waiting caller and its cell."""
        name = caller.name
        if caller.ticket in self.running:
            return Standing(state=None, name=name, requests=0)
        other = self._in_the_way(name)
        if other is None:
            return Standing(
                state=self.phase(name).state, name=name, requests=self._load_of(name)
            )
        return Standing(
            state=self.phase(other).state, name=other, requests=self._load_of(other)
        )

    def _in_the_way(self, name: str) -> str | None:
        if self.phase(name).state is not State.STOPPED:
            return None
        others = self.crowded.get(name, ()) if self.by_memory else self.residents()
        return next((other for other in others if other != name), None)

    def _load_of(self, name: str) -> int:
        waiting = sum(1 for caller in self.waiting if caller.name == name)
        return len(self.cells(name)) + waiting


_STOPPED = Phase()


def _cut(name: str) -> Failure:
    return Failure(
        reason="stopping",
        text=f"{name}: stopped while it was starting, a service that is ready wanted",
        next=f"tu remote endpoint logs {name}",
    )
