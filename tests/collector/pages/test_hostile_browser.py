"""Hostile traces in a real browser: every kind of content, text from right to left, high contrast, zoom, depth, deletion."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page

from collector.chromium import PageWatch, chromium, find_violations
from collector.making import child, run
from polling import until
from spanwise.collector.records import Document, Event, Feedback, Run, Target
from spanwise.collector.server import Server
from spanwise.collector.stores import Store
from spanwise.collector.stores.sqlite import SQLiteStore

pytestmark = [pytest.mark.browser, pytest.mark.process]
EVIL = (
    '<img src=x hx-get="/x" hx-trigger="load" id="detail" onerror=alert(1)>'
    '<div hx-get="/x" hx-trigger="load" data-copy-from="/x" data-wait><template><script>alert(2)</script></template></div>'
)
ARABIC = "مرحبا (x1) بالعالم"
SVG = base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(3)</script></svg>").decode()
DEPTH = 2_000


def blocks(text: str) -> list[dict[str, Any]]:
    """A chat with every kind of block, all of whose texts are this one."""
    tool_call = {"id": "c1", "type": "function", "function": {"name": text, "arguments": {text: text}}}
    parts = [
        {"type": "text", "text": text},
        {"type": "text", "text": f"# {text}\n\n- {text}\n\n`{text}` **{text}**\n\n|{text}|\n|---|\n|{text}|"},
        {"type": "text", "text": f"```{text}\n{text}\n```"},
        {"type": "text", "text": f"<!doctype html>{text}"},
        {"type": "thinking", "thinking": text},
        {"type": "image_url", "image_url": {"url": f"data:image/svg+xml;base64,{SVG}"}},
        {"type": "image_url", "image_url": {"url": f"javascript:{text}"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 20_000}},
        {"type": "file", "file": {"filename": text, "file_data": text}},
        {"type": "input_audio", "input_audio": {"data": text, "format": text}},
        {"type": text, text: text},
    ]
    return [
        {"role": text, "name": text, "content": text},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": text, "tool_calls": [tool_call]},
        {"role": "tool", "tool_call_id": "c1", "name": text, "content": text},
    ]


def trace_of(store: Store, text: str, **fields: Any) -> Run:
    """Store a trace all of whose texts are this one."""
    same: dict[str, Any] = {"kind": text, "session_id": text, "user_id": text, "tags": (text,), "model": text}
    root = run(text, inputs=blocks(text), outputs=blocks(text), metadata={text: text}, **same, **fields)
    documents = (Document(text, text, 0.5, {text: text}),)
    failed = child(
        root,
        text,
        kind="retriever",
        documents=documents,
        status="error",
        error=text,
        attributes={text: text},
        events=(Event(text, 1, {text: text}), Event("exception", 1, {"exception.stacktrace": text})),
    )
    store.append([root, failed])
    target = Target(trace_id=root.trace_id)
    store.add_feedback(
        [
            Feedback(target=target, key=text[:180], label=text, comment=text, author=text, source="human"),
            Feedback(target=target, key="judged", outcome="error", error=text),
        ]
    )
    return root


def deep_trace(store: Store) -> Run:
    root = run("deep_function")
    runs = [root]
    for _ in range(DEPTH - 1):
        runs.append(child(runs[-1], "deep_function"))
    store.append(runs)
    return root


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The addresses of the pages of hostile traces by name."""
    with SQLiteStore(tmp_path_factory.mktemp("hostile") / "spanwise.db") as store, Server(store) as server:
        evil, arabic, deep = trace_of(store, EVIL), trace_of(store, ARABIC), deep_trace(store)
        last = store.tree(deep.trace_id, limit=DEPTH).items[-1]
        below = store.tree(arabic.trace_id).items[-1]
        yield {
            "evil": f"{server.url}/traces/{evil.trace_id}",
            "evil, raw": f"{server.url}/traces/{evil.trace_id}?view=raw",
            "arabic": f"{server.url}/traces/{arabic.trace_id}",
            "arabic, failed": f"{server.url}/traces/{arabic.trace_id}?run={below.span_id}",
            "deep": f"{server.url}/traces/{deep.trace_id}",
            "deepest": f"{server.url}/traces/{deep.trace_id}?run={last.span_id}",
            "compared": f"{server.url}/traces/compare?ids={evil.trace_id},{arabic.trace_id}",
            "session": f"{server.url}/sessions/{quote(ARABIC, safe='')}",
            "session, evil": f"{server.url}/sessions/{quote(EVIL, safe='')}",
            "list": f"{server.url}/traces",
        }


@pytest.fixture
def open_page(browser: Browser, site: dict[str, str]) -> Iterator[Callable[..., Page]]:
    """Open a page by name, with all that it hides. In the end nothing ran, and nothing but its own files was requested."""
    watch = PageWatch(browser)

    def open_(name: str, width: int = 1440, **options: Any) -> Page:
        page = watch.open(site[name], width, 800, **options)
        page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
        return page

    yield open_
    watch.close()
    assert watch.complaints == []
    root = site["list"].removesuffix("/traces")
    known = {f"{root}/static/", f"{root}/traces", f"{root}/sessions/", f"{root}/charts"}
    assert [url for url in watch.requested if not any(url.startswith(each) for each in known)] == []
    assert [url for url in watch.requested if url.endswith("/x")] == []


PAGES = (
    "evil",
    "evil, raw",
    "arabic",
    "arabic, failed",
    "deep",
    "deepest",
    "compared",
    "session",
    "session, evil",
    "list",
)
VIEWS: dict[str, tuple[int, dict[str, Any]]] = {
    "wide": (1440, {}),
    "zoomed to 200 %": (720, {"device_scale_factor": 2}),
    "narrow": (390, {"color_scheme": "dark"}),
    "high contrast": (1024, {"forced_colors": "active"}),
}


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("view", VIEWS)
def test_nothing_hostile_runs_leaves_the_window_or_hides(open_page, name, view):
    width, options = VIEWS[view]
    page = open_page(name, width, **options)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    counts = "['#detail', 'main template', 'main script', 'main img[hx-get], main div[hx-get]'].map(s => document.querySelectorAll(s).length)"
    assert page.evaluate(counts)[1:] == [0, 0, 0]
    assert page.evaluate(counts)[0] <= 1
    if view == "narrow":  # axe takes a second
        assert find_violations(page) == []


TEXTS_WITHOUT_DIRECTION = """(text) => {
  const found = [], walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    if (!walker.currentNode.data.includes(text)) continue;
    let element = walker.currentNode.parentElement, isolated = false;
    for (; element.tagName !== "MAIN" && !isolated; element = element.parentElement)
      isolated = element.dir === "auto" || ["isolate", "plaintext", "isolate-override"].includes(getComputedStyle(element).unicodeBidi) || element.tagName === "OPTION";
    if (!isolated) found.push(walker.currentNode.parentElement.outerHTML.slice(0, 160));
  }
  return found;
}"""


@pytest.mark.parametrize("name", ["arabic", "arabic, failed", "compared", "session", "list"])
def test_text_from_right_to_left_does_not_disturb_what_is_beside_it(open_page, name):
    page = open_page(name)
    assert page.get_by_text(ARABIC[:5]).count() > 2
    assert page.evaluate(TEXTS_WITHOUT_DIRECTION, ARABIC[:5]) == []


def test_the_deepest_of_2000_runs_is_selected_and_in_sight(open_page):
    page = open_page("deepest")
    row, tree = page.locator(".tree .current").bounding_box(), page.locator("section.tree").bounding_box()
    assert row is not None
    assert tree is not None
    assert tree["y"] <= row["y"] <= tree["y"] + tree["height"]


OUTLINES = (
    "e => [...new Set([e, ...e.children].map(each => getComputedStyle(each).outlineStyle))].filter(s => s !== 'none')"
)


def test_marks_stay_visible_in_high_contrast(open_page):
    page = open_page("deep", 1024, forced_colors="active")
    style = "(e, name) => getComputedStyle(e)[name]"
    assert page.locator("h1 .status").evaluate(style, "borderTopWidth") == "4px"
    assert page.locator(".tree .current").first.evaluate(OUTLINES) == ["solid"]
    assert page.locator(".choice [aria-current]").first.evaluate(style, "outlineStyle") == "solid"


def test_a_trace_that_is_deleted_while_it_is_read_says_so_at_the_next_click(browser, tmp_path):
    with SQLiteStore(tmp_path / "a.db") as store, Server(store) as server:
        root = run("agent", outputs="The answer.")
        store.append([root, child(root, "first"), child(root, "second")])
        page = browser.new_page()
        page.goto(f"{server.url}/traces/{root.trace_id}")
        page.locator("section.tree [data-run]", has_text="first").click()
        page.locator("#detail h2", has_text="first").wait_for()
        store.delete(trace_ids=(root.trace_id,))
        assert page.get_by_text("The answer.").first.is_visible()  # what is there stays
        page.locator("section.tree [data-run]", has_text="second").click()
        page.get_by_text("It may have been deleted").wait_for()
        page.close()


def test_two_tabs_of_a_trace_keep_their_selection_and_both_add_feedback(browser, tmp_path):
    with SQLiteStore(tmp_path / "a.db") as store, Server(store) as server:
        root = run("agent")
        store.append([root, child(root, "first"), child(root, "second")])
        context = browser.new_context()
        tabs = {}
        for name in ("first", "second"):
            tabs[name] = page = context.new_page()
            page.goto(f"{server.url}/traces/{root.trace_id}")
            page.locator("section.tree [data-run]", has_text=name).click()
            page.locator("#detail h2", has_text=name).wait_for()
        for name, page in tabs.items():
            page.get_by_text("Add feedback", exact=True).click()
            page.get_by_label("Key").fill(f"key of {name}")
            page.get_by_label("Value").fill("yes")
            page.get_by_role("button", name="Save").click()
            page.locator(".chip", has_text=f"key of {name}").first.wait_for()
            page.locator("#detail h2", has_text=name).wait_for()
        assert {item.key for item in store.feedbacks(trace_ids=(root.trace_id,))} == {"key of first", "key of second"}
        context.close()


def test_a_slow_answer_does_not_replace_the_run_that_was_selected_after_it(browser, tmp_path):
    with SQLiteStore(tmp_path / "a.db") as store, Server(store) as server:
        root = run("agent")
        slow, quick = child(root, "slow"), child(root, "quick", start_ns=root.start_ns + 9)
        store.append([root, slow, quick])
        page = browser.new_page()
        held: list[Any] = []
        page.route(f"**/*run={slow.span_id}*", lambda route: held.append(route))
        page.goto(f"{server.url}/traces/{root.trace_id}")
        page.locator("section.tree [data-run]", has_text="slow").click()
        page.locator("section.tree [data-run]", has_text="quick").click()
        page.locator("#detail h2", has_text="quick").wait_for()
        until(lambda: held or None)
        with page.expect_event("requestfinished", lambda request: slow.span_id in request.url):
            held[0].continue_()
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert page.locator("#detail h2").inner_text().endswith("quick")
        assert f"run={quick.span_id}" in page.url
        page.close()
