"""The pages in a real browser: what a reader sees, reaches by keyboard, and gets without JavaScript."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from collector.chromium import chromium, find_violations
from collector.endless import Slow
from collector.making import child, run
from collector.pages.scene import experiment, outcomes, rag
from collector.ruled import monitored
from spanwise.collector.records import Booking, OpenRun, Spender
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

pytestmark = pytest.mark.browser
SIZES = {"wide": {"width": 1280, "height": 800}, "narrow": {"width": 390, "height": 844}}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SQLiteStore]:
    folder: Path = tmp_path_factory.mktemp("browser")
    with SQLiteStore(folder / "spanwise.db") as store:
        yield store


@pytest.fixture(scope="module")
def addresses(kept: SQLiteStore) -> Iterator[dict[str, str]]:
    """A server over a store with one of everything; addresses of its pages by name."""
    root = rag(kept, session_id="talk")
    outcomes(kept, root.trace_id)
    failing = rag(kept, failing=True, session_id="talk")
    deep = [run("a rather long name of a function " * 3, inputs="word " * 2000)]
    for _ in range(20):
        deep.append(child(deep[-1], "step", kind="tool"))
    kept.append(deep)
    opened = OpenRun(trace_id="e" * 32, span_id="e" * 16, name="a rather long name " * 9, start_ns=time.time_ns())
    kept.add_running([opened, replace(opened, trace_id=root.trace_id, name="slow")])
    long = [run("long", kind="agent")]
    kept.append(
        [*long, *(child(long[0], f"step {i}", kind="tool", start_ns=long[0].start_ns + i) for i in range(1, 1_201))]
    )
    for name, scores in (("first", (1.0, None)), ("second", (0.0, 1.0))):
        experiment(kept, name, scores)
    watched = monitored(kept)[0]
    kept.change_rule(
        "short", settings={"strata": [{"filter": {"status": "error"}, "rate": 1.0}], "budget": {"usd_per_day": 5}}
    )
    for number, model in enumerate(("gpt-4o-mini", "gpt-4o")):
        spender = Spender(project="default", rule="short", evaluator="polite", model=model)
        kept.book(Booking(id=model, budget="default/short/usd_per_day", amount=1.0, limit=5.0, spender=spender))
        kept.settle({model: 0.5} if number else {})
    paths = {
        "traces": "/traces",
        "filtered": "/traces?kind=chain&latency_ms=x",
        "nothing": "/traces?name=none",
        "trace": f"/traces/{root.trace_id}",
        "under way": f"/traces/{opened.trace_id}",
        "failing": f"/traces/{failing.trace_id}",
        "deep": f"/traces/{deep[0].trace_id}?run={deep[0].span_id}",
        "parts": f"/traces/{long[0].trace_id}",
        "a part": f"/traces/{long[0].trace_id}?run={kept.tree(long[0].trace_id, limit=500).next}",
        "sessions": "/sessions",
        "session": "/sessions/talk",
        "datasets": "/datasets",
        "dataset": "/datasets/sequences",
        "experiments": "/experiments",
        "experiment": "/experiments/id-first",
        "compare": "/compare?ids=id-first,id-second",
        "rules": "/rules",
        "rule": "/rules/short",
        "sampled out": "/rules/short?verdict=sampled_out",
        "spend": "/spend",
        "versions": "/versions?rule=short&by=name&a=answer&b=search",
        "why": f"/traces/{watched}#rules",
        "missing": "/traces/none",
        "long": "/traces?since=2025-01-01",
    }
    with Server(kept) as server:
        yield {name: server.url + path for name, path in paths.items()}


@pytest.fixture
def open_page(browser: Browser, addresses: dict[str, str]) -> Iterator[Callable[..., Page]]:
    """Open a page by name; at the end of the test the browser must have had nothing to complain of."""
    complaints: list[str] = []
    contexts = []

    def open_(name: str, size: str = "wide", **options: object) -> Page:
        context = browser.new_context(viewport=SIZES[size], **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(addresses[name])
        return page

    yield open_
    for context in contexts:
        context.close()
    assert [text for text in complaints if "the server responded with a status of 4" not in text] == []


NAMES = (
    "traces",
    "filtered",
    "nothing",
    "trace",
    "under way",
    "failing",
    "deep",
    "parts",
    "sessions",
    "session",
    "datasets",
    "dataset",
    "experiments",
    "experiment",
    "compare",
    "rules",
    "rule",
    "sampled out",
    "spend",
    "versions",
    "why",
    "missing",
)


@pytest.mark.process
@pytest.mark.parametrize("name", [*NAMES, pytest.param("a part", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("size", "scheme"), [("wide", "light"), pytest.param("narrow", "dark", marks=pytest.mark.slow)]
)
def test_pages_are_accessible_and_fit_the_screen(open_page, name, size, scheme):
    page = open_page(name, size, color_scheme=scheme)
    assert find_violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size]["width"]


@pytest.mark.process
def test_charts_that_take_too_long_say_so(browser, tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as store, Server(Slow(store), query_seconds=0.5) as server:
        store.append([run()])
        with browser.new_context() as context:
            page = context.new_page()
            page.goto(f"{server.url}/traces?since=2025-01-01")
            page.get_by_text("/charts took longer than 0.5 seconds").wait_for(timeout=120_000)


@pytest.mark.process
def test_a_chip_opens_to_its_comment(open_page):
    page = open_page("trace")
    comment = page.get_by_role("dialog", name="Feedback concise").get_by_text("rather long")
    assert not comment.is_visible()
    page.get_by_role("button", name="concise 0.25").click()
    comment.wait_for()


@pytest.mark.process
def test_a_span_is_shown_in_place(open_page):
    page = open_page("trace")
    page.locator("a[data-run]", has_text="retrieve").click()
    page.locator("#detail").get_by_text("First passage.").wait_for()
    page.wait_for_url("**?run=*")
    page.go_back()
    page.locator("#detail h2", has_text="answer").wait_for()


@pytest.mark.process
def test_the_first_tab_leads_to_the_content(open_page):
    page = open_page("traces")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


@pytest.mark.process
def test_feedback_is_added_with_the_form(open_page):
    page = open_page("failing")
    page.get_by_text("Add feedback").click()
    page.get_by_label("Key").fill("correct")
    page.get_by_label("Value").fill("true")
    page.get_by_role("button", name="Save").click()
    page.get_by_role("button", name="correct yes").wait_for()


@pytest.mark.process
def test_empty_fields_stay_out_of_the_address(open_page):
    page = open_page("traces")
    page.get_by_label("Search, or filter").fill("Because")
    page.get_by_role("button", name="Search").click()
    page.wait_for_url("**/traces?where=Because")


@pytest.mark.process
def test_charts_over_a_long_time_come_after_the_list(open_page):
    page = open_page("long")
    page.get_by_role("img", name="Traces over time", exact=True).wait_for()
    assert page.locator(".waiting").count() == 0


@pytest.mark.process
def test_a_live_list_shows_what_arrives(open_page, kept):
    page = open_page("traces")
    with page.expect_request("**/live*"):
        page.get_by_role("button", name="Live").click()
    kept.append([run("just_arrived")])
    page.get_by_role("button", name="1 new").click()
    page.get_by_role("link", name="just_arrived").wait_for()


@pytest.mark.process
def test_why_is_opened_by_keyboard(open_page):
    page = open_page("why")
    told = page.get_by_text("Sample: u 0.2500 is below 0.5")
    assert not told.is_visible()
    page.locator("#rules summary", has_text="short").focus()
    page.keyboard.press("Enter")
    told.wait_for()


@pytest.mark.process
def test_a_rule_leads_to_its_decisions_and_these_to_traces(open_page):
    page = open_page("rules")
    page.get_by_role("link", name="failed 1").first.click()
    page.locator("tbody a.row-link").click()
    page.wait_for_url("**/traces/*#rules")


@pytest.mark.process
def test_everything_can_be_read_without_javascript(open_page):
    page = open_page("traces", java_script_enabled=False)
    page.get_by_role("link", name="answer").last.click()
    page.locator("a[data-run]", has_text="retrieve").click()
    page.locator("#detail").get_by_text("First passage.").wait_for()
    page.get_by_role("button", name="concise 0.25").click()
    page.get_by_role("dialog").get_by_text("rather long").wait_for()
