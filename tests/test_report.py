"""The table of what this machine measured, and the rows that it is made of."""

from pathlib import Path
from typing import Any

import pytest
from small_tree import tree as small_tree

from remote_resident import manifest, places
from remote_resident.errors import UsageError
from tasks import measured, report

GIB = 2**30
MEASURED = {
    "timing": {
        "load_s": 2.125,
        "first_s": 1.25,
        "held_s": [0.5, 0.5],
        "held_median_s": 0.5,
        "fresh_s": 3.0,
    },
    "memory": {
        "rss_peak_bytes": GIB // 2,
        "ram_budget_gb": 0.75,
        "growth_mib": 0.25,
    },
    "certified": {"at": "2026-11-29T12:00:00Z"},
}
ROW = {
    "slug": "demo",
    "machine": "lab7",
    "state": "current",
    "differs": [],
    "status": "verified",
    "measured": MEASURED,
}


def row(**changes: Any) -> report.Row:
    return {**ROW, **changes}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return small_tree(tmp_path / "a tree")


def written(tree: Path, **inputs: object) -> Path:
    """Write a report of the tree's provider as it is now, but for `inputs`."""
    provider = manifest.load(tree / "manifests/m/provider.toml", tree)
    now = {**measured.inputs(provider, {}), **inputs}
    path = measured.report_path(provider)
    measured.write(
        path,
        measured.Report(
            slug="m",
            machine=measured.machine_table(measured.devices()),
            inputs=now,
            **{"answer": {}, **MEASURED},
        ),
    )
    return path


def test_every_figure_stands_in_its_column() -> None:
    assert report.table([ROW]) == (
        "provider  state     load  first     held  fresh  speed-up   growth\n"
        "demo      current  2.1 s  1.2 s  0.500 s  3.0 s     6.0 x  0.2 MiB\n"
        "  certified 2026-11-29T12:00:00Z on lab7; author: verified\n"
        "  peak 0.5 of 0.75 GiB RAM"
    )


def test_what_was_not_measured_is_a_dash_and_never_a_zero() -> None:
    unknown = row(measured={"timing": {}, "memory": {"ram_budget_gb": 0.75}})

    _, figures, *remarks = report.table([unknown]).splitlines()
    assert figures.split() == ["demo", "current", *"------"]
    assert "  peak unknown of 0.75 GiB RAM" in remarks


def test_a_growth_of_zero_is_a_number() -> None:
    flat = row(measured={**MEASURED, "memory": {"growth_mib": 0.0}})

    assert "0.0 MiB" in report.table([flat])


def test_what_makes_a_report_stale_is_said_below_it() -> None:
    stale = row(state="stale", differs=["driver 580.95.05 -> 590.10"])

    assert report.table([stale]).splitlines()[-1] == "  driver 580.95.05 -> 590.10"


def test_the_table_fits_eighty_columns() -> None:
    long = row(
        slug="a-longer-name",
        machine="compute-node-0017.some.rather.long.domain.example.org",
        differs=["word " * 40],
        measured={
            **MEASURED,
            "timing": dict.fromkeys(MEASURED["timing"], 1234.5),
        },
    )

    assert max(map(len, report.table([ROW, long]).splitlines())) <= 80


def test_without_colour_there_are_no_control_codes() -> None:
    assert "\x1b" not in report.table([ROW])
    assert "\x1b[32mcurrent\x1b[0m" in report.table([ROW], color=True)


def test_a_provider_without_a_report_is_missing_and_its_claim_is_shown_apart(
    tree: Path,
) -> None:
    [found] = report.rows(tree)

    assert found == {
        "slug": "m",
        "machine": None,
        "state": "missing",
        "differs": [],
        "status": "untested",
        "contradicts": [],
        "notes": [],
        "measured": None,
    }


def test_a_report_of_what_is_there_now_is_current(tree: Path) -> None:
    written(tree)

    [found] = report.rows(tree, ["m"])
    assert (found["state"], found["differs"]) == ("current", [])
    assert found["measured"]["timing"] == MEASURED["timing"]
    assert found["machine"] == measured.machine_table(())["hostname"]


def test_a_report_of_something_else_is_stale_and_says_what(tree: Path) -> None:
    written(tree, interpreter="3.9.1")

    [found] = report.rows(tree, ["m"])
    assert found["state"] == "stale"
    assert found["differs"] == ["interpreter 3.9.1 -> none"]


def test_a_report_of_an_unknown_schema_is_named_and_not_guessed(tree: Path) -> None:
    path = places.measured_path("m", tree)
    path.parent.mkdir(parents=True)
    path.write_text("schema = 99\n")

    [found] = report.rows(tree)
    assert found["state"] == "stale"
    assert found["differs"] == [
        f"{path}: schema 99 found, a measured report of schema 1 wanted"
    ]


def test_a_broken_manifest_does_not_hide_the_other_providers(tree: Path) -> None:
    broken = tree / "manifests/broken"
    broken.mkdir()
    (broken / "provider.toml").write_text("slug = 1\n")

    found = {row["slug"]: row for row in report.rows(tree)}
    assert set(found) == {"broken", "m"}
    assert found["broken"]["differs"]


def test_a_name_that_is_no_provider_is_refused(tree: Path) -> None:
    with pytest.raises(UsageError) as refused:
        report.rows(tree, ["n"])
    assert refused.value.reason == "unknown_name"
