"""The walking path: decorate, deliver over a real socket, attach feedback."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from spanwise.tracer import configure, current_run, flush, session, span, stats, tags, trace, user
from spanwise.tracer.testing import Spans
from spanwise.tracer.trace_capture import capture


@trace(kind="retriever")
def search(query: str, k: int = 2) -> list[dict[str, Any]]:
    return [{"content": "gold", "id": "au", "score": 0.5, "metadata": {"page": 1}}]


@trace
def answer(question: str) -> str:
    return str(search(question)[0]["content"])


def test_a_call_records_inputs_with_defaults_and_outputs(traced: Spans) -> None:
    answer("what?")
    assert traced.names() == ["answer", "search"]
    assert traced.inputs("search") == {"query": "what?", "k": 2}
    assert traced.outputs("answer") == "gold"
    assert traced.parent("search") == "answer"


def test_documents_are_flattened_for_openinference(sink: Any) -> None:
    configure(url=sink.url, conventions={"openinference"})
    search("q")
    flush()
    (sent,) = sink.spans()
    attributes = {a.key: a.value for a in sent.attributes}
    assert attributes["retrieval.documents.0.document.content"].string_value == "gold"
    assert attributes["retrieval.documents.0.document.id"].string_value == "au"
    assert attributes["retrieval.documents.0.document.score"].double_value == 0.5
    assert attributes["retrieval.documents.0.document.metadata"].string_value == '{"page":1}'


def test_spans_and_feedback_reach_a_collector(sink: Any) -> None:
    configure(url=sink.url, project="p")

    @trace
    def work() -> int:
        current_run().feedback("good", True, comment="yes")
        return 1

    work()
    assert flush(60)
    (sent,) = sink.spans()
    (log,) = sink.logs()
    assert (sent.name, log.event_name) == ("work", "gen_ai.evaluation.result")
    assert log.span_id == sent.span_id
    assert stats().delivered == 2


def test_an_exception_is_recorded_once_where_it_was_raised(traced: Spans) -> None:
    @trace
    def inner() -> None:
        raise ValueError("no")

    @trace
    def outer() -> None:
        inner()

    with pytest.raises(ValueError):
        outer()
    assert [len(traced.one(n).events) for n in ("inner", "outer")] == [1, 0]
    assert {traced.one(n).status.description for n in ("inner", "outer")} == {"ValueError: no"}


def test_session_user_and_tags_reach_all_spans_below(traced: Spans) -> None:
    with session("s1"), user("u1"), tags("a"), tags("b", "a"):
        answer("q")
    for name in ("answer", "search"):
        attributes = dict(traced.one(name).attributes or {})
        assert (attributes["session.id"], attributes["user.id"], attributes["tag.tags"]) == ("s1", "u1", ("a", "b"))


def test_capture_keeps_a_fresh_trace_in_memory(traced: Spans) -> None:
    with span("around"), capture("example", inputs={"q": 1}) as captured:
        answer("q")
        captured.run.feedback("k", 1)
    spans, still_open = captured.spans()
    assert [s.name for s in spans] == ["search", "answer", "example"]
    assert {f"{s.context.trace_id:032x}" for s in spans} == {captured.trace_id}
    assert (still_open, len(captured.feedback), traced.names()) == (0, 1, ["around"])


def test_capture_waits_for_open_spans_and_counts_them(traced: Spans) -> None:
    async def main() -> tuple[int, int]:
        with capture("example") as captured:
            late = span("late")
            late.__enter__()
        _, before = await captured.aspans(timeout=0.01)
        late.__exit__(None, None, None)
        spans, after = await captured.aspans()
        assert [s.name for s in spans] == ["example", "late"]
        return before, after

    assert asyncio.run(main()) == (1, 0)


def test_local_root_carries_the_counts(traced: Spans) -> None:
    answer("q")
    root = dict(traced.one("answer").attributes or {})
    assert (root["spanwise.spans.started"], root["spanwise.spans.open"]) == (2, 0)
    assert root["spanwise.local_root"] == f"{traced.one('answer').context.span_id:016x}"


def test_a_stack_trace_begins_in_the_users_code(traced: Spans) -> None:
    @trace
    def fails() -> None:
        raise KeyError("no")

    with pytest.raises(KeyError):
        fails()
    stack = str((traced.one("fails").events[0].attributes or {})["exception.stacktrace"]).splitlines()
    assert __file__ in stack[1]
    assert stack[-1] == "KeyError: 'no'"
