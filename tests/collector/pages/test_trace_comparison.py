"""Two traces side by side: which facts, documents, scores and runs are paired, and how a trace is chosen."""

import re
from hashlib import sha256

import httpx
import pytest

from collector.making import child, run
from collector.pages.odd_traces import odd_traces, running_agent
from collector.pages.scene import outcomes, rag
from spanwise.collector.pages.traces.trace_comparison import align_runs
from spanwise.collector.records import Document, Key, TreeNode, Usage
from spanwise.collector.server import Server


def compare(client, *ids):
    return client.get(f"/traces/compare?ids={','.join(ids)}")


def text_of(html):
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def second_answer(store):
    """Answer the question of `rag` with other documents, twice the tokens, and no failure."""
    root = run(inputs={"question": "Why?"}, outputs="Because of it.")
    found = (Document("Second passage.", "doc-2", 0.8), Document("Third passage.", "doc-3", 0.1))
    reads = [
        child(root, "read", kind="llm", usage=Usage(100, 20), cost=0.002, start_ns=root.start_ns + 9 + place)
        for place in range(2)
    ]
    store.append([root, child(root, "retrieve", kind="retriever", documents=found), *reads])
    return root


def test_totals_have_their_difference_and_its_share(store, client):
    shown = text_of(compare(client, rag(store).trace_id, second_answer(store).trace_id).text)
    assert "Input tokens 100 200 +100 (+100 %)" in shown
    assert "Cost $0.002 $0.004 +$0.002 (+100 %)" in shown
    assert "Spans 3 4 +1 (+33 %)" in shown
    assert "Latency 1.00 s 1.00 s ±0" in shown


def test_a_question_that_both_have_is_shown_once_and_answers_side_by_side(store, client):
    page = compare(client, rag(store).trace_id, second_answer(store).trace_id).text
    assert (page.count('aria-label="question"'), page.count('aria-label="answer"')) == (1, 2)
    assert "Because." in page
    assert "Because of it." in page


def test_a_failed_trace_shows_its_error_as_answer(store, client):
    page = compare(client, rag(store).trace_id, rag(store, failing=True).trace_id).text
    assert 'aria-label="error" dir="auto">TimeoutError: too slow</pre>' in page


def test_documents_are_paired_by_id(store, client):
    shown = text_of(compare(client, rag(store).trace_id, second_answer(store).trace_id).text)
    assert "doc-1 First passage. 1 not retrieved 0.9 → –" in shown
    assert "doc-2 Second passage. 2 1 0.4 → 0.8" in shown
    assert "doc-3 Third passage. not retrieved 2 – → 0.1" in shown


def test_scores_are_paired_by_key(store, client):
    first, second = rag(store), second_answer(store)
    outcomes(store, first.trace_id)
    store.feedback(second.trace_id, "concise", 0.75)
    page = compare(client, first.trace_id, second.trace_id).text
    assert ">+0.5</td>" in page
    assert page.count('class="chip error"') == 2  # the chip, and the same in its card


def node(position, depth, name, kind="chain"):
    given = {"span_id": f"s{position}", "name": name, "kind": kind, "position": position, "depth": depth}
    return TreeNode(parent_id=None, status="ok", start_ns=0, end_ns=1, lost_parent=False, **given)


def names(pairs):
    return [(pair.depth, pair.left and pair.left.span_id, pair.right and pair.right.span_id) for pair in pairs]


def test_runs_are_paired_by_name_and_order_below_their_pair():
    left = [node(0, 0, "answer"), node(1, 1, "search"), node(2, 2, "embed"), node(3, 1, "read"), node(4, 1, "search")]
    right = [node(0, 0, "answer_v2"), node(1, 1, "plan"), node(2, 1, "search"), node(3, 2, "embed"), node(4, 1, "read")]
    assert names(align_runs(left, right)) == [
        (0, "s0", "s0"),
        (1, "s1", "s2"),
        (2, "s2", "s3"),
        (1, "s3", "s4"),
        (1, "s4", None),
        (1, None, "s1"),
    ]


def test_runs_of_the_same_name_and_another_kind_are_no_pair():
    left, right = ([node(0, 0, "a"), node(1, 1, "b", kind)] for kind in ("llm", "tool"))
    assert names(align_runs(left, right))[1:] == [(1, "s1", None), (1, None, "s1")]


def test_roots_without_a_partner_stay():
    assert names(align_runs([node(0, 0, "a")], [node(0, 0, "a"), node(1, 0, "a")])) == [
        (0, "s0", "s0"),
        (0, None, "s1"),
    ]


def test_a_deep_trace_is_paired_without_recursion():
    chain = [node(depth, depth, "f") for depth in range(5_000)]
    assert all(pair.left and pair.right for pair in align_runs(chain, chain))


def test_a_large_trace_shows_its_first_runs(store, client):
    root = run()
    store.append([root, *(child(root, f"step {n}", start_ns=root.start_ns + n) for n in range(1_200))])
    page = compare(client, root.trace_id, rag(store).trace_id).text
    assert "the first 500 of 1,203" in page


def test_the_trace_page_leads_to_traces_of_the_same_name(store, client):
    first, second, other = rag(store), rag(store), run("other")
    store.append([other])
    link = f"/traces/compare?ids={first.trace_id}"
    assert f'href="{link}"' in client.get(f"/traces/{first.trace_id}").text
    page = client.get(link).text
    assert f'href="{link},{second.trace_id}"' in page
    assert other.trace_id not in page


@pytest.mark.parametrize("typed", ["{}", " {} ", "http://127.0.0.1:4318/traces/{}?run=7#detail"])
def test_a_trace_is_named_by_its_id_or_its_address(store, client, typed):
    first, second = rag(store), second_answer(store)
    answer = client.get("/traces/compare", params={"ids": [first.trace_id, typed.format(second.trace_id)]})
    assert "Because of it." in answer.text


def test_an_unknown_trace_keeps_what_was_typed(store, client):
    answer = client.get("/traces/compare", params={"ids": [rag(store).trace_id, "<nope>"]})
    assert answer.status_code == 404
    assert 'value="&lt;nope&gt;"' in answer.text
    assert "There is no trace" in answer.text
    assert compare(client, "nope").status_code == 404


@pytest.mark.parametrize("ids", ["", "a,b,c", ","])
def test_two_traces_are_needed(client, ids):
    answer = client.get(f"/traces/compare?ids={ids}")
    assert (answer.status_code, "select two traces" in answer.text) == (400, True)


@pytest.mark.process
def test_a_trace_of_another_project_is_not_found(store):
    mine, theirs = rag(store, project="mine"), rag(store, project="theirs")
    store.save_key(Key(id="k", name="k", sha256=sha256(b"k").hexdigest(), scopes=("read",), project="mine"))
    headers = {"authorization": "Bearer k"}
    with Server(store, require_key=True) as server, httpx.Client(base_url=server.url, headers=headers) as client:
        for ids in ((mine.trace_id, theirs.trace_id), (theirs.trace_id, mine.trace_id), (theirs.trace_id,)):
            answer = compare(client, *ids)
            assert answer.status_code == 404
            assert "Because." not in answer.text
        assert compare(client, mine.trace_id, mine.trace_id).status_code == 200


@pytest.mark.process
def test_odd_and_running_traces_are_compared(store, client):
    ids = [root.trace_id for root in odd_traces(store)] + [running_agent(store).trace_id]
    for trace_id in ids:
        for pair in ((trace_id, ids[0]), (ids[0], trace_id)):
            assert compare(client, *pair).status_code == 200
