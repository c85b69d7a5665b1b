"""The page in a real browser: it can be read by everybody, and asks nobody for anything."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright
from reports import HOSTILE, MEMORY, TIMING, machine, over_time, put, report
from small_tree import tree as small_tree

from tasks import machines, page, reported

NOW = datetime(2026, 11, 30, tzinfo=UTC)
CHROMIUM = shutil.which("chromium")
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()
DEADLINE_MS = 60_000
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium: apt-get install chromium"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=CHROMIUM, args=QUIET, timeout=DEADLINE_MS
        )
        yield started
        started.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write a page of one machine with all there can be, of three, and of nothing."""
    place = tmp_path_factory.mktemp("pages")
    tree = small_tree(place / "a tree")
    unknown = {key: value for key, value in TIMING.items() if key != "load_s"}
    over = report(
        memory={**MEMORY, "rss_peak_bytes": 2**30}, on=machine("spark"), timing=unknown
    )
    folders = [
        put(place / "lab7", *over_time(), accepted=True),
        put(place / "spark", over),
        put(place / "evil", report(on=machine(HOSTILE * 9))),
    ]
    (folders[2] / "torn.toml").write_text("schema = 1\n[mach")
    contents = {
        "one": machines.entries(tree, folders[:1]),
        "several": machines.entries(tree, folders),
        "none": reported.of_tree(tree),
    }
    for name, entries in contents.items():
        (place / f"{name}.html").write_text(page.html(entries, NOW), encoding="utf-8")
    return {name: place / f"{name}.html" for name in contents}


@dataclass
class Seen:
    """An open page, what it said on its console, and what it asked for."""

    page: Page
    messages: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


Shown = Callable[..., Seen]
"""Shows a page in a window of a width, in light or dark."""


@pytest.fixture(scope="module")
def shown(browser: Browser, pages: dict[str, Path]) -> Shown:
    """Open each page once; what a test did to it is undone for the next."""
    opened: dict[str, Seen] = {}

    def show(name: str, width: int = 1280, scheme: str = "light") -> Seen:
        seen = opened.get(name)
        if seen is None:
            context = browser.new_context(offline=True)
            context.set_default_timeout(DEADLINE_MS)
            seen = opened[name] = Seen(context.new_page())
            seen.page.on("console", lambda said: seen.messages.append(said.text))
            seen.page.on("pageerror", lambda fault: seen.messages.append(str(fault)))
            seen.page.on("request", lambda request: seen.asked.append(request.url))
        seen.messages.clear()
        seen.asked.clear()
        seen.page.set_viewport_size({"width": width, "height": 800})
        seen.page.emulate_media(media="screen", color_scheme=scheme)
        seen.page.goto(pages[name].as_uri())
        return seen

    return show


def open_all(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")


CHARTS = {"one": 5, "several": 1 + 5 + 3 + 3, "none": 0}
NAMES = tuple(CHARTS)


@pytest.mark.parametrize("name", NAMES)
def test_it_renders_without_a_complaint_and_without_a_request(
    shown: Shown, pages: dict[str, Path], name: str
) -> None:
    seen = shown(name)

    seen.page.get_by_role("heading", level=1).wait_for()
    assert seen.page.locator("svg.chart").count() == CHARTS[name]
    assert seen.messages == []
    # what is inside of it is no request
    asked = [url for url in seen.asked if not url.startswith("data:")]
    assert asked == [pages[name].as_uri()]


def test_what_is_read_are_the_numbers_of_the_file(shown: Shown) -> None:
    script = "all => all.map(one => [Number(one.value), one.checkVisibility()])"
    values = shown("one").page.locator("data").evaluate_all(script)

    assert [TIMING["load_s"], True] in values
    assert [TIMING["fresh_s"] / (25 / 8), True] in values
    assert [MEMORY["rss_peak_bytes"], True] in values


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", NAMES)
def test_axe_finds_nothing_that_keeps_anybody_out(
    shown: Shown, name: str, scheme: str
) -> None:
    seen = shown(name, scheme=scheme)
    open_all(seen.page)
    found = Axe().run(seen.page)

    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_wider_than_a_phone_or_a_window_at_200_percent(
    shown: Shown, name: str
) -> None:
    page = shown(name).page
    open_all(page)
    # 640 is a window of 1280 at 200 %
    for width in (320, 360, 640, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_charts_have_names_and_words_for_who_cannot_see_them(shown: Shown) -> None:
    page = shown("one").page
    chart = page.get_by_role("img", name="One request")
    said = page.locator(f"#{chart.get_attribute('aria-describedby')}").text_content()

    assert said is not None
    assert "in a fresh process: 6.77 s" in said
    tree = page.locator("main").aria_snapshot()
    for title in ("Peak against budget", "Growth per held request", "Over time"):
        assert f'img "{title}"' in tree


def test_its_tables_stay_tables_on_a_phone(shown: Shown) -> None:
    overview = shown("one", 360).page.get_by_role("table", name="Overview")

    assert overview.get_by_role("columnheader").count() == 8
    assert overview.get_by_role("row").nth(1).get_by_role("cell").count() == 7


def test_all_of_it_can_be_reached_from_the_keyboard(shown: Shown) -> None:
    page = shown("one").page
    page.keyboard.press("Tab")
    first = page.evaluate("document.activeElement.textContent")
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")

    assert first == "Skip to the reports"
    assert page.locator("details").first.evaluate("one => one.open")
    assert page.get_by_role("cell", name="6.77 s").first.is_visible()


def test_on_paper_the_tables_are_open_and_the_ground_is_white(shown: Shown) -> None:
    page = shown("one").page
    page.emulate_media(media="print", color_scheme="dark")
    script = "all => all.map(one => one.checkVisibility())"
    seen = page.locator("details table").evaluate_all(script)

    assert len(seen) >= 5
    assert all(seen)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(255, 255, 255)"
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_on_paper_no_machine_is_cut_off(shown: Shown) -> None:
    page = shown("several", width=688).page
    page.emulate_media(media="print")
    script = "all => all.map(one => one.getBoundingClientRect().right)"
    ends = page.locator("table").evaluate_all(script)

    assert len(ends) >= 3
    assert max(ends) <= 688 + 1


def test_charts_follow_the_light_and_the_dark(shown: Shown) -> None:
    def colors(scheme: str) -> set[str]:
        script = "all => all.map(one => getComputedStyle(one).fill)"
        page = shown("one", scheme=scheme).page
        return set(page.locator("svg.chart text").evaluate_all(script))

    light, dark = colors("light"), colors("dark")
    assert light
    assert dark
    assert not light & dark
