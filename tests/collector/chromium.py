"""The system's Chromium, for tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

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
