"""A trace that was opened from a list leads to its neighbours in that list, and back to its row."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest

from collector.making import SECOND, START, run
from spanwise.collector.records import Feedback, Target


def fill(store, count=6):
    """Traces of which two start at the same time; the slower, the later."""
    starts = [START + number // 2 * SECOND for number in range(count)]
    roots = [
        run(
            f"n{number}",
            trace_id=f"{number * 5 % 7 + 1:032x}",
            start_ns=start,
            end_ns=start + (number + 1) * SECOND,
            status=("ok", "error")[number == 2],
            inputs="depot" if number != 3 else "other",
        )
        for number, start in enumerate(starts)
    ]
    store.append(roots)
    store.add_feedback([Feedback(target=Target(trace_id=root.trace_id), key="k", score=0.5) for root in roots[:3]])


def list_rows(page: str) -> list[str]:
    return [address.replace("&amp;", "&") for address in re.findall(r'class="row-link" href="([^"]*)"', page)]


def follow(client, address: str, rel: str) -> list[str]:
    """The addresses of the traces that are reached from one by a link, until there is none."""
    reached = [address]
    while found := re.search(rf'rel="{rel}" href="([^"]*)"', client.get(address).text):
        address = found[1].replace("&amp;", "&")
        assert address not in reached, "a loop"
        reached.append(address)
    return reached


@pytest.mark.parametrize(
    "query",
    [
        "",
        "sort=start",
        "sort=-start",
        "sort=-latency_ms",
        "sort=errors",
        "sort=-feedback.k",
        "status=ok",
        "latency_ms>1000&sort=-tokens",
        "name!=n4&status=ok&sort=start",
    ],
)
def test_links_walk_the_list_in_its_order_in_both_directions(client, store, query):
    fill(store)
    rows = list_rows(client.get(f"/traces?{query}").text)
    assert len(rows) >= 4
    assert follow(client, rows[0], "next") == rows
    assert follow(client, rows[-1], "prev") == rows[::-1]


def test_the_list_may_have_more_pages(client, store):
    store.append([run(f"n{number}") for number in range(53)])
    first = client.get("/traces").text
    older = re.search(r'rel="next" href="([^"]*)"', first[first.index("pager") :])[1].replace("&amp;", "&")
    rows = list_rows(first) + list_rows(client.get(older).text)
    walked = follow(client, rows[48], "next")
    assert [address.split("?")[0] for address in walked] == [address.split("?")[0] for address in rows[48:]]


def test_the_way_back_leads_to_the_row_on_its_page(client, store):
    fill(store)
    row = list_rows(client.get("/traces?status=ok&sort=-latency_ms").text)[2]
    back = re.search(r'href="([^"]*)" data-back', client.get(row).text)[1].replace("&amp;", "&")
    trace_id = row.split("?")[0].rpartition("/")[2]
    assert back == f"/traces?status=ok&sort=-latency_ms#t-{trace_id}"
    assert f'<tr id="t-{trace_id}"' in client.get(back).text


def test_a_trace_that_the_list_does_not_have_has_no_neighbours(client, store):
    fill(store)
    other = run("other", status="error")
    store.append([other])
    for origin in (
        "status=ok",
        "status=ok&sort=-cost",
        "since=2100-01-01",
        "until=1971-01-01",
        "nonsense=1&sort=x",
        "=&&",
    ):
        answer = client.get(f"/traces/{other.trace_id}?{urlencode({'from': origin})}")
        assert answer.status_code == 200
        if "=ok" in origin or "since" in origin:
            assert 'rel="next"' not in answer.text


def test_links_inside_the_page_keep_the_list(client, store):
    fill(store)
    address = list_rows(client.get("/traces?status=ok").text)[0]
    page = client.get(address).text
    assert 'href="?run=' in page
    assert all("from=status%3Dok" in link for link in re.findall(r'href="\?run=([^"]*)"', page))
    assert '<input type="hidden" name="from" value="status=ok">' in page
    answer = client.post(
        f"{address.split('?')[0]}/feedback",
        data={"key": "k", "value": "1", "from": "status=ok"},
        follow_redirects=False,
    )
    assert answer.headers["location"].endswith("?from=status%3Dok#feedback")


def test_the_copied_link_of_a_run_has_no_list(client, store):
    fill(store)
    page = client.get(list_rows(client.get("/traces?status=ok").text)[0]).text
    copied = re.search(r'data-copy="(/traces/[^"]*)"', page)
    assert copied is None or "from=" not in copied[1]


def test_a_very_long_query_is_not_repeated_in_every_row(client, store):
    fill(store)
    query = urlencode({"name!": "x" * 2_000})
    rows = list_rows(client.get(f"/traces?{query}").text)
    assert rows
    assert all("from=" not in row for row in rows)
    assert client.get(f"/traces/{1:032x}?{urlencode({'from': 'name=' + 'x' * 10_000})}").status_code == 200


def test_hostile_queries_of_lists_are_escaped(client, store):
    fill(store)
    page = client.get(f"/traces/{1:032x}?{urlencode({'from': 'name=<script>alert(1)</script>&x=//evil'})}").text
    assert "<script>alert" not in page
    back = re.search(r'href="([^"]*)" data-back', page)[1]
    assert back.startswith("/traces?name=%3Cscript%3E")


def test_without_a_list_there_are_no_neighbours(client, store):
    fill(store)
    page = client.get(f"/traces/{1:032x}").text
    assert 'class="neighbours"' not in page
    assert '<a href="/traces" data-back>' in page
