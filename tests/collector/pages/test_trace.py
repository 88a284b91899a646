import re
from dataclasses import replace

import pytest

from collector.deciding import on, ruled, slice
from collector.making import child, run
from collector.pages.scene import STACK, experiment, outcomes, rag
from spanwise.collector.dialects import RawSpan, read_run
from spanwise.collector.records import Event, Feedback, OpenRun, Target


@pytest.mark.process
def test_the_tree_shows_every_run_and_the_root_in_full(store, client):
    root = rag(store)
    text = client.get(f"/traces/{root.trace_id}").text
    assert len(re.findall("data-run(?!s)", text)) == 3
    assert "Because." in text


def test_documents_come_with_rank_id_and_score(store, client):
    root = rag(store)
    retrieve = next(one for one in store.trace(root.trace_id).runs if one.name == "retrieve")
    store.add_feedback(
        [
            Feedback(
                target=Target(trace_id=root.trace_id, span_id=retrieve.span_id, document=1), key="relevant", score=0.1
            )
        ]
    )
    text = client.get(f"/traces/{root.trace_id}?run={retrieve.span_id}").text
    for words in ("First passage.", "doc-2", ">0.9<", ">relevant</span>"):
        assert words in text


def test_errors_come_with_their_stack_trace(store, client):
    root = rag(store, failing=True)
    read = next(one for one in store.trace(root.trace_id).runs if one.name == "read")
    text = client.get(f"/traces/{root.trace_id}?run={read.span_id}").text
    assert "TimeoutError: too slow" in text
    assert STACK.splitlines()[1].strip().replace('"', "&#34;") in text


def exception(message="no", stack=None, kind="ValueError"):
    given = {"exception.type": kind, "exception.message": message, "exception.stacktrace": stack}
    return Event("exception", 1, {name: value for name, value in given.items() if value})


STACK_OF_PYTHON = 'Traceback (most recent call last):\n  File "a.py", line 7, in f\nValueError: no'


@pytest.mark.parametrize(
    "events",
    [
        (exception(stack=STACK_OF_PYTHON), exception(stack=STACK_OF_PYTHON)),
        (exception(stack="ValueError: no"), exception(stack=STACK_OF_PYTHON)),  # recorded on two levels
        (exception(f"no\n\n{STACK_OF_PYTHON}"),),
        (exception(f"no\n\n{STACK_OF_PYTHON}", STACK_OF_PYTHON),),
    ],
)
def test_a_stack_trace_appears_once(store, client, events):
    root = read_run(RawSpan(trace_id="1" * 32, span_id="2" * 16, name="s", status=2, events=events))
    store.append([root])
    text = client.get(f"/traces/{root.trace_id}").text
    assert root.error == "ValueError: no"
    assert (text.count("a.py"), text.count('aria-label="stack trace"')) == (1, 1)


def test_every_exception_has_its_stack_trace(store, client):
    events = (exception(stack="at one"), exception("other", "at two"), exception(kind="OSError", stack="at three"))
    root = run(status="error", error="no", events=events)
    store.append([root])
    assert client.get(f"/traces/{root.trace_id}").text.count('aria-label="stack trace"') == 3


def test_derived_values_are_marked_on_the_page_and_in_the_list(store, client):
    root = run("workflow")
    store.append([root, child(root, "ask", inputs="When?", outputs="Monday")])
    text = client.get(f"/traces/{root.trace_id}").text
    assert "When?" in text
    # above the tree, and beside the values of the root
    assert (text.count("derived from the first child run"), text.count("derived from the last child run")) == (2, 2)
    below = store.trace(root.trace_id).children(root.span_id)[0]
    detail = client.get(f"/traces/{root.trace_id}?run={below.span_id}").text.partition('id="detail"')[2]
    assert "derived from" not in detail
    assert 'title="derived from the first child of the root">When?' in client.get("/traces").text


def test_feedback_shows_comment_error_and_source(store, client):
    root = rag(store)
    outcomes(store, root.trace_id)
    text = client.get(f"/traces/{root.trace_id}").text
    for words in ("rather long", "RuntimeError: judge is away", "no expected documents"):
        assert words in text


def test_rules_say_what_they_did_with_a_trace(store, client):
    root = rag(store)
    ruled(store, name="no-pii")
    [head] = store.changes().heads
    row = on(head, rule="no-pii", verdict="failed", reason="the judge is away")
    store.decide(replace(slice(row, upto=head.cursor), rule="no-pii"))
    text = client.get(f"/traces/{root.trace_id}").text
    for words in ("no-pii", "failed", "the judge is away"):
        assert words in text


def test_a_trace_of_an_experiment_shows_what_was_expected(store, client):
    made = experiment(store, "first", (1.0, 0.0))
    (tuple_, _) = store.traces(experiment=made.id).items
    text = client.get(f"/traces/{tuple_.trace_id}").text
    assert "An immutable sequence." in text
    assert ">first</a>" in text
    store.delete_dataset("sequences")
    assert "An immutable sequence." not in client.get(f"/traces/{tuple_.trace_id}").text


@pytest.mark.process
def test_two_peoples_votes_stand_side_by_side(store, client):
    root = rag(store)
    for author, score in (("ann", 1), ("ben", 0)):
        store.feedback(root.trace_id, "thumbs_up", score, author=author)
    text = client.get(f"/traces/{root.trace_id}").text
    assert "a person, ann" in text
    assert "a person, ben" in text


def test_unknown_traces_and_runs_are_404(store, client):
    root = rag(store)
    assert client.get("/traces/" + "f" * 32).status_code == 404
    assert client.get(f"/traces/{root.trace_id}?run=nope").status_code == 404


def test_a_person_can_add_feedback(store, client):
    root = rag(store)
    form = {"key": "correct", "value": "true", "comment": "I checked", "author": "ann"}
    answer = client.post(f"/traces/{root.trace_id}/feedback", data=form, follow_redirects=False)
    assert answer.status_code == 303
    (kept,) = store.trace(root.trace_id).feedback
    assert (kept.key, kept.score, kept.comment, kept.author, kept.source) == (
        "correct",
        True,
        "I checked",
        "ann",
        "human",
    )


@pytest.mark.parametrize(
    ("value", "score", "label"), [("0.5", 0.5, None), ("false", False, None), ("curt", None, "curt")]
)
def test_a_value_is_a_number_a_truth_or_a_label(store, client, value, score, label):
    root = rag(store)
    client.post(f"/traces/{root.trace_id}/feedback", data={"key": "k", "value": value, "span": root.span_id})
    (kept,) = store.trace(root.trace_id).feedback
    assert (kept.score, kept.label, kept.target.span_id) == (score, label, root.span_id)


@pytest.mark.process
@pytest.mark.parametrize(
    "form",
    [
        {"key": "", "value": "1"},
        {"key": "k", "value": " "},
        {"key": "k", "value": "nan"},
        {"key": "k", "value": "x" * 70_000},
    ],
)
def test_a_form_that_cannot_be_kept_is_refused(store, client, form):
    root = rag(store)
    assert client.post(f"/traces/{root.trace_id}/feedback", data=form).status_code == 400
    assert store.trace(root.trace_id).feedback == ()


@pytest.mark.process
@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_other_sites_cannot_send_the_form(store, client, headers):
    root = rag(store)
    answer = client.post(f"/traces/{root.trace_id}/feedback", data={"key": "k", "value": "1"}, headers=headers)
    assert answer.status_code == 400
    assert store.trace(root.trace_id).feedback == ()


@pytest.mark.process
def test_a_huge_value_is_cut_on_the_page_and_whole_behind_a_link(store, client):
    root = run(inputs="x" * 300_000)
    store.append([root])
    page = client.get(f"/traces/{root.trace_id}")
    assert len(page.text) < 60_000
    whole = client.get(f"/traces/{root.trace_id}/runs/{root.span_id}/inputs")
    assert (len(whole.text), whole.headers["content-type"]) == (300_000, "text/plain; charset=utf-8")
    assert client.get(f"/traces/{root.trace_id}/runs/{root.span_id}/secrets").status_code == 404


def long(store, n=2_100):
    root = run()
    store.append([root, *(child(root, f"c{i}", start_ns=root.start_ns + 1 + i) for i in range(n - 1))])
    return root


def next_of(text):
    """The address, in the page, of the next runs."""
    found = re.search(r'href="(\?run=\w+)" data-more', text)
    return found and found[1]


@pytest.mark.process
def test_a_trace_of_very_many_runs_comes_in_pages(store, client):
    root = long(store)
    address, names = "", list[str]()
    while address is not None:
        text = client.get(f"/traces/{root.trace_id}{address}").text
        names += re.findall(r'<span class="name" dir="auto">(\w+)</span>', text)
        address = next_of(text)
    assert names == ["answer", *(f"c{i}" for i in range(2_099))]


@pytest.mark.process
def test_a_run_far_down_is_shown_among_its_neighbours(store, client):
    root = long(store)
    run = store.tree(root.trace_id, limit=1_000).items[777]
    store.feedback(root.trace_id, "k", 1.0, span_id=run.span_id, author="ann")
    text = client.get(f"/traces/{root.trace_id}?run={run.span_id}").text
    assert (len(re.findall("data-run(?!s)", text)), text.count('aria-current="true" data-run')) == (500, 1)
    for words in ("c776</span></h2>", "501 to 1,000 of 2,100", "a person, ann"):
        assert words in text


@pytest.mark.process
def test_a_part_of_a_run_is_read_without_its_trace(store, client):
    root = long(store)
    assert client.get(f"/traces/{root.trace_id}/runs/{root.span_id}/metadata").text == "{}"
    assert client.get(f"/traces/{root.trace_id}/runs/nope/metadata").status_code == 404
    assert client.get(f"/traces/{root.trace_id}?run=nope").status_code == 404


def leaky(store):
    """A trace of which its sender has dropped three spans, and of which one runs."""
    root = run("leaky")
    counts = {
        "spanwise.spans.started": 4,
        "spanwise.spans.open": 0,
        "spanwise.spans.dropped": 3,
        "spanwise.calls.sent": 1,
    }
    root = replace(root, attributes={"spanwise.local_root": root.span_id, **counts})
    store.append([root])
    return root


@pytest.mark.process
def test_what_is_missing_is_said_in_words(store, client):
    root = leaky(store)
    text = client.get(f"/traces/{root.trace_id}").text
    assert "<li>3 spans were dropped by the sender</li>" in text
    assert "<li>1 call was sent to other services, none of them answered by a traced process</li>" in text
    assert ">complete</span>" not in text


def test_an_open_run_is_said_to_run(store, client):
    root = rag(store)
    store.add_running([OpenRun(trace_id=root.trace_id, span_id="e" * 16, name="<slow>", start_ns=root.start_ns)])
    text = client.get(f"/traces/{root.trace_id}").text
    assert "&lt;slow&gt; is running since" in text
    assert ">running</span>" in text


@pytest.mark.process
def test_a_trace_of_which_nothing_has_ended_has_a_page(store, client):
    above = OpenRun(trace_id="a" * 32, span_id="b" * 16, name="outer", start_ns=5)
    below = OpenRun(trace_id="a" * 32, span_id="c" * 16, name="", parent_id="b" * 16, start_ns=6)
    store.add_running([below, above])
    page = client.get(f"/traces/{'a' * 32}")
    assert (page.status_code, "No span of this trace has ended yet" in page.text) == (200, True)
    assert page.text.index(">outer") < page.text.index("(no name)")
    store.append([run("outer", trace_id="a" * 32, span_id="b" * 16)])
    assert "Nothing of this trace" not in client.get(f"/traces/{'a' * 32}").text


@pytest.mark.process
def test_a_score_shows_the_parameters_of_its_evaluator(client, store):
    root = run(trace_id="c" * 32)
    given = {"evaluator_parameters": {"pattern": "<b>", "k": 3}}
    store.append([root], [Feedback(target=Target(trace_id=root.trace_id), key="k", score=1.0, metadata=given)])
    text = client.get(f"/traces/{root.trace_id}").text
    assert "Parameters: pattern = <code>&lt;b&gt;</code>, k = <code>3</code>" in text


def test_a_run_shows_prompt_agent_finish_reason_first_token_and_tools(store, client):
    labels = {"finish_reasons": ("stop", "length"), "time_to_first_token_ms": 120.0, "tools": ({"name": "track"},)}
    call = run("call", kind="llm", prompt_name="greet", prompt_version="v2", agent_name="planner", **labels)
    store.append([call])
    text = client.get(f"/traces/{call.trace_id}").text
    for words in ("first token after 120 ms", "finish reason stop, length", ">greet</a>", ">v2</a>", ">planner</a>"):
        assert words in text
    assert 'href="/traces?prompt=greet&amp;prompt_version=v2"' in text
    assert "track" in text
    assert client.get(f"/traces/{call.trace_id}/runs/{call.span_id}/tools").status_code == 200


def test_content_that_is_stored_elsewhere_is_named_and_not_linked(store, client):
    call = run("call", kind="llm", attributes={"gen_ai.input.messages.ref": "s3://bucket/1.json"})
    store.append([call])
    text = client.get(f"/traces/{call.trace_id}").text
    assert "The inputs are stored elsewhere" in text
    assert "s3://bucket/1.json" in text
    assert 'href="s3:' not in text
