"""Decisions on readings that are written down here; nothing of this machine is read."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from on_paper import CARD, HOST, ask, card, holder, mem, one, unified

from remote_resident.admission import (
    UNKNOWN,
    Budget,
    Gpu,
    GpuProcess,
    Holder,
    Memory,
    Readings,
    Verdict,
    decide,
)
from remote_resident.errors import REASONS, AdmissionRefused

ALONE = ask(24, 1, shareable=False)
STRANGER = (GpuProcess(pid=7, used_gb=1.0),)

CASES: dict[str, tuple[Budget, list[Holder], Readings, str]] = {
    # the host alone
    "host: fits": (ask(0, 100), [], HOST, ""),
    "host: to the last byte": (ask(0, 106), [], HOST, ""),
    "host: one byte over what is free": (ask(0, 106 + 2**-30), [], HOST, "no_room"),
    "host: over the capacity": (ask(0, 125), [], HOST, "no_room"),
    "host: declared by others": (ask(0, 50), [holder(ram=80)], HOST, "no_room"),
    "host: beside others": (ask(0, 40), [holder(ram=80)], HOST, ""),
    "host: who loads has yet to take it": (
        ask(0, 40),
        [holder(ram=80, loading=True)],
        HOST,
        "no_room",
    ),
    "host: who loads has taken some of it": (
        ask(0, 40),
        [holder(ram=80, loading=True, resident_gb=20)],
        HOST,
        "",
    ),
    "host: loading not known counts as loading": (
        ask(0, 40),
        [holder(ram=80, loading=None)],
        HOST,
        "no_room",
    ),
    "host: an unknown holder": (
        ask(0, 1),
        [replace(holder(), budget=UNKNOWN)],
        HOST,
        "budget_unknown",
    ),
    "host: own budget unknown": (ask(0, None), [], HOST, "budget_unknown"),
    "host: capacity unread": (
        ask(0, 1),
        [],
        Readings(Memory(total_gb=None, free_gb=9, available_gb=9), []),
        "no_room",
    ),
    "host: free unread": (
        ask(0, 1),
        [],
        Readings(Memory(total_gb=9, free_gb=9, available_gb=None), []),
        "no_room",
    ),
    "host: a device is not wanted": (ask(0, 1), [], CARD, ""),
    "host: available counts, not free": (
        ask(0, 24),
        [holder(ram=12)],
        Readings(mem(121, 5, 60.4), []),
        "",
    ),
    # no device
    "none: host memory is not device memory": (ask(1, 0), [], HOST, "no_gpu"),
    "none: nothing was read": (ask(0, 1), [], None, "no_room"),  # type: ignore[dict-item]
    # a card of its own memory
    "card: fits": (ask(76, 8), [], CARD, ""),
    "card: over its capacity": (ask(77, 8), [], CARD, "no_room"),
    "card: both pools must hold": (ask(24, 125), [], CARD, "no_room"),
    "card: declared by others": (ask(40, 1), [holder(vram=40)], CARD, "no_room"),
    "card: beside others": (ask(36, 1), [holder(vram=40)], CARD, ""),
    "card: taken by a stranger": (ask(40, 1), [], one(card(free=20)), "no_room"),
    "card: a CPU-only holder is not on it": (
        ask(76, 1),
        [holder(vram=0.0, ram=50)],
        CARD,
        "",
    ),
    "card: an unknown holder": (
        ask(1, 1),
        [holder(vram=None)],
        CARD,
        "budget_unknown",
    ),
    "card: its memory is unread": (
        ask(1, 1),
        [],
        one(card(total=None, free=None, unified=None)),
        "no_room",
    ),
    "card: nvidia-smi hangs": (
        ask(1, 1),
        [],
        one(
            card(
                total=None,
                free=None,
                unified=None,
                unknown={"total_gb": "nvidia-smi: no answer within 15.0 s"},
            )
        ),
        "probe_timeout",
    ),
    "card: who loads has yet to take it": (
        ask(36, 1),
        [holder(vram=40, loading=True)],
        one(card(free=70)),
        "no_room",
    ),
    "card: host memory of who loads is not device memory": (
        ask(36, 1),
        [holder(vram=40, loading=True, resident_gb=40)],
        one(card(free=70)),
        "no_room",
    ),
    "card: who loads has taken some of it": (
        ask(36, 1),
        [holder(vram=40, loading=True)],
        one(card(free=70, processes=(GpuProcess(pid=4242, used_gb=10.0),))),
        "",
    ),
    "card: RAM not measured, judged live": (
        ask(24, None, ram_unmeasured=True),
        [holder(ram=125)],
        CARD,
        "",
    ),
    "card: RAM not measured, none free": (
        ask(24, None, ram_unmeasured=True),
        [],
        one(card(), mem(available=3)),
        "no_room",
    ),
    "card: RAM neither declared nor said so": (
        ask(24, None),
        [],
        CARD,
        "budget_unknown",
    ),
    "card: a loaded holder of unmeasured RAM": (
        ask(24, 8),
        [holder(vram=8, ram=None, ram_unmeasured=True, resident_gb=6)],
        CARD,
        "",
    ),
    "card: a loading holder of unmeasured RAM": (
        ask(24, 8),
        [holder(vram=8, ram=None, ram_unmeasured=True, loading=True)],
        CARD,
        "budget_unknown",
    ),
    # one memory for both
    "unified: both budgets are added": (
        ask(60, 60),
        [],
        one(unified(), mem(121, 118, 119)),
        "no_room",
    ),
    "unified: a co-tenant, 60.4 available and 5 free": (
        ask(24, 0),
        [holder(vram=12)],
        one(unified(), mem(121, 5, 60.4)),
        "no_room",
    ),
    "unified: alone, 18.7 free": (
        ask(24, 0),
        [],
        one(unified(), mem(121, 18.7, 60.4)),
        "",
    ),
    "unified: what is free is no more than what is available": (
        ask(24, 0),
        [holder(vram=12)],
        one(unified(), mem(121, 60, 20)),
        "no_room",
    ),
    "unified: a stranger is a co-tenant": (
        ask(24, 0),
        [],
        one(unified(processes=STRANGER), mem(121, 18.7, 60.4)),
        "no_room",
    ),
    "unified: processes unread may be co-tenants": (
        ask(24, 0),
        [],
        one(unified(processes=None), mem(121, 18.7, 60.4)),
        "no_room",
    ),
    "unified: another checkout holds 12, asked 28": (
        ask(28, 0),
        [holder(vram=12)],
        one(unified(), mem(40, 36, 38)),
        "no_room",
    ),
    "unified: a CPU-only provider spends the same pool": (
        ask(0, 24),
        [holder(vram=100)],
        one(unified(), mem(121, 100, 110)),
        "no_room",
    ),
    # to be alone
    "alone: asked second": (ALONE, [holder(vram=1)], CARD, "not_shareable"),
    "alone: asked first": (
        ask(1, 1),
        [holder(vram=24, shareable=False)],
        CARD,
        "not_shareable",
    ),
    "alone: nobody there": (ALONE, [], CARD, ""),
    "alone: a stranger there": (
        ALONE,
        [],
        one(card(processes=STRANGER)),
        "not_shareable",
    ),
    "alone: a CPU-only holder is elsewhere": (ALONE, [holder(ram=9)], CARD, ""),
    "alone: a CPU-only candidate does not mind": (
        ask(0, 1),
        [holder(vram=24, shareable=False)],
        CARD,
        "",
    ),
    "alone: a CPU-only holder that computes there after all": (
        ALONE,
        [holder(pids=(7,))],
        one(card(processes=STRANGER)),
        "not_shareable",
    ),
    # the budget is what is to be measured
    "smoke: alone": (ask(None, 1, measuring=True), [], CARD, ""),
    "smoke: somebody there": (
        ask(None, 1, measuring=True),
        [holder(vram=1)],
        CARD,
        "budget_unknown",
    ),
    "smoke: a stranger there": (
        ask(None, 1, measuring=True),
        [],
        one(card(processes=STRANGER)),
        "budget_unknown",
    ),
    "smoke: a CPU-only holder is elsewhere": (
        ask(None, 1, measuring=True),
        [holder(ram=9)],
        CARD,
        "",
    ),
    "no smoke: unknown": (ask(None, 1), [], CARD, "budget_unknown"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_the_one_that_was_worked_out_by_hand(name: str) -> None:
    budget, held, readings, reason = CASES[name]

    verdict = decide("mine", budget, held, readings=readings)

    assert (verdict.admit, verdict.reason) == (not reason, reason), verdict.text
    assert verdict.reason in REASONS | {""}
    json.dumps(verdict.as_dict(), allow_nan=False)


# which device


def pinned(
    budget: Budget, held: Sequence[Holder], gpus: list[Gpu], pin: str
) -> Verdict:
    return decide("mine", budget, held, readings=Readings(mem(), gpus), pin=pin)


TWO = [card(0), card(1, total=40, free=40)]


def test_the_device_that_is_left_fullest_is_chosen() -> None:
    verdict = decide("mine", ask(24, 1), [], readings=Readings(mem(), TWO))

    assert (verdict.admit, verdict.device) == (True, "GPU-1")


def test_a_device_whose_line_is_broken_does_not_hide_the_other() -> None:
    broken = card(0, total=None, free=None, unified=None, processes=None)

    verdict = decide("mine", ask(24, 1), [], readings=Readings(mem(), [broken, TWO[1]]))

    assert (verdict.admit, verdict.device) == (True, "GPU-1")


@pytest.mark.parametrize("pin", ["0", "GPU-0", " GPU-0 "])
def test_a_pin_is_respected_where_another_device_would_fit_better(pin: str) -> None:
    assert pinned(ask(24, 1), [], TWO, pin).device == "GPU-0"


@pytest.mark.parametrize("pin", ["", "-1", "7", "GPU-x"])
def test_a_pin_that_leaves_no_device_is_refused(pin: str) -> None:
    verdict = pinned(ask(24, 1), [], TWO, pin)

    assert (verdict.admit, verdict.reason) == (False, "no_gpu")
    assert verdict.text == (
        f"mine: one of CUDA_VISIBLE_DEVICES={pin} with 24 GiB wanted, devices found: "
        "device 0 (GPU-0, Card), device 1 (GPU-1, Card); host memory is not device memory"
    )


@pytest.mark.parametrize(
    ("device", "pids", "admitted"),
    [
        ("GPU-1", (1,), True),
        ("1", (1,), True),
        ("", (1,), True),
        ("GPU-0", (1,), False),
        ("0,1", (1,), False),
        (None, (1,), False),
        ("GPU-that-cannot-be-read", (1,), False),
        (None, (9,), True),
        ("GPU-1", (8,), False),
        ("01", (1,), True),
        ("\N{SUPERSCRIPT ONE}", (1,), False),
        ("9" * 5000, (1,), False),
    ],
)
def test_a_holder_counts_where_it_may_be(
    device: str | None, pids: tuple[int, ...], admitted: bool
) -> None:
    first = card(0, processes=(GpuProcess(pid=8, used_gb=1.0),))
    second = card(1, processes=(GpuProcess(pid=9, used_gb=1.0),))
    held = [holder(vram=70, device=device, pids=pids)]

    assert pinned(ask(24, 1), held, [first, second], "GPU-0").admit is admitted


def test_a_mig_instance_is_a_device_by_itself() -> None:
    halves = [
        card(0, total=40, free=40, mig=True, uuid="MIG-a", parent="GPU-0"),
        card(0, total=40, free=40, mig=True, uuid="MIG-b", parent="GPU-0"),
    ]
    held = [holder(vram=30, device="MIG-a")]

    verdict = decide("mine", ask(30, 1), held, readings=Readings(mem(), halves))

    assert verdict.device == "MIG-b"


# what is told


def test_a_refusal_tells_the_sum_and_who_holds_what_unrounded() -> None:
    held = [holder("boltz2", vram=12.1, pids=(31, 32))]
    readings = one(unified(), mem(40.25, 36.5, 38))

    with pytest.raises(AdmissionRefused) as caught:
        decide("mine", ask(28, 0.5), held, readings=readings).raise_if_refused()

    assert str(caught.value) == (
        "mine: no room on device 0 (GPU-0, Card): 44.6 GiB of unified memory would be "
        "declared, 40.25 GiB are there; unified memory: 28.5 GiB wanted + 12.1 GiB "
        "declared by others (boltz2 (/checkouts/b, pid 31)) + 4.0 GiB reserve = 44.6 GiB "
        "of 40.25 GiB (MemTotal); 28.5 GiB wanted + 0.0 GiB that others are still to take "
        "+ 4.0 GiB reserve = 32.5 GiB of 36.5 GiB free (38 GiB available)"
    )
    assert caught.value.reason == "no_room"
    assert isinstance(caught.value.verdict, Verdict)
    assert caught.value.verdict.gate == "declared"


def test_what_a_holder_calls_itself_forges_no_line() -> None:
    forger = replace(holder(), slug="a\nroom: yes", tree="/t\x1b[2J\u202e")

    assert str(forger).isprintable()
    assert str(forger).startswith("a\\nroom: yes (/t\\x1b[2J\\u202e")


def test_an_admission_raises_nothing() -> None:
    decide("mine", ask(0, 1), [], readings=HOST).raise_if_refused()


def test_every_holder_of_unknown_budget_is_named() -> None:
    held = [
        replace(holder(slug), budget=UNKNOWN, pids=(n,)) for n, slug in enumerate("ab")
    ]

    verdict = decide("mine", ask(0, 1), held, readings=HOST)

    assert verdict.as_dict()["unknown_budgets"] == [
        "a (/checkouts/b, pid 0)",
        "b (/checkouts/b, pid 1)",
    ]
    assert "held by a (/checkouts/b, pid 0), b (/checkouts/b, pid 1)" in verdict.text


def test_every_pool_that_refuses_is_told_not_the_first_alone() -> None:
    verdict = decide("mine", ask(100, 200), [], readings=CARD)

    assert [pool.reason for pool in verdict.pools] == ["no_room", "no_room"]
    assert "104.0 GiB of device 0" in verdict.text
    assert "204.0 GiB of host memory" in verdict.text


def test_a_table_that_is_partial_and_a_budget_that_is_not_measured_are_said() -> None:
    budget = ask(24, None, ram_unmeasured=True)

    verdict = decide("mine", budget, [], readings=one(card(), partial=True))

    assert verdict.admit
    assert verdict.partial
    assert verdict.notes == (
        "the RAM budget is not measured: judged by what is free now",
        "the process table is partial: processes of others are not seen",
    )
    assert verdict.text.endswith("; ".join(verdict.notes))


def test_the_json_has_every_field_that_a_program_may_look_at() -> None:
    verdict = decide("mine", ask(24, 1), [holder(vram=2)], readings=CARD)

    shape = verdict.as_dict()

    assert {key: shape[key] for key in shape if key not in ("text", "pools")} == {
        "admit": True,
        "reason": "",
        "slug": "mine",
        "device": "GPU-0",
        "budget": {"vram_gb": 24, "ram_gb": 1, "source": "declared"},
        "pool": "device",
        "need_gb": 24,
        "capacity_gb": 80,
        "capacity_source": "device 0 (GPU-0, Card)",
        "declared_gb": 2,
        "loading_gb": 0,
        "free_gb": 80,
        "available_gb": 80,
        "gate": "declared, live",
        "co_tenants": ["other (/checkouts/b, pid 4242)"],
        "reserve_gb": 4.0,
        "unknown_budgets": [],
        "holders": [
            {
                "slug": "other",
                "tree": "/checkouts/b",
                "instance": "other",
                "pids": [4242],
                "uid": 1000,
                "device": None,
                "budget": {"vram_gb": 2, "ram_gb": 0.0, "source": "declared"},
                "loading": False,
                "resident_gb": 0.0,
                "started": None,
                "socket": None,
            }
        ],
        "notes": [],
        "partial": False,
    }
