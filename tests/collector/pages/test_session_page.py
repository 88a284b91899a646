"""A session as a conversation: its turns in order, its parts, and values as they were sent."""

import re

import pytest

from collector.making import child, run
from collector.pages.odd_traces import running_agent
from spanwise.collector.records import OpenRun

REPRESENTATION = (
    "AgentOutput(response=<object at 0x7f>, tool_calls=[], raw=None, current_agent_name='Agent', retry_messages=[], x"
)


def asked(text):
    return [int(number) for number in re.findall(r"question (\d+)<", text)]


@pytest.mark.process
def test_a_long_conversation_begins_with_its_first_or_its_latest_turn(store, client):
    store.append([run(inputs=f"question {n}", session_id="talk") for n in range(45)])
    first = client.get("/sessions/talk").text
    assert asked(first) == list(range(20))
    (address,) = re.findall(r'<a rel="next" href="([^"]*)">Later turns', first)
    assert asked(client.get(f"/sessions/talk{address}").text) == list(range(20, 40))
    latest = client.get("/sessions/talk?order=latest").text
    assert asked(latest) == list(range(44, 24, -1))
    (address,) = re.findall(r'<a rel="next" href="([^"]*)">Earlier turns', latest)
    earlier = client.get(f"/sessions/talk{address.replace('&amp;', '&')}").text
    assert asked(earlier) == list(range(24, 4, -1))


def test_values_of_a_session_are_read_or_raw_by_choice(store, client):
    chat = {"messages": [{"role": "user", "content": "Why **now**?"}]}
    store.append([run(inputs=chat, outputs="Because.", session_id="talk")])
    assert "<strong>now</strong>" in client.get("/sessions/talk").text
    raw = client.get("/sessions/talk?view=raw").text
    assert "<strong>" not in raw
    assert "&#34;messages&#34;" in raw
    assert client.get("/sessions/talk").text.count('class="raw"') == 2  # the choice is remembered
    assert "<strong>" in client.get("/sessions/talk?view=read").text


def test_a_turn_whose_root_is_opaque_shows_its_model_calls(store, client):
    root = run("Agent.run", inputs=REPRESENTATION, outputs=REPRESENTATION, session_id="talk")
    first = child(root, "chat", kind="llm", inputs=[{"role": "user", "content": "Where is it?"}], outputs="?")
    last = child(root, "chat", kind="llm", inputs="x", outputs="In the depot.", start_ns=root.start_ns + 2)
    store.append([root, first, last])
    text = client.get("/sessions/talk").text
    assert all(words in text for words in ("Where is it?", "In the depot."))
    assert "AgentOutput" not in text


def test_a_failed_turn_shows_its_error_and_the_tool_that_failed(store, client):
    root = run(status="error", error="ToolError: <b>no</b>", session_id="talk")
    store.append([root, child(root, "lookup", kind="tool", status="error", error="no")])
    text = client.get("/sessions/talk").text
    assert "ToolError: &lt;b&gt;no&lt;/b&gt;" in text
    assert '<span dir="auto">lookup</span><span class="bad">failed</span>' in text


def test_a_running_turn_has_the_name_of_its_root(store, client):
    tool = running_agent(store)
    started = tool.start_ns - 10**9
    store.append([child(tool, "second_tool", kind="tool", session_id="talk", inputs="of the tool")])
    store.add_running([OpenRun(trace_id=tool.trace_id, span_id="e" * 16, name="agent of 12 s", start_ns=started)])
    text = client.get("/sessions/talk").text
    assert ">agent of 12 s</a>" in text
    assert "of the tool" not in text


def test_a_trace_that_is_deleted_while_its_session_is_read_keeps_its_beginning(store, client, monkeypatch):
    store.append([run(inputs="question 1", outputs="answer 1", session_id="talk")])
    many = store.many

    def delete_and_load(trace_ids):
        store.delete(session="talk")
        return many(trace_ids)

    monkeypatch.setattr(store, "many", delete_and_load)
    text = client.get("/sessions/talk").text
    assert all(words in text for words in ("question 1", "answer 1"))
    assert client.get("/sessions/talk").status_code == 404


@pytest.mark.process
def test_only_the_root_of_a_large_turn_is_read(store, client, monkeypatch):
    large, small = (run(inputs=f"question {n}", outputs=f"answer {n}", session_id="talk") for n in (1, 2))
    store.append([large, *(child(large, f"step {n}", kind="tool") for n in range(1_000)), small])
    asked, many = [], store.many

    def record(trace_ids):
        asked.extend(trace_ids)
        return many(trace_ids)

    monkeypatch.setattr(store, "many", record)
    text = client.get("/sessions/talk").text
    assert all(words in text for words in ("question 1", "answer 1", "question 2", "answer 2", ">1,001 spans</a>"))
    assert asked == [small.trace_id]
