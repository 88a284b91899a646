"""In a real browser: a page of another name that leads here reads and deletes nothing, and `/docs` needs nobody else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser

from collector.chromium import chromium
from collector.making import run
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

pytestmark = pytest.mark.browser
EVIL = "127.evil.test"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium(f"--host-resolver-rules=MAP {EVIL} 127.0.0.1") as found:
        yield found


@pytest.fixture
def server(tmp_path) -> Iterator[Server]:
    with SQLiteStore(tmp_path / "a.db") as store, Server(store) as made:
        yield made


class Evil(BaseHTTPRequestHandler):
    """A page of that name, as it is before the name leads to somebody else."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>evil</title>")

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def evil() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Evil) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield serving.server_address[1]
        serving.shutdown()
        thread.join()


TRY = """async ([url, method, mode]) => {
  try {
    const answer = await fetch(url, {method, mode, body: method === "GET" || method === "DELETE" ? undefined : "[]"});
    return [answer.status, await answer.text()];
  } catch (error) { return [0, ""]; }
}"""


@pytest.mark.process
def test_a_name_that_was_led_here_reads_and_deletes_nothing(browser, server):
    server.store.append([kept := run("secret")])
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"http://{EVIL}:{server.port}/")  # same origin as what it asks for, as after the name was led here
        asked = [
            (method, path)
            for method, path in (
                ("GET", "/api/traces"),
                ("GET", f"/api/traces/{kept.trace_id}"),
                ("POST", "/api/feedback"),
                ("DELETE", f"/api/traces/{kept.trace_id}"),
                ("DELETE", "/api/traces?name=secret"),
            )
        ]
        answers = [page.evaluate(TRY, [path, method, "same-origin"]) for method, path in asked]
    assert [status for status, _ in answers] == [403] * len(asked)
    assert "secret" not in str(answers)
    assert server.store.count()["traces"] == 1


@pytest.mark.process
def test_a_page_of_elsewhere_reads_and_deletes_nothing(browser, server, evil):
    server.store.append([kept := run("secret")])
    url = f"http://127.0.0.1:{server.port}/api/traces"
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"http://{EVIL}:{evil}/")
        answers = [
            page.evaluate(TRY, [address, method, mode])
            for address in (url, f"{url}/{kept.trace_id}")
            for method, mode in (("GET", "cors"), ("GET", "no-cors"), ("DELETE", "cors"), ("POST", "no-cors"))
        ]
    assert "secret" not in str(answers)
    assert server.store.count()["traces"] == 1


@pytest.mark.process
def test_the_apis_description_comes_from_here_alone(browser, server):
    asked: list[str] = []
    with browser.new_context() as context:
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        answer = page.goto(f"{server.url}/docs")
        assert answer is not None
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        page.get_by_text("POST /api/feedback", exact=True).click()
        page.get_by_text("Feedback with an existing id", exact=False).first.wait_for(state="visible")
        assert len(page.inner_text("main")) > 2000
    assert {url.split("/")[2] for url in asked} == {f"127.0.0.1:{server.port}"}
