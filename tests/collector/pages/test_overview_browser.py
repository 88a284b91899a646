"""The overview in a real browser: cursor, zoom and links of its charts, with and without scripts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page

from collector.chromium import chromium, find_violations
from collector.making import SECOND, child, run
from spanwise.collector.records import Feedback, Run, Target, Usage
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

pytestmark = [pytest.mark.browser, pytest.mark.process]
HOUR = 3_600 * SECOND
EVIL = "<img src=x onerror=alert(1)>\u202e" + "ungebrochen" * 20


def varied_traces(store: SQLiteStore) -> None:
    """Two days of traces with a gap, changes, hostile names, and four hundred keys."""
    now, runs, feedback = time.time_ns(), list[Run](), list[Feedback]()
    for n in range(400):
        hours = n * 0.12
        if 8 < hours < 12:
            continue
        start, failed = now - int(hours * HOUR), n % (5 if n < 200 else 50) == 0
        labels = {
            "user_id": EVIL if n % 3 else "u-1",
            "environment": EVIL,
            "tags": (EVIL, "vip"),
            "project": "shop" if n % 2 else EVIL,
        }
        status = {"status": "error", "error": EVIL} if failed else {}
        root = run("answer", start_ns=start, end_ns=start + (4 if n < 200 else 1) * SECOND, **labels, **status)
        runs += [root, child(root, kind="llm", model=EVIL, usage=Usage(800, 120), cost=0.002)]
        target = Target(trace_id=root.trace_id)
        feedback += [
            Feedback(target=target, key="helpful", score=n % 4 != 0),
            Feedback(target=target, key=EVIL, score=n - 100),
            Feedback(target=target, key="tone", label=EVIL),
            Feedback(target=target, key=f"key-{n:03}", score=0.5),
        ]
    store.append(runs)
    store.add_feedback(feedback)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("overview")
    with SQLiteStore(folder / "spanwise.db") as store:
        varied_traces(store)
        with Server(store) as server:
            yield server.url


def open_page(browser: Browser, address: str, width: int = 1440, **options: object) -> Page:
    page = browser.new_context(viewport={"width": width, "height": 900}, **options).new_page()  # type: ignore[arg-type]
    page.set_default_timeout(60_000)
    page.goto(address)
    return page


def point_at(page: Page, share: float) -> tuple[float, float]:
    """Where a share of the width of the first chart is."""
    box = page.locator(".u-over").first.bounding_box()
    assert box
    return box["x"] + box["width"] * share, box["y"] + box["height"] / 2


def counted(page: Page) -> int:
    return int(page.locator('.plot[aria-label="Traces"] .value a').inner_text().replace(",", ""))


def test_pointing_at_a_bucket_shows_its_numbers_and_a_click_its_traces(browser: Browser, site: str) -> None:
    page = open_page(browser, f"{site}/?since=24h", timezone_id="Asia/Tokyo")
    page.mouse.move(*point_at(page, 0.97))
    tip = page.locator(".plot-tip")
    tip.wait_for()
    count = int(tip.inner_text().split("\n")[1])
    page.mouse.click(*point_at(page, 0.97))
    page.wait_for_url("**/traces?since=*")
    assert page.locator("a.row-link").count() == count > 0


def test_dragging_over_a_chart_zooms_in(browser: Browser, site: str) -> None:
    page = open_page(browser, f"{site}/?since=24h&group=user")
    before = counted(page)
    page.get_by_text("Drag over a chart to zoom in").wait_for()
    page.mouse.move(*point_at(page, 0.75))
    page.mouse.down()
    page.mouse.move(*point_at(page, 0.9), steps=5)
    page.mouse.up()
    page.wait_for_url("**until=*")
    asked = parse_qs(urlsplit(page.url).query)
    assert (len(asked["since"]), len(asked["until"]), asked["group"]) == (1, 1, ["user"])
    assert 0 < counted(page) < before / 3
    page.go_back()
    assert counted(page) == before


def test_canvases_follow_the_width_of_the_window(browser: Browser, site: str) -> None:
    page = open_page(browser, f"{site}/?since=24h")
    page.locator("canvas").first.wait_for()
    page.set_viewport_size({"width": 500, "height": 900})
    page.wait_for_function(
        "[...document.querySelectorAll('canvas')].every((one) => one.getBoundingClientRect().right <= 500)"
    )


def test_cost_by_model_this_week_takes_two_choices_and_the_error_rate_none(browser: Browser, site: str) -> None:
    page = open_page(browser, f"{site}/")
    assert page.locator('.plot[aria-label="Errors"] canvas').count() == 1
    page.locator("select[name=since]").select_option("7d")
    page.wait_for_url("**since=7d*")
    page.locator("select[name=group]").select_option("model")
    page.wait_for_url("**group=model*")
    cost = page.locator(".by-group tbody tr td").nth(6).inner_text()
    assert cost.startswith("$0.")


def test_without_scripts_the_charts_are_drawings_with_links_and_a_table(browser: Browser, site: str) -> None:
    page = open_page(browser, f"{site}/?since=24h", java_script_enabled=False)
    assert page.locator("canvas").count() == 0
    assert page.locator(".plot-box svg path.bars").first.bounding_box()
    page.get_by_text("Data of the charts").click()
    row = page.locator(".data tbody tr", has=page.locator("td a")).last
    count = int(row.locator("td").first.inner_text())
    row.locator("th a").click()
    assert page.locator("a.row-link").count() == count
    page.go_back()
    page.get_by_label("Group by").select_option("user")
    page.get_by_role("button", name="Show", exact=True).last.click()
    assert page.locator(".by-group tbody tr").count() == 2


@pytest.mark.long
@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (1440, "dark"), (390, "light"), (390, "dark")])
def test_nothing_reaches_beyond_the_window_and_axe_finds_nothing(
    browser: Browser, site: str, width: int, scheme: str
) -> None:
    problems = {}
    page = open_page(browser, f"{site}/?since=24h", width, color_scheme=scheme)
    dialogs = list[str]()
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    for query in (
        "since=24h",
        "since=1h&group=tag",
        "since=7d&group=model",
        "since=24h&environment=none",
        "group=nothing",
    ):
        page.goto(f"{site}/?{query}")
        for summary in page.locator("details.data > summary").all():
            summary.click()
        found = find_violations(page)
        reach = page.evaluate("document.documentElement.scrollWidth")
        if found or reach > width:
            problems[query] = (found, reach)
    assert problems == {}
    assert dialogs == []
