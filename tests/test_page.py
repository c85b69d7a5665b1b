"""The page: the numbers of the files, nothing of anybody else's, nothing from outside."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest
from reports import (
    ACCEPTED,
    HOSTILE,
    MEMORY,
    TIMING,
    machine,
    over_time,
    put,
    report,
)
from small_tree import MANIFEST
from small_tree import tree as small_tree

from remote_resident.errors import ProviderError
from tasks import machines, page, page_text, reported
from tasks.measured import Report

NOW = datetime(2026, 11, 30, tzinfo=UTC)
ROOT = Path(__file__).parents[1]
VOID = {"meta", "link", "br"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return small_tree(tmp_path / "a tree")


@dataclass
class Element:
    """One element of a page, with all text in it."""

    tag: str
    attributes: Mapping[str, str | None]
    inside: tuple[str, ...]
    text: str = ""


@dataclass
class Page(HTMLParser):
    """What a page holds, as a parser sees it."""

    source: str
    elements: list[Element] = field(default_factory=list)
    _open: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.source)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        inside = tuple(one.tag for one in self._open)
        element = Element(tag, dict(attrs), inside)
        assert len(element.attributes) == len(attrs)
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, dict(attrs), ()))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def of(self, tag: str) -> list[Element]:
        return [one for one in self.elements if one.tag == tag]

    @property
    def text(self) -> str:
        return self.of("body")[0].text

    def numbers(self) -> list[str | None]:
        return [one.attributes["value"] for one in self.of("data")]


def shown(tree: Path, *folders: Path) -> Page:
    return Page(page.html(machines.entries(tree, folders), NOW))


def of_one(tree: Path, *reports: Report, accepted: bool = False) -> Page:
    return shown(tree, put(tree.parent / "lab7", *reports, accepted=accepted))


# -- what it says


def test_its_numbers_are_those_of_the_file_unrounded(tree: Path) -> None:
    numbers = of_one(tree, report()).numbers()

    for key in ("load_s", "first_s", "held_median_s"):
        assert repr(TIMING[key]) in numbers
    assert repr(6.773221184999784 / 2.375) in numbers
    assert repr(MEMORY["rss_peak_bytes"]) in numbers
    assert repr(MEMORY["growth_mib"]) in numbers


def test_it_says_machine_verdict_and_time(tree: Path) -> None:
    found = of_one(tree, report())

    assert found.of("h1")[0].text == found.of("title")[0].text == "Measured on lab7"
    assert "NVIDIA H200, 140 GiB, driver 580.95.05" in found.text
    assert "512 GiB" in found.text
    # the tree declares other digests than none
    assert "1 stale" in found.text
    assert "manifest none →" in found.text
    written = [one.attributes["datetime"] for one in found.of("time")]
    assert written[-1] == "2026-11-30T00:00:00+00:00"


def test_what_is_not_known_is_no_zero(tree: Path) -> None:
    found = of_one(tree, report(timing={}, memory={}))

    assert found.numbers() == []
    assert found.of("svg") == []


def test_a_known_zero_is_a_number(tree: Path) -> None:
    found = of_one(tree, report(memory={"growth_mib": 0.0}))

    assert "0.0" in found.numbers()
    assert "0 MiB of 8 MiB" in found.text


def test_every_chart_has_its_words_and_its_table(tree: Path) -> None:
    found = of_one(tree, *over_time(), accepted=True)
    charts = [one for one in found.of("svg") if one.attributes["role"] == "img"]
    titles = [one.text for one in found.of("figcaption")]

    assert titles == [
        "One request",
        "Peak against budget",
        "Growth per held request",
        "By input size",
        "Over time",
    ]
    assert len(charts) == len(titles) == len(found.of("desc"))
    summaries = [one.text for one in found.of("summary")]
    for title in titles:
        assert f"Numbers: {title.lower()}" in summaries
    assert all(one.text for one in found.of("desc"))


def test_a_chart_draws_and_describes_the_numbers_of_the_file(tree: Path) -> None:
    found = of_one(tree, report())
    [said] = [one.text for one in found.of("desc") if "fresh" in one.text]

    assert said == (
        "in a fresh process: 6.77 s; first after loading: 3.14 s; held, median of 3: "
        "2.38 s."
    )
    for number in ("6.77 s", "3.14 s", "2.38 s", "0.314 GiB of 0.75 GiB"):
        assert number in [one.text for one in found.of("text")]
        assert number in [one.text for one in found.of("td")]


def test_the_ladder_is_drawn_from_what_an_acceptance_suite_wrote(tree: Path) -> None:
    found = of_one(tree, report(), accepted=True)
    cells = [one.text for one in found.of("td")]

    for rung in ACCEPTED["ladder"]:
        assert page_text.gib(rung["peak_gb"]) in cells
        assert page_text.seconds(rung["seconds"]) in cells
    assert "Acceptance suite: failed, 2026-11-29 12:00" in found.text
    assert "queue_full" in cells


def test_a_timeline_says_what_was_new_on_the_machine(tree: Path) -> None:
    found = of_one(tree, *over_time())
    cells = [one.text for one in found.of("td")]

    assert [cell for cell in cells if "driver" in cell] == ["driver 590.10"]
    assert "driver 590.10" in [one.text for one in found.of("text")]
    wanted = ["1.25 s", "1.88 s", "2.5 s", "3.12 s"]
    assert [cell for cell in cells if cell in wanted][-4:] == wanted


def test_a_contradicted_claim_stands_where_an_operator_looks(tree: Path) -> None:
    memory = {**MEMORY, "rss_peak_bytes": 2**30}
    found = of_one(tree, report(memory=memory))

    assert "1 claim contradicted" in found.text
    assert (
        "Contradicted host.ram_budget_gb: 0.1 GiB declared, 1.0 GiB (1073741824 bytes) "
        "measured"
    ) in found.text


def test_machines_stand_in_columns_and_a_damaged_report_hides_no_other(
    tree: Path, tmp_path: Path
) -> None:
    folders = [put(tmp_path / name, report(on=machine(name))) for name in ("x", "y")]
    (tmp_path / "z").mkdir()
    (tmp_path / "z/m.toml").write_text("schema = 1\n[mach")
    found = shown(tree, *folders, tmp_path / "z")

    heads = [
        one.text
        for one in found.of("th")
        if one.attributes.get("scope") == "col" and "thead" in one.inside
    ]
    assert heads[:4] == ["Provider", "x", "y", "z"]
    assert f"{tmp_path / 'z/m.toml'}: no TOML found" in found.text
    assert found.of("h1")[0].text == "Measured on 3 machines"
    assert found.numbers().count(repr(TIMING["load_s"])) == 2 + 2


def test_a_report_that_stands_alone_beside_other_machines_says_whose_it_is(
    tree: Path, tmp_path: Path
) -> None:
    folders = [
        put(tmp_path / "x", report(on=machine("x"))),
        put(tmp_path / "y", report("n", on=machine("y"))),
    ]

    heads = [one.text for one in shown(tree, *folders).of("h3")]
    assert heads == ["x", "y"]
    assert shown(tree, folders[0]).of("h3") == []


def test_what_is_not_set_up_is_listed_with_what_to_type(tree: Path) -> None:
    found = Page(page.html(reported.of_tree(tree), NOW))

    assert "1 not set up" in found.text
    assert "doit setup:m" in found.text
    assert found.of("svg") == []


def test_a_broken_manifest_is_named(tree: Path) -> None:
    (tree / "manifests/m/provider.toml").write_text("slug = 1\n")
    found = Page(page.html(reported.of_tree(tree), NOW))

    assert "its manifest cannot be read: " in found.text


# -- what others wrote


def test_what_another_machine_wrote_is_text_and_nothing_else(
    tree: Path, tmp_path: Path
) -> None:
    hostile = machine(HOSTILE, gpu=HOSTILE, driver=HOSTILE)
    answer = {"values": {HOSTILE: HOSTILE}, "files": {HOSTILE: {"size": HOSTILE}}}
    bad = report(on=hostile, answer=answer, inputs={HOSTILE: HOSTILE})
    first = put(tmp_path / "bad", bad, report(at=HOSTILE, on=hostile, answer=answer))
    torn = first / f"{HOSTILE.replace('/', '')}.toml"
    torn.write_text("x")
    found = shown(tree, first, put(tmp_path / "good", report()))

    assert found.of("script") == []
    assert "<script>alert(1)</script>$e^x$" in found.text
    for one in found.elements:
        assert not [name for name in one.attributes if name.startswith("on")]
        assert one.attributes.get("id") != "x"
    # what turns the text around it is shown, and does not act
    assert not {"\u202e", "\x1b"} & set(found.source)
    assert "\\u202eevil\\x1b[2J" in found.text


def test_what_a_machine_is_called_is_no_formula(tree: Path, tmp_path: Path) -> None:
    folders = [
        put(tmp_path / name, report(on=machine(name))) for name in ("$x^$", "$x$")
    ]
    drawn = [one.text for one in shown(tree, *folders).of("text")]

    assert {"$x^$", "$x$"} <= set(drawn)


ODD = [
    float("inf"),
    float("nan"),
    -1.0,
    10**400,
    True,
    "1",
    [],
    {},
    0,
    1e-300,
    1e300,
]


LIKE_ANOTHER = (-1.0, 10**400, True, [], {})
"""Those whose like is in the default suite: no amount, no number."""


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(
            one,
            id=str(one)[:9],
            marks=pytest.mark.long if one in LIKE_ANOTHER else (),
        )
        for one in ODD
    ],
)
def test_numbers_that_are_none_are_unknown_and_odd_ones_are_drawn(
    tree: Path, value: object
) -> None:
    timing = {**dict.fromkeys(TIMING, value), "held_s": [value, value]}
    odd = report(timing=timing, memory=dict.fromkeys(MEMORY, value))
    again = report(
        at="2026-11-30T00:00:00+00:00", timing=timing, memory=dict.fromkeys(MEMORY, 1)
    )
    found = of_one(tree, report(), odd, again, accepted=True)

    assert "inf" not in found.source.partition("<body>")[2]
    assert ">nan" not in found.source


def test_times_at_the_ends_of_the_calendar_are_drawn(tree: Path) -> None:
    ends = ("0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59+00:00")
    found = of_one(tree, *(report(at=at) for at in ends))

    assert "Over time" in [one.text for one in found.of("figcaption")]


def test_two_reports_of_one_moment_are_drawn(tree: Path) -> None:
    twice = [report(), report(timing={**TIMING, "load_s": 1.0})]

    assert "Over time" in [one.text for one in of_one(tree, *twice).of("figcaption")]


# -- what it is made of


def test_the_same_reports_give_the_same_bytes(tree: Path, tmp_path: Path) -> None:
    folder = put(tmp_path / "lab7", *over_time(), accepted=True)
    entries = machines.entries(tree, [folder])

    assert page.html(entries, NOW) == page.html(entries, NOW)


def test_every_id_is_its_own_and_every_reference_leads_to_one(
    tree: Path, tmp_path: Path
) -> None:
    folders = [
        put(tmp_path / name, *over_time(name), accepted=True) for name in ("x", "y")
    ]
    found = shown(tree, *folders)
    ids = [i for one in found.elements if (i := one.attributes.get("id"))]

    assert len(found.of("figcaption")) == 1 + 2 * 5
    assert len(ids) == len(set(ids))
    for one in found.elements:
        for name in ("aria-labelledby", "aria-describedby"):
            assert set((one.attributes.get(name) or "").split()) <= set(ids)
        href = one.attributes.get("href") or "data:,"
        assert href == "data:," or href.removeprefix("#") in ids
    named = re.findall(r"url\(#([^)]+)\)", found.source)
    assert named
    assert set(named) <= set(ids)


def test_nothing_of_it_comes_from_outside(tree: Path) -> None:
    found = of_one(tree, *over_time(), accepted=True)

    for one in found.elements:
        assert one.tag not in {"script", "iframe", "object", "embed", "img", "form"}
        assert "src" not in one.attributes
    assert "@import" not in found.source
    assert set(re.findall(r"url\(.", found.source)) <= {"url(#"}
    [policy] = [
        one.attributes["content"]
        for one in found.of("meta")
        if one.attributes.get("http-equiv")
    ]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def test_a_chart_has_no_colour_of_its_own(tree: Path) -> None:
    found = of_one(tree, *over_time(), accepted=True)
    body = found.source.partition("<body>")[2]

    assert set(re.findall(r"(?:fill|stroke): ([^;\"]+)", body)) <= {
        "none",
        *(f"var(--{name})" for name in page_names(found.source)),
    }


def page_names(source: str) -> set[str]:
    return set(re.findall(r"--(\w+):", source))


def test_what_is_shown_of_numbers_is_short_and_never_in_powers_of_ten() -> None:
    assert page_text.seconds(0.0043219) == "4.32 ms"
    assert page_text.seconds(1234.5678) == "1235 s"
    assert page_text.seconds(None) == "-"
    assert page_text.seconds(0.0) == "0 s"
    assert page_text.gib(0.0001) == "0.102 MiB"
    assert page_text.short(0.00051) == "0.00051"


# -- where it is written


def test_matplotlib_is_imported_for_a_page_with_charts_only_and_says_nothing(
    tree: Path,
) -> None:
    put(tree.parent / "lab7", report())
    # no directory: where it can keep nothing it has something to say
    environ = {**os.environ, "MPLCONFIGDIR": __file__}
    code = (
        "import sys; from remote_resident.cli import main\n"
        "assert not main(sys.argv[1:]); print('matplotlib' in sys.modules)"
    )

    def imported(*words: str) -> bool:
        argv = [sys.executable, "-c", code, "--tree", str(tree), "remote", *words]
        ran = subprocess.run(
            argv, capture_output=True, text=True, cwd=ROOT, env=environ
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        return ran.stdout.split()[-1] == "True"

    folder, file = str(tree.parent / "lab7"), str(tree.parent / "page.html")
    assert not imported("report", folder)
    assert not imported("report", "--html", file)
    assert not imported("check")
    assert imported("report", folder, "--html", file)


def test_the_file_that_was_named_is_written_as_others_may_read_it(
    tree: Path, tmp_path: Path
) -> None:
    target, link = tmp_path / "there/page.html", tmp_path / "link.html"
    target.parent.mkdir()
    link.symlink_to(target)
    before = os.umask(0o022)
    try:
        page.write(link, reported.of_tree(tree), asked_for=True)
    finally:
        os.umask(before)

    assert link.is_symlink()
    assert target.read_text().startswith("<!DOCTYPE html>")
    assert target.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in target.parent.iterdir()] == ["page.html"]


def test_the_page_of_this_host_is_nobody_elses(tree: Path) -> None:
    path = page.place()
    page.write(path, reported.of_tree(tree))

    assert path.name == "report.html"
    assert path.stat().st_mode & 0o777 == 0o600
    assert page.place("m").name == "report-m.html"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("/dev/full", "no regular file"),
        ("no/such/page.html", "no such directory"),
        (".", "no regular file"),
        ("nul\0.html", "embedded null byte"),
    ],
)
def test_what_cannot_be_a_page_is_refused_and_left(
    tree: Path, name: str, found: str
) -> None:
    with pytest.raises(ProviderError) as refused:
        page.write(Path(name), reported.of_tree(tree), asked_for=True)

    assert str(refused.value) == (
        f"{Path(name)}: {found} found, the name of a file in a directory wanted"
    )
    assert (refused.value.reason, refused.value.next) == (
        "unreadable",
        "tu remote report --html report.html",
    )


IN_TMPFS = 'mount -t tmpfs -o size=64k none "$1" && exec "$2" -c "$3" "$1/page.html"'
FULL = """
import sys
from pathlib import Path
path = Path(sys.argv[1])
path.write_text("the last one")
path.with_name("filler").write_bytes(bytes(56 << 10))
from remote_resident.cli import main
code = main(["remote", "report", "--html", str(path)])
print(code, path.read_text(), sorted(one.name for one in path.parent.iterdir()))
"""


def test_a_full_disk_is_one_line_and_the_last_page_stands(tmp_path: Path) -> None:
    words = ("unshare", "-rm", "sh", "-c", IN_TMPFS, "sh", str(tmp_path))
    ran = subprocess.run(
        [*words, sys.executable, FULL], capture_output=True, text=True, cwd=ROOT
    )
    if "unshare" in ran.stderr or "mount" in ran.stderr:
        pytest.skip(f"no file system of one's own here: {ran.stderr.strip()}")

    assert ran.stderr == (
        f"tu: {tmp_path}/page.html: No space left on device, space for a file "
        f"wanted\nnext: df -h {tmp_path}\n"
    )
    assert ran.stdout.splitlines()[-1] == "1 the last one ['filler', 'page.html']"


def doit(tree: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "doit", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=tree,
        capture_output=True,
        text=True,
    )


def test_doit_report_writes_the_page_and_says_where_in_its_last_line(
    tree: Path, home: Path
) -> None:
    (tree / "manifests/n").mkdir()
    other = MANIFEST.replace('"m"', '"n"').replace('lock = "n"', 'lock = "m"')
    (tree / "manifests/n/provider.toml").write_text(other)
    (tree / "manifests/n/worker.py").write_text("")
    shutil.copy(ROOT / "dodo.py", tree)
    whole, part = doit(tree, "report"), doit(tree, "report:m")

    assert (whole.returncode, part.returncode) == (0, 0), whole.stderr + part.stderr
    for ran, name, count in ((whole, "report.html", 2), (part, "report-m.html", 1)):
        path = home / "state" / name
        assert ran.stdout.splitlines()[-1] == f"page: {path}"
        assert f"{count} not set up" in Page(path.read_text()).text


def test_a_page_that_cannot_be_written_is_refused_after_the_table(
    tree: Path, home: Path
) -> None:
    path = home / "state/report.html"
    path.mkdir(parents=True)
    shutil.copy(ROOT / "dodo.py", tree)
    ran = doit(tree, "report")

    assert ran.returncode == 1
    assert ran.stdout.startswith("provider")
    assert f"unreadable: {path}: Is a directory, a file" in ran.stdout
    assert "Traceback" not in ran.stdout + ran.stderr
