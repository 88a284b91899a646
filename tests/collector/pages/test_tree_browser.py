"""The tree of a trace with its script, in a browser: thousands of runs, keys, filters, links, hostile names."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from collector.chromium import PageWatch, chromium, find_violations
from collector.making import child, run
from collector.pages.test_layout_browser import SIXTEEN_CHARACTERS
from spanwise.collector.records import OpenRun, Usage
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

pytestmark = [pytest.mark.process, pytest.mark.browser]

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    '" hx-get="/x" hx-trigger="load" hx-on:load="alert(1)',
    "<template id=detail><script>alert(1)</script></template>",
    "\u202egnp.exe \u0007 نص عربي",
    " \u3164 ",
    "n" * 3_000,
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path_factory.mktemp("tree") / "spanwise.db") as made:
        yield made


@pytest.fixture(scope="module")
def site(store: SQLiteStore) -> Iterator[dict[str, str]]:
    """A server over large, deep, hostile and small traces; the addresses of their pages by name."""
    with Server(store) as server:
        large = run("large", kind="agent")
        steps = [
            child(large, f"step {n}", kind=("tool", "chain")[n % 2], start_ns=large.start_ns + n)
            for n in range(1, 10_000)
        ]
        for n in (2_000, 9_000):
            steps[n - 1] = replace(steps[n - 1], status="error", error="ValueError: no")
        store.append([large, *steps])
        deep = [run("level 0")]
        for n in range(1, 2_000):
            deep.append(child(deep[-1], f"level {n}"))
        store.append(deep)
        hostile = run("hostile")
        store.append(
            [
                hostile,
                *(child(hostile, name, kind=name, start_ns=hostile.start_ns + n) for n, name in enumerate(HOSTILE)),
            ]
        )
        small = run("answer", kind="agent")
        plan = child(small, "plan")
        calls = [
            child(plan, f"call {n}", kind="llm", usage=Usage(1_000, 200), cost=0.01, start_ns=plan.start_ns + n)
            for n in range(1, 4)
        ]
        failed = child(calls[2], "failing", status="error", error="ValueError: no")
        store.append([small, plan, *calls, failed])
        yield {
            "large": f"{server.url}/traces/{large.trace_id}",
            "far": f"{server.url}/traces/{large.trace_id}?run={steps[7_000].span_id}",
            "deep": f"{server.url}/traces/{deep[0].trace_id}?run={deep[-1].span_id}",
            "hostile": f"{server.url}/traces/{hostile.trace_id}",
            "small": f"{server.url}/traces/{small.trace_id}",
            "folded": f"{server.url}/traces/{small.trace_id}?fold={plan.span_id}&run={calls[0].span_id}",
            "server": server.url,
        }


@pytest.fixture
def open_page(browser: Browser, site: dict[str, str]) -> Iterator[Callable[..., Page]]:
    """Open a page by name, and wait for its tree. In the end nothing was complained of, and no other server was asked."""
    watch = PageWatch(browser)

    def open_(name: str, width: int = 1440, **options: object) -> Page:
        page = watch.open(site.get(name, name), width, 900, **options)
        if options.get("java_script_enabled", True):
            page.get_by_role("tree").wait_for()
        return page

    yield open_
    watch.close()
    assert [text for text in watch.complaints if "responded with a status of 400" not in text] == []
    assert {url.split("/")[2] for url in watch.requested} == {site["server"].split("/")[2]}
    assert not [url for url in watch.requested if url.endswith("/x")]


def row(page: Page, name: str) -> Locator:
    return page.get_by_role("treeitem").filter(has=page.locator(".name", has_text=re.compile(f"^{re.escape(name)}$")))


def expect_active(page: Page, name: str) -> None:
    """The row that the arrow keys have reached has this name, and a screen reader is told so."""
    expect(page.locator(".run-row.active .name")).to_have_text(name)
    expect(page.get_by_role("tree")).to_have_attribute(
        "aria-activedescendant", page.locator(".run-row.active").get_attribute("id")
    )


def expect_run(page: Page, name: str) -> None:
    expect(page.locator("#detail h2")).to_contain_text(name)
    expect(page.locator(".run-row.current .name")).to_have_text(name)


def test_all_of_10000_runs_are_reached_and_few_are_drawn(open_page):
    page = open_page("large")
    page.get_by_role("tree").focus()
    page.keyboard.press("End")
    expect_active(page, "step 9999")
    page.keyboard.press("Enter")
    expect_run(page, "step 9999")
    page.get_by_label("Search the names of runs").fill("step 7777")
    expect(page.get_by_role("treeitem")).to_have_count(2)
    assert page.evaluate("document.querySelectorAll('*').length") <= 1_500


def test_a_link_to_a_run_shows_it_in_the_tree(open_page):
    page = open_page("far")
    expect_run(page, "step 7001")
    box, tree = page.locator(".run-row.current").bounding_box(), page.get_by_role("tree").bounding_box()
    assert tree["y"] <= box["y"] <= tree["y"] + tree["height"] - box["height"]


def test_a_chain_of_2000_runs_is_shown(open_page):
    page = open_page("deep")
    expect_run(page, "level 1999")
    page.get_by_role("tree").focus()
    page.keyboard.press("ArrowLeft")
    expect_active(page, "level 1998")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("treeitem")).to_have_count(1)
    expect(row(page, "level 0")).to_have_attribute("aria-expanded", "false")


@pytest.mark.parametrize(("width", "has_scripts"), [(1440, True), (1280, True), (1024, True), (1024, False)])
def test_names_of_deep_runs_keep_16_characters(open_page, store, site, width, has_scripts):
    runs = [run("level 0")]
    for n in range(1, 20):
        fields = {"status": "error", "error": "x"} if n % 2 else {}
        deeper = child(
            runs[-1], "a step with a long name", kind="guardrail", usage=Usage(10_000, 2), cost=0.0123, **fields
        )
        runs.append(deeper)
    store.append(runs)
    page = open_page(f"{site['server']}/traces/{runs[0].trace_id}", width, java_script_enabled=has_scripts)
    rows = page.locator(".run-row, li > a[data-run]")
    expect(rows).to_have_count(20)
    for place in range(1, 20):
        name, error = rows.nth(place).locator(".name"), rows.nth(place).locator(".flag.bad")
        if width == 1440 or not error.count():
            assert name.bounding_box()["width"] >= SIXTEEN_CHARACTERS
        assert not error.count() or error.evaluate("flag => flag.scrollWidth <= flag.clientWidth")
    indents = rows.locator(".what").evaluate_all("cells => cells.map((cell) => getComputedStyle(cell).paddingLeft)")
    assert len(set(indents)) >= 4


def test_the_keys_of_a_tree(open_page):
    page = open_page("small")
    page.get_by_role("tree").focus()
    for key, name in (
        ("ArrowDown", "plan"),
        ("ArrowRight", "call 1"),
        ("ArrowLeft", "plan"),
        ("ArrowLeft", "plan"),
        ("ArrowLeft", "answer"),
        ("End", "plan"),
        ("ArrowRight", "plan"),
        ("End", "failing"),
        ("Home", "answer"),
    ):
        page.keyboard.press(key)
        expect_active(page, name)
    assert page.get_by_role("tree").get_attribute("aria-label") == "Runs"
    item = row(page, "call 2")
    values = {
        name: item.get_attribute(name) for name in ("aria-level", "aria-posinset", "aria-setsize", "aria-selected")
    }
    assert values == {"aria-level": "3", "aria-posinset": "2", "aria-setsize": "3", "aria-selected": "false"}


def test_folds_and_filters_are_in_the_address(open_page):
    page = open_page("small")
    row(page, "plan").locator(".twist").click()
    expect(row(page, "plan")).to_contain_text("4 folded")
    page.reload()
    expect(row(page, "plan")).to_contain_text("4 folded")
    page.get_by_role("button", name="Open all").click()
    page.get_by_role("button", name="Errors only 1").click()
    expect(page.get_by_role("treeitem")).to_have_count(4)
    page.wait_for_url("**only=errors**")
    page.reload()
    expect(page.get_by_role("treeitem")).to_have_count(4)
    page.get_by_role("button", name="llm 3").click()
    expect(page.get_by_text("No run passes the filter.")).to_be_visible()
    page.get_by_role("button", name="Show all").click()
    expect(page.get_by_role("treeitem")).to_have_count(6)


def test_a_link_to_a_folded_run_opens_what_is_above_it(open_page):
    expect_run(open_page("folded"), "call 1")


def test_a_run_has_the_tokens_and_the_cost_of_those_below(open_page):
    page = open_page("small")
    expect(row(page, "answer")).to_contain_text("3,600 tok · $0.03")
    expect(row(page, "call 1")).to_contain_text("1,200 tok · $0.01")


def test_errors_are_one_key_away_even_where_they_are_folded(open_page):
    page = open_page("large")
    page.keyboard.press("n")
    expect_run(page, "step 2000")
    page.keyboard.press("n")
    expect_run(page, "step 9000")
    page.keyboard.press("n")
    expect(page.locator("#announcement")).to_have_text("No further error")
    page.keyboard.press("p")
    expect_run(page, "step 2000")


def test_the_failed_count_leads_to_the_first_error(open_page):
    page = open_page("large")
    page.get_by_role("link", name="2 failed").click()
    expect_run(page, "step 2000")


def test_the_time_axis_is_zoomed_with_keys_buttons_and_the_pointer(open_page):
    page = open_page("small")
    ends = page.locator(".minimap-axis > span:not(.minimap-tools)")
    assert ends.all_inner_texts() == ["0.0 ms", "1.00 s"]
    page.get_by_role("button", name="Zoom in").click()
    assert ends.all_inner_texts() == ["250 ms", "750 ms"]
    page.get_by_role("button", name="Whole time").click()
    assert ends.all_inner_texts() == ["0.0 ms", "1.00 s"]
    row(page, "plan").click()
    page.get_by_role("tree").focus()
    page.keyboard.press("z")
    assert ends.all_inner_texts()[0] == "0.0 ms"
    assert ends.all_inner_texts()[1] != "1.00 s"
    page.keyboard.press("0")
    box = page.locator(".minimap canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 9)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 9)
    page.mouse.up()
    begin, end = (float(text.removesuffix(" ms")) for text in ends.all_inner_texts())
    assert (begin, end) == (pytest.approx(250, abs=5), pytest.approx(500, abs=5))


def test_names_stay_text(open_page):
    page = open_page("hostile")
    expect(page.get_by_role("treeitem")).to_have_count(7)
    texts = page.locator(".run-row .name").all_inner_texts()
    assert HOSTILE[0] in texts
    assert HOSTILE[2] in texts
    assert "(no name)" in texts
    assert not page.evaluate("document.querySelector('.run-row img, .run-row script, .run-row template, [hx-get*=x]')")
    for name in HOSTILE[:3]:
        row(page, name).click()
        expect(page.locator("#detail h2")).to_contain_text(name)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1440


@pytest.mark.parametrize("name", ["large", "hostile", "small"])
@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_the_tree_is_accessible_and_fits(open_page, name, width, scheme):
    page = open_page(name, width, color_scheme=scheme)
    assert find_violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_click_on_a_run_keeps_what_is_typed(open_page):
    page = open_page("small")
    page.get_by_text("Add feedback").click()
    page.get_by_label("Comment").fill("half a sentence")
    row(page, "plan").click()
    expect_run(page, "plan")
    expect(page.get_by_label("Comment")).to_have_value("half a sentence")
    assert page.get_by_label("Target").locator("option").all_inner_texts() == ["trace", "span plan"]


def test_feedback_is_saved_without_leaving_the_run(open_page, store):
    page = open_page("small")
    row(page, "plan").click()
    expect_run(page, "plan")
    page.evaluate("window.isSamePage = true")
    page.get_by_text("Add feedback").click()
    page.get_by_label("Key").fill("correct")
    page.get_by_label("Value").fill("yes")
    page.get_by_label("Target").select_option("span plan")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#detail").get_by_role("button", name="correct yes")).to_be_visible()
    assert page.evaluate("window.isSamePage") is True
    expect_run(page, "plan")


def test_refused_feedback_says_why_and_keeps_what_was_typed(open_page):
    page = open_page("small")
    page.get_by_text("Add feedback").click()
    page.get_by_label("Key").fill("correct")
    page.get_by_label("Value").fill(" ")
    page.get_by_label("Comment").fill("a long comment")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("feedback needs a key and a value")
    expect(page.get_by_label("Comment")).to_have_value("a long comment")


def test_a_running_trace_keeps_what_is_typed_and_opened(open_page, store, site):
    root = run("slow agent", start_ns=time.time_ns() - 3 * 10**9)
    first = child(root, "first tool", kind="tool", inputs={f"field {n}": n for n in range(20)})
    store.add_running([OpenRun(trace_id=root.trace_id, span_id=root.span_id, name=root.name, start_ns=root.start_ns)])
    store.append([first])
    page = open_page(f"{site['server']}/traces/{root.trace_id}?run={first.span_id}")
    page.get_by_label("Search fields and values").fill("field 7")
    page.get_by_text("Add feedback").click()
    page.get_by_label("Comment").fill("half a sentence")
    page.get_by_text("Ids and times").click()
    store.append([child(root, "second tool", kind="tool", start_ns=first.start_ns + 1)])
    row(page, "second tool").wait_for()
    expect(page.get_by_label("Search fields and values")).to_have_value("field 7")
    expect(page.get_by_label("Comment")).to_have_value("half a sentence")
    expect(page.locator("#detail").get_by_text("parent", exact=True)).to_be_visible()


def test_answers_in_another_order_show_the_run_that_was_clicked_last(open_page):
    page = open_page("small")
    slow = row(page, "call 1").get_attribute("data-run")
    held = []
    page.route(f"**/traces/*?run={slow}", lambda route: held.append(route))
    row(page, "call 1").click()
    row(page, "call 2").click()
    expect_run(page, "call 2")
    for route in held:
        route.continue_()
    page.keyboard.press("n")
    expect_run(page, "failing")
    page.go_back()
    expect_run(page, "call 2")


def test_going_back_shows_the_run_before(open_page):
    page = open_page("small")
    row(page, "plan").click()
    expect_run(page, "plan")
    row(page, "call 3").click()
    expect_run(page, "call 3")
    page.go_back()
    expect_run(page, "plan")
    page.go_forward()
    expect_run(page, "call 3")


def test_a_running_trace_fills_in(open_page, store, site):
    root = run("slow agent", start_ns=time.time_ns() - 3 * 10**9)
    first = child(root, "first tool", kind="tool")
    store.add_running([OpenRun(trace_id=root.trace_id, span_id=root.span_id, name=root.name, start_ns=root.start_ns)])
    store.append([first])
    page = open_page(f"{site['server']}/traces/{root.trace_id}?run={first.span_id}")
    expect(row(page, "slow agent")).to_contain_text("running")
    store.append([child(root, "second tool", kind="tool", start_ns=first.start_ns + 1)])
    row(page, "second tool").wait_for()
    expect_run(page, "first tool")
    store.append([replace(root, end_ns=time.time_ns())])
    expect(page.locator("#announcement")).to_have_text("All runs have ended")
    expect(row(page, "slow agent")).not_to_contain_text("running")


@pytest.mark.parametrize("zone", ["local", "utc"])
def test_the_server_sends_few_rows_to_a_browser_whose_scripts_ran_before(open_page, site, zone):
    page = open_page("small")
    page.context.add_cookies([{"name": "spanwise-view", "value": f"zone={zone}", "url": site["server"]}])
    answer = page.goto(site["far"])
    assert len(answer.text().split(" data-run")) - 1 == 60
    expect_run(page, "step 7001")
    page.get_by_role("tree").focus()
    page.keyboard.press("End")
    expect_active(page, "step 9999")


def test_few_rows_lead_to_all_if_scripts_are_off_later(open_page):
    visited = open_page("small")
    page = open_page("large", java_script_enabled=False, storage_state=visited.context.storage_state())
    assert page.locator("a[data-run]:visible").count() == 60
    page.get_by_role("link", name="Show more spans").click()
    expect(page.locator("#detail h2")).to_contain_text("step 60")


def test_without_javascript_all_rows_of_a_part_are_there(open_page):
    page = open_page("large", java_script_enabled=False)
    assert page.locator("a[data-run]:visible").count() == 500
    page.get_by_role("link", name="Show more spans").click()
    page.locator("a[data-run]", has_text="step 700").click()
    expect(page.locator("#detail h2")).to_contain_text("step 700")
    page.get_by_label("Search the names of runs").fill("step 99")
    page.keyboard.press("Enter")
    page.wait_for_url("**find=step+99**")
    assert page.locator("a[data-run]").count() == 112
