"""Whom to retire is chosen from readings that are written down here."""

from on_paper import ask, holder, mem, one, unified

from remote_resident.admission import Holder, Readings, Verdict, decide
from remote_resident.retiring import to_retire


def refused(held: list[Holder], ram: float = 60) -> Verdict:
    return decide("mine", ask(0, ram), held, readings=Readings(mem(128, 8, 30), []))


def test_the_least_recently_used_go_and_no_more_than_needed() -> None:
    held = [holder(slug, ram=20, resident_gb=20) for slug in "abcd"]

    assert [gone.slug for gone in to_retire(refused(held), held)] == ["a", "b"]


def test_who_would_not_help_stays_though_unused_for_longest() -> None:
    held = [
        holder("small", ram=1, resident_gb=1),
        holder("big", ram=40, resident_gb=40),
    ]

    assert [gone.slug for gone in to_retire(refused(held), held)] == ["big"]


def test_nobody_goes_where_all_of_them_would_not_do() -> None:
    held = [holder("a", ram=20, resident_gb=20)]

    assert to_retire(refused(held, ram=90), held) == []


def test_nobody_goes_for_what_fits_anyway() -> None:
    held = [holder("a", ram=20, resident_gb=20)]

    assert to_retire(refused(held, ram=1), held) == []


def test_on_a_unified_pool_the_last_co_tenant_to_go_frees_what_is_available() -> None:
    held = [holder("a", vram=12, resident_gb=12)]
    readings = one(unified(), mem(121, 5, 60.4))
    verdict = decide("mine", ask(24, 0), held, readings=readings)

    assert [gone.slug for gone in to_retire(verdict, held)] == ["a"]
