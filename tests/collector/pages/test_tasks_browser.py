"""Everyday tasks with the list of traces, within their number of clicks, and by keyboard alone.

Typing into a field, with Enter, and a choice in a menu count as one click.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from collector.chromium import chromium
from collector.making import run
from collector.pages.test_layout_browser import open_page, serve
from spanwise.collector.records import Feedback, Target
from spanwise.collector.stores.sqlite import SQLiteStore

pytestmark = [pytest.mark.browser, pytest.mark.process]
DAY = 86_400 * 10**9


def support_traces(store: SQLiteStore) -> None:
    """Traces of two days: one slow yesterday, some unfaithful, of several users, with tags, metadata and texts."""
    now = time.time_ns()
    noon_yesterday = now // DAY * DAY - DAY // 2
    roots = []
    for number in range(40):
        is_old = number >= 20
        start = (noon_yesterday if is_old else now) - number * 10**9
        roots.append(
            run(
                "slow_answer" if number == 27 else f"answer_{number}",
                start_ns=start,
                end_ns=start + (90 if number == 27 else 100 if number == 3 else 1) * 10**9,
                inputs={
                    "question": "Where is it? The parcel lies in the depot." if number == 5 else "depot: where in it"
                },
                outputs="Because.",
                user_id=f"u-{number % 4}",
                tags=("beta",) if number % 2 else (),
                metadata={"tenant": f"t{number % 5}"},
            )
        )
    store.append(roots)
    store.add_feedback(
        [
            Feedback(
                target=Target(trace_id=root.trace_id),
                key="faithful",
                score=0.1 if number in (2, 9) else 0.9,
                source="model",
                evaluator="judge",
            )
            for number, root in enumerate(roots)
        ]
    )


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from (f"{url}/traces" for url in serve(tmp_path_factory.mktemp("tasks"), support_traces))


class Person:
    """A person at a page, whose clicks are counted."""

    def __init__(self, page: Page) -> None:
        self.page, self.clicks = page, 0

    def click(self, target: Locator) -> None:
        target.click()
        self.clicks += 1

    def choose(self, target: Locator, value: str) -> None:
        target.select_option(value)
        self.clicks += 1

    def type(self, text: str) -> None:
        line = self.page.locator("input[name=where]")
        line.fill(text)
        line.press("Enter")
        self.clicks += 1

    def names(self, count: int) -> list[str]:
        """The names of the listed traces, once there are as many as these."""
        rows = self.page.locator("#rows a.row-link")
        expect(rows).to_have_count(count)
        return [text.strip() for text in rows.all_inner_texts()]


@pytest.fixture(params=[1440, 1024, 390])
def person(browser, address, request):
    page = open_page(browser, address, request.param, color_scheme="dark" if request.param == 1024 else "light")
    yield Person(page)
    page.context.close()


def test_the_slowest_trace_of_yesterday(person):
    if person.page.viewport_size["width"] == 390:  # without heads of columns
        person.type("since=yesterday sort=-latency_ms")
    else:
        person.choose(person.page.locator("select[name=since]"), "yesterday")
        person.page.wait_for_url("**since=yesterday**")
        person.click(person.page.get_by_role("link", name="Latency"))
    expect(person.page.locator(".mark-chip", has_text="slowest first")).to_be_visible()
    person.click(person.page.locator("#rows a.row-link").first)
    expect(person.page.locator("#panel h2")).to_contain_text("slow_answer")
    assert person.clicks <= 3


def test_the_traces_that_a_judge_called_unfaithful(person):
    person.click(person.page.get_by_role("button", name="1 key"))
    person.click(person.page.get_by_role("dialog", name="Feedback").get_by_role("link", name="faithful", exact=True))
    assert sorted(person.names(2)) == ["answer_2", "answer_9"]
    assert person.clicks <= 2


def test_all_traces_of_a_user(person):
    person.type("user=u-1")
    assert all(name.startswith("answer_") or name == "slow_answer" for name in person.names(10))
    assert person.clicks <= 2


def test_all_traces_of_the_user_of_a_row(person):
    person.click(person.page.locator("#rows a.row-link").first)
    person.click(person.page.locator("#panel").get_by_role("link", name="u-0"))
    expect(person.page.get_by_role("heading", level=1)).to_have_text("u-0")
    assert person.page.locator("table").last.locator("tbody tr").count() == 10
    assert person.clicks <= 2


def test_a_tag_and_metadata(person):
    person.type("tag=beta metadata.tenant=t1")
    assert sorted(person.names(4)) == ["answer_1", "answer_11", "answer_21", "answer_31"]
    assert person.clicks <= 3


def test_a_phrase(person):
    deadline = time.monotonic() + 30
    while True:  # the full-text index follows the traces
        person.clicks = 0
        person.type('"in the depot"')
        person.page.wait_for_url("**/traces?where=*")
        if person.page.locator("#rows a.row-link").count() == 1 or time.monotonic() > deadline:
            break
    assert person.names(1) == ["answer_5"]
    assert person.page.locator("#rows mark").all_inner_texts() == ["in the depot"]
    assert person.clicks == 1


def test_the_tasks_by_keyboard_alone(browser, address):
    page = open_page(browser, address)
    for line, first in (
        ("since=yesterday sort=-latency_ms", "slow_answer"),
        ("feedback.faithful<0.5", "answer_2"),
        ("user=u-1", "answer_1"),
        ("tag=beta metadata.tenant=t1", "answer_1"),
    ):
        page.keyboard.press("/")
        page.keyboard.type(line)
        page.keyboard.press("Enter")
        page.wait_for_url("**where=**")
        page.keyboard.press("j")
        page.keyboard.press("Space")
        expect(page.locator("#panel h2")).to_contain_text(first)
        page.keyboard.press("Enter")
        page.wait_for_url("**/traces/*?from=*")
        page.goto(address)
