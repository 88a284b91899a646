"""Overview page: charts over time, the period before, groups, and old addresses of the trace list."""

from __future__ import annotations

import html
import re
import time
from typing import Any

import pytest
from fastapi.testclient import TestClient

from collector.making import SECOND, child, run
from spanwise.collector.api import create_app
from spanwise.collector.operations import ProjectScopedStore
from spanwise.collector.pages.components.svg_charts import (
    TIME_CHART_WIDTH,
    Slot,
    choose_axis,
    make_bars,
    make_lines,
    round_up,
)
from spanwise.collector.pages.overview import overview_page
from spanwise.collector.records import Feedback, Run, Target, Usage

HOUR = 3_600 * SECOND
EVIL = "<script>alert(1)</script>\u202e\"'&k=<0.5"


def ago(hours: float, **fields: Any) -> Run:
    """A trace that began some hours ago, two seconds long."""
    start = time.time_ns() - int(hours * HOUR)
    return run(**{"start_ns": start, "end_ns": start + 2 * SECOND, **fields})


def score(root: Run, key: str, value: Any = None, **fields: Any) -> Feedback:
    if isinstance(value, str):
        fields["label"] = value
    elif value is not None:
        fields["score"] = value
    return Feedback(target=Target(trace_id=root.trace_id), key=key, **fields)


def section(text: str, label: str) -> str:
    """The panel with this title."""
    return text.partition(f'<section class="plot" aria-label="{label}">')[2].partition("</section>")[0]


def links(text: str) -> dict[str, str]:
    """Addresses of links by their visible text."""
    found = re.findall(r'<a(?: class="\w+")? href="([^"]+)"[^>]*>(.*?)</a>', text, re.DOTALL)
    return {re.sub(r"<[^>]+>", "", shown).strip(): html.unescape(address) for address, shown in found}


def listed(client: Any, address: str) -> int:
    """How many traces the list at an address has."""
    answer = client.get(address)
    assert answer.status_code == 200, address
    return int(answer.text.count("row-link"))


# --- Addresses --------------------------------------------------------------------------------------------------------


def test_a_new_store_says_what_to_do(client):
    text = client.get("/").text
    assert "No traces yet" in text
    assert "spanwise demo" in text


@pytest.mark.parametrize(
    "query", ["name=answer", "traffic=all", "latency_ms%3E5", "since=1h&feedback=a%3C1", "sort=-cost", "range=1h"]
)
def test_old_addresses_of_the_list_lead_there(client, query):
    answer = client.get(f"/?{query}", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, f"/traces?{query}")


@pytest.mark.parametrize(
    "query", ["", "project=p", "environment=e&since=1h", "since=yesterday&until=2200-01-01", "group=model&key=k"]
)
def test_what_both_pages_know_stays_on_the_overview(client, query):
    assert "<h1>Overview</h1>" in client.get(f"/?{query}", follow_redirects=False).text


def test_a_group_or_time_that_makes_no_sense_is_said_above_the_charts(store, client):
    store.append([ago(1)])
    for query, words in (("group=nothing", "unknown group"), ("since=soon", "since must be a date or time")):
        page = client.get(f"/?{query}")
        assert (page.status_code, words in page.text, 'aria-label="Traces"' in page.text) == (422, True, True)


# --- Time -------------------------------------------------------------------------------------------------------------


def test_the_overview_covers_the_time_that_is_asked_for(store, client):
    store.append(
        [ago(0.1), ago(5), ago(3 * 24), ago(20 * 24), run("judge", kind="evaluator"), ago(1, experiment_id="e")]
    )
    for since, count in (("1h", "1"), ("24h", "2"), ("7d", "3"), ("30d", "4")):
        assert count in links(section(client.get(f"/?since={since}").text, "Traces"))


def test_without_a_choice_the_time_is_the_shortest_that_has_traces(store, client):
    store.append([ago(40 * 24)])
    text = client.get("/").text
    assert "No traces in this time" in text
    assert "40 d ago" in text
    for hours, label in ((20 * 24, "30 days"), (3 * 24, "7 days"), (2, "24 hours")):
        store.append([ago(hours)])
        assert f"selected>last {label}<" in client.get("/").text


def test_times_that_are_typed_are_kept_and_exact(store, client):
    store.append([run(start_ns=1_767_225_600 * SECOND + n * 60 * SECOND) for n in range(10)])  # 2026-01-01T00:00:00Z
    text = client.get("/?since=2026-01-01T00:02&until=2026-01-01T00:05").text
    assert 'name="since" value="2026-01-01T00:02"' in text
    assert listed(client, links(section(text, "Traces"))["3"]) == 3


@pytest.mark.parametrize(
    "query",
    ["since=2262-04-11", "until=1970-01-01", "since=1677-09-22", "since=2026-01-01&until=2026-01-01T00:00:00.5"],
)
def test_times_at_the_ends_of_the_calendar_are_no_server_error(store, client, query):
    store.append([run(start_ns=1), run(start_ns=2**63 - 2, end_ns=2**63 - 1), ago(1)])
    assert client.get(f"/?{query}&group=model").status_code in (200, 400, 422)


def test_times_are_in_the_zone_of_the_reader(store, client):
    store.append([run(start_ns=1_767_225_600 * SECOND)])  # 2026-01-01T00:00:00Z
    client.cookies.set("spanwise-zone", "Asia%2FTokyo")
    text = client.get("/?since=2026-01-01T08:00&until=2026-01-01T10:00").text
    assert "1 Jan 09:00 – 09:05" in text
    assert "since=2026-01-01T09%3A00%2B09%3A00" in text


# --- Numbers and links ------------------------------------------------------------------------------------------------


def test_every_number_leads_to_the_traces_that_it_counts(store, client):
    roots = [ago(n + 0.5, status="error" if n % 4 == 0 else "ok", error="E" if n % 4 == 0 else None) for n in range(12)]
    feedback = [score(root, "good", n % 3 == 0) for n, root in enumerate(roots[:9])]
    feedback += [score(roots[9], "good", outcome="error", error="x"), score(roots[10], "good", outcome="skip")]
    feedback += [score(root, "tone", "kind" if n else "curt") for n, root in enumerate(roots[:3])]
    store.append(roots, feedback)
    text = client.get("/?since=24h").text
    assert listed(client, links(section(text, "Traces"))["12"]) == 12
    assert listed(client, links(section(text, "Errors"))["3 failed"]) == 3
    good = section(text, "good")
    assert "33 %" in links(good)
    assert [listed(client, links(good)[name]) for name in ("n 9", "1 failed", "1 skipped")] == [9, 1, 1]
    assert listed(client, links(section(text, "tone: kind"))["67 %"]) == 2


def test_a_bucket_leads_to_its_traces_and_its_data_are_in_a_table(store, client):
    store.append([ago(2.5, status="error", error="E"), ago(2.5), ago(5.5)])
    text = client.get("/?since=24h").text
    buckets = re.findall(r'<a href="([^"]+)" tabindex="-1"><rect[^>]*><title>([^<]*)', section(text, "Traces"))
    counts = [listed(client, html.unescape(address)) for address, _ in buckets]
    assert sorted(counts)[-2:] == [1, 2]
    assert [int(title.strip().split("\n")[1]) for _, title in buckets] == counts
    table = text.partition("Data of the charts</summary>")[2].partition("</details>")[0]
    assert table.count("<tr>") == len(buckets) + 1
    assert listed(client, links(table)["50 %"]) == 1


def test_p50_p95_and_p99_are_apart(store, client):
    start = time.time_ns() - HOUR
    store.append([run(start_ns=start + n, end_ns=start + n + n * SECOND // 100) for n in range(1, 101)])
    latency = section(client.get("/").text, "Latency")
    assert [name for name in ("500 ms", "950 ms", "990 ms") if name in links(latency)] == ["500 ms", "950 ms", "990 ms"]
    assert latency.count('class="line dot') == 3  # one bucket: no line


def test_tokens_and_cost_appear_where_there_are_any(store, client):
    store.append([ago(1)])
    assert 'aria-label="Tokens"' not in client.get("/").text
    root = ago(1)
    store.append([root, child(root, kind="llm", model="m", usage=Usage(900, 100), cost=0.25)])
    text = client.get("/").text
    assert "1,000" in links(section(text, "Tokens"))
    assert "$0.25" in links(section(text, "Cost"))


def test_a_chart_has_gaps_where_there_are_no_traces(store, client):
    store.append([ago(hours) for hours in (1.5, 2.5, 6.5, 7.5, 12.5)])
    latency = section(client.get("/?since=24h").text, "Latency").partition("plot-box")[2]
    line = re.search(r'class="line l1" d="([^"]*)"', latency).group(1)
    dots = re.search(r'class="line dot l1" d="([^"]*)"', latency).group(1)
    assert (line.count("M"), line.count("L"), dots.count("h0")) == (2, 2, 1)


def test_four_hundred_keys_have_a_table_and_one_of_them_a_chart_on_demand(store, client):
    root = ago(1)
    store.append([root], [score(root, f"key-{n:03}", 0.5) for n in range(400)])
    text = client.get("/").text
    assert text.count('<section class="plot"') == 3 + overview_page.MAX_KEY_CHARTS
    assert "All 400 keys" in text
    chosen = links(text.partition("All 400 keys")[2])["key-321"]
    assert 'aria-label="key-321"' in client.get(chosen).text


# --- The period before ------------------------------------------------------------------------------------------------


def fill_two_days(store: Any) -> None:
    """A hundred traces a day; today more fail, are slower and are helpful."""
    roots, feedback = [], []
    for n in range(200):
        today = n >= 100
        fails = n % 5 == 0 if today else n % 50 == 0
        root = ago(
            23.5 - n % 100 / 10 + (0 if today else 24), status="error" if fails else "ok", error="E" if fails else None
        )
        root = run(start_ns=root.start_ns, end_ns=root.start_ns + (4 if today else 2) * SECOND, status=root.status)
        roots.append(root)
        feedback.append(score(root, "helpful", n % 10 != 0 if today else n % 2 == 0))
    store.append(roots, feedback)


def test_differences_have_a_sign_and_name_the_period(store, client):
    fill_two_days(store)
    text = client.get("/?since=24h").text
    assert "compared with the 24 hours before" in text
    assert "+18 points" in section(text, "Errors")
    assert "+100 %" in section(text, "Latency")
    assert "+40 points" in section(text, "helpful")
    assert "±0 %" in section(text, "Traces")


def test_what_changed_most_stands_first_and_leads_to_both_periods(store, client):
    fill_two_days(store)
    changes = client.get("/?since=24h").text.partition('class="changes"')[2].partition("</section>")[0]
    rows = re.findall(r"<tr><th scope=\"row\">.*?</tr>", changes, re.DOTALL)
    assert [re.sub(r"<[^>]+>", "", row).split()[0] for row in rows] == ["Errors", "p50", "helpful"]
    assert "worse" in rows[0]
    assert "worse" not in rows[2]
    assert [listed(client, address) for address in links(rows[0]).values()] == [2, 20]


def test_a_period_without_traces_before_it_is_not_compared(store, client):
    store.append([ago(1)])
    text = client.get("/?since=24h").text
    assert "There are no traces in the 24 hours before" in text
    assert 'class="difference"' not in text


def test_small_differences_are_not_notable(store, client):
    store.append([ago(hours / 4) for hours in range(4, 190)])
    assert "Nothing has changed notably" in client.get("/?since=24h").text


def test_more_traces_than_are_counted_are_not_compared(store, client, monkeypatch):
    monkeypatch.setattr(overview_page, "MAX_COUNTED_TRACES", 3)
    store.append([ago(0.1 + n / 100) for n in range(9)])
    text = client.get("/?since=1h").text
    assert "Only the newest 3 traces of this time are counted" in text
    assert 'class="difference"' not in text


# --- Groups -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "name"),
    [
        *(("project", "shop"), ("environment", "prod"), ("name", "summarize"), ("model", "gpt-5"), ("tag", "beta")),
        *(("user", "u-1"), ("version", "2.1"), ("prompt", "greet@v2")),
    ],
)
def test_groups_lead_to_their_traces(store, client, group, name):
    for n in range(4):
        fields: dict[str, Any] = {"user_id": "u-2"}
        if n < 3:
            fields = {"project": "shop", "environment": "prod", "name": "summarize", "tags": ("beta", "x")}
            fields |= {"user_id": "u-1", "resource": {"service.version": "2.1"}, "prompt_name": "greet"}
            fields |= {"prompt_version": "v2", "model": "gpt-5", "kind": "llm", "usage": Usage(1, 1)}
        store.append([ago(n + 1, **fields)])
    table = client.get(f"/?since=24h&group={group}").text.partition('class="by-group"')[2]
    assert links(table)[name].startswith("/traces?")
    assert listed(client, links(table)[name]) == 3
    row = re.search(rf">{name}</a>.*?</tr>", table, re.DOTALL).group()
    assert listed(client, links(row)["3"]) == 3


def test_feedback_of_a_group_leads_to_the_traces_of_the_group(store, client):
    roots = [ago(n + 1, user_id="ann" if n < 3 else "bob") for n in range(5)]
    store.append(roots, [score(root, "good", 0.25) for root in roots[1:]])
    table = client.get("/?since=24h&group=user").text.partition('class="by-group"')[2]
    row = re.search(r">ann</a>.*?</tr>", table, re.DOTALL).group()
    assert listed(client, links(row)["0.25"]) == 2


def test_groups_are_compared_and_may_be_what_changed_most(store, client):
    for n in range(100):
        store.append(
            [ago(n % 20 + (25 if n < 90 else 0), user_id="ann"), ago(n % 20 + (25 if n % 2 else 0), user_id="bob")]
        )
    text = client.get("/?since=24h&group=user").text
    assert "−89 %" in text.partition('class="by-group"')[2]
    assert ">ann</bdi>" in text.partition('class="changes"')[2].partition("</section>")[0]


def test_a_group_that_changed_like_all_traces_does_not_stand_out(store, client):
    for n in range(400):
        start = time.time_ns() - (n % 20 + (25 if n < 200 else 1)) * HOUR
        seconds = 2 if n < 200 else 4
        store.append([run(start_ns=start, end_ns=start + seconds * SECOND, user_id=f"u{n % 2}")])
    changes = client.get("/?since=24h&group=user").text.partition('class="changes"')[2].partition("</section>")[0]
    assert changes.count('<th scope="row">') == 1
    assert "+100 %" in changes


def test_groups_that_need_too_many_traces_say_so(store, client, monkeypatch):
    monkeypatch.setattr(overview_page, "MAX_GROUPED_TRACES", 5)
    store.append([ago(n / 4, tags=("t",)) for n in range(1, 20)])
    text = client.get("/?since=24h&group=tag").text
    assert "Groups by tag are counted among the newest 5 traces" in text
    assert 'class="difference"' not in text.partition('class="by-group"')[2]


def test_only_the_largest_groups_are_shown(store, client):
    store.append([ago(1, project=f"p{n:02}") for n in range(30)])
    text = client.get("/?group=project").text
    assert "12 groups with the most traces, of 30" in text
    assert text.partition('class="by-group"')[2].partition("</table>")[0].count("<tr>") == 13


def test_traces_without_a_value_are_a_group_without_a_link(store, client):
    store.append([ago(1)])
    assert '<span class="muted">none</span>' in client.get("/?group=user").text


# --- Untrusted content and other projects -----------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["model", "name", "tag", "user", "version", "prompt", "project", "environment"])
def test_hostile_names_stay_text(store, client, group):
    labels = {"project": EVIL, "environment": EVIL, "user_id": EVIL, "tags": (EVIL,), "model": EVIL, "kind": "llm"}
    labels |= {"prompt_name": EVIL, "prompt_version": EVIL, "resource": {"service.version": EVIL}}
    root = ago(1, name=EVIL, **labels)
    store.append([root], [score(root, EVIL, 0.5), score(root, "label", EVIL)])
    text = client.get("/", params={"group": group, "key": EVIL}).text
    assert "<script>alert" not in text
    assert "\u202e" not in text
    assert "⟨U+202E⟩" in text
    assert listed(client, next(iter(links(text.partition('class="by-group"')[2]).values()))) == 1


def test_a_key_of_one_project_sees_nothing_of_others(store, client):
    store.append([ago(1, project="p"), ago(1, project="q", name="secret", tags=("secret",), environment="secret")])
    with TestClient(create_app(ProjectScopedStore(store, "p"))) as scoped:
        for group in overview_page.GROUPS:
            text = scoped.get(f"/?group={group}").text
            assert "1" in links(section(text, "Traces"))
            assert "secret" not in text


# --- Charts -----------------------------------------------------------------------------------------------------------

SLOTS = [Slot(n * TIME_CHART_WIDTH / 4, TIME_CHART_WIDTH / 4) for n in range(4)]


@pytest.mark.parametrize(
    ("value", "round_value"),
    [(0, 0), (-1, 0), (0.03, 0.04), (1, 1), (3, 4), (4, 4), (4.1, 6), (7, 8), (9, 10), (101, 200), (0.1 + 0.2, 0.4)],
)
def test_axes_end_at_round_numbers(value, round_value):
    assert round_up(value) == pytest.approx(round_value)


def test_an_axis_reaches_below_zero_only_where_values_do():
    assert choose_axis(0.2, 3.1) == (0.0, 4.0)
    assert choose_axis(-5, 3) == (-6.0, 4.0)
    assert choose_axis(0, 0) == (0.0, 1.0)
    assert choose_axis(0, 1, smallest=2) == (0.0, 2.0)


def test_a_bar_above_zero_is_visible_and_an_empty_bucket_has_none():
    bars = make_bars(SLOTS, [0, 1e-9, 100, None], (0.0, 100.0)).bars
    assert re.findall(r"v-([\d.]+)", bars) == ["1.5", "100.0"]


def test_a_line_breaks_at_gaps_and_single_values_are_dots():
    chart = make_lines(SLOTS, [[1, 2, None, 4]], (0.0, 4.0))
    assert chart.lines == ["M125.0 75.0L375.0 50.0"]
    assert chart.dots == ["M875.0 0.0h0"]
    assert chart.axis == (0.0, 2.0, 4.0)
