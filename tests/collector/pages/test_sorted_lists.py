"""Every list is sorted by its numeric columns, with links in its head."""

from __future__ import annotations

import re

import pytest

from collector.making import SECOND, START, run
from collector.pages.scene import experiment
from collector.ruled import monitored
from spanwise.collector.pages.components.filter_form import SortLinks
from spanwise.collector.records import Example, Rule, Usage


def heads(page: str) -> dict[str, str]:
    """The address of each sortable head by the column it sorts by."""
    found = re.findall(r'class="sort" href="([^"]*)" title="Sort by ([^"]*)"', page)
    return {column: address.replace("&amp;", "&") for address, column in found}


def texts(page: str, pattern: str) -> list[str]:
    return re.findall(pattern, page)


@pytest.mark.parametrize(
    ("order", "toggled", "direction"),
    [("-cost", "cost", "descending"), ("cost", "-cost", "ascending"), ("-start", "-cost", "")],
)
def test_a_head_sorts_highest_first_and_then_reverses(order, toggled, direction):
    links = SortLinks(order, lambda new: new)
    assert (links.toggle("cost"), links.direction("cost")) == (toggled, direction)


def test_sessions(client, store):
    for name, count, seconds in (("short", 1, 1), ("long", 3, 9)):
        store.append(
            [
                run(
                    "a", session_id=name, usage=Usage(count, 1), end_ns=START + seconds * SECOND, start_ns=START + place
                )
                for place in range(count)
            ]
        )
    page = client.get("/sessions").text
    assert set(heads(page)) == {"traces", "errors", "tokens", "cost", "duration_ms", "start"}
    for column, address in heads(page).items():
        names = texts(client.get(address).text, r'class="row-link text" href="/sessions/(\w+)"')
        assert sorted(names) == ["long", "short"]
        if column in ("traces", "tokens", "duration_ms"):
            assert names == ["long", "short"]
            assert texts(
                client.get(heads(client.get(address).text)[column]).text, r'row-link text" href="/sessions/(\w+)'
            ) == [
                "short",
                "long",
            ]


def test_the_order_of_sessions_survives_their_filter(client, store):
    store.append([run("a", session_id="s")])
    assert '<option value="-traces" selected>' in client.get("/sessions?sort=-traces").text


def test_sessions_and_traces_of_a_user_are_sorted_apart(client, store):
    for name, count in (("dear", 3), ("cheap", 1)):
        store.append(
            [run(name, user_id="u", session_id=name, usage=Usage(count, 1), cost=float(count)) for _ in range(count)]
        )
    page = client.get("/users/u?sort=cost&sort_sessions=-cost").text
    assert texts(page, r'href="/sessions/(\w+)"') == ["dear", "cheap"]
    assert texts(page, r'href="/traces/\w+" dir="auto">(\w+)') == ["cheap", "dear", "dear", "dear"]
    assert 'href="?sort=-cost&amp;sort_sessions=-cost" title="Sort by cost"' in page
    assert 'href="?sort=cost&amp;sort_sessions=cost" title="Sort by cost"' in page
    assert client.get("/users/u?sort=size").status_code == 400
    assert "Latest traces" in client.get("/users/u").text


def test_the_order_of_a_user_is_kept_in_the_complete_list(client, store):
    store.append([run("a", user_id="u") for _ in range(11)])
    assert 'href="/traces?user=u&amp;traffic=all">All traces' in client.get("/users/u").text
    assert 'href="/traces?user=u&amp;traffic=all&amp;sort=-cost">All traces' in client.get("/users/u?sort=-cost").text


def test_datasets(client, store):
    store.save_examples("few", [Example(inputs="a")])
    store.save_examples("many", [Example(inputs=str(number)) for number in range(3)])
    links = heads(client.get("/datasets").text)
    assert set(links) == {"examples", "version", "created"}
    assert texts(client.get(links["examples"]).text, r'row-link" href="/datasets/(\w+)"') == ["many", "few"]
    assert client.get("/datasets?sort=size").status_code == 400


@pytest.fixture
def experiments(store):
    for name, scores in (("low", (0.0, 0.2)), ("high", (1.0, 0.9)), ("none", (None, None))):
        experiment(store, name, scores)
    return store


EXPERIMENT_NAMES = r'<a href="/experiments/id-(\w+)"'


def test_experiments_by_a_key(client, experiments):
    links = heads(client.get("/experiments").text)
    assert {"feedback.exact", "runs", "p50_ms", "p95_ms", "cost", "start"} <= set(links)
    page = client.get(links["feedback.exact"]).text
    assert texts(page, EXPERIMENT_NAMES) == ["high", "low", "none"]
    assert texts(client.get(heads(page)["feedback.exact"]).text, EXPERIMENT_NAMES) == ["low", "high", "none"]


@pytest.mark.parametrize(
    "column", ["start", "duration_ms", "examples", "runs", "errors", "p50_ms", "p95_ms", "tokens", "cost"]
)
def test_experiments_by_every_number(client, experiments, column):
    for sign in ("", "-"):
        page = client.get(f"/experiments?sort={sign}{column}").text
        assert sorted(texts(page, EXPERIMENT_NAMES)) == ["high", "low", "none"]
    assert client.get("/experiments?sort=size").status_code == 400


def test_the_dataset_stays_when_experiments_are_sorted(client, experiments):
    links = heads(client.get("/experiments?dataset=sequences").text)
    assert links["cost"] == "/experiments?dataset=sequences&sort=-cost"


def test_results_of_an_experiment(client, experiments):
    links = heads(client.get("/experiments/id-low").text)
    assert set(links) == {"exact", "latency"}
    shown = texts(client.get(links["exact"]).text, r'data-key="exact">.*?<span class="value">([^<]*)<')
    assert shown == ["0.2", "0"]


def test_rules(client, store):
    monitored(store)
    store.save_rule(Rule(name="idle", version="1", evaluators=()))
    names = r'<h2 id="rule-\d+"><a href="/rules/(\w+)'
    by_name = texts(client.get("/rules").text, names)
    assert by_name == sorted(by_name)
    for order in ("-scored", "-failed", "-behind", "-lag_s", "-rate"):
        assert sorted(texts(client.get(f"/rules?sort={order}").text, names)) == by_name
    assert texts(client.get("/rules?sort=-scored").text, names)[0] == "short"
    assert client.get("/rules?sort=colour").status_code == 400
