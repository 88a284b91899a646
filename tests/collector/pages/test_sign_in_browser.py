"""Signing in, and a web shop's thumbs, in a real browser."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from collector.chromium import chromium, find_violations
from collector.making import run
from collector.pages.scene import rag
from polling import until
from spanwise.collector.records import Key
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

pytestmark = pytest.mark.browser
DOCS = Path(__file__).parents[3] / "docs" / "keys.md"
KEYS = {"all": ("read", "write"), "reads": ("read",), "feedback": ("feedback",), "ingest": ("ingest",)}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path_factory.mktemp("keys") / "spanwise.db") as made:
        for name, scopes in KEYS.items():
            made.save_key(Key(id=name, name=name, sha256=sha256(name.encode()).hexdigest(), scopes=scopes))
        yield made


class Site:
    """Another origin, which answers everything with one page."""

    def __init__(self) -> None:
        self.page = ""

    @contextmanager
    def __call__(self) -> Iterator[str]:
        """Its origin, while it answers."""
        with ThreadingHTTPServer(("127.0.0.1", 0), self._handler()) as answering:
            thread = threading.Thread(target=answering.serve_forever, daemon=True)
            thread.start()
            yield f"http://localhost:{answering.server_address[1]}"
            answering.shutdown()
            thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        site = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write(f"<!doctype html><meta charset=utf-8>{site.page}".encode())

            def log_message(self, *_: object) -> None:
                pass

        return Answer


@pytest.fixture(scope="module")
def server(store: SQLiteStore) -> Iterator[Server]:
    with Server(store, host="0.0.0.0") as made:
        yield made


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport={"width": 1280, "height": 800})
    made.set_default_timeout(120_000)
    yield made
    made.close()


def sign_in(page: Page, address: str, key: str) -> None:
    page.goto(address)
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()


@pytest.mark.process
def test_a_reader_signs_in_votes_and_signs_out(context: BrowserContext, store: SQLiteStore, server: Server) -> None:
    root, page = rag(store), context.new_page()
    sign_in(page, f"{server.url}/traces/{root.trace_id}", "all")
    page.get_by_text("Add feedback").click()
    page.get_by_label("Key").fill("correct")
    page.get_by_label("Value").fill("1")
    page.get_by_role("button", name="Save").click()
    page.get_by_role("button", name="correct 1").wait_for()
    assert [row.key for row in store.trace(root.trace_id).feedback] == ["correct"]
    assert "session" not in page.evaluate("document.cookie")  # no script sees it
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/sign-in")
    page.goto(server.url)
    assert "/sign-in?next=" in page.url


@pytest.mark.process
def test_a_wrong_key_is_told_beside_the_form(context: BrowserContext, server: Server) -> None:
    page = context.new_page()
    sign_in(page, server.url, "wrong")
    assert "unknown, expired or revoked" in page.get_by_role("alert").inner_text()


@pytest.mark.process
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_of_signing_in_are_accessible(browser: Browser, store: SQLiteStore, server: Server, scheme) -> None:  # type: ignore[no-untyped-def]
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(120_000)
    sign_in(page, server.url, "wrong-in-" + scheme)
    refused = _complaints(page)
    sign_in(page, server.url, "reads")
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("button", name="Sign out").wait_for()
    assert (refused, _complaints(page)) == ([], [])
    context.close()


def _complaints(page: Page) -> list[str]:
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    return [rule for rule, _ in find_violations(page)]


@pytest.mark.process
def test_another_site_of_the_same_host_rides_no_session(
    context: BrowserContext, store: SQLiteStore, server: Server
) -> None:
    """Its port is another, so that the browser sends the cookie: the two are one site to it."""
    store.append([kept := run()])
    own = f"http://localhost:{server.port}"
    page = context.new_page()
    sign_in(page, own, "all")
    page.get_by_role("button", name="Sign out").wait_for()
    form = f'<form method="post" action="{own}/traces/{kept.trace_id}/feedback"><input name="key" value="k">'
    other = Site()
    other.page = f'{form}<input name="value" value="1"><button>Win</button></form>'
    with other() as site:
        page.goto(site)
        page.get_by_role("button").click()
        page.wait_for_url("**/feedback")
        page.goto(site)
        told = page.evaluate("address => fetch(address, {credentials: 'include'}).then(() => 'read', () => 'not')", own)
    assert (told, store.trace(kept.trace_id).feedback) == ("not", ())


@pytest.mark.process
def test_the_thumbs_of_the_docs_vote_from_another_origin(context: BrowserContext, store: SQLiteStore) -> None:
    store.append([kept := run()])
    example = re.search(r"<!-- browser -->\n```html\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert example
    page, shop = context.new_page(), Site()
    with shop() as site, Server(store, host="0.0.0.0", cors=[site]) as server:
        said = {"TRACE_ID": kept.trace_id, "API_KEY": "feedback", "https://traces.example.com": server.url}
        shop.page = reduce(lambda text, one: text.replace(*one), said.items(), example[1])
        page.goto(site)
        page.get_by_role("button", name="👎").click()
        page.get_by_text("Thank you").wait_for()
        page.get_by_role("button", name="👍").click()
        until(lambda: [row.score for row in store.trace(kept.trace_id).feedback] == [True])
        status = page.evaluate(
            "address => fetch(address, {method: 'POST', headers: {'x-api-key': 'ingest', 'content-type':"
            " 'application/json'}, body: '{}'}).then(answer => answer.status)",
            f"{server.url}/v1/traces",
        )
        refused = page.evaluate("address => fetch(address).then(() => 'read', () => 'not')", f"{server.url}/api/count")
    (row,) = store.trace(kept.trace_id).feedback
    assert (row.source, len(row.author or ""), status, refused) == ("human", 36, 200, "not")
