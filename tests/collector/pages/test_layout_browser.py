"""The layout of the pages in a real browser: widths, themes, keyboard, reading without scripts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from collector.chromium import chromium, find_violations
from collector.making import child, run
from collector.pages.odd_traces import LONG_USER, OPEN_TRACE, odd_traces, running_agent
from collector.pages.scene import experiment
from spanwise.collector.records import Document, Feedback, Target, Usage
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

pytestmark = [pytest.mark.browser, pytest.mark.process]
HEIGHTS = {1440: 900, 1280: 800, 1024: 768, 768: 1024, 390: 844}
KEYS = ("grounded", "concise", "polite", "faithful", "pii", "tone")
SIXTEEN_CHARACTERS = 16 * 7  # px; the average character of the list is 6.9 px wide


def ordinary_traces(store: SQLiteStore) -> None:
    """Sixty traces of support chats, with many scores each."""
    now, runs, feedback = time.time_ns(), [], []
    for number in range(60):
        start = now - number * 90 * 10**9
        failed = number % 9 == 4
        root = run(
            ("answer", "support_chat", "summarize_ticket")[number % 3],
            start_ns=start,
            end_ns=start + 10**9,
            inputs={
                "question": "Where is my parcel? It was sent on Monday, and the page says that it is in the depot."
            },
            outputs=None if failed else "You can collect it at the depot in Main Street.",
            status="error" if failed else "ok",
            error="TimeoutError: no answer within 30 s" if failed else None,
            session_id=f"conversation-{number // 5}",
            user_id=f"u-{number // 10}",
        )
        found = child(root, "retrieve", kind="retriever", documents=(Document("Depots", "d1"),))
        call = child(root, "chat", kind="llm", model="gpt-4o-mini", usage=Usage(800, 120), cost=0.002)
        runs += [root, found, call]
        target = Target(trace_id=root.trace_id)
        feedback += [Feedback(target=target, key=key, score=0.25, source="model", evaluator="judge") for key in KEYS]
    store.append(runs)
    store.add_feedback(feedback)
    experiment(store, "first", (1.0, None))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def serve(folder: Path, *fill: object) -> Iterator[str]:
    with SQLiteStore(folder / "spanwise.db") as store:
        for each in fill:
            each(store)  # type: ignore[operator]
        with Server(store) as server:
            yield server.url


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from serve(tmp_path_factory.mktemp("ordinary"), ordinary_traces)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from serve(tmp_path_factory.mktemp("odd"), odd_traces, running_agent)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from serve(tmp_path_factory.mktemp("empty"))


def open_page(browser: Browser, address: str, width: int = 1440, **options: object) -> Page:
    page = browser.new_context(viewport={"width": width, "height": HEIGHTS[width]}, **options).new_page()
    page.set_default_timeout(60_000)
    page.goto(address)
    return page


ORDINARY_PAGES = (
    "/",
    "/?since=1h&group=name",
    "/traces",
    "/traces?status=ok&feedback=grounded<0.5&name!=x",
    "/sessions",
    "/sessions/conversation-3",
    "/users/u-2",
)
OTHER_PAGES = ("/settings", "/experiments", "/rules", "/traces/none", "/traces?name=nothing")
ODD_PAGES = (
    "/?since=2025-01-01",
    "/?since=2025-01-01&group=user",
    "/traces",
    "/sessions",
    "/sessions/%20",
    f"/users/{LONG_USER}",
    f"/traces/{OPEN_TRACE}",
)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(width, ("light", "dark")[width in (1280, 390)]) for width in HEIGHTS])
def test_nothing_reaches_beyond_the_window_and_axe_finds_nothing(browser, ordinary, odd, empty, width, scheme):
    addresses = [f"{ordinary}{path}" for path in (*ORDINARY_PAGES, *OTHER_PAGES)]
    addresses += [f"{odd}{path}" for path in ODD_PAGES] + [f"{empty}/", f"{empty}/traces", f"{empty}/sessions"]
    page = open_page(browser, addresses[0], width, color_scheme=scheme)
    problems = {}
    for address in addresses:
        page.goto(address)
        reach = page.evaluate("document.documentElement.scrollWidth")
        if found := find_violations(page) + ([("too wide", str(reach))] if reach > width else []):
            problems[address] = found
    page.goto(f"{odd}/traces")
    page.locator("a.row-link").first.press("Enter")
    page.wait_for_url("**/traces/*")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert find_violations(page) == []
    assert problems == {}


@pytest.mark.parametrize("width", HEIGHTS)
def test_text_columns_of_lists_are_wide_enough_to_read(browser, ordinary, odd, width):
    page = open_page(browser, f"{ordinary}/traces", width)
    for base in (ordinary, odd):
        page.goto(f"{base}/traces")
        widths = page.locator("tbody :is(.c-input, .c-output) > .text:not(:empty)").evaluate_all(
            "texts => texts.map((text) => text.clientWidth)"
        )
        assert min(widths) >= SIXTEEN_CHARACTERS
        page.goto(f"{base}/sessions")
        assert (
            min(page.locator("tbody .c-name").evaluate_all("cells => cells.map((cell) => cell.clientWidth)"))
            >= SIXTEEN_CHARACTERS
        )


@pytest.mark.parametrize(("width", "rows"), [(1440, 18), (390, 3)])
def test_the_first_screen_shows_rows(browser, ordinary, width, rows):
    page = open_page(browser, f"{ordinary}/traces", width)
    boxes = page.locator("table.traces tbody tr").evaluate_all(
        "rows => rows.map((row) => row.getBoundingClientRect().toJSON())"
    )
    assert sum(box["bottom"] <= HEIGHTS[width] for box in boxes) >= rows
    if width == 1440:
        assert boxes[0]["top"] <= 200
        assert {round(box["height"]) for box in boxes} <= {36, 37}


def test_rows_have_one_height_whatever_the_names_are(browser, odd):
    page = open_page(browser, f"{odd}/traces", 1024)
    heights = page.locator("table.traces tbody tr").evaluate_all(
        "rows => rows.map((row) => Math.round(row.getBoundingClientRect().height))"
    )
    assert set(heights) <= {36, 37}


def test_cards_print_values_with_what_they_are(browser, ordinary):
    page = open_page(browser, f"{ordinary}/traces", 390)
    shown = " ".join(page.locator("tbody tr").first.inner_text().split())
    assert [part for part in ("answer", "1.00 s", "$0.002", "+6") if part not in shown] == [], shown
    after = page.locator("tbody tr td[data-key=tokens]").first.evaluate(
        "cell => getComputedStyle(cell, '::after').content"
    )
    assert after == '" tokens"'


def test_hidden_scores_are_counted_and_open_in_a_card(browser, ordinary):
    page = open_page(browser, f"{ordinary}/traces", 1440)
    more = page.get_by_role("button", name="All scores").first
    assert more.inner_text() == "+4"
    more.click()
    page.get_by_role("dialog", name="All scores").get_by_text("faithful").wait_for()
    page.set_viewport_size({"width": 1024, "height": 768})
    assert more.inner_text() == "+5"


def test_the_header_stays_in_sight(browser, ordinary):
    page = open_page(browser, f"{ordinary}/traces", 1280)
    page.mouse.wheel(0, 900)
    page.wait_for_function("scrollY > 500")
    assert page.locator("table.traces thead th").first.bounding_box()["y"] == 0


def test_the_first_row_is_a_few_keys_away(browser, ordinary):
    page = open_page(browser, f"{ordinary}/traces")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the list"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.classList.contains('row-link')")


def test_going_back_returns_the_focus_to_the_row(browser, ordinary):
    page = open_page(browser, f"{ordinary}/traces")
    row = page.locator("a.row-link").nth(3)
    opened = row.get_attribute("href")
    row.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/traces/*")
    page.go_back()
    page.wait_for_function("document.activeElement.classList.contains('row-link')")
    assert page.evaluate("document.activeElement.getAttribute('href')") == opened


def test_new_rows_are_announced(browser, tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as store, Server(store) as server:
        store.append([run("before")])
        page = open_page(browser, f"{server.url}/traces")
        page.get_by_role("button", name="Live").click()
        store.append([run("after")])
        page.get_by_role("status").get_by_text("1 new").wait_for(state="attached")


@pytest.mark.parametrize("scripts", [True, False])
def test_an_empty_page_notices_the_first_trace(browser, tmp_path, scripts):
    with SQLiteStore(tmp_path / "spanwise.db") as store, Server(store) as server:
        page = open_page(browser, f"{server.url}/traces", java_script_enabled=scripts)
        overview = open_page(browser, f"{server.url}/", java_script_enabled=scripts)
        for empty in (page, overview):
            empty.get_by_text("No traces yet").wait_for()
        store.append([run("the first", start_ns=time.time_ns())])
        page.get_by_role("link", name="the first").wait_for()
        overview.get_by_role("heading", name="Latency").wait_for()


def test_a_running_trace_fills_in_and_stops_to_be_running(browser, tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as store, Server(store) as server:
        tool = running_agent(store)
        page = open_page(browser, f"{server.url}/traces/{OPEN_TRACE}")
        page.locator(".state", has_text="running").wait_for()
        store.append(
            [run("agent of 12 s", kind="agent", trace_id=OPEN_TRACE, span_id="e" * 16, start_ns=tool.start_ns - 1)]
        )
        page.locator(".state", has_text="running").wait_for(state="detached")
        assert page.get_by_role("heading", level=1).inner_text().split("\n")[-1].strip().startswith("agent of 12 s")


def test_a_running_trace_gets_its_next_runs_and_keeps_the_selected_one(browser, tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as store, Server(store) as server:
        tool = running_agent(store)
        page = open_page(browser, f"{server.url}/traces/{OPEN_TRACE}?run={tool.span_id}")
        later = run("second_tool", kind="tool", trace_id=OPEN_TRACE, parent_id="e" * 16, start_ns=tool.end_ns)
        store.append([later])
        row = page.locator("section.tree a[data-run]", has_text="second_tool")
        row.wait_for()
        assert page.locator("#detail h2").inner_text().endswith("first_tool")
        row.click()  # in place: a row that came later works like the others
        page.locator("#detail h2", has_text="second_tool").wait_for()
        page.locator(".state", has_text="running").wait_for()


def test_times_are_in_the_zone_of_the_browser_and_in_utc_without_scripts(browser, tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as store, Server(store) as server:
        store.append([run(start_ns=1_767_225_600 * 10**9)])  # 2026-01-01T00:00:00Z
        for options, shown in (
            ({"timezone_id": "Asia/Tokyo"}, "1 Jan 09:00"),
            ({"timezone_id": "Asia/Tokyo", "java_script_enabled": False}, "1 Jan 00:00"),
        ):
            page = open_page(browser, f"{server.url}/traces", **options)
            for _ in range(2):  # the script converts the first page, the server prints the second one
                assert page.locator("td.c-started time").inner_text().startswith(shown)
                page.reload()


def test_every_preference_works_without_scripts(browser, ordinary):
    page = open_page(browser, f"{ordinary}/traces", java_script_enabled=False)
    page.get_by_role("button", name="View", exact=True).click()
    page.get_by_label("Rows").select_option("compact")
    page.get_by_role("checkbox", name="User").check()
    page.get_by_role("button", name="Apply").click()
    assert page.locator("tbody tr").first.bounding_box()["height"] < 30
    assert page.locator("th", has_text="User").count() == 1
    page.get_by_role("button", name="Close the side bar").click()
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("link", name="Settings").click()
    page.get_by_label("Theme").select_option("dark")
    page.get_by_role("button", name="Save").click()
    assert page.evaluate("getComputedStyle(document.body).colorScheme") == "dark"


def test_a_condition_is_edited_and_removed_at_its_chip_without_scripts(browser, ordinary):
    page = open_page(browser, f"{ordinary}/traces?name=answer&status=ok", java_script_enabled=False)
    page.get_by_role("button", name="Edit: name answer").click()
    page.locator("#mark-1 select").select_option("not")
    page.get_by_role("button", name="Apply").click()
    assert "name%21=answer" in page.url or "name-is=not" in page.url
    assert "answer" not in page.locator("tbody a.row-link").all_inner_texts()
    page.get_by_role("link", name="Remove: status ok").click()
    assert "status" not in page.url
