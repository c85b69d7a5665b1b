"""Laws of the decision that hold for all readings, holders and budgets."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from on_paper import CARD, HOST, ask, card, holder, mem, one, unified

from remote_resident.admission import (
    Budget,
    GpuProcess,
    Holder,
    Memory,
    Readings,
    decide,
)
from remote_resident.retiring import to_retire

gib = st.integers(0, 64).map(lambda quarters: quarters / 4)
maybe = st.none() | gib
budgets = st.builds(
    Budget,
    maybe,
    maybe,
    st.just("declared"),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
devices = st.none() | st.sampled_from(["", "0", "1", "GPU-1", "elsewhere"])
pid_sets = st.lists(st.integers(1, 4), max_size=2, unique=True).map(tuple)
holders = st.builds(
    Holder,
    slug=st.just("held"),
    tree=st.none(),
    instance=st.uuids().map(str),
    pids=pid_sets,
    uid=st.just(0),
    device=devices,
    budget=budgets,
    loading=st.none() | st.booleans(),
    resident_gb=maybe,
)
processes = st.none() | st.lists(
    st.builds(GpuProcess, pid=st.integers(1, 4), used_gb=maybe), max_size=3
).map(tuple)
kinds = st.one_of(
    st.builds(lambda total, free: (total, free, False), gib, maybe),
    st.just((None, None, True)),
    st.just((None, None, None)),
)
gpu_lists = st.lists(st.tuples(kinds, processes), max_size=2).map(
    lambda rows: [
        card(n, total, free, unified=is_unified, processes=there)
        for n, ((total, free, is_unified), there) in enumerate(rows)
    ]
)
memories = st.builds(Memory, total_gb=maybe, free_gb=maybe, available_gb=maybe)
readings_ = st.builds(Readings, memories, gpu_lists)
pins = st.none() | st.sampled_from(["0", "1"])


@given(budgets, st.lists(holders, max_size=3), holders, readings_, pins)
def test_one_more_holder_never_turns_a_refusal_into_an_admission(
    budget: Budget,
    held: list[Holder],
    more: Holder,
    readings: Readings,
    pin: str | None,
) -> None:
    def admits(held: list[Holder]) -> bool:
        return decide("mine", budget, held, readings=readings, pin=pin).admit

    assert admits(held) or not admits([*held, more])


@given(budgets, st.lists(holders, max_size=3), readings_, gib)
def test_more_free_memory_never_turns_an_admission_into_a_refusal(
    budget: Budget, held: list[Holder], readings: Readings, more_gb: float
) -> None:
    def plus(number: float | None) -> float | None:
        return None if number is None else number + more_gb

    freer = Readings(
        replace(
            readings.mem,
            free_gb=plus(readings.mem.free_gb),
            available_gb=plus(readings.mem.available_gb),
        ),
        [replace(gpu, free_gb=plus(gpu.free_gb)) for gpu in readings.gpus],
    )

    before = decide("mine", budget, held, readings=readings)

    assert not before.admit or decide("mine", budget, held, readings=freer).admit


@given(budgets, st.lists(holders, max_size=3), readings_)
def test_the_order_of_the_holders_changes_nothing(
    budget: Budget, held: list[Holder], readings: Readings
) -> None:
    def answer(held: list[Holder]) -> tuple[bool, str | None]:
        verdict = decide("mine", budget, held, readings=readings)
        return verdict.admit, verdict.device

    assert answer(held) == answer(held[::-1])


starts = st.tuples(st.sampled_from([0.0, 3.5, 8.0, 20.25]), gib)
events = st.lists(st.tuples(st.booleans(), starts, st.integers(0, 9)), max_size=30)


@given(events, st.sampled_from([CARD, one(unified(), mem(60, 50, 55)), HOST]))
def test_what_was_admitted_never_exceeds_the_capacity_less_the_reserve(
    events: list[tuple[bool, tuple[float, float], int]], readings: Readings
) -> None:
    held: list[Holder] = []
    for is_start, (vram, ram), which in events:
        if not is_start:
            del held[which : which + 1]
            continue
        verdict = decide("mine", ask(vram, ram), held, readings=readings)
        if verdict.admit:
            held.append(holder("mine", vram, ram, device=verdict.device))

        vram_sum = sum(h.budget.vram_gb or 0.0 for h in held)
        ram_sum = sum(h.budget.ram_gb or 0.0 for h in held)
        if readings.gpus and readings.gpus[0].unified:
            assert vram_sum + ram_sum <= 60 - 4.0 or not held
        else:
            assert vram_sum <= 80 - 4.0
            assert ram_sum <= 128 - 4.0


@given(budgets, st.lists(holders, max_size=3), readings_)
def test_who_is_to_be_retired_is_idle_and_none_too_many(
    budget: Budget, held: list[Holder], readings: Readings
) -> None:
    verdict = decide("mine", budget, held, readings=readings)

    gone = to_retire(verdict, held[:2])

    assert all(one in held[:2] for one in gone)
    assert not (verdict.admit and gone)
