"""Pages over feedback on documents, running traces, odd names, display preferences and empty stores."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Iterable
from hashlib import sha256

import httpx
import pytest

from collector.making import child, run
from collector.pages.odd_traces import OPEN_TRACE, odd_traces, running_agent
from collector.pages.scene import rag
from spanwise.collector.records import Document, Feedback, Key, OpenRun, Run, Target
from spanwise.collector.server import Server
from spanwise.collector.stores import Store
from spanwise.collector.stores.sqlite.rollups import aggregation

HOUR_NS = 3_600 * 10**9


def answered(store: Store, relevant: Iterable[float], **fields: object) -> Run:
    """Store an answer whose retrieved documents have these scores."""
    scores = list(relevant)
    root = run(inputs="Where is my parcel?", outputs="At the depot.", **fields)
    found = child(
        root, "retrieve", kind="retriever", documents=tuple(Document(f"passage {n}") for n in range(len(scores)))
    )
    store.append([root, found])
    on = [Target(trace_id=root.trace_id, span_id=found.span_id, document=n) for n in range(len(scores))]
    store.add_feedback(
        [Feedback(target=target, key="relevant", score=score) for target, score in zip(on, scores, strict=True)]
    )
    return root


def link_to(text: str, label: str) -> str:
    """Return the address of the link with this label."""
    return html.unescape(re.search(rf'href="([^"]+)"[^>]*>{label}<', text).group(1))


# --- Feedback on documents --------------------------------------------------------------------------------------------


def test_a_count_of_feedback_on_documents_links_to_the_traces_that_it_counts(store, client):
    low, high = answered(store, (0.2, 0.9)), answered(store, (0.8,))
    without = run("no documents")
    store.append([without])
    text = client.get("/traces").text
    assert "of documents" in text
    counted = client.get(link_to(text, "n 3")).text
    assert low.trace_id in counted
    assert high.trace_id in counted
    assert without.trace_id not in counted
    below = client.get(html.unescape(re.search(r'href="([^"]+document_feedback[^"]+0\.5)"', text).group(1))).text
    assert low.trace_id in below
    assert high.trace_id not in below


@pytest.mark.parametrize("bucket_ns", [None, HOUR_NS])
def test_feedback_on_documents_is_counted_apart_from_the_same_key_on_traces(store, bucket_ns):
    root = answered(store, (0.0, 0.5), start_ns=time.time_ns() // HOUR_NS * HOUR_NS - 5 * HOUR_NS)
    store.add_feedback([Feedback(target=Target(trace_id=root.trace_id), key="relevant", score=1.0)])
    (bucket,) = store.aggregate(bucket_ns=bucket_ns)
    assert [(stats.target, stats.n, stats.mean) for stats in bucket.feedback] == [
        ("trace", 1, 1.0),
        ("document", 2, 0.25),
    ]


def test_a_session_shows_feedback_on_documents_as_theirs(store, client):
    answered(store, (0.0, 0.5), session_id="talk")
    text = client.get("/sessions/talk").text
    assert "relevant: mean 0.25 of 2 documents" in text
    assert 'class="chip' not in text


def test_a_list_shows_no_score_of_a_document_in_a_column_of_the_trace(store, client):
    answered(store, (0.0, 0.5))
    text = client.get("/traces").text
    assert 'data-key="relevant"' not in text


def test_a_rule_cannot_filter_by_feedback_on_documents(store):
    from spanwise.collector.errors import Refused
    from spanwise.collector.filters import Filter

    root = answered(store, (0.1,))
    with pytest.raises(Refused, match="rules have no condition on feedback of documents"):
        store.explain(root.trace_id, Filter(document_feedback=(("relevant", "<", 0.5),)))


# --- Judge calls and counts -------------------------------------------------------------------------------------------


def test_a_filter_that_only_judge_calls_pass_says_so_and_leads_to_them(store, client):
    store.append([run(), judge := run("polite", kind="evaluator", environment="judges")])
    text = client.get("/traces?environment=judges").text
    assert "calls of judges" in text
    assert judge.trace_id in client.get(link_to(text, "Show judge calls")).text


def test_the_menu_of_environments_has_none_that_only_judge_calls_have(store, client):
    store.append([run(environment="prod"), run("polite", kind="evaluator", environment="judges")])
    for address in ("/traces", "/", "/sessions"):
        text = client.get(address).text
        assert ("<option>prod</option>" in text, "<option>judges</option>" in text) == (True, False)


def test_matches_and_charts_of_a_time_range_are_counted_once(store, client, monkeypatch):
    start = time.time_ns() - 60 * 10**9
    store.append([run(start_ns=start + number) for number in range(55)])
    filters, compute = [], aggregation.compute_buckets
    monkeypatch.setattr(aggregation, "compute_buckets", lambda *given: filters.append(given[2]) or compute(*given))
    assert "<b>55 match</b>" in client.get("/traces?since=1h").text
    assert [bucket_ns is None for bucket_ns in filters] == [False, True]


def test_the_list_says_how_many_traces_match(store, client):
    store.append([run("a"), run("a"), run("b")])
    assert "<b>2 match</b>" in client.get("/traces?name=a").text
    store.append([run("a") for _ in range(60)])
    assert "<b>62 match</b>" in client.get("/traces?name=a").text


# --- Running traces ---------------------------------------------------------------------------------------------------


def test_a_running_trace_has_the_name_of_its_root_and_its_tools_have_a_parent(store, client):
    tool = running_agent(store)
    text = client.get(f"/traces/{OPEN_TRACE}").text
    assert "<title>agent of 12 s" in text
    assert re.search(r"<h1[^>]*>\s*agent of 12 s", text)
    assert "no parent" not in text
    assert text.index(">agent of 12 s</span>") < text.index(f"?run={tool.span_id}")
    assert 'class="what d1"' in text
    assert "data-running" in text


def test_the_list_names_a_running_trace_by_its_root(store, client):
    running_agent(store)
    text = client.get("/traces").text
    assert re.search(r'class="row-link"[^>]*>agent of 12 s<', text)
    assert ">first_tool<" not in text
    assert "of the tool" not in text


def test_a_running_trace_reloads_itself_without_javascript(store, client):
    running_agent(store)
    assert '<noscript><meta http-equiv="refresh"' in client.get(f"/traces/{OPEN_TRACE}").text


def test_an_open_run_is_a_row_without_a_link(store, client):
    tool = running_agent(store)
    text = client.get(f"/traces/{OPEN_TRACE}").text
    rows = re.search(r'<section class="tree".*?</section>', text, re.S)[0]
    assert re.findall(r"\?run=(\w+)", rows) == [tool.span_id]
    assert "open-run" in rows


def test_what_a_tool_was_asked_is_not_the_question_of_a_running_trace(store, client):
    running_agent(store)
    assert "Question" not in client.get(f"/traces/{OPEN_TRACE}").text


def test_the_address_of_an_open_run_shows_the_trace(store, client):
    running_agent(store)
    answer = client.get(f"/traces/{OPEN_TRACE}?run={'e' * 16}")
    assert answer.status_code == 200
    assert "of the tool" in answer.text


def test_a_call_whose_tool_still_runs_has_no_link(store, client):
    root = run("agent", kind="agent")
    calls = [{"id": "call-1", "function": {"name": "slow", "arguments": "{}"}}]
    asked = child(root, "ask", kind="llm", outputs={"role": "assistant", "tool_calls": calls})
    store.append([root, asked])
    slow = OpenRun(
        trace_id=root.trace_id, span_id="d" * 16, parent_id=root.span_id, name="slow", kind="tool", start_ns=root.end_ns
    )
    store.add_running([slow])
    answer = client.get(f"/traces/{root.trace_id}?run={asked.span_id}")
    assert answer.status_code == 200
    assert "Open its run" not in answer.text


# --- Odd names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["/", "/traces", "/sessions"])
def test_every_link_has_a_visible_text(store, client, address):
    odd_traces(store)
    for link in re.findall(r"<a\s[^>]*>(.*?)</a>", client.get(address).text, re.DOTALL):
        assert html.unescape(re.sub(r"<[^>]+>", "", link)).strip()


@pytest.mark.parametrize("name", [" ", "\u2800\u200b", "", "\u3164"])
def test_a_name_without_a_visible_character_is_called_that(store, client, name):
    store.append([run(name)])
    assert "(no name)" in client.get("/traces").text


def test_texts_of_others_have_their_own_direction(store, client):
    store.append([run("answer", inputs="سؤال", outputs="جواب")])
    assert client.get("/traces").text.count('dir="auto"') >= 3


# --- Filters ----------------------------------------------------------------------------------------------------------


def test_a_condition_is_negated(store, client):
    store.append([run("a"), run("b", session_id="s")])
    text = client.get("/traces?name!=a").text
    assert ">b</a>" in text
    assert ">a</a>" not in text
    assert ">a</a>" in client.get("/traces?session!=s").text  # a trace without a session is in no session s
    assert client.get("/traces?name-is=not&name=a").text.count("row-link") == 1


def test_several_conditions_on_feedback_are_kept_by_the_form(store, client):
    text = client.get("/traces?feedback=a<1&feedback_key=b&feedback_op=<&feedback_value=2").text
    assert '<input type="hidden" name="feedback" value="a&lt;1">' in text
    assert '<input type="hidden" name="feedback" value="b&lt;2">' in text


def test_yesterday_is_a_day_of_the_reader(store, client):
    noon = time.time_ns() // (24 * HOUR_NS) * 24 * HOUR_NS + 12 * HOUR_NS  # of today in UTC
    store.append([run("today", start_ns=noon), run("before", start_ns=noon - 24 * HOUR_NS)])
    text = client.get("/traces?since=yesterday").text
    assert (">before</a>" in text, ">today</a>" in text) == (True, False)
    client.cookies.set(
        "spanwise-zone", "Pacific%2FKiritimati"
    )  # 14 hours ahead of UTC, so noon is tomorrow's 2 o'clock
    ahead = client.get("/traces?since=today").text
    assert (">before</a>" in ahead, ">today</a>" in ahead) in ((True, True), (False, True))


def test_a_time_is_printed_in_the_zone_of_the_reader_or_in_utc(store, client):
    store.append([run("answer", start_ns=1_750_000_000 * 10**9)])
    assert "15 Jun 2025" in (text := client.get("/traces").text)
    assert 'datetime="2025-06-15T15:06:40.000+00:00"' in text
    assert "2025-06-15 15:06:40.000+00:00" in text
    client.cookies.set("spanwise-zone", "Asia%2FTokyo")
    assert "2025-06-16 00:06:40.000+09:00" in client.get("/traces").text
    client.cookies.set("spanwise-zone", "../../etc/passwd")
    assert "2025-06-15 15:06:40.000+00:00" in client.get("/traces").text


# --- Preferences ------------------------------------------------------------------------------------------------------


def test_preferences_are_remembered_and_lead_back(store, client):
    store.append([run(user_id="u-1")])
    form = {
        "density": "compact",
        "columns": "1",
        "column_user": "1",
        "column_latency": "1",
        "back": "/traces?name=answer",
    }
    answer = client.post("/preferences", data=form, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/traces?name=answer")
    text = client.get("/traces").text
    assert 'data-density="compact"' in text
    assert re.findall(r'<th scope="col" class="c-(\w+)"', text) == ["name", "user", "latency"]
    client.post("/preferences", data={"theme": "dark"})
    text = client.get("/traces").text
    assert 'data-theme="dark"' in text
    assert 'data-density="compact"' in text


@pytest.mark.parametrize("back", ["//evil.example", "https://evil.example", "/\\evil.example", ""])
def test_preferences_lead_to_no_other_server(client, back):
    answer = client.post("/preferences", data={"back": back}, follow_redirects=False)
    assert answer.headers["location"] == "/"


@pytest.mark.parametrize(
    "cookie", ["theme=<script>", "x" * 5000, "columns=nothing.here", "%FF%00", "density=compact&density=tall"]
)
def test_a_damaged_cookie_of_preferences_does_no_harm(store, client, cookie):
    store.append([run()])
    client.cookies.set("spanwise-view", cookie)
    assert client.get("/traces").status_code == 200


def test_the_choice_of_raw_values_keeps_the_other_preferences(store, client):
    root = run(outputs={"answer": "At the depot."})
    store.append([root])
    client.post("/preferences", data={"theme": "dark", "back": "/"})
    client.get(f"/traces/{root.trace_id}?view=raw")
    text = client.get(f"/traces/{root.trace_id}").text
    assert 'data-theme="dark"' in text
    assert 'class="raw"' in text


def test_the_side_bar_offers_the_projects_and_keeps_the_chosen_one(store, client):
    store.append([run(project="shop"), run(project="support")])
    text = client.get("/traces?project=shop").text
    assert "<option selected>shop</option>" in text
    assert 'href="/sessions?project=shop"' in text


def test_an_answer_in_markdown_is_rendered_in_a_session(store, client):
    store.append([run(session_id="talk", inputs="Why?", outputs="Two reasons:\n\n- **late** <b>van</b>\n- snow")])
    text = client.get("/sessions/talk").text
    assert "<strong>late</strong>" in text
    assert "<b>van</b>" not in text


# --- Users, errors, empty pages ---------------------------------------------------------------------------------------


def test_a_user_has_a_page_with_sessions_traces_feedback_and_cost(store, client):
    root = rag(store, session_id="talk", user_id="u 1")
    store.feedback(root.trace_id, "polite", 0.5)
    text = client.get("/users/u%201").text
    assert all(part in text for part in ("talk", "polite", "$0.002", root.trace_id))
    assert client.get("/users/nobody").status_code == 404
    assert 'href="/users/u%201"' in client.get("/sessions/talk").text


def test_a_session_shows_its_tools_and_goes_from_the_oldest_or_the_latest(store, client):
    first, second = (run(f"turn {n}", inputs=f"question {n}", session_id="talk") for n in (1, 2))
    store.append([first, child(first, "lookup_order", kind="tool"), second])
    text = client.get("/sessions/talk").text
    assert ">lookup_order</span>" in text
    assert text.index("question 1") < text.index("question 2")
    text = client.get("/sessions/talk?order=latest").text
    assert text.index("question 2") < text.index("question 1")


def test_an_empty_store_names_the_address_of_this_server(client):
    text = client.get("http://trace.example:5000/", headers={"Host": "localhost:5000"}).text
    assert "SPANWISE_URL=http://localhost:5000" in text
    assert "4318" not in text
    assert "data-wait" in text
    assert '<noscript><meta http-equiv="refresh"' in text


def test_a_refused_form_keeps_what_was_typed(store, client):
    root = rag(store)
    answer = client.post(f"/traces/{root.trace_id}/feedback", data={"key": "", "value": "0.5", "comment": "long " * 40})
    assert answer.status_code == 400
    assert 'name="value" value="0.5"' in answer.text
    assert "long long" in answer.text
    assert f'action="/traces/{root.trace_id}/feedback"' in answer.text


def test_an_error_page_says_what_to_do(client):
    assert "Search for it in the list of traces" in client.get("/traces/none").text


def test_a_yes_is_written_one_way(store, client):
    root = run()
    store.append([root])
    for key, fields in (("a", {"score": True}), ("b", {"label": "True"}), ("c", {"label": "true"})):
        store.add_feedback([Feedback(target=Target(trace_id=root.trace_id), key=key, **fields)])
    assert re.findall(r'<span class="value">([^<]*)', client.get(f"/traces/{root.trace_id}").text)[::2] == ["yes"] * 3


# --- Large traces that run, and traces that are deleted ---------------------------------------------------------------


def large_running_trace(store):
    """Store 1,200 ended steps of an open root, the last 100 of them below an open batch; returns the batch."""
    started = time.time_ns() - 60 * 10**9
    root = OpenRun(trace_id=OPEN_TRACE, span_id="e" * 16, name="batch job", kind="agent", start_ns=started)
    batch = OpenRun(
        trace_id=OPEN_TRACE, span_id="d" * 16, parent_id=root.span_id, name="open batch", start_ns=started + 1_100
    )
    store.add_running([root, batch])
    steps = [
        run(
            f"step {n}",
            trace_id=OPEN_TRACE,
            parent_id=batch.span_id if n >= 1_100 else root.span_id,
            start_ns=started + n,
            end_ns=started + n + 10**9,
        )
        for n in range(1_200)
    ]
    store.append(steps)
    return batch


@pytest.mark.process
def test_a_large_trace_shows_the_runs_that_have_not_ended(store, client):
    batch = large_running_trace(store)
    text = client.get(f"/traces/{OPEN_TRACE}").text
    assert "<h1" in text
    assert "batch job" in text[text.index("<h1") : text.index("</h1>")]
    assert text.count("open-run") == 1  # the root; the batch is in the last part of the tree
    last = client.get(f"/traces/{OPEN_TRACE}?run={batch.span_id}").text
    assert '<span class="name" dir="auto">open batch</span><span class="flag open">running</span>' in last
    assert "no parent" not in last


@pytest.mark.process
@pytest.mark.parametrize(("count", "operation"), [(3, "trace"), (3, "why"), (1_200, "run"), (1_200, "tree")])
def test_a_trace_that_is_deleted_while_its_page_is_read_is_not_found(store, client, monkeypatch, count, operation):
    root = run()
    store.append([root, *(child(root, f"step {n}") for n in range(count))])
    read = getattr(store, operation)

    def delete_and_read(*args, **options):
        store.delete(trace_ids=(root.trace_id,))
        return read(*args, **options)

    monkeypatch.setattr(store, operation, delete_and_read)
    answer = client.get(f"/traces/{root.trace_id}")
    assert answer.status_code == 404
    assert "It may have been deleted" in answer.text


# --- Empty pages and error pages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/traces", "/sessions", "/datasets", "/experiments", "/rules"])
def test_every_empty_page_names_this_server_and_waits_for_the_first_record(client, path):
    text = client.get(f"http://trace.example:5000{path}", headers={"Host": "localhost:5000"}).text
    assert "export SPANWISE_URL=http://localhost:5000<" in text
    assert "SPANWISE_API_KEY" not in text
    assert "data-wait" in text
    assert '<noscript><meta http-equiv="refresh"' in text


@pytest.mark.process
@pytest.mark.parametrize("path", ["/traces", "/sessions", "/datasets", "/rules"])
def test_an_empty_page_of_a_server_that_requires_a_key_says_so(store, path):
    store.save_key(Key(id="k", name="k", sha256=sha256(b"k").hexdigest(), scopes=("read",)))
    with Server(store, require_key=True) as server:
        text = httpx.get(f"{server.url}{path}", headers={"authorization": "Bearer k"}).text
    assert f"export SPANWISE_URL={server.url}\nexport SPANWISE_API_KEY=YOUR_KEY<" in text


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/traces/none", "traces"),
        ("/sessions/none", "sessions"),
        ("/datasets/none", "datasets"),
        ("/experiments/none", "experiments"),
        ("/compare?ids=none", "experiments"),
        ("/rules/none", "rules"),
        ("/users/none", "traces"),
        ("/none", "traces"),
    ],
)
def test_an_error_page_leads_to_the_list_in_which_to_search(client, path, kind):
    text = client.get(path, headers={"accept": "text/html"}).text
    assert f"Search for it in the list of {kind}." in text
    assert f'<a class="button" href="/{kind}">All {kind}</a>' in text
