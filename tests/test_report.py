"""The table of what this machine measured, and the rows that it is made of."""

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import reports
from reports import machine, put
from small_tree import tree as small_tree

from remote_resident import manifest, places
from remote_resident.cli import main
from remote_resident.errors import UsageError
from tasks import history, machines, measured, report
from tasks.reported import Entry

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


def test_an_author_that_nobody_knows_of_is_a_dash() -> None:
    assert "; author: -\n" in report.table([row(status=None)])


def test_memory_that_was_given_back_is_a_number() -> None:
    less = row(measured={**MEASURED, "memory": {"growth_mib": -1.765625}})

    assert "  -1.8 MiB" in report.table([less])


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


# -- what became of the claims


def test_a_contradicted_claim_and_a_note_stand_below_the_figures() -> None:
    told = row(
        contradicts=["demo: host.ram_budget_gb: 0.25 GiB declared, 0.5 GiB measured"],
        notes=["demo: verified_on: ..."],
    )

    assert report.table([told]).splitlines()[-2:] == [
        "  contradicts host.ram_budget_gb: 0.25 GiB declared, 0.5 GiB measured",
        "  note: verified_on: ...",
    ]


def test_a_report_that_contradicts_its_manifest_says_so_in_its_row(tree: Path) -> None:
    written(tree)
    toml = tree / "manifests/m/provider.toml"
    toml.write_text(toml.read_text().replace("0.1", "0.25"))

    [found] = report.rows(tree)
    assert found["contradicts"] == [
        "m: host.ram_budget_gb: 0.25 GiB declared, 0.5 GiB (536870912 bytes) measured"
    ]


def test_a_damaged_history_and_a_damaged_suite_are_named_and_hide_nothing(
    tree: Path,
) -> None:
    path = written(tree)
    torn = history.directory(path) / "20261101T000000Z.toml"
    torn.parent.mkdir(exist_ok=True)
    torn.write_text("x")
    beside = path.with_name("m.accept.toml")
    beside.write_text("x")

    [found] = report.rows(tree)
    assert found["state"] == "current"
    first, second = found["notes"][-2:]
    assert first.startswith(f"{beside}: no TOML found")
    assert second.startswith(f"{torn}: no TOML found")


def test_another_environment_is_not_a_line_for_each_package() -> None:
    stale = row(state="stale", differs=[f"package{n} 1 -> 2" for n in range(40)])

    assert report.table([stale]).splitlines()[-2:] == [
        "  package4 1 -> 2",
        "  and 35 more differences: --json has all",
    ]


def test_what_another_machine_wrote_moves_no_cursor_and_turns_no_text() -> None:
    odd = row(machine="lab\x1b[2J\u202e7", differs=["a\x07b"], state="stale")

    shown = report.table([odd, row(machine="other")])
    assert not {"\x1b", "\x07", "\u202e"} & set(shown + report.table([odd]))


ENDLESS = f"0x{'f' * 5000}"
"""What TOML gives as a number of more digits than Python writes out."""


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", ENDLESS, f"-{10**400}"])
def test_a_number_that_is_none_hides_no_report_and_breaks_no_document(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    path = written(tree)
    keys = "rss_peak_bytes|growth_mib|held_median_s|cores|memory_bytes"
    text = re.sub(rf"(?m)^({keys}) = .*$", rf"\1 = {value}", path.read_text())
    assert text.count(value) == 5
    for file in (path, *history.directory(path).iterdir()):
        file.write_text(text)

    words = ["--tree", str(tree), "remote", "report"]
    for more in ([], ["m"], [str(path.parent)]):
        assert main([*words, *more, "--html", str(tmp_path / "page.html")]) == 0
        assert "m " in capsys.readouterr().out
        assert main([*words, *more, "--json"]) == 0
        said = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
        assert [row["slug"] for row in said["reports"]] == ["m"]


def test_a_name_of_endless_digits_is_damage_and_hides_no_other(
    tree: Path, tmp_path: Path
) -> None:
    path = written(tree)
    (kept,) = history.directory(path).iterdir()
    folder = put(tmp_path / "x", reports.report())
    for file in (path, kept, folder / "odd.toml"):
        text = (folder / "m.toml").read_text()
        file.write_text(text.replace('slug = "m"', f"slug = {ENDLESS}"))

    [here] = report.rows(tree)
    assert here["differs"][0].startswith(f"{path}: Exceeds the limit")
    assert any(note.startswith(f"{kept}: Exceeds") for note in here["notes"])
    found = names(machines.entries(tree, [folder]))
    assert [slug for slug, _, _ in found] == ["m", "odd"]


def test_a_provider_that_was_named_twice_is_shown_once(tree: Path) -> None:
    assert len(report.rows(tree, ["m", "m"])) == 1


# -- several machines


def test_machines_whose_long_names_start_alike_are_told_apart(
    tree: Path, tmp_path: Path
) -> None:
    long = "node-of-the-large-cluster-in-the-west"
    folders = [
        put(tmp_path / end, reports.report(on=machine(f"{long}-{end}")))
        for end in ("01", "02")
    ]
    rows = [entry.row() for entry in machines.entries(tree, folders)]

    head = report.table(rows, 120).splitlines()[0].split()
    assert len(set(head)) == 3
    assert [name[-3:] for name in head[1:]] == ["-01", "-02"]


def names(entries: list[Entry]) -> list[tuple[str, str | None, str]]:
    return [(one.slug, one.machine, one.state) for one in entries]


def test_machines_stand_side_by_side_and_wrap_where_there_is_no_room(
    tree: Path, tmp_path: Path
) -> None:
    folders = [
        put(tmp_path / name, reports.report(on=machine(name)))
        for name in ("lab7", "spark", "a-machine-of-a-long-name")
    ]
    rows = [entry.row() for entry in machines.entries(tree, folders[:2])]

    assert report.table(rows).splitlines()[:11] == [
        "m                         lab7              spark",
        "  state                  stale              stale",
        "  certified   2026-11-29T12:00   2026-11-29T12:00",
        "  load                   8.8 s              8.8 s",
        "  first                  3.1 s              3.1 s",
        "  held                   2.4 s              2.4 s",
        "  fresh                  6.8 s              6.8 s",
        "  speed-up               2.9 x              2.9 x",
        "  growth               0.2 MiB            0.2 MiB",
        "  RAM        0.314 of 0.75 GiB  0.314 of 0.75 GiB",
        "  device            3 of 8 GiB         3 of 8 GiB",
    ]
    every = [entry.row() for entry in machines.entries(tree, folders)]
    assert max(map(len, report.table(every).splitlines())) <= 80


def test_a_report_of_another_machine_is_held_against_what_the_tree_declares(
    tree: Path, tmp_path: Path
) -> None:
    one = manifest.load(tree / "manifests/m/provider.toml", tree)
    here = measured.inputs(one, {})
    # what another machine has installed is not ours to see
    there = {**here, "interpreter": "3.8.1", "distributions": "x", "installed": {}}
    folder = put(tmp_path / "x", reports.report(inputs=there))

    assert names(machines.entries(tree, [folder])) == [("m", "lab7", "current")]
    put(
        folder, reports.report(at="2026-12-01T00:00:00Z", inputs={**there, "lock": "?"})
    )
    [found] = machines.entries(tree, [folder])
    assert found.state == "stale"
    assert found.differs == (f"lock ? -> {here['lock'][:12]}",)


def test_a_report_of_what_this_tree_has_not_is_shown_and_says_so(
    tree: Path, tmp_path: Path
) -> None:
    folder = put(tmp_path / "x", reports.report("other"))

    [found] = machines.entries(tree, [folder])
    assert found.differs == ("other: no such provider in this tree to hold it against",)
    assert found.row()["measured"]["timing"] == reports.TIMING


@pytest.mark.parametrize(
    "below", ["", "measured", "0a1b2c3d/measured", "state/0a1b2c3d/measured"]
)
def test_reports_are_found_where_a_host_keeps_them(
    tree: Path, tmp_path: Path, below: str
) -> None:
    put(tmp_path / "x" / below, reports.report(), accepted=True)

    [found] = machines.entries(tree, [tmp_path / "x"])
    assert found.machine == "lab7"
    assert found.acceptance is not None
    assert [len(found.history)] == [1]


def test_a_single_file_is_a_report_too(tree: Path, tmp_path: Path) -> None:
    file = put(tmp_path / "x", reports.report()) / "m.toml"
    moved = file.rename(tmp_path / "measured.toml")

    assert names(machines.entries(tree, [moved]))[0][:2] == ("m", "lab7")


def test_the_newest_of_one_machine_counts_and_the_others_are_its_history(
    tree: Path, tmp_path: Path
) -> None:
    older = put(tmp_path / "january", *reports.over_time()[:2])
    newer = put(tmp_path / "june", *reports.over_time()[2:])

    [found] = machines.entries(tree, [newer, older])
    held = [one.timing["held_median_s"] for one in found.history]
    assert held == [10 / 8, 15 / 8, 20 / 8, 25 / 8]
    assert found.report is not None
    assert found.report.timing["held_median_s"] == 25 / 8


def test_two_machines_of_one_name_are_told_apart(tree: Path, tmp_path: Path) -> None:
    folders = [
        put(tmp_path / name, reports.report(on=machine("vm", gpu=gpu)))
        for name, gpu in (("first", "NVIDIA H200"), ("second", "NVIDIA GB10"))
    ]

    found = [entry.machine for entry in machines.entries(tree, folders)]
    assert found == ["vm (first)", "vm (second)"]


def test_a_report_of_a_machine_that_changed_hands_is_no_history_of_it(
    tree: Path, tmp_path: Path
) -> None:
    folder = put(tmp_path / "x", reports.report(on=machine("before")), reports.report())

    [found] = machines.entries(tree, [folder])
    assert len(found.history) == 1


def test_a_damaged_report_is_shown_with_its_reason_and_hides_no_other(
    tree: Path, tmp_path: Path
) -> None:
    folder = put(tmp_path / "x", reports.report())
    (folder / "torn.toml").write_text("schema = 1\n[mach")
    (folder / "named.toml").write_text(
        (folder / "m.toml").read_text().replace('slug = "m"', 'slug = "<b>"')
    )
    os.mkfifo(folder / "pipe.toml")

    found = machines.entries(tree, [folder])
    assert names(found) == [
        ("m", "lab7", "stale"),
        ("named", "lab7", "stale"),
        ("torn", "lab7", "stale"),
    ]
    assert found[1].differs == (
        f"{folder}/named.toml: slug '<b>' found, the name of a provider wanted",
    )
    assert found[2].differs[0].startswith(f"{folder}/torn.toml: no TOML found")


def test_a_provider_of_which_no_machine_reports_is_refused(
    tree: Path, tmp_path: Path
) -> None:
    folders = [put(tmp_path / name, reports.report()) for name in ("x", "y")]

    assert machines.entries(tree, folders, ["m", "n"])
    assert machines.entries(tree, folders, [str(tree / "manifests/m")])
    with pytest.raises(UsageError, match="y: reports of m found, one of n wanted"):
        machines.entries(tree, folders, ["n"])


def test_a_directory_without_a_report_is_refused(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()

    with pytest.raises(UsageError) as refused:
        machines.entries(tree, [tmp_path / "x"])
    assert str(refused.value) == (
        f"{tmp_path}/x: no measured report found, a directory with <slug>.toml files "
        "or a host's state directory wanted"
    )


# -- what is typed


def tu(
    capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, dict[str, Any], str]:
    code = main(["--json", "remote", "report", *words])
    said = capsys.readouterr()
    return code, json.loads(said.out), said.err


def test_providers_and_directories_are_told_apart(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    put(tmp_path / "x", reports.report(), reports.report("other"))
    put(tmp_path / "m", reports.report("other"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TU_REMOTE_TREE", str(tree))

    def shown(*words: str) -> list[tuple[str, str | None]]:
        code, document, _ = tu(capsys, *words)
        assert code == 0
        return [(one["slug"], one["machine"]) for one in document["reports"]]

    assert shown("m") == [("m", None)]
    assert shown(str(tree / "manifests/m")) == [("m", None)]
    assert shown("./m") == [("other", "lab7")]
    assert shown("x") == [("m", "lab7"), ("other", "lab7")]
    assert shown("x", "m") == [("m", "lab7")]


def test_the_page_that_was_asked_for_is_said_last_and_in_the_document(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "page.html")
    words = ["--tree", str(tree), "--html", file]
    code, document, _ = tu(capsys, *words)
    assert (code, document["html"]) == (0, file)

    assert main(["remote", "report", *words]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"page: {file}"
    assert Path(file).read_text().startswith("<!DOCTYPE html>")


def test_a_page_that_cannot_be_written_is_one_line_and_the_next_command(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--tree", str(tree), "--html", "/dev/full"]
    code, document, told = tu(capsys, *words)

    assert (code, document["reason"]) == (1, "unreadable")
    assert told.splitlines() == [
        "tu: /dev/full: no regular file found, the name of a file in a directory wanted",
        f"next: tu remote --tree {shlex.quote(str(tree))} report --html report.html",
    ]
