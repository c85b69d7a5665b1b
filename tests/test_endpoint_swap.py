"""The transition table, every state by every event, and schedules at random."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from remote_resident.endpoints.swap import (
    Act,
    Caller,
    Event,
    Failure,
    Order,
    Phase,
    Schedule,
    State,
    Verb,
    move,
)

WHY = Failure(reason="start_failed", text="a: start returned 3, 0 wanted")
LIE = Failure(reason="stop_failed", text="a: stop returned 0, port still bound")

MOVES = {
    "stopped load": "starting start",
    "starting refused": "stopped refuse",
    "starting ready": "ready",
    "starting start_failed": "stopping stop",
    "starting stop": "stopping refuse stop",
    "ready stop": "stopping stop",
    "ready died": "stopping clean",
    "stopping stopped": "stopped",
    "stopping gone": "stopped",
    "stopping stop_failed": "failed refuse",
    "failed load": "failed refuse",
    "failed stop": "stopping stop",
    "failed gone": "stopped",
    "failed clear": "stopped",
}


@pytest.mark.parametrize(("state", "event"), [*product(State, Event)])
def test_every_event_has_its_meaning_in_every_state(state: State, event: Event) -> None:
    failure = LIE if state is State.FAILED else None
    before = Phase(state=state, failure=failure, left=failure is not None)
    expected = MOVES.get(f"{state.value} {event.value}", state.value).split()

    after, acts = move(before, event, WHY)

    assert [after.state.value, *(act.value for act in acts)] == expected
    if expected == [state.value]:
        assert after == before


@pytest.mark.parametrize("event", [Event.STOPPED, Event.GONE])
def test_a_start_that_failed_is_failed_once_it_is_stopped(event: Event) -> None:
    stopping, _ = move(Phase(state=State.STARTING), Event.START_FAILED, WHY)
    after, acts = move(stopping, event)

    assert after == Phase(state=State.FAILED, failure=WHY, left=False)
    assert acts == (Act.REFUSE,)


def test_a_failed_start_whose_stop_fails_too_tells_both_and_holds_the_device() -> None:
    why, lie = replace(WHY, next="logs a"), replace(LIE, next="kill 1")
    stopping, _ = move(Phase(state=State.STARTING), Event.START_FAILED, why)
    after, _ = move(stopping, Event.STOP_FAILED, lie)

    # what is next ends what is left
    assert after.failure == Failure(
        reason="start_failed", text=f"{WHY.text}; {LIE.text}", next="kill 1"
    )
    assert after.resident
    # and nothing names a process that is gone
    assert move(after, Event.GONE) == (Phase(state=State.FAILED, failure=why), ())


def test_a_stop_that_is_tried_again_forgets_why_it_was_failed() -> None:
    stopping, _ = move(Phase(state=State.FAILED, failure=LIE, left=True), Event.STOP)

    assert move(stopping, Event.STOPPED)[0] == Phase()


def caller(number: int, name: str, arrived: float = 0.0) -> Caller:
    return Caller(ticket=number, name=name, arrived=arrived)


def told(orders: list[Order]) -> list[str]:
    return [
        f"{o.verb.value} {o.name}" + (f" {o.caller.ticket}" if o.caller else "")
        for o in orders
    ]


def arriving(schedule: Schedule, number: int, name: str, now: float = 0.0) -> list[str]:
    schedule.arrive(caller(number, name, now))
    return told(schedule.decide(now))


def with_ready(name: str = "a", **options: object) -> Schedule:
    schedule = Schedule(**options)  # type: ignore[arg-type]  # a test's own
    schedule.arrive(caller(0, name))
    schedule.decide(0.0)
    schedule.happened(name, Event.READY, 0.0)
    return schedule


def test_callers_of_one_endpoint_share_its_start() -> None:
    schedule = Schedule()

    assert arriving(schedule, 1, "a") == ["start a"]
    assert arriving(schedule, 2, "a") == []
    assert told(schedule.happened("a", Event.READY, 1.0)) == ["grant a 1", "grant a 2"]


def test_a_b_a_a_c_a_b_c_takes_three_swaps() -> None:
    schedule = with_ready()
    for number, name in enumerate("baacabc", 1):
        arriving(schedule, number, name)
    orders = []
    for ticket in (0, 2, 3, 5):
        schedule.leave(ticket, 1.0)
        orders += told(schedule.decide(1.0))
    for name, tickets in (("a", ()), ("b", (1, 6)), ("c", (4, 7))):
        if tickets:
            orders += told(schedule.happened(name, Event.READY, 2.0))
            for ticket in tickets:
                schedule.leave(ticket, 2.0)
                orders += told(schedule.decide(2.0))
        orders += told(schedule.happened(name, Event.STOPPED, 3.0))

    assert orders == [
        *("stop a", "start b", "grant b 1", "grant b 6", "stop b"),
        *("start c", "grant c 4", "grant c 7"),
    ]


def test_work_for_the_resident_overtakes_for_its_time_and_no_longer() -> None:
    schedule = with_ready(overtake_s=30.0)
    arriving(schedule, 1, "b", 10.0)

    assert arriving(schedule, 2, "a", 39.9) == ["grant a 2"]
    assert arriving(schedule, 3, "a", 40.0) == []
    schedule.leave(0, 41.0)
    assert told(schedule.decide(41.0)) == []
    schedule.leave(2, 42.0)
    assert told(schedule.decide(42.0)) == ["stop a"]
    assert told(schedule.happened("a", Event.STOPPED, 43.0)) == ["start b"]


def test_the_time_to_overtake_counts_from_when_the_resident_was_ready() -> None:
    schedule = Schedule(overtake_s=30.0)
    for number, name in enumerate("aba"):
        arriving(schedule, number, name, 0.0)

    assert told(schedule.happened("a", Event.READY, 600.0)) == [
        "grant a 0",
        "grant a 2",
    ]


def test_a_caller_that_left_is_not_loaded_for() -> None:
    schedule = with_ready()
    arriving(schedule, 1, "b")
    schedule.leave(0, 1.0)
    assert told(schedule.decide(1.0)) == ["stop a"]
    schedule.leave(1, 2.0)

    assert told(schedule.happened("a", Event.STOPPED, 3.0)) == []


@pytest.mark.parametrize("other", [True, False])
def test_a_start_for_nobody_goes_on_and_stays_only_if_nobody_else_waits(
    other: bool,
) -> None:
    schedule = Schedule()
    arriving(schedule, 1, "a")
    schedule.leave(1, 1.0)
    if other:
        assert arriving(schedule, 2, "b", 1.0) == []

    orders = told(schedule.happened("a", Event.READY, 2.0))

    assert orders == (["stop a"] if other else [])


def test_what_its_stop_left_keeps_everything_else_from_starting() -> None:
    schedule = with_ready()
    schedule.leave(0, 0.0)
    arriving(schedule, 1, "b")
    (refused,) = schedule.happened("a", Event.STOP_FAILED, 1.0, LIE)

    assert refused.failure == Failure(
        reason="stop_failed",
        text=f"{LIE.text}; nothing else is started meanwhile",
        next="tu remote endpoint stop a",
    )
    schedule.happened("a", Event.GONE, 2.0)
    assert arriving(schedule, 2, "b", 3.0) == ["start b"]


def test_a_stop_that_was_asked_for_waits_for_the_cell_and_lets_no_other_in() -> None:
    schedule = with_ready()

    assert told(schedule.ask_stop("a", 1.0)) == []
    assert arriving(schedule, 1, "a", 1.0) == []
    schedule.leave(0, 2.0)
    assert told(schedule.decide(2.0)) == ["stop a"]
    assert told(schedule.happened("a", Event.STOPPED, 3.0)) == ["start a"]


def test_an_idle_endpoint_is_stopped_after_its_time_and_says_when() -> None:
    schedule = with_ready()
    schedule.ttl_s["a"] = 5.0
    schedule.leave(0, 10.0)

    assert (told(schedule.decide(14.9)), schedule.next_due(14.9)) == ([], 15.0)
    assert told(schedule.decide(15.0)) == ["stop a"]


def test_by_memory_a_start_waits_for_those_that_must_leave() -> None:
    schedule = with_ready(by_memory=True)
    assert arriving(schedule, 1, "b") == ["start b"]
    schedule.happened("b", Event.READY, 0.0)
    schedule.leave(1, 1.0)
    assert arriving(schedule, 2, "c", 2.0) == ["start c"]

    assert told(schedule.crowd("c", ["a"], 2.0, WHY)) == []
    assert arriving(schedule, 3, "d", 2.0) == []
    schedule.leave(0, 3.0)
    assert told(schedule.decide(3.0)) == ["stop a"]
    assert told(schedule.happened("a", Event.STOPPED, 4.0)) == ["start c", "start d"]


def test_by_memory_a_start_that_nobody_can_make_room_for_is_refused() -> None:
    schedule = Schedule(by_memory=True)
    arriving(schedule, 1, "a")

    assert told(schedule.crowd("a", [], 0.0, WHY)) == ["refuse a 1"]
    assert schedule.phase("a") == Phase()


NAMES = "abc"
NEEDS = {"a": 2, "b": 2, "c": 3}
CAPACITY = 4


class Schedules(RuleBasedStateMachine):
    """A host at random: callers come and leave, services start, fail, lie and die."""

    by_memory = False

    @initialize()
    def begin(self) -> None:
        self.schedule = Schedule(overtake_s=30.0, by_memory=self.by_memory)
        self.now = 0.0
        self.tickets = 0
        self.waiting: dict[int, Caller] = {}
        self.running: dict[int, Caller] = {}
        self.busy: dict[str, str] = {}
        """What is being done to an endpoint, by its name."""
        self.up: set[str] = set()
        """Who really holds the device."""
        self.ready_at: dict[str, float] = {}
        self.bereft: set[int] = set()
        """Whose service died under their cell."""

    def carry(self, orders: list[Order]) -> None:
        for order in orders:
            getattr(self, f"carry_{order.verb.value}")(order)

    def carry_start(self, order: Order) -> None:
        name = order.name
        assert any(c.name == name for c in self.waiting.values()), "loaded for nobody"
        assert name not in self.busy
        if self.by_memory and (crowd := self.too_many(name)):
            self.carry(self.schedule.crowd(name, crowd, self.now, WHY))
            return
        self.busy[name] = "start"
        self.up.add(name)

    def too_many(self, name: str) -> list[str]:
        used = sum(NEEDS[one] for one in self.up)
        return sorted(self.up) if used + NEEDS[name] > CAPACITY else []

    def carry_stop(self, order: Order) -> None:
        name = order.name
        live = [c for c in self.running.values() if c.ticket not in self.bereft]
        assert not any(c.name == name for c in live), "stopped under a cell"
        assert self.busy.get(name) != "stop"
        self.busy[name] = "stop"

    def carry_clean(self, order: Order) -> None:
        self.busy[order.name] = "stop"

    def carry_grant(self, order: Order) -> None:
        granted = order.caller
        assert granted is not None
        assert granted.name in self.up
        assert order.name not in self.busy
        del self.waiting[granted.ticket]
        for other in self.waiting.values():
            if other.ticket < granted.ticket and self.needs_room(other, granted.name):
                begun = max(other.arrived, self.ready_at[granted.name])
                assert self.now < begun + 30.0, "overtaken for too long"
        self.running[granted.ticket] = granted

    def needs_room(self, other: Caller, resident: str) -> bool:
        stopped = self.schedule.phase(other.name).state is State.STOPPED
        return stopped and not self.by_memory and other.name != resident

    def carry_refuse(self, order: Order) -> None:
        assert order.caller is not None
        assert order.failure is not None
        del self.waiting[order.caller.ticket]

    @rule(name=st.sampled_from(NAMES))
    def arrive(self, name: str) -> None:
        self.tickets += 1
        one = self.waiting[self.tickets] = caller(self.tickets, name, self.now)
        self.schedule.arrive(one)
        self.carry(self.schedule.decide(self.now))

    @rule(data=st.data())
    @precondition(lambda self: self.waiting or self.running)
    def leave(self, data: st.DataObject) -> None:
        tickets = sorted({*self.waiting, *self.running})
        ticket = data.draw(st.sampled_from(tickets))
        self.waiting.pop(ticket, None)
        self.running.pop(ticket, None)
        self.schedule.leave(ticket, self.now)
        self.carry(self.schedule.decide(self.now))

    @rule(data=st.data(), good=st.booleans())
    @precondition(lambda self: self.busy)
    def finish(self, data: st.DataObject, good: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.busy)))
        self.finish_one(name, good)

    def finish_one(self, name: str, good: bool) -> None:
        what = self.busy.pop(name)
        if what == "start":
            self.ready_at[name] = self.now
            event = Event.READY if good else Event.START_FAILED
        else:
            event = Event.STOPPED if good else Event.STOP_FAILED
            self.up -= {name} if good else set()
        failure = {Event.START_FAILED: WHY, Event.STOP_FAILED: LIE}.get(event)
        self.carry(self.schedule.happened(name, event, self.now, failure))

    @rule(name=st.sampled_from(NAMES))
    def refused(self, name: str) -> None:
        if self.busy.get(name) == "start":
            del self.busy[name]
            self.up.discard(name)
            self.carry(self.schedule.happened(name, Event.REFUSED, self.now, WHY))

    @rule(name=st.sampled_from(NAMES))
    def die(self, name: str) -> None:
        if self.schedule.phase(name).state is State.READY:
            self.bereft |= {t for t, c in self.running.items() if c.name == name}
            self.carry(self.schedule.happened(name, Event.DIED, self.now))

    @rule(name=st.sampled_from(NAMES))
    def free(self, name: str) -> None:
        if self.schedule.phase(name).left:
            self.up.discard(name)
            self.carry(self.schedule.happened(name, Event.GONE, self.now))

    @rule(name=st.sampled_from(NAMES))
    def stop(self, name: str) -> None:
        if self.busy.get(name) == "start":
            # its thread is cut; what it would have said is not listened to
            del self.busy[name]
        self.carry(self.schedule.ask_stop(name, self.now))

    @rule(seconds=st.sampled_from([0.5, 10.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.carry(self.schedule.decide(self.now))

    @invariant()
    def at_most_one_is_resident(self) -> None:
        if not hasattr(self, "up"):
            return
        if self.by_memory:
            assert sum(NEEDS[name] for name in self.up) <= CAPACITY
        else:
            assert len(self.up) <= 1
        assert self.up <= set(self.schedule.residents())

    @invariant()
    def no_call_is_lost_or_waits_for_nothing(self) -> None:
        if not hasattr(self, "waiting"):
            return
        assert {c.ticket for c in self.schedule.waiting} == self.waiting.keys()
        assert self.schedule.running.keys() == self.running.keys()
        assert not self.waiting or self.busy or self.running
        assert self.schedule.decide(self.now) == []

    def teardown(self) -> None:
        """Whatever was, every call is answered when starts and stops go well."""
        if not hasattr(self, "schedule"):
            return
        for _ in range(20 * (self.tickets + 5)):
            if not self.waiting:
                return
            self.now += 31.0
            for ticket in list(self.running):
                del self.running[ticket]
                self.schedule.leave(ticket, self.now)
            self.carry(self.schedule.decide(self.now))
            for name in list(self.busy):
                self.finish_one(name, good=True)
        raise AssertionError(f"never answered: {self.waiting}")


class SchedulesByMemory(Schedules):
    """The same with as many residents as there is memory for."""

    by_memory = True


FEW = settings(max_examples=60, stateful_step_count=40)
MANY = settings(max_examples=3000, stateful_step_count=80)


@pytest.mark.parametrize("machine", [Schedules, SchedulesByMemory])
def test_schedules_at_random_keep_every_law(machine: type[Schedules]) -> None:
    run_state_machine_as_test(machine, settings=FEW)


@pytest.mark.long
@pytest.mark.parametrize("machine", [Schedules, SchedulesByMemory])
def test_very_many_schedules_keep_every_law(machine: type[Schedules]) -> None:
    run_state_machine_as_test(machine, settings=MANY)


def test_every_verb_has_an_act_or_an_answer() -> None:
    acts = {act.value for act in Act} | {"grant"}

    assert {verb.value for verb in Verb} == acts
