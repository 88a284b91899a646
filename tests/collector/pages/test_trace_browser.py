"""The trace page in a real browser: rich, hostile and huge content at three widths in both themes, copying, keys."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page

from collector.chromium import PageWatch, chromium, find_violations
from collector.making import child, run
from spanwise.collector.records import Document, Feedback, Target, Usage
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

pytestmark = [pytest.mark.browser, pytest.mark.process]
EVIL = '<img src=x hx-get="/x" hx-trigger="load" id="detail" onerror=alert(1)><template><script>alert(2)</script></template>'
MARKDOWN = """## Batteries

You may take **two** in *hand luggage*, see [the rules](https://example.com/rules) [1].

1. Below 100 Wh
2. Up to 160 Wh

| Wh | Cabin | A very long column title that needs room | Another one |
|---:|:------|---|---|
| <100 | yes | no | no |

```python
def allowed(wh: int) -> bool:
    return wh < 100  # the limit, with a long comment that does not fit on a narrow screen at all
```

> Never in the hold. ![chart](https://evil.example/x.png)
"""


def png() -> str:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" + bytes(8)) * 1) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server over rich, hostile and large traces; the addresses of their pages by name."""
    with SQLiteStore(tmp_path_factory.mktemp("trace") / "spanwise.db") as store, Server(store) as server:
        root = run("answer", kind="agent", inputs={"question": "May I?", "user": {"tier": "gold"}}, outputs=MARKDOWN)
        documents = tuple(Document(f"Passage {n}. " * 30, f"doc-{n}", 0.9) for n in range(3))
        retrieve = child(root, "retrieve", kind="retriever", documents=documents)
        call = {"id": "c1", "type": "function", "function": {"name": "lookup", "arguments": '{"wh": 100}'}}
        chat = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "هل البطارية مسموحة؟ x1"}, {"inlineData": {"data": png()}}],
            },
        ]
        reply = [{"role": "assistant", "reasoning_content": "Hm.", "content": "Yes.", "tool_calls": [call]}]
        llm = child(root, "chat", kind="llm", model="m", usage=Usage(9, 3), inputs=chat, outputs=reply)
        tool = child(root, "lookup", kind="tool", attributes={"gen_ai.tool.call.id": "c1"}, outputs={"ok": True})
        wide = {f"field {n}": {"deep": [n, {"deeper": f"value {n}"}]} for n in range(20)}
        failed = [
            child(
                root,
                f"failing {n}",
                status="error",
                error="ValueError: no",
                outputs=wide,
                start_ns=root.start_ns + 9 + n,
            )
            for n in range(3)
        ]
        store.append([root, retrieve, llm, tool, *failed])
        target = Target(trace_id=root.trace_id)
        store.add_feedback([Feedback(target=target, key="faithful", score=0.5, comment="half of it")])
        word = "x" * 3_000
        hostile = run(
            EVIL,
            kind="llm",
            inputs=[{"role": EVIL, "content": EVIL}, {"role": "user", "content": word}],
            outputs=f"# {EVIL}\n\n- {word}\n\n`{word}`\n\n|{word}|{word}|\n|---|---|\n|1|{EVIL}|\n\n```\n{word}\n```",
            documents=(Document(word, word, 0.5, {word: word}), Document(EVIL, EVIL)),
            attributes={word: {word: word}},
            status="error",
            error=word,
        )
        many = [{"role": ("user", "assistant")[n % 2], "content": f"message {n}"} for n in range(5_000)]
        long = run("long chat", kind="llm", inputs=many, outputs="x" * 5_000_000)
        store.append([hostile, long])
        yield {
            "rich": f"{server.url}/traces/{root.trace_id}",
            "model call": f"{server.url}/traces/{root.trace_id}?run={llm.span_id}",
            "failing": f"{server.url}/traces/{root.trace_id}?run={failed[0].span_id}",
            "raw": f"{server.url}/traces/{root.trace_id}?view=raw",
            "hostile": f"{server.url}/traces/{hostile.trace_id}",
            "long": f"{server.url}/traces/{long.trace_id}",
            "compared": f"{server.url}/traces/compare?ids={root.trace_id},{hostile.trace_id}",
            "choice": f"{server.url}/traces/compare?ids={hostile.trace_id}",
        }


@pytest.fixture
def open_page(browser: Browser, site: dict[str, str]) -> Iterator[Callable[..., Page]]:
    """Open a page by name. In the end nothing was complained of, and nothing was asked of other servers."""
    watch = PageWatch(browser)

    def open_(name: str, width: int = 1440, **options: object) -> Page:
        return watch.open(site[name], width, 900, **options)

    yield open_
    watch.close()
    assert watch.complaints == []
    assert {url.split("/")[2] for url in watch.requested} == {site["rich"].split("/")[2]}
    assert not [url for url in watch.requested if url.endswith("/x")]


@pytest.mark.parametrize("name", ["rich", "model call", "failing", "raw", "hostile", "long", "compared", "choice"])
@pytest.mark.parametrize("width", [1440, pytest.param(768, marks=pytest.mark.slow), 390])
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_content_fits_and_is_accessible(open_page, name, width, scheme):
    page = open_page(name, width, color_scheme=scheme)
    page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert find_violations(page) == []


def test_lines_of_text_have_at_most_75_characters(open_page):
    page = open_page("rich")
    width = page.locator(".answer .markdown").evaluate("e => e.getBoundingClientRect().width")
    sample = page.evaluate(
        """() => { const s = document.createElement("span"); s.style.whiteSpace = "nowrap";
        s.textContent = "the quick brown fox jumps over the lazy dog and then rests under a tall old oak tree".slice(0, 75);
        document.querySelector(".answer .markdown").append(s); const w = s.getBoundingClientRect().width; s.remove(); return w; }"""
    )
    assert width <= sample * 1.05


def test_question_and_answer_are_in_the_first_screen(open_page):
    for name in ("rich", "long"):
        box = open_page(name).get_by_role("group", name="answer", exact=True).bounding_box()
        assert box is not None
        assert box["y"] < 600


def test_the_next_and_previous_error_are_one_key_away(open_page):
    page = open_page("rich")
    page.keyboard.press("n")
    page.locator("#detail h2", has_text="failing 0").wait_for()
    page.keyboard.press("n")
    page.locator("#detail h2", has_text="failing 1").wait_for()
    page.keyboard.press("p")
    page.locator("#detail h2", has_text="failing 0").wait_for()
    page.reload()
    page.locator("#detail h2", has_text="failing 0").wait_for()


def test_a_tool_call_leads_to_its_run_in_place(open_page):
    page = open_page("model call")
    page.get_by_role("link", name="Open its run").click()
    page.locator("#detail h2", has_text="lookup").wait_for()


def test_values_ids_links_cases_and_commands_are_copied(open_page):
    page = open_page("model call", permissions=["clipboard-read", "clipboard-write"])
    clipboard = "navigator.clipboard.readText()"
    for label, begins in (
        ("Copy as curl", "curl "),
        ("Copy test case", '{"inputs"'),
        ("Copy link", "http://127.0.0.1"),
    ):
        page.locator("#detail").get_by_role("button", name=label, exact=True).click()
        page.get_by_role("button", name="Copied").wait_for()
        assert page.evaluate(clipboard).startswith(begins)
        page.get_by_role("button", name="Copied").wait_for(state="detached")


def test_a_json_value_is_searched(open_page):
    page = open_page("failing")
    page.get_by_label("Search fields and values").first.fill("value 17")
    assert page.get_by_text("value 17").first.is_visible()
    assert not page.get_by_text("field 3", exact=True).is_visible()


def test_everything_is_there_without_javascript(open_page):
    page = open_page("rich", java_script_enabled=False)
    assert page.locator(".copy:visible").count() == 0
    page.get_by_role("link", name="Errors only").click()
    page.wait_for_url("**only=errors**")
    page.locator("a[data-run]", has_text="failing 1").click()
    page.locator("#detail h2", has_text="failing 1").wait_for()
    page.locator("#detail").get_by_role("link", name="Raw").click()
    page.locator("#detail pre.raw").first.wait_for()
    page.goto(page.url.split("?")[0])
    page.locator("#detail pre.raw").first.wait_for()


def test_two_traces_are_compared_without_javascript(open_page, site):
    page = open_page("rich", java_script_enabled=False)
    page.get_by_role("link", name="Compare").click()
    page.get_by_label("Trace").fill(site["hostile"])
    page.get_by_role("button", name="Compare").click()
    page.get_by_role("region", name="Spans").get_by_text("only in A").first.wait_for()
    page.get_by_role("link", name="Swap").click()
    page.get_by_role("region", name="Spans").get_by_text("only in B").first.wait_for()
