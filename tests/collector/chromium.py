"""The system's Chromium, for tests of pages."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from page_scripts import require_scripts

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")


@contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    """A browser with these flags beside the usual ones; the test is skipped where there is none, or no scripts."""
    require_scripts()
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=[*FLAGS, *flags])
        yield browser
        browser.close()
    # Playwright leaves greenlets behind. CPython 3.11 fails if it collects one within `ast.parse` of a later test
    gc.collect()


def find_violations(page: Page, selector: str | None = None) -> list[tuple[str, str]]:
    """Return the accessibility rules that a page or the elements of a selector violate, each with the first such element.

    Of a long list of traces, the first rows are audited: the others repeat them, and take a second.
    """
    context = {"include": [[selector or "html"]], "exclude": [["#rows > tr:nth-child(n + 13)"]]}
    found = Axe().run(page, context=context).response["violations"]
    return [(each["id"], each["nodes"][0]["html"][:200]) for each in found]


class PageWatch:
    """Pages of contexts of their own. What they log, and the addresses that they request, is recorded."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self.complaints: list[str] = []
        self.requested: list[str] = []

    def open(self, url: str, width: int, height: int, **options: Any) -> Page:
        context = self._browser.new_context(viewport={"width": width, "height": height}, **options)
        self._contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        page.on("request", lambda request: self.requested.append(request.url))
        page.goto(url)
        return page

    def close(self) -> None:
        for context in self._contexts:
            context.close()
