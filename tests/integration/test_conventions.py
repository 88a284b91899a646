"""Spans in every convention, as the collector reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spanwise.collector.records import Run
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.tracer import configure, current_run, flush, session, span, tags, trace, user
from spanwise.tracer.process_runtime import replace_runtime


@trace(kind="llm")
def call(prompt: str) -> dict[str, Any]:
    current_run().set_model("gpt-4o")
    current_run().set_usage(10, 5, cost=0.25, cache_read=4, reasoning=2)
    current_run().feedback("good", True, comment="yes")
    return {"id": "chatcmpl-1", "choices": [{"message": {"role": "assistant", "content": "gold"}}]}


@trace(kind="tool")
def look_up(city: str) -> None:
    return None


@trace(kind="retriever")
def search(query: str) -> list[dict[str, Any]]:
    return [{"id": 7, "text": "gold", "score": 0.5, "metadata": {"page": 1}}, {"page_content": "lead"}]


@trace(kind="retriever")
def nodes(query: str) -> dict[str, Any]:
    return {"source_nodes": [{"node": {"text": "gold", "id_": "n1"}, "score": 0.5}]}


@trace(kind="agent")
def agent(question: str) -> str:
    current_run().set_usage(1, 2)
    search(question)
    nodes(question)
    look_up("Rome")
    with span("texts") as run:
        run.set_inputs('{"a": "text"}')
        run.set_outputs("7")
        run.set_documents(["d1", {"text": "d2", "id": 7}])
    call(question)
    return "true"


def read(folder: Path, conventions: Any) -> tuple[dict[str, Run], list[Any]]:
    with SQLiteStore(folder / f"{len(conventions)}.db") as store, Server(store) as server:
        configure(url=server.url, conventions=conventions, spill_dir="off")
        with session("s1"), user("u1"), tags("t"):
            agent("What is heavy?")
        assert flush(60)
        runtime = replace_runtime(None)
        assert runtime is not None
        runtime.delivery.close()
        [summary] = store.traces()
        found = store.trace(summary.trace_id)
        assert found is not None
        assert found.complete
        return {run.name: run for run in found.runs}, [(f.key, f.score, f.comment) for f in found.feedback]


@pytest.mark.process
@pytest.mark.parametrize("conventions", [{"openinference"}, {"openinference", "gen_ai"}])
def test_conventions_change_nothing_of_what_the_collector_reads(tmp_path: Path, conventions: set[str]) -> None:
    compact, feedback = read(tmp_path, set())
    others, same = read(tmp_path, conventions)
    assert (feedback, same) == ([("good", True, "yes")], [("good", True, "yes")])
    assert compact.keys() == others.keys()
    fields = "kind inputs outputs documents model usage cost session_id user_id tags status error metadata".split()
    for name, run in compact.items():
        assert {f: getattr(others[name], f) for f in fields} == {f: getattr(run, f) for f in fields}, name
    counts = {key: value for key, value in compact["agent"].attributes.items() if key.startswith("spanwise.")}
    assert counts == {
        "spanwise.local_root": compact["agent"].span_id,
        "spanwise.spans.started": 6,
        "spanwise.spans.open": 0,
    }


@pytest.mark.process
def test_genai_alone_is_read(tmp_path: Path) -> None:
    runs, _ = read(tmp_path, {"gen_ai"})
    compact, _ = read(tmp_path, set())
    same = "kind documents model usage cost session_id user_id tags status".split()
    for name, run in compact.items():
        assert {f: getattr(runs[name], f) for f in same} == {f: getattr(run, f) for f in same}, name
    assert (runs["look_up"].inputs, runs["look_up"].outputs) == ({"city": "Rome"}, None)
    assert runs["search"].inputs == "What is heavy?"
    assert runs["texts"].inputs == '{"a": "text"}'
