"""The panel beside the list: question, answer and scores of a trace, within 30 KB."""

from __future__ import annotations

import re
from hashlib import sha256

import httpx
import pytest

from collector.making import START, child, run
from collector.pages.odd_traces import OPEN_TRACE, odd_traces, running_agent
from collector.pages.scene import outcomes, rag
from spanwise.collector.records import Feedback, Key, Target
from spanwise.collector.server import Server

LARGEST = 30_000


def panel(client, trace_id, address="/traces"):
    return client.get(address, params={"panel": trace_id}, headers={"Spanwise-Part": "panel"})


def test_it_has_question_answer_and_scores_with_comments(client, store):
    root = rag(store)
    outcomes(store, root.trace_id)
    text = panel(client, root.trace_id).text
    shown = [
        part
        for part in ("Why?", "Because.", "rather long", "RuntimeError: judge is away", "no expected")
        if part in text
    ]
    assert shown == ["Why?", "Because.", "rather long", "RuntimeError: judge is away", "no expected"]
    assert "<table" not in text
    assert f'href="/traces/{root.trace_id}?from="' in text


def test_a_failed_trace_shows_its_error(client, store):
    assert "TimeoutError: too slow" in panel(client, rag(store, failing=True).trace_id).text


def test_question_and_answer_come_from_a_model_call_if_the_root_lacks_them(client, store):
    root = run("workflow")
    call = child(root, "chat", kind="llm", inputs=[{"role": "user", "content": "How far?"}], outputs="Nine miles.")
    store.append([root, call])
    text = panel(client, root.trace_id).text
    assert "How far?" in text
    assert "Nine miles." in text


def test_the_page_has_it_beside_the_list_and_a_link_that_closes_it(client, store):
    root = rag(store)
    page = client.get(f"/traces?sort=-latency_ms&panel={root.trace_id}").text
    assert page.count('id="panel"') == 1
    assert re.search(r'href="([^"]*)" aria-label="Close the panel"', page)[1] == "/traces?sort=-latency_ms"
    assert f'<tr id="t-{root.trace_id}" aria-current="true">' in page
    assert "panel=" not in re.search(r'rel="next" href="([^"]*)"|$', page)[0]


@pytest.mark.parametrize("trace_id", ["none", "<script>", "x" * 9_000, OPEN_TRACE, "\x00"])
def test_a_trace_that_is_not_there_is_said_to_be_missing(client, store, trace_id):
    rag(store)
    answer = panel(client, trace_id)
    assert answer.status_code == 200
    assert "No run of this trace has ended yet, or the trace was deleted." in answer.text
    assert "<script>" not in answer.text
    assert client.get("/traces", params={"panel": trace_id}).status_code == 200


def test_no_panel_is_larger_than_thirty_kilobytes(client, store):
    big = run(
        "n" * 3_000,
        inputs={"question": "返品 <&> " * 200_000},
        outputs={f"key-{number}": "<b>" * 50 for number in range(400)},
        tags=tuple("t" * 300 + str(number) for number in range(100)),
        user_id="u" * 10_000,
        session_id="s" * 10_000,
    )
    store.append([big])
    store.add_feedback(
        [
            Feedback(target=Target(trace_id=big.trace_id), key=f"k{number}" * 40, score=0.5, comment="<c>" * 4_000)
            for number in range(400)
        ]
    )
    roots = [big, *odd_traces(store), rag(store), running_agent(store)]
    sizes = {root.name[:20]: len(panel(client, root.trace_id).content) for root in roots}
    assert {name: size for name, size in sizes.items() if size > LARGEST} == {}


def test_hostile_content_is_escaped(client, store):
    root = run(
        "<script>n</script>", inputs="<img src=x onerror=alert(1)>", outputs="<script>alert(2)</script>", user_id="<u>"
    )
    store.append([root])
    store.add_feedback(
        [Feedback(target=Target(trace_id=root.trace_id), key="<k>", score=1, comment="<script>c</script>")]
    )
    text = panel(client, root.trace_id).text
    assert [found for found in ("<script>", "<img", "<u>", "<k>") if found in text] == []


@pytest.mark.process
def test_a_key_of_another_project_sees_neither_panel_nor_suggestions_nor_neighbours(store):
    mine = [run("mine", project="mine", start_ns=START + number, metadata={"m": "1"}) for number in (0, 2)]
    theirs = run(
        "theirs", project="theirs", start_ns=START + 1, metadata={"secret": "x"}, user_id="them", inputs="hidden"
    )
    store.append([*mine, theirs])
    store.save_key(Key(id="k", name="k", sha256=sha256(b"k").hexdigest(), scopes=("read",), project="mine"))
    headers = {"authorization": "Bearer k"}
    with Server(store, require_key=True) as server, httpx.Client(base_url=server.url, headers=headers) as reader:
        answer = panel(reader, theirs.trace_id)
        assert (answer.status_code, "hidden" in answer.text) == (200, False)
        assert "deleted" in answer.text
        for term, found in (("metadata.", ["metadata.m="]), ("user=", []), ("metadata.secret=", [])):
            assert reader.get("/traces/suggestions", params={"term": term, "project": "theirs"}).status_code == 403
            answer = reader.get("/traces/suggestions", params={"term": term})
            assert [item["text"] for item in answer.json()] == found
        page = reader.get(f"/traces/{mine[0].trace_id}?from=").text
        assert f'rel="prev" href="/traces/{mine[1].trace_id}?from="' in page
