"""Overview page: totals over time, and old addresses of the trace list."""

from __future__ import annotations

import time

import pytest

from collector.making import run


def test_a_new_store_says_what_to_do(client):
    text = client.get("/").text
    assert "No traces yet" in text
    assert "spanwise demo" in text


def test_the_overview_covers_the_last_day_and_links_to_the_list(store, client):
    now = time.time_ns()
    store.append([run("now", start_ns=now), run("long ago", start_ns=now - 3 * 86_400 * 10**9)])
    assert '<p class="big">1</p>' in client.get("/").text
    assert '<p class="big">2</p>' in client.get("/?since=7d").text
    assert 'href="/traces"' in client.get("/").text


@pytest.mark.parametrize(
    "query", ["name=answer", "traffic=all", "latency_ms%3E5", "since=1h&feedback=a%3C1", "sort=-cost", "range=1h"]
)
def test_old_addresses_of_the_list_lead_there(client, query):
    answer = client.get(f"/?{query}", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, f"/traces?{query}")


@pytest.mark.parametrize("query", ["", "project=p", "environment=e&since=1h", "since=yesterday&until=2200-01-01"])
def test_what_both_pages_know_stays_on_the_overview(client, query):
    assert "<h1>Overview</h1>" in client.get(f"/?{query}", follow_redirects=False).text
