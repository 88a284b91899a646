"""What every TraceStore does. Each test takes `store`, which conftest.py gives in every implementation."""

from __future__ import annotations

import pytest

from assay.collector.protocols import NotFound, Store
from assay.collector.records import Document, Event, Link, Run, Usage
from collector.making import child, run

FULL = Run(
    trace_id="a" * 32, span_id="b" * 16, parent_id=None, name="äé\x00 name", kind="llm", start_ns=1, end_ns=5, status="error",
    error="ValueError: no", inputs={"q": [1, 2.5, None, True, "x"]}, outputs="text", documents=(Document("c", "i", 0.5, {"m": 1}),),
    model="m-1", usage=Usage(3, 4, {"cache_read": 2}), cost=0.25, attributes={"k": {"deep": [1]}}, events=(Event("e", 3, {"a": 1}),),
    links=(Link("c" * 32, "d" * 16, {"l": 1}),), resource={"service.name": "s"}, session_id="s", user_id="u", project="p",
    environment="prod", tags=("t1", "t2"), metadata={"tenant": "t7"}, experiment_id="e", example_id="x", repetition=2,
)  # fmt: skip


def test_a_run_comes_back_as_it_was(store: Store) -> None:
    store.append([FULL])
    assert store.trace(FULL.trace_id).root == FULL


def test_an_unknown_trace_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound, match="f" * 32):
        store.trace("f" * 32)


def test_children_may_come_first_and_in_requests_of_their_own(store: Store) -> None:
    root = run()
    for one in (child(root, "late"), child(root, "early", start_ns=root.start_ns), root):
        store.append([one])
    trace = store.trace(root.trace_id)
    assert trace.root == root
    assert [one.name for one in trace.runs] == ["answer", "early", "late"]


def test_the_same_run_twice_is_kept_once(store: Store) -> None:
    root = run()
    store.append([root, root])
    store.append([root])
    assert store.trace(root.trace_id).runs == (root,)


def test_traces_are_listed_latest_first(store: Store) -> None:
    roots = [run(str(i)) for i in range(3)]
    store.append(roots)
    assert [summary.name for summary in store.traces()] == ["2", "1", "0"]


def test_feedback_on_a_trace_is_part_of_it(store: Store) -> None:
    root = run()
    store.append([root])
    kept = store.feedback(root.trace_id, "thumbs_up", 1, comment="great", author="ann")
    assert store.trace(root.trace_id).feedback == (kept,)
    assert store.traces().items[0].feedback == {"thumbs_up": 1.0}


def test_traces_by_feedback_below_a_threshold(store: Store) -> None:
    roots = [run(str(i)) for i in range(4)]
    store.append(roots)
    for i, root in enumerate(roots):
        store.feedback(root.trace_id, "concise", i / 4)
    assert [one.name for one in store.traces(feedback=("concise", "<", 0.5))] == ["1", "0"]
