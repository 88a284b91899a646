import ast
import html
import re
import time
from dataclasses import replace

import pytest

from collector.conformance_traces import eventually
from collector.making import run
from collector.pages.scene import experiment, outcomes, rag
from spanwise.collector import filters
from spanwise.collector.pages.traces import trace_list
from spanwise.collector.records import Feedback, Link, OpenRun, Target


@pytest.mark.process
def test_a_new_store_says_what_to_do(client):
    page = client.get("/traces")
    assert page.status_code == 200
    assert "No traces yet" in page.text
    assert "spanwise demo" in page.text


def test_the_list_shows_traces_latest_first(store, client):
    store.append([run("first"), run("second")])
    text = client.get("/traces").text
    assert text.index(">second</a>") < text.index(">first</a>")


def test_an_error_and_a_skip_never_look_like_a_score(store, client):
    outcomes(store, rag(store).trace_id)
    chips = re.findall(
        r'class="chip (\w+)"[^>]*popovertarget.*?<span class="value">([^<]*)', client.get("/traces").text
    )
    assert sorted(chips) == [("error", "error"), ("score", "0.25"), ("skip", "skipped")]


def test_means_stand_beside_n_failed_and_skipped(store, client):
    for score in (0.0, 1.0, None):
        target = Target(trace_id=rag(store).trace_id)
        outcome = {"score": score} if score is not None else {"outcome": "error", "error": "boom"}
        store.add_feedback([Feedback(target=target, key="exact", **outcome)])
    text = client.get("/traces").text
    assert '<span class="mean">50 %</span>' in text
    assert re.search(r'">n 2</a><a class="failed" href="[^"]+">1 failed</a>', text)


def test_the_filter_form_narrows_the_list(store, client):
    store.append([run("kept", project="p"), run("gone", project="q")])
    text = client.get("/traces?project=p").text
    assert ">kept</a>" in text
    assert ">gone</a>" not in text


def test_feedback_conditions_narrow_the_list(store, client):
    roots = [rag(store) for _ in range(2)]
    store.feedback(roots[0].trace_id, "concise", 0.2)
    store.feedback(roots[1].trace_id, "concise", 0.9)
    text = client.get("/traces?feedback_key=concise&feedback_op=<&feedback_value=0.5").text
    assert roots[0].trace_id in text
    assert roots[1].trace_id not in text


def test_the_examples_of_code_on_empty_pages_use_names_that_exist(client):
    examples = [
        html.unescape(code)
        for address in ("/", "/traces", "/sessions", "/datasets", "/experiments", "/rules")
        for code in re.findall(r"<code>([^<]*import [^<]*)</code>", client.get(address).text)
    ]
    assert len(examples) == 6
    for example in examples:
        for statement in ast.parse(example).body:
            if isinstance(statement, ast.ImportFrom):
                exec(ast.unparse(statement), {})


def test_older_traces_are_a_link_away(store, client):
    store.append([run(f"t{i}") for i in range(55)])
    older = re.search(r'rel="next" href="([^"]+)"', client.get("/traces").text).group(1)
    text = client.get(older.replace("&amp;", "&")).text
    assert text.count("row-link") == 5
    assert 'rel="next"' not in text


def test_experiments_stay_out_until_asked_for(store, client):
    experiment(store, "first", (1.0, 0.0))
    assert "No matching traces" in client.get("/traces").text
    assert client.get("/traces?traffic=all").text.count("row-link") == 2


def test_judgements_stay_out_until_asked_for(store, client):
    store.append([answer := run(), own := run("polite", kind="evaluator", links=(Link(answer.trace_id, "f" * 16),))])
    on = Target(trace_id=answer.trace_id)
    store.add_feedback([Feedback(target=on, key="polite", score=1.0, judge_trace_id=own.trace_id)])
    assert client.get("/traces").text.count("row-link") == client.get("/traces?traffic=all").text.count("row-link") == 1
    assert 'href="/traces/' + own.trace_id in client.get(f"/traces/{answer.trace_id}").text
    assert answer.trace_id in client.get(f"/traces/{own.trace_id}").text
    for address in ("/traces?traffic=judges", "/traces?kind=evaluator"):
        assert own.trace_id in (text := client.get(address).text)
        assert answer.trace_id not in text


def test_a_condition_that_makes_no_sense_is_said_beside_the_form(store, client):
    rag(store)
    page = client.get("/traces?latency_ms=fast")
    assert page.status_code == 422
    assert "latency must be a comparison such as &gt; 500, got &#39;fast&#39;" in page.text


@pytest.mark.process
@pytest.mark.parametrize(("sort", "label"), [("", "Newest"), ("&sort=-cost", "First page")])
def test_a_later_page_leads_back_to_the_first(store, client, sort, label):
    store.append([run(f"run {n}") for n in range(60)])
    first = client.get(f"/traces?status=ok{sort}").text
    link = f'<a href="/traces?status=ok{sort.replace("&", "&amp;")}">{label}</a>'
    assert link not in first
    address = re.search('<a rel="next" href="([^"]*)"', first)[1].replace("&amp;", "&")
    assert client.get(address).text.count(link) == 2  # above and below the list
    store.append([run("other", status="error", error="x")])
    store.delete(status="ok")
    assert label in client.get(address).text


def test_a_cursor_from_elsewhere_is_no_server_error(store, client):
    rag(store)
    assert client.get("/traces?cursor=nonsense").status_code in (200, 400)


def test_sessions_are_listed_and_told_as_conversations(store, client):
    rag(store, session_id="talk/7")
    rag(store, session_id="talk/7", failing=True)
    assert "/sessions/talk%2F7" in client.get("/sessions").text
    text = client.get("/sessions/talk%2F7").text
    assert text.index("Because.") < text.index("TimeoutError: too slow")
    assert client.get("/sessions/none").status_code == 404


def test_a_store_without_sessions_says_how_to_make_one(client):
    assert "with session(" in client.get("/sessions").text


def test_readers_get_a_page_for_an_unknown_address_and_programs_json(client):
    page = client.get("/nowhere", headers={"Accept": "text/html"})
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "there is no page &#39;/nowhere&#39;" in page.text
    assert client.get("/nowhere").json() == {"detail": "Not Found"}


def test_feedback_on_a_session_stands_above_its_turns(store, client):
    rag(store, session_id="talk")
    store.add_feedback([Feedback(target=Target(session_id="talk"), key="resolved", score=True)])
    assert ">resolved</span>" in client.get("/sessions/talk").text


def test_charts_over_a_long_time_do_not_hold_up_the_list(store, client):
    store.append([run("answer", start_ns=time.time_ns())])
    page = client.get("/traces?range=30d&name=answer").text
    assert 'class="overview"' not in page
    address = html.unescape(re.search(r'class="waiting" hx-get="([^"]+)"', page).group(1))
    assert address.startswith("/charts?range=30d&name=answer&since=")
    assert 'aria-label="Traces over time"' in client.get(address).text
    assert 'class="overview"' in client.get("/traces?range=30d&name=answer&charts=1").text


def test_charts_need_a_stretch_of_time(client):
    assert client.get("/charts").status_code == 400


def test_traces_under_way_stand_above_the_list(store, client):
    begun = [
        OpenRun(trace_id=f"{n:032x}", span_id="b" * 16, name=f"slow{n}", start_ns=n, project="p") for n in range(9)
    ]
    judge = OpenRun(trace_id="c" * 32, span_id="c" * 16, name="judging", kind="evaluator", start_ns=50)
    inner = OpenRun(trace_id=f"{8:032x}", span_id="d" * 16, parent_id="b" * 16, name="inner", start_ns=60, project="p")
    store.add_running([*begun, judge, inner])
    text = client.get("/traces?project=p").text
    assert f'<a href="/traces/{8:032x}" dir="auto">slow8</a>' in text
    assert "and 1 more" in text
    assert not any(name in text for name in (">slow0<", ">inner<", ">judging<"))
    store.append([run("first to end", trace_id=inner.trace_id, parent_id="b" * 16)])
    assert ">slow8<" in client.get("/traces").text
    for address in ("/traces?project=q", "/traces?text=word", "/traces?status=error", "/traces?cursor=1.1"):
        assert ">slow8<" not in client.get(address).text


def test_a_mark_says_what_is_missing_of_a_trace(store, client):
    first, second = run(), run()
    counts = {"spanwise.spans.started": 3, "spanwise.spans.open": 0, "spanwise.spans.dropped": 2}
    store.append([replace(first, attributes={"spanwise.local_root": first.span_id, **counts}), second])
    store.add_running([OpenRun(trace_id=second.trace_id, span_id="b" * 16, name="slow")])
    marks = re.findall(r'<span class="open" title="([^"]*)">([^<]*)</span>', client.get("/traces").text)
    assert marks == [
        ("Runs that have started but not ended: 1", "running"),
        ("2 spans were dropped by the sender", "2 dropped"),
    ]


def make_latencies(store):
    start = time.time_ns() - 60 * 10**9
    slow, fast = (run(name, start_ns=start, end_ns=start + s * 10**9) for name, s in (("slow", 9), ("fast", 1)))
    store.append([fast, slow, run("newest", start_ns=start + 10**9, end_ns=start + 3 * 10**9)])


def test_the_list_is_sorted_by_the_address_and_its_headers_link_to_the_orders(store, client):
    make_latencies(store)
    text = client.get("/traces?sort=-latency_ms&since=1h").text
    assert text.index(">slow</a>") < text.index(">newest</a>") < text.index(">fast</a>")
    assert re.findall(r'aria-sort="(\w+)"[^>]*><a class="sort" href="([^"]*)"', text) == [
        ("descending", "/traces?since=1h&amp;sort=latency_ms")
    ]
    assert 'aria-sort="descending"><a class="sort" href="/traces?sort=start"' in client.get("/traces").text
    assert 'href="/traces?since=1h&amp;sort=errors"' in text


def test_an_unknown_order_is_a_problem_and_the_list_stays(store, client):
    make_latencies(store)
    for address in ("/traces?sort=nonsense", "/sessions?sort=-latency_ms"):
        page = client.get(address)
        assert (page.status_code, "cannot sort by" in page.text) == (422, True)
    assert ">slow</a>" in client.get("/traces?sort=nonsense").text


def test_every_page_of_a_sorted_list_keeps_its_order(store, client, monkeypatch):
    monkeypatch.setattr(trace_list, "TRACES_PER_PAGE", 2)
    make_latencies(store)
    first = client.get("/traces?sort=-latency_ms").text
    [address] = re.findall(r'rel="next" href="([^"]*)"', first)
    second = client.get(html.unescape(address)).text
    assert (">slow</a>" in first, ">fast</a>" in first, ">fast</a>" in second) == (True, False, True)


def test_a_list_says_which_traces_are_sorted(store, client, monkeypatch):
    monkeypatch.setattr(filters, "MAX_SORTED", 2)
    make_latencies(store)
    assert "Sorted: the newest 2 matching traces" in client.get("/traces?sort=cost").text
    assert "Sorted:" not in client.get("/traces?sort=start").text


def test_matches_of_a_search_are_marked_and_escaped(store, client):
    store.append([run(inputs="a <script>alert(1)</script> Dépôt \u202e depots", outputs="<mark>none</mark>")])
    assert eventually(lambda: len(store.traces(text="depot")), 1)
    text = client.get("/traces?text=depot").text
    assert "a &lt;script&gt;alert(1)&lt;/script&gt; <mark>Dépôt</mark> ⟨U+202E⟩ <mark>depot</mark>s" in text
    assert "&lt;mark&gt;none&lt;/mark&gt;" in text


def test_a_search_says_how_many_traces_are_not_indexed_yet(store, client):
    with store._behind._lock:
        store.append([run(inputs="parcel")])
        assert "1 trace is not in the search index yet" in client.get("/traces?text=parcel").text


def test_the_list_can_have_columns_for_prompts_agents_finish_reasons_and_first_tokens(store, client):
    labels = {"agent_name": "planner", "finish_reasons": ("length",), "time_to_first_token_ms": 120.0}
    store.append([run("told", prompt_name="greet", prompt_version="v2", **labels), run("plain")])
    assert "First token" not in client.get("/traces").text.partition("<table")[2]
    client.cookies.set("spanwise-view", "columns=prompt.agent.finish_reason.first_token")
    table = client.get("/traces").text.partition("<table")[2]
    for words in (">Prompt<", ">greet@v2<", ">Agent<", ">planner<", ">Finish reason<", ">length<", ">First token<"):
        assert words in table
    assert "120" in table


def test_the_filter_form_has_prompts_agents_finish_reasons_and_first_tokens(store, client):
    store.append([run("kept", prompt_name="greet", prompt_version="v2", agent_name="planner"), run("gone")])
    page = client.get("/traces?prompt=greet&prompt_version=v2&agent=planner").text
    assert ">kept</a>" in page
    assert ">gone</a>" not in page
    assert '<datalist id="prompts"><option value="greet">' in page
    assert "first token must be a comparison" in client.get("/traces?time_to_first_token_ms=fast").text


def test_charts_compare_groups(store, client):
    for number, version in enumerate(["v1", "v1", "v2"]):
        call = run("call", prompt_name="greet", prompt_version=version, start_ns=time.time_ns() - number * 10**9)
        store.append([call], [Feedback(target=Target(trace_id=call.trace_id), key="good", score=float(number))])
    groups = client.get("/traces?group_by=prompt_version").text.partition('class="panel wide groups"')[2]
    assert "By prompt version" in groups
    assert groups.index("greet@v1") < groups.index("greet@v2")
    assert '<span class="mean">50 %</span>' in groups
    assert 'aria-label="Traces of greet@v2 over time"' in groups
    assert "By prompt" not in client.get("/traces").text
    assert client.get("/traces?group_by=nothing").status_code in (400, 422)


def test_charts_show_the_largest_of_many_groups(store, client):
    store.append([run("call", user_id=f"u{number}", start_ns=time.time_ns()) for number in range(20)])
    assert "12 groups with the most traces, of 20" in client.get("/traces?group_by=user").text


def test_a_yes_or_no_that_is_shown_can_be_filtered_for(store, client):
    good, bad = run("good"), run("bad")
    store.append([good, bad])
    store.add_feedback(
        [Feedback(target=Target(trace_id=each.trace_id), key="faithful", score=each is good) for each in (good, bad)]
    )
    text = client.get("/traces?feedback=faithful%3Dno").text
    assert (">bad</a>" in text, ">good</a>" in text) == (True, False)


def test_an_unknown_condition_offers_the_key_that_has_its_name(store, client):
    answer = run("answer", metadata={"release": "v1"})
    store.append([answer])
    store.add_feedback([Feedback(target=Target(trace_id=answer.trace_id), key="faithful", score=0.0)])
    page = client.get("/traces?where=faithful%3C0.5+release%3Dv1").text
    offered = {
        label: html.unescape(address)
        for address, label in re.findall(r'class="button" href="([^"]*)">(Filter by [^<]*)<', page)
    }
    assert list(offered) == ["Filter by feedback.faithful&lt;0.5", "Filter by metadata.release=v1"]
    for address in offered.values():
        assert ">answer</a>" in client.get(address).text


def test_a_search_for_a_user_that_finds_nothing_offers_the_users_traces(store, client):
    store.append([run("answer", user_id="user-7", outputs="nothing of that name")])
    page = client.get("/traces?text=user-7").text
    [address] = re.findall(r'href="([^"]*)">Show traces with user=user-7<', page)
    assert ">answer</a>" in client.get(html.unescape(address)).text


def test_a_search_that_finds_nothing_offers_nothing_that_is_not_there(store, client):
    store.append([run("answer")])
    assert "Show traces with" not in client.get("/traces?text=user-8").text


def test_the_form_finds_traces_that_contain_a_run_of_a_kind(store, client):
    root = run("answer", kind="agent")
    store.append([root, run("lookup", kind="tool", trace_id=root.trace_id, parent_id=root.span_id), run("other")])
    form = client.get("/traces").text
    assert re.search(r'<select name="any_kind">.*?<option>tool<', form, re.S)
    text = client.get("/traces?any_kind=tool").text
    assert (">answer</a>" in text, ">other</a>" in text) == (True, False)


def test_a_condition_on_a_user_leads_to_the_user(store, client):
    store.append([run("answer", user_id="user-7")])
    assert 'href="/users/user-7">Open user</a>' in client.get("/traces?user=user-7").text
    assert 'href="/users/user-7">Show user user-7</a>' in client.get("/traces?text=user-7").text


def test_totals_of_the_latest_traces_say_since_when_they_count(store, client):
    store.append([run("answer")])
    tile = re.compile(r'<div class="stat"><h2>Traces <span class="muted">since <time')
    assert tile.search(client.get("/traces").text)
    assert not tile.search(client.get("/traces?since=24h").text)


def test_a_session_of_several_users_names_them_all(store, client):
    store.append([run("a", session_id="s", user_id="ann"), run("b", session_id="s", user_id="bob")])
    text = client.get("/sessions/s").text
    assert "<dt>Users</dt>" in text
    assert re.search(r'class="who">user <a href="/users/(ann|bob)"', text)
