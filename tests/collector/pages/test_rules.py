"""The page of rules, the page of one rule, and why on a trace's page."""

from __future__ import annotations

import html
import re
import time
from dataclasses import replace
from hashlib import sha256

import httpx
import pytest

from collector.deciding import on, ruled, slice, traced
from collector.ruled import done, monitored, taken, told
from spanwise.collector.records import Feedback, Key, RuleSettings, Stratum, Target
from spanwise.collector.server import Server
from spanwise.collector.statistics import get_sampling_position


def page(client, address):
    answer = client.get(address)
    assert answer.status_code == 200, answer.text
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.text)), answer.text


def test_without_rules_it_says_how_to_write_one(client):
    text, _ = page(client, "/rules")
    for words in ("No rules yet", "monitor(", "spanwise monitor rules.py"):
        assert words in html.unescape(text)


def test_each_rule_has_its_funnel(store, client):
    monitored(store)
    text, _ = page(client, "/rules")
    for words in ("arrived 10", "pass the filter 8", "sampled 5", "scored 2", "waiting 1", "failed 1", "1 worker"):
        assert words in text


def test_the_mean_is_the_weighted_one(store, client):
    monitored(store)
    text, _ = page(client, "/rules")
    assert re.search(r"concise 50 % too few 2 2 1 1 0 ", text)


def scored(store, count, rate=0.5):
    ruled(store, name="short")
    heads = traced(store, count, start_ns=time.time_ns() - 7_200 * 10**9)
    taken(store, "short", heads, rate=rate)
    done(store, "short", *[("scored", number % 4 > 0) for number in range(count)])
    return heads


def test_a_rule_shows_its_scores_over_time_with_a_band(store, client):
    scored(store, 40)
    text, source = page(client, "/rules/short")
    assert re.search(r"concise 75 % 95 %: [56]\d % to 8\d %, effective n 40, 0 failed, 0 skipped, 0 left out", text)
    assert 'class="band"' in source
    assert "uncertain" not in source


def test_a_mean_of_too_few_scores_has_no_band(store, client):
    scored(store, 8)
    for address in ("/rules/short", "/?since=24h"):
        text, source = page(client, address)
        assert "too few, effective n 8" in text
        assert 'class="band"' not in source
        assert 'class="line dot uncertain"' in source


@pytest.mark.parametrize("quantity", ["p5", "p50", "p95"])
def test_a_rule_shows_percentiles(store, client, quantity):
    scored(store, 40)
    text, _ = page(client, f"/rules/short?quantity={quantity}&range=7d")
    assert re.search(r"concise [01] 95 %: [01] to [01], effective n 40", text)


def test_a_rule_without_scores_in_a_time_says_so(store, client):
    ruled(store, name="short")
    assert "Scores over time" not in page(client, "/rules/short")[0]
    assert "No scores in this time" in page(client, "/rules/short?range=30d")[0]
    assert client.get("/rules/short?range=2d").status_code == 400
    assert client.get("/rules/short?quantity=p1").status_code == 400


def test_the_mean_of_a_judge_is_shown_next_to_its_corrected_mean(store, client):
    heads = scored(store, 40)
    rows = [replace(row, source="model", version="v") for row in store.feedbacks(key="concise")]
    store.add_feedback(rows)
    labels = [
        Feedback(target=row.target, key="concise", score=row.score, source="human", author="ann") for row in rows[:30]
    ]
    store.add_feedback([replace(label, metadata={"probability": 0.75}) for label in labels])
    assert len(heads) == 40
    text, _ = page(client, "/rules/short")
    assert "Mean of human labels:" in text
    assert "30 labels" in text


def test_numbers_lead_to_traces(store, client):
    monitored(store)
    _, source = page(client, "/rules")
    links = [html.unescape(link) for link in re.findall(r'href="(/[^"]*)"', source)]
    for address in ("/traces?project=default&name=answer", "/rules/short?project=default&verdict=waiting"):
        assert address in links
    for address in links:
        assert client.get(address).status_code == 200


def test_last_errors_are_shown_and_do_nothing(store, client):
    monitored(store)
    text, source = page(client, "/rules")
    assert "ValueError: &lt;no&gt;" in text
    assert "<no>" not in source
    assert "bad <b>" not in source


def test_what_workers_say_is_shown(store, client):
    monitored(store)
    text, _ = page(client, "/rules")
    for words in (
        "2.5 finished and 0 decided per second",
        "25 % of 4 evaluations by the running workers failed, p95 200 ms",
        "here/1, seen just now",
    ):
        assert words in text


def test_a_rule_that_nobody_runs_says_so(store, client):
    ruled(store, name="short")
    traced(store)
    text, _ = page(client, "/rules")
    for words in ("no worker runs this rule", "1 change behind"):
        assert words in text


def test_a_worker_that_idles_says_why(store, client):
    ruled(store, name="short")
    told(store, "short", idle="paused: failed 20 times in a row")
    text, _ = page(client, "/rules")
    assert "1 worker, idle" in text
    assert "paused: failed 20 times in a row" in text


def test_what_is_spent_of_a_budget(store, client):
    ruled(store, name="short", settings=RuleSettings(budget={"usd_per_day": 5.0}))
    text, _ = page(client, "/rules")
    assert "$0.00 of $5.00 per day" in text


def test_rules_of_one_project(store, client):
    ruled(store, name="short")
    ruled(store, name="long", project="other")
    text, _ = page(client, "/rules?project=other")
    assert "long" in text
    assert "short" not in text


@pytest.mark.process
def test_a_rule_shows_what_it_decided(store, client):
    monitored(store)
    text, _ = page(client, "/rules/short")
    assert text.count("scored") >= 3
    text, _ = page(client, "/rules/short?verdict=failed")
    assert "ValueError: &lt;no&gt;" in text
    assert "counts as 2 traces in weighted means" in text


def test_more_decisions_are_a_page_away(store, client):
    ruled(store, name="short")
    taken(store, "short", traced(store, 60))
    _, source = page(client, "/rules/short?verdict=waiting")
    (older,) = re.findall(r'rel="next" href="([^"]*)"', source)
    _, source = page(client, html.unescape(older))
    assert source.count("row-link") == 10


def test_a_rule_or_verdict_that_there_is_not(store, client):
    ruled(store, name="short")
    assert client.get("/rules/none").status_code == 404
    assert client.get("/rules/short?verdict=filtered").status_code == 400


def test_a_rule_of_any_name_has_a_page(store, client):
    for name in ("a/b", "ü ?#&", "<b>", "x" * 300):
        ruled(store, name=name)
    _, source = page(client, "/rules")
    for address in set(re.findall(r'href="(/rules/[^"]*)"', source)):
        assert client.get(html.unescape(address)).status_code == 200


def test_a_trace_says_why_it_was_filtered_out(store, client):
    ruled(store, name="short", filter={"name": "other"})
    [head] = traced(store)
    text, _ = page(client, f"/traces/{head.trace_id}")
    for words in ("short filtered", "wants &#39;other&#39;", "name &#39;other&#39; &#39;answer&#39; no"):
        assert words in text


def test_a_trace_says_that_it_is_not_in_the_sample(store, client):
    ruled(store, name="short", settings=RuleSettings(sample_rate=0.0))
    [head] = traced(store)
    text, _ = page(client, f"/traces/{head.trace_id}")
    assert "short sampled out Sampled out: 0 % of traces are sampled, this one was not." in text
    assert re.search(r"Sample: u 0\.\d+ is not below 0", text)


def test_a_trace_shows_errors_and_when_it_is_tried_next(store, client):
    ruled(store, name="short")
    taken(store, "short", traced(store, 2))
    failed, waits = (
        *done(store, "short", ("failed", "ValueError: <no>")),
        *done(store, "short", ("throttled", "429 of the judge"), again_s=60),
    )
    text, _ = page(client, f"/traces/{failed.target.trace_id}")
    assert "concise failed: ValueError: &lt;no&gt;" in text
    text, _ = page(client, f"/traces/{waits.target.trace_id}")
    for words in ("throttled", "429 of the judge", "next attempt in 59."):
        assert words in text


def test_a_trace_that_was_skipped_says_where_its_sender_is_looked_at(store, client):
    ruled(store, name="short")
    taken(store, "short", traced(store))
    [skipped] = done(store, "short", ("skipped", "no documents"))
    text, _ = page(client, f"/traces/{skipped.target.trace_id}")
    assert f"spanwise doctor --where trace_ids={skipped.target.trace_id}" in text


def test_a_trace_whose_project_has_no_rules_names_the_projects_that_have_some(store, client):
    ruled(store, name="short", project="shop")
    [head] = traced(store)
    text, _ = page(client, f"/traces/{head.trace_id}")
    words = "project 'default' of the trace has no rules; the rules of this store are in project 'shop'"
    assert words in html.unescape(text)


def test_a_trace_without_rules_says_nothing_of_them(store, client):
    [head] = traced(store)
    assert 'id="rules"' not in client.get(f"/traces/{head.trace_id}").text


def test_a_rule_over_senders_without_sampling_information_shows_its_plain_mean_as_unweighted(store, client):
    ruled(store, name="short")
    heads = traced(store, 2)
    rows = (on(head, rule="short", probability=None) for head in heads)
    store.decide(replace(slice(*rows, upto=heads[-1].cursor), rule="short"))
    done(store, "short", ("scored", 1.0), ("scored", 0.5))
    text, _ = page(client, "/rules")
    assert "concise – 0.75 unweighted" in text


@pytest.mark.process
def test_the_page_of_a_rule_pauses_resumes_and_removes_it(store, client):
    ruled(store, name="a/b")
    _, source = page(client, "/rules/a/b")
    assert 'value="pause"' in source
    answer = client.post("/rules/a/b", data={"project": "default", "action": "pause"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/rules/a%2Fb?project=default")
    text, source = page(client, "/rules/a/b")
    assert ("paused" in text, 'value="resume"' in source) == (True, True)
    client.post("/rules/a/b", data={"project": "default", "action": "resume"})
    assert [rule.enabled for rule in store.rules()] == [True]
    client.post("/rules/a/b", data={"project": "default", "action": "remove"})
    assert store.rules() == []


@pytest.mark.parametrize(
    ("name", "action", "status"), [("short", "stop", 400), ("none", "pause", 404), ("none", "remove", 404)]
)
def test_an_unknown_action_or_rule_changes_nothing(store, client, name, action, status):
    ruled(store, name="short")
    answer = client.post(f"/rules/{name}", data={"project": "default", "action": action})
    assert answer.status_code == status
    assert [rule.enabled for rule in store.rules()] == [True]


def test_the_page_of_a_rule_shows_and_changes_its_backfills(store, client):
    ruled(store)
    traced(store, 3)
    job = store.start_backfill("r", since_ns=0)
    text, _ = page(client, "/rules/r")
    for words in ("Backfills", job.id, "no worker runs this rule", "0 % of the period read", "Cancel"):
        assert words in text
    token = re.search(r'name="token" value="([^"]+)"', client.get("/rules/r").text)
    fields = {"project": "default", "backfill": job.id, "token": token.group(1) if token else ""}
    for action, state in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
        answer = client.post("/rules/r", data={**fields, "action": action})
        assert answer.status_code in (200, 303), answer.text
        assert store.backfills()[0].state == state
    assert client.post("/rules/r", data={**fields, "action": "remove"}).status_code == 400
    assert store.rules()


def keyed(secret, **fields):
    return Key(id=secret, name=f"{secret}'s", sha256=sha256(secret.encode()).hexdigest(), **fields)


@pytest.mark.process
@pytest.mark.parametrize(
    ("fields", "may"),
    [
        ({"scopes": ("read", "write")}, True),
        ({"scopes": ("read", "write"), "project": "default"}, True),
        ({"scopes": ("read", "write"), "project": "other"}, False),
        ({"scopes": ("read",)}, False),
        ({"scopes": ("read", "ingest", "feedback", "admin")}, False),
    ],
)
def test_pausing_needs_a_key_that_may_change_rules(store, fields, may):
    ruled(store, name="short")
    ruled(store, name="own", project="other")
    store.save_key(keyed("k", **fields))
    with Server(store, host="0.0.0.0") as server, httpx.Client(headers={"x-api-key": "k"}, timeout=60) as http:
        shown = http.get(f"{server.url}/rules/{'own' if fields.get('project') == 'other' else 'short'}?project=default")
        token = re.search(r'name="token" value="([^"]*)"', http.get(f"{server.url}/settings").text)
        assert ('value="pause"' in shown.text) is ("write" in fields["scopes"])
        body = {"token": token.group(1), "project": "default", "action": "pause"}
        answer = http.post(f"{server.url}/rules/short", data=body)
    assert answer.status_code == (303 if may else 404 if "write" in fields["scopes"] else 403)
    [rule] = store.rules(project="default")
    assert (rule.enabled, rule.paused_by) == ((False, "k's (127.0.0.1)") if may else (True, ""))


@pytest.mark.process
def test_the_page_says_who_paused_a_rule(store, client):
    ruled(store, name="short")
    with Server(store) as server:
        token = re.search(r'name="token" value="([^"]*)"', httpx.get(f"{server.url}/settings").text).group(1)
        body = {"token": token, "project": "default", "action": "pause"}
        assert httpx.post(f"{server.url}/rules/short", data=body).status_code == 303
    for address in ("/rules/short", "/rules"):
        assert re.search(r"paused by 127\.0\.0\.1 \(without a key\) since \d{4}-", page(client, address)[0])


def test_strata_are_shown_with_filters_and_rates(store, client):
    strata = (Stratum(filter={"status": "error"}, rate=1.0), Stratum(filter={"feedback": [["up", "<", 0.5]]}, rate=0.5))
    ruled(store, name="short", filter={"name": "answer"}, settings=RuleSettings(sample_rate=0.1, strata=strata))
    text, source = page(client, "/rules/short")
    assert "1 status 'error' 100 % 2 feedback up < 0.5 50 % others no stratum 10 %" in html.unescape(text)
    links = [html.unescape(link) for link in re.findall(r'href="(/traces[^"]*)"', source)]
    assert "/traces?project=default&name=answer&status=error" in links
    for link in links:
        assert client.get(link).status_code == 200
    store.change_rule("short", settings={"paced": 0.5})
    text, _ = page(client, "/rules/short")
    assert "Paced by the budget" in text
    assert "1 status 'error' 100 % 50 %" in html.unescape(text)
    assert "others no stratum 10 % 5.0 %" in text


def test_decisions_have_the_names_and_scores_of_their_traces(store, client):
    heads = traced(store, 2, name="<i>answer")
    ruled(store, name="short")
    taken(store, "short", heads)
    done(store, "short", ("scored", True), ("failed", "ValueError: no"))
    foreign = Target(trace_id=heads[0].trace_id)
    store.add_feedback([Feedback(target=foreign, key="other", score=1.0, rule="another", source="code")])
    text, source = page(client, "/rules/short")
    assert text.count("&lt;i&gt;answer") == 2
    assert "<i>answer" not in source
    assert re.search(r"scored concise yes", text)
    assert re.search(r"failed concise error", text)
    assert "other" not in re.findall(r'class="key">([^<]*)<', source)


def test_traces_that_were_sampled_out_are_listed_with_the_reason(store, client):
    ruled(store, name="short", filter={"name": "answer"}, settings=RuleSettings(sample_rate=0.5))
    heads = traced(store, 60, name="answer") + traced(store, 3, name="else")
    out = {head.trace_id for head in heads if get_sampling_position(head.trace_id) >= 0.5 and head in heads[:60]}
    _, source = page(client, "/rules/short")
    address = html.unescape(re.search(r'href="([^"]*verdict=sampled_out)"', source).group(1))
    seen = []
    while address:
        text, source = page(client, address)
        seen += re.findall(r'href="/traces/(\w+)#rules"', source)
        assert re.search(r"u 0\.\d+ is not below the rate 0\.5", text)
        older = re.search(r'rel="next" href="([^"]*)"', source)
        address = html.unescape(older.group(1)) if older else ""
    assert (set(seen), len(seen)) == (out, len(out))


def test_a_rule_that_samples_everything_leaves_no_trace_out(store, client):
    ruled(store, name="short")
    traced(store, 3)
    assert "was sampled out" in page(client, "/rules/short?verdict=sampled_out")[0]


def test_a_key_of_one_project_sees_the_page_of_a_rule_of_sessions(store):
    ruled(store, name="talk", target="session")
    [head] = traced(store, 1, session_id="s")
    row = on(head, rule="talk", target=Target(session_id="s"))
    store.decide(replace(slice(row, upto=head.cursor), rule="talk"))
    store.save_key(keyed("k", scopes=("read",), project="default"))
    with Server(store, host="0.0.0.0") as server:
        answer = httpx.get(f"{server.url}/rules/talk", headers={"x-api-key": "k"}, timeout=60)
    assert answer.status_code == 200
    assert "/sessions/s" in answer.text
