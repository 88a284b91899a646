"""The list of traces in a real browser: panel, keys, new rows, filter line, ranges, and neighbours of a trace."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from collector.chromium import chromium, find_violations
from collector.making import run
from collector.pages.odd_traces import odd_traces
from collector.pages.test_layout_browser import (
    HEIGHTS,
    SIXTEEN_CHARACTERS,
    open_page,
    ordinary_traces,
    serve,
)
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

pytestmark = [pytest.mark.browser, pytest.mark.process]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from serve(tmp_path_factory.mktemp("ordinary"), ordinary_traces)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from serve(tmp_path_factory.mktemp("odd"), odd_traces)


def rows(page: Page):
    return page.locator("#rows a.row-link")


PANEL_ADDRESS = re.compile(r"[?&]panel=(\w+)")


def shown(page: Page) -> str:
    """The id of the trace in the panel, once the panel shows what the address says."""
    expect(page).to_have_url(PANEL_ADDRESS)
    trace = PANEL_ADDRESS.search(page.url)[1]
    page.locator(f"#panel[data-trace='{trace}']").wait_for()
    expect(page.locator("tr[aria-current] a.row-link")).to_have_attribute("data-trace", trace)
    return trace


def expect_no_panel(page: Page) -> None:
    expect(page).not_to_have_url(PANEL_ADDRESS)
    expect(page.locator("#panel")).to_have_count(0)


def ids(page: Page) -> list[str]:
    return rows(page).evaluate_all("links => links.map((link) => link.dataset.trace)")


def test_a_row_opens_a_panel_beside_the_list_and_back_closes_it(browser, ordinary):
    page = open_page(browser, f"{ordinary}/traces?sort=-start")
    traces = ids(page)
    rows(page).nth(2).click()
    assert shown(page) == traces[2]
    panel = page.locator("#panel")
    for text in ("Where is my parcel?", "You can collect it", "grounded", "Scores"):
        expect(panel.get_by_text(text).first).to_be_visible()
    rows(page).nth(5).click()
    assert shown(page) == traces[5]
    page.go_back()
    expect_no_panel(page)
    page.go_forward()
    assert shown(page) == traces[5]
    page.reload()
    assert shown(page) == traces[5]
    panel.get_by_role("link", name="Close the panel").click()
    expect_no_panel(page)
    assert page.url == f"{ordinary}/traces?sort=-start"


def test_keys_move_open_and_close(browser, ordinary):
    page = open_page(browser, f"{ordinary}/traces")
    traces = ids(page)
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect_no_panel(page)
    page.keyboard.press("Space")
    assert shown(page) == traces[0]
    page.keyboard.press("ArrowDown")
    page.keyboard.press("j")
    assert shown(page) == traces[2]
    page.keyboard.press("Escape")
    expect_no_panel(page)
    expect(rows(page).nth(2)).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/traces/{traces[2]}?from=")
    page.keyboard.press("Shift+J")
    page.wait_for_url(f"**/traces/{traces[3]}?from=")
    page.keyboard.press("Shift+K")
    page.wait_for_url(f"**/traces/{traces[2]}?from=")
    page.locator("[data-back]").click()
    page.wait_for_url("**/traces#t-*")
    expect(rows(page).nth(2)).to_be_focused()


def test_letters_in_a_field_are_letters(browser, ordinary):
    page = open_page(browser, f"{ordinary}/traces")
    page.locator("input[name=where]").press_sequentially("jk j")
    assert page.locator("input[name=where]").input_value() == "jk j"
    expect_no_panel(page)


@pytest.mark.parametrize("width", [390, 768])
def test_in_a_narrow_window_the_panel_covers_the_list(browser, ordinary, width):
    page = open_page(browser, f"{ordinary}/traces", width)
    traces = ids(page)
    rows(page).nth(1).click()
    assert shown(page) == traces[1]
    box = page.locator("#panel").bounding_box()
    assert (box["x"], box["y"], box["width"]) == (0, 0, width)
    expect(page.locator("#panel")).to_be_focused()
    assert page.locator("#beside > .rows").evaluate("rows => rows.inert")
    assert find_violations(page) == []
    page.keyboard.press("Escape")
    expect_no_panel(page)
    expect(rows(page).nth(1)).to_be_focused()
    rows(page).nth(1).click()
    shown(page)
    page.go_back()
    expect_no_panel(page)
    assert not page.locator("#beside > .rows").evaluate("rows => rows.inert")


@pytest.mark.parametrize("width", [1440, 1280, 1024])
def test_beside_the_panel_the_list_is_readable(browser, ordinary, odd, width):
    for base in (ordinary, odd):
        page = open_page(browser, f"{base}/traces", width, color_scheme="dark" if width == 1280 else "light")
        rows(page).first.click()
        shown(page)
        widths = page.locator("tbody .c-input > .text:not(:empty)").evaluate_all(
            "texts => texts.map((text) => text.clientWidth)"
        )
        assert min(widths) >= SIXTEEN_CHARACTERS
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("#panel").evaluate("panel => panel.scrollWidth <= panel.clientWidth")
        assert find_violations(page) == []
        page.close()


@pytest.mark.parametrize(("width", "has_scripts"), [(1440, True), (390, True), (1440, False)])
def test_two_rows_are_compared(browser, ordinary, width, has_scripts):
    page = open_page(browser, f"{ordinary}/traces", width, java_script_enabled=has_scripts)
    first, second, *_ = ids(page)
    picks = page.locator("#rows .pick")
    expect(picks.first).to_be_hidden()
    height = page.locator("tbody tr").first.bounding_box()["height"]
    page.get_by_role("checkbox", name="Compare: select two traces").focus()
    page.keyboard.press("Space")
    picks.nth(0).click()
    picks.nth(1).click()
    assert page.locator("tbody tr").first.bounding_box()["height"] == height
    if has_scripts:
        expect_no_panel(page)
        assert find_violations(page) == []
    page.get_by_role("button", name="Compare selected").click()
    page.wait_for_url(f"**/traces/compare?ids={first}&ids={second}")
    assert page.locator("h1", has_text="Compare").count() == 1


def test_without_scripts_a_row_opens_the_trace_and_an_address_the_panel(browser, ordinary):
    page = open_page(browser, f"{ordinary}/traces", java_script_enabled=False)
    trace = rows(page).nth(1).get_attribute("data-trace")
    page.goto(f"{ordinary}/traces?panel={trace}&status=ok")
    expect(page.locator("#panel").get_by_text("Where is my parcel?")).to_be_visible()
    page.get_by_role("link", name="Close the panel").click()
    assert page.url == f"{ordinary}/traces?status=ok"
    rows(page).nth(1).click()
    page.wait_for_url("**/traces/*?from=status%3Dok")
    page.get_by_role("link", name="Next", exact=True).click()
    page.get_by_role("link", name="Previous", exact=True).click()
    page.locator("[data-back]").click()
    assert page.url.startswith(f"{ordinary}/traces?status=ok#t-")


@pytest.fixture
def live(browser, tmp_path):
    """A list that is live, its store, and the page."""
    with SQLiteStore(tmp_path / "spanwise.db") as store, Server(store) as server:
        store.append([run(f"before {number}") for number in range(60)])
        page = open_page(browser, f"{server.url}/traces")
        page.get_by_role("button", name="Live").click()
        yield page, store
        page.close()


def test_new_rows_are_announced_and_shown_on_request(live):
    page, store = live
    before = ids(page)
    page.mouse.wheel(0, 400)
    store.append([run(f"after {number}") for number in range(12)])
    notice = page.get_by_role("button", name="12 new")
    notice.wait_for()
    page.get_by_role("status").get_by_text("12 new").wait_for(state="attached")
    assert ids(page) == before
    assert page.evaluate("scrollY") > 0
    notice.click()
    page.get_by_role("link", name="after 11").wait_for()
    expect(notice).to_be_hidden()
    expect(rows(page).first).to_be_focused()
    assert page.evaluate("scrollY") == 0


def test_new_rows_beside_an_open_panel(live):
    page, store = live
    rows(page).nth(3).click()
    opened = shown(page)
    store.append([run("after")])
    page.get_by_role("button", name="1 new").click()
    page.get_by_role("link", name="after", exact=True).wait_for()
    assert shown(page) == opened


def test_a_state_is_brought_up_to_date_without_moving_rows(live):
    page, store = live
    first = rows(page).first.get_attribute("data-trace")
    store.append([run("slow", trace_id=first, parent_id="f" * 16, status="error", error="x")])
    store.feedback(first, "grounded", 0.75)
    page.locator("tbody tr").first.locator(".c-score", has_text="0.75").wait_for()
    expect(page.locator("#fresh")).to_be_hidden()


def test_selected_rows_stay_selected_while_the_list_is_live(live):
    page, store = live
    page.locator(".pick-toggle").click()
    page.locator("#rows .pick").nth(1).click()
    page.evaluate("document.activeElement.blur()")
    first = rows(page).first.get_attribute("data-trace")
    with page.expect_response(lambda answer: answer.url.endswith("/traces")) as answer:
        store.feedback(first, "grounded", 0.75)
    answer.value.finished()
    store.append([run("after")])
    page.get_by_role("button", name="1 new").wait_for()
    expect(page.locator(".pick :checked")).to_have_count(1)


def test_the_order_survives_live_rows(browser, tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as store, Server(store) as server:
        store.append([run("fast"), run("slow", start_ns=10**18, end_ns=10**18 + 9 * 10**9)])
        page = open_page(browser, f"{server.url}/traces?sort=-latency_ms")
        page.get_by_role("button", name="Live").click()
        store.append([run("slowest", start_ns=10**18, end_ns=10**18 + 20 * 10**9)])
        page.get_by_role("button", name="1 new").click()
        page.get_by_role("link", name="slowest", exact=True).wait_for()
        assert [text.strip() for text in rows(page).all_inner_texts()] == ["slowest", "slow", "fast"]
        assert "sort=-latency_ms" in page.url


def test_the_line_suggests_and_filters_by_keyboard_alone(browser, ordinary):
    page = open_page(browser, f"{ordinary}/traces")
    line = page.get_by_role("combobox", name="Search, or filter as in status=error")
    line.focus()
    page.keyboard.type("feedb")
    page.locator("#suggestions li").first.wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.get_by_role("option", name="feedback.faithful<").wait_for()
    page.keyboard.type("faith")
    expect(page.locator("#suggestions li")).to_have_count(1)
    assert find_violations(page) == []
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab")
    page.keyboard.type("0.5 status=e")
    page.get_by_role("option", name="status=error").wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert line.input_value() == "feedback.faithful<0.5 status=error "
    page.keyboard.press("Enter")
    page.wait_for_url("**/traces?*")
    assert page.locator(".mark-chip").count() == 2
    assert rows(page).count() == 7
    assert "where=" in page.url


def test_escape_closes_suggestions_and_keeps_the_text(browser, ordinary):
    page = open_page(browser, f"{ordinary}/traces")
    line = page.locator("input[name=where]")
    line.press_sequentially("tag")
    page.get_by_role("option", name="tag=").wait_for()
    page.keyboard.press("Escape")
    expect(page.locator("#suggestions")).to_be_hidden()
    assert line.input_value() == "tag"


def test_hostile_values_are_suggested_as_text(browser, tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as store, Server(store) as server:
        name = '<img src=x onerror="document.title=1">'
        store.append([run("n", user_id="<img src=x onerror=document.title=1>", session_id=name)])
        page = open_page(browser, f"{server.url}/traces")
        page.locator("input[name=where]").press_sequentially("user=<")
        page.get_by_role("option", name='user="<img src=x onerror=document.title=1>"').click()
        page.keyboard.press("Enter")
        page.wait_for_url("**/traces?*")
        assert rows(page).count() == 1
        assert page.title() == "Traces · Spanwise"


def test_dragging_over_a_chart_selects_its_time(browser, ordinary):
    page = open_page(browser, f"{ordinary}/traces")
    chart = page.locator(".overview .spark").first
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] + 20, box["y"] + 5)
    page.mouse.up()
    page.wait_for_url("**/traces?*since=*")
    fields = {name: int(values[0]) for name, values in parse_qs(urlsplit(page.url).query).items()}
    assert fields["since"] < time.time_ns() < fields["until"] + 3_600 * 10**9
    assert rows(page).count()
    labels = page.locator(".mark-chip").all_inner_texts()
    assert all(re.search(r"\d\d:\d\d", label) for label in labels), labels


def test_a_range_is_typed_into_a_calendar_and_another_one_replaces_it_without_scripts(browser, ordinary):
    page = open_page(browser, f"{ordinary}/traces", java_script_enabled=False)
    page.get_by_role("button", name="Choose a time range").click()
    page.get_by_label("From").fill("2026-01-02T03:04")
    page.get_by_label("Until").fill("2026-01-03T03:04")
    page.locator("#range button[type=submit]").click()
    selected = page.locator("select[name=since] option:checked").inner_text()
    assert selected in ("2 Jan 03:04 – 3 Jan 03:04", "2 Jan 2026 – 3 Jan 2026")
    page.locator("select[name=since]").select_option("30d")
    page.get_by_role("button", name="Search").click()
    fields = page.locator(".mark-chip").all_inner_texts()
    assert len(fields) == 1, fields
    assert "last 30 days" in fields[0]


@pytest.mark.parametrize("width", HEIGHTS)
def test_nothing_shifts_while_the_list_loads_and_a_panel_opens(browser, ordinary, width):
    page = open_page(browser, f"{ordinary}/traces?since=7d", width)
    script = """() => new Promise((done) => {
      let sum = 0;
      new PerformanceObserver((list) => { for (const entry of list.getEntries()) if (!entry.hadRecentInput) sum += entry.value; })
        .observe({ type: "layout-shift", buffered: true });
      requestAnimationFrame(() => setTimeout(() => done(sum), 0));
    })"""
    page.locator(".overview").wait_for()
    rows(page).first.click()
    shown(page)
    assert page.evaluate(script) < 0.02


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_the_menus_of_the_list_fit_and_are_accessible(browser, ordinary, width, scheme):
    page = open_page(browser, f"{ordinary}/traces?status=ok&sort=-cost", width, color_scheme=scheme)
    page.get_by_role("button", name="Save view").click()
    page.get_by_label("Name of this filter, order and columns").fill("a long name of a view, with spaces in it")
    page.get_by_role("button", name="Save", exact=True).click()
    page.wait_for_url("**columns=**")
    for name, dialog in (
        ("Save view", "Saved views"),
        ("View", "View"),
        ("Filters", "Filters"),
        ("Choose a time range", "Time range"),
        ("Edit: sort most expensive first", "Condition on sort"),
    ):
        page.get_by_role("button", name=name, exact=True).click()
        box = page.get_by_role("dialog", name=dialog, exact=True).bounding_box()
        assert box["x"] >= 0, dialog
        assert box["x"] + box["width"] <= width, dialog
        assert box["y"] >= 0, dialog
        # The list behind the menus is the same each time; its audit takes seconds
        assert find_violations(page, None if name == "Save view" else "[popover]:popover-open") == [], dialog
        page.keyboard.press("Escape")


def test_a_view_is_saved_used_renamed_and_deleted_without_scripts(browser, ordinary):
    page = open_page(browser, f"{ordinary}/traces?status=error&sort=-latency_ms", java_script_enabled=False)
    page.get_by_role("button", name="Save view").click()
    page.get_by_label("Name of this filter, order and columns").fill("Slow errors")
    page.get_by_role("button", name="Save", exact=True).click()
    page.goto(f"{ordinary}/sessions")
    page.get_by_role("link", name="Slow errors").click()
    assert rows(page).count() == 7
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("Latency")
    page.get_by_role("button", name="Save view").click()
    page.get_by_label("New name of Slow errors").fill("Failed")
    page.get_by_role("button", name="Rename").click()
    page.get_by_role("button", name="Save view").click()
    page.get_by_role("button", name="Delete Failed").click()
    expect(page.get_by_role("list", name="Saved views")).to_have_count(0)


def test_columns_are_dragged_moved_and_reset(browser, ordinary):
    page = open_page(browser, f"{ordinary}/traces")

    def width_of(column: str) -> int:
        return page.locator(f"th.c-{column}").evaluate("head => head.offsetWidth")

    before = width_of("latency")
    box = page.locator("th.c-latency .resize").bounding_box()
    with page.expect_response("**/preferences"):
        page.mouse.move(box["x"] + 4, box["y"] + 4)
        page.mouse.down()
        page.mouse.move(box["x"] + 44, box["y"] + 4)
        page.mouse.up()
    assert width_of("latency") == before + 40
    page.reload()
    assert width_of("latency") == before + 40
    page.get_by_role("button", name="View", exact=True).click()
    page.get_by_role("button", name="Move Output to the left").click()
    page.get_by_role("button", name="Apply").click()
    page.wait_for_load_state()
    heads = [text.strip() for text in page.locator("th:is(.c-input, .c-output)").all_inner_texts()]
    assert heads == ["Output", "Input"]
    with page.expect_response("**/preferences"):
        page.locator("th.c-latency .resize").dblclick()
    assert width_of("latency") == before
    box = page.locator("th.c-name .resize").bounding_box()
    with page.expect_response("**/preferences"):
        page.mouse.move(box["x"] + 4, box["y"] + 4)
        page.mouse.down()
        page.mouse.move(1400, box["y"] + 4, steps=4)
        page.mouse.up()
    assert min(width_of("input"), width_of("output")) >= SIXTEEN_CHARACTERS
