"""What every TraceStore does. Each test takes `store`, which conftest.py gives in every implementation."""

from __future__ import annotations

import itertools
import time
import unicodedata
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from time import monotonic, sleep
from typing import Any

import numpy
import pytest

from collector.deciding import on, ruled, slice
from collector.making import SECOND, START, child, run
from looped_cases import loop_over
from spanwise.collector.errors import NotFound, Refused, SpanwiseError
from spanwise.collector.filters import Filter
from spanwise.collector.records import (
    Amendment,
    Document,
    Event,
    Experiment,
    Feedback,
    Link,
    OpenRun,
    ProcessReport,
    QueueItem,
    Retention,
    Run,
    Target,
    TraceSummary,
    Usage,
    iterate_pages,
)
from spanwise.collector.stores import Store, derived_fields


def eventually(look: Callable[[], Any], wanted: Any = True, seconds: float = 60) -> bool:
    """Return whether `look` gives what is wanted before the deadline; a machine may have much else to do."""
    deadline = monotonic() + seconds
    while (found := look()) != wanted and monotonic() < deadline:
        sleep(0.02)
    return bool(found == wanted)


FULL = Run(
    trace_id="a" * 32,
    span_id="b" * 16,
    parent_id=None,
    name="äé\x00 name",
    kind="llm",
    start_ns=1,
    end_ns=5,
    status="error",
    error="ValueError: no",
    inputs={"q": [1, 2.5, None, True, "x"]},
    outputs="text",
    documents=(Document("c", "i", 0.5, {"m": 1}),),
    model="m-1",
    usage=Usage(3, 4, {"cache_read": 2}),
    cost=0.25,
    attributes={"k": {"deep": [1]}},
    events=(Event("e", 3, {"a": 1}),),
    links=(Link("c" * 32, "d" * 16, {"l": 1}),),
    resource={"service.name": "s"},
    session_id="s",
    user_id="u",
    project="p",
    environment="prod",
    tags=("t1", "t2"),
    metadata={"tenant": "t7"},
    experiment_id="e",
    example_id="x",
    repetition=2,
    prompt_name="greet\x00",
    prompt_version="v2",
    agent_name="planner",
    finish_reasons=("stop", "length"),
    time_to_first_token_ms=120.5,
    tools=({"type": "function", "name": "f"},),
)


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


def agents(root: Run) -> list[Run]:
    """A root as OpenAI Agents sends it: content is recorded on the calls only, two levels below."""
    first = child(root, "turn", start_ns=root.start_ns + 1, end_ns=root.start_ns + 10)
    last = child(root, "turn", start_ns=root.start_ns + 11, end_ns=root.start_ns + 20)
    guard = child(root, "guard", kind="guardrail", inputs="?", outputs="safe", end_ns=root.start_ns + 30)
    calls = [
        child(first, "ask", kind="llm", inputs="When?", outputs="call search"),
        child(last, "ask", kind="llm", inputs="found", outputs={"answer": "Monday"}),
        child(last, "log", kind="tool", start_ns=last.start_ns + 2, end_ns=last.start_ns + 3),
    ]
    return [*calls, guard, first, last, root]


def test_a_root_without_values_shows_those_of_its_first_and_last_child(store: Store) -> None:
    root = run("workflow")
    store.append(agents(root))
    trace, [listed] = store.trace(root.trace_id), store.traces(limit=1).items
    assert (trace.root.inputs, trace.root.outputs) == ("When?", {"answer": "Monday"})
    assert derived_fields(trace.root) == ("inputs", "outputs")
    assert trace.root in trace.runs
    assert (listed.inputs, listed.outputs, listed.derived) == ("When?", "Monday", ("inputs", "outputs"))
    assert store.run(root.trace_id) == store.run(root.trace_id, root.span_id) == trace.root
    assert trace.root in store.runs(root.trace_id).items
    assert store.many([root.trace_id]) == [trace]


def test_the_root_of_a_trace_that_is_streamed_has_derived_values(store: Store) -> None:
    root, text = run("workflow"), "x" * 3_000_000
    store.append([root, child(root, "ask", inputs="When?", outputs=text)])
    trace = store.trace(root.trace_id)
    assert (trace.root.inputs, trace.root.outputs) == ("When?", text)
    assert trace.root in trace.runs
    assert store.traces(limit=1).items[0].outputs == text[:299] + "…"


def test_the_search_for_a_value_is_bounded(store: Store) -> None:
    far, large = run("far"), run("large")
    steps = [child(far, inputs="i" if n == 16 else None, start_ns=far.start_ns + n) for n in range(17)]
    store.append([far, *steps, large, *(child(large, inputs="i") for _ in range(1_000))])
    assert store.trace(far.trace_id).root == far
    assert store.trace(large.trace_id).root == large
    assert [one.inputs for one in store.traces(limit=2)] == ["", ""]


def test_values_are_derived_from_what_has_arrived_so_far(store: Store) -> None:
    root = run("workflow")
    *calls, last = agents(root)
    store.append([calls[0], last])
    assert store.trace(root.trace_id).root.inputs is None  # of a run whose parent is missing
    store.append(calls)
    assert store.trace(root.trace_id).root.outputs == {"answer": "Monday"}
    store.append([replace(root, outputs="its own", attributes={"more": "than before"})])
    found = store.trace(root.trace_id).root
    assert (found.inputs, found.outputs, derived_fields(found)) == ("When?", "its own", ("inputs",))


@loop_over(
    "root",
    [
        run(inputs="own", attributes={"output.value": "null"}),  # a function that returned None
        run(inputs="own", status="error", error="no"),
        run(inputs="own", status="cancelled"),
        run(inputs="own", attributes={"spanwise.awaits": ["outputs"]}),
    ],
)
def test_a_root_that_has_no_outputs_for_a_reason_gets_none(store: Store, root: Run) -> None:
    store.append([root, child(root, inputs="other", outputs="a step's")])
    assert store.trace(root.trace_id).root == root
    assert store.traces(limit=1).items[0].outputs == ""


@loop_over("attributes", [{"spanwise.awaits": 1, "spanwise.derived": 1}, {"spanwise.awaits": "x"}])
def test_nonsense_about_derived_values_is_passed_over(store: Store, attributes: dict[str, Any]) -> None:
    root = run(attributes=attributes)
    store.append([root, child(root, inputs="i", outputs="o")])
    assert (store.trace(root.trace_id).root.inputs, store.traces(limit=1).items[0].outputs) == ("i", "o")


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


def test_runs_and_feedback_come_together(store: Store) -> None:
    root = run()
    votes = [Feedback(target=Target(trace_id=root.trace_id), key="good", score=1, author=n) for n in "ab"]
    store.append([child(root), root], votes)
    assert sorted(vote.author or "" for vote in store.trace(root.trace_id).feedback) == ["a", "b"]
    store.append([], [replace(votes[0], score=0.5)])
    assert store.count() == {"spans": 2, "traces": 1, "feedbacks": 2}


def test_feedback_that_comes_with_a_new_trace_has_its_standing(store: Store) -> None:
    root, other = run(), run()
    said = [Feedback(target=Target(trace_id=root.trace_id), key="k", score=n, created_ns=n) for n in (3, 1, 2)]
    said = [replace(one, version=str(one.score), id="") for one in said]
    store.append([root, other], [*said, Feedback(target=Target(trace_id=other.trace_id), key="k", score=0)])
    assert [found.trace_id for found in store.traces(feedback=("k", "=", 3))] == [root.trace_id]
    assert not store.traces(feedback=("k", "<", 3), status="ok", trace_ids=[root.trace_id]).items
    assert store.traces(feedback=("k", "=", 0)).items[0].trace_id == other.trace_id


def test_no_run_is_kept_without_the_feedback_that_comes_with_it(store: Store) -> None:
    root = run()
    nowhere = Target(trace_id=root.trace_id, span_id=root.span_id, document=2**70)
    impossible = Feedback(target=nowhere, key="k", score=1)
    with pytest.raises((SpanwiseError, OverflowError)):
        store.append([root], [impossible])
    assert store.count()["spans"] == 0


def test_traces_by_feedback_below_a_threshold(store: Store) -> None:
    roots = [run(str(i)) for i in range(4)]
    store.append(roots)
    for i, root in enumerate(roots):
        store.feedback(root.trace_id, "concise", i / 4)
    assert [one.name for one in store.traces(feedback=("concise", "<", 0.5))] == ["1", "0"]


def names(found: Iterable[TraceSummary]) -> list[str]:
    return [summary.name for summary in found]


# what is kept


@loop_over("order", [1, -1])
def test_the_later_and_fuller_run_wins(store: Store, order: int) -> None:
    started = run(end_ns=0, status="unset")
    finished = replace(started, end_ns=started.start_ns + 5, status="ok", outputs="done")
    for one in [started, finished][::order]:
        store.append([one])
    assert store.trace(started.trace_id).runs == (finished,)


def test_many(store: Store) -> None:
    roots = [run(str(i)) for i in range(5)]
    store.append(roots)
    wanted = [roots[3].trace_id, "f" * 32, roots[1].trace_id]
    assert [trace.root.name for trace in store.many(wanted)] == ["3", "1"]


def test_what_json_cannot_hold_is_mended_and_nothing_is_lost(store: Store) -> None:
    odd = run("lone \ud800", inputs={"huge": 2**70, "nan": float("nan"), 7: "key"}, start_ns=2**64, end_ns=2**64)
    store.append([odd, fine := run()])
    assert store.trace(odd.trace_id).root.inputs == {"huge": str(2**70), "nan": None, "7": "key"}
    assert store.trace(fine.trace_id).root == fine


def test_a_late_span_reopens_nothing_but_counts(store: Store) -> None:
    root = run()
    store.append([root])
    store.append([child(root, status="error", error="E: no", end_ns=root.end_ns + SECOND)])
    [summary] = store.traces()
    assert (summary.span_count, summary.error_count, summary.duration_ns) == (2, 1, 2 * SECOND)
    assert summary.status == "ok"


def test_a_span_whose_parent_never_arrives_is_the_root(store: Store) -> None:
    orphan = run("orphan", parent_id="e" * 16)
    store.append([orphan, child(orphan)])
    assert store.trace(orphan.trace_id).root == orphan
    assert names(store.traces()) == ["orphan"]


def test_tokens_and_cost_are_counted_once(store: Store) -> None:
    root = run(usage=Usage(30, 3), cost=3.0)
    calls = [child(root, kind="llm", model="m", usage=Usage(10, 1), cost=1.0) for _ in range(3)]
    store.append([*calls, root])
    [summary] = store.traces()
    assert (summary.input_tokens, summary.output_tokens, summary.cost) == (30, 3, 3.0)


def test_completeness_is_counted(store: Store) -> None:
    root = run(attributes={"spanwise.local_root": "", "spanwise.spans.started": 2, "spanwise.spans.open": 0})
    root = replace(root, attributes={**root.attributes, "spanwise.local_root": root.span_id})
    store.append([root])
    assert not store.traces().items[0].complete
    store.append([child(root, attributes={"spanwise.local_root": root.span_id})])
    assert store.traces(complete=True).items[0].complete


def test_a_span_open_at_the_end_of_its_root_is_waited_for(store: Store) -> None:
    root = run()
    own = {"spanwise.local_root": root.span_id, "spanwise.spans.started": 2}
    store.append([replace(root, attributes={**own, "spanwise.spans.open": 1})])
    assert store.traces(complete=False).items
    store.append([child(root, end_ns=root.end_ns + 9, attributes={**own, "spanwise.spans.open": 0})])
    assert store.trace(root.trace_id).complete


def test_a_trace_with_drops_is_not_called_complete(store: Store) -> None:
    root = run()
    counts = {
        "spanwise.spans.started": 3,
        "spanwise.spans.open": 0,
        "spanwise.spans.dropped": 2,
        "spanwise.calls.sent": 1,
    }
    store.append([replace(root, attributes={"spanwise.local_root": root.span_id, **counts})])
    [summary] = store.traces(complete=False)
    assert (summary.complete, summary.dropped, summary.calls_sent, summary.running) == (False, 2, 1, 0)
    assert not store.traces(complete=True).items
    assert not store.trace(root.trace_id).complete


def test_foreign_traces_are_complete_after_a_quiet_period_only(store: Store) -> None:
    store.append([run()])
    assert not store.traces().items[0].complete


# what has not come


def opened(name: str = "slow", **fields: Any) -> OpenRun:
    at = run()
    given = {"trace_id": at.trace_id, "span_id": at.span_id, "start_ns": at.start_ns}
    return OpenRun(name=name, **{**given, **fields})


def test_a_run_that_has_started_is_no_run(store: Store) -> None:
    begun = opened(kind="tool", project="p", environment="e", instance="i", parent_id="a" * 16, local_root="b" * 16)
    store.add_running([begun])
    assert store.running() == store.running(trace_id=begun.trace_id, project="p") == [begun]
    assert (store.traces().items, store.many([begun.trace_id]), store.aggregate()) == ((), [], [])
    assert store.count() == {"spans": 0, "traces": 0, "feedbacks": 0}
    assert store.running(project="q") == store.running(environment="d") == store.running(trace_id="1" * 32) == []


def test_a_trace_with_an_open_run_is_not_complete(store: Store) -> None:
    root = run()
    only = replace(
        root, attributes={"spanwise.local_root": root.span_id, "spanwise.spans.started": 1, "spanwise.spans.open": 0}
    )
    begun = opened(trace_id=root.trace_id, parent_id=root.span_id, local_root="b" * 16)
    store.append([only])
    store.add_running([begun])
    [summary] = store.traces(complete=False)
    assert (summary.running, summary.span_count, summary.complete) == (1, 1, False)
    assert store.trace(root.trace_id).running == (begun,)
    assert store.running() == [begun]


def test_its_span_takes_its_place_whichever_comes_first(store: Store) -> None:
    early, late = run(), run()
    store.add_running([opened(trace_id=early.trace_id, span_id=early.span_id)])
    store.append([early, late])
    store.add_running([opened(trace_id=late.trace_id, span_id=late.span_id)])
    assert store.running() == []
    assert [trace.running for trace in store.traces()] == [0, 0]


def test_a_run_that_is_said_twice_to_have_started_is_open_once(store: Store) -> None:
    root = run()
    begun = opened(trace_id=root.trace_id)
    store.append([root])
    store.add_running([begun, begun])
    store.add_running([begun])
    assert store.traces().items[0].running == 1
    store.append([replace(root, span_id=begun.span_id)])
    assert store.traces().items[0].running == 0


@pytest.mark.parametrize("first", ["span", "start"])
def test_a_run_that_its_process_has_dropped_is_not_open(store: Store, first: str) -> None:
    root = run()
    counts = {"spanwise.spans.started": 2, "spanwise.spans.open": 0, "spanwise.spans.dropped": 1}
    whole = replace(root, attributes={"spanwise.local_root": root.span_id, **counts})
    begun = opened(trace_id=root.trace_id, local_root=root.span_id)
    steps = [lambda: store.append([whole]), lambda: store.add_running([begun])]
    for step in steps if first == "span" else reversed(steps):
        step()
    assert (store.running(), store.traces().items[0].dropped) == ([], 1)


def test_open_runs_go_with_their_trace(store: Store) -> None:
    root = run()
    store.append([root])
    store.add_running([opened(trace_id=root.trace_id)])
    store.delete(trace_ids=root.trace_id)
    assert store.running() == []
    store.add_running([opened(trace_id=root.trace_id)])
    assert store.running() == []


def test_retention_takes_open_runs_that_are_alone(store: Store) -> None:
    old, young = opened(start_ns=1, project="p"), opened(start_ns=time.time_ns())
    store.add_running([young, old])
    store.prune(Retention(project="q", max_age_ns=10**9))
    store.prune(Retention(project=None, max_age_ns=3600 * 10**9))
    assert store.running() == [young]


def test_what_a_process_said_last_is_kept(store: Store) -> None:
    first = ProcessReport(instance="i", reported_ns=5, started=3, open=1, pending=2, pid=7, service="s", project="p")
    last = replace(first, reported_ns=9, started=4, open=0, delivered=2, spilled=1, pending=0, dropped={"full": 1})
    store.add_reports([last])
    store.add_reports([first])
    [process] = store.processes()
    assert (process.instance, process.pid, process.service, process.project) == ("i", 7, "s", "p")
    assert (process.report, process.stored) == (last, 0)
    assert store.processes(since_ns=process.seen_ns + 1) == []


def test_spans_are_counted_once_with_their_process(store: Store) -> None:
    root = run(resource={"service.instance.id": "i", "service.name": "s", "process.pid": 7}, project="p")
    store.append([root, child(root, resource=root.resource)])
    store.append([root, replace(root, end_ns=root.end_ns + 1), run(resource={"service.instance.id": 3}), run()])
    store.delete(project="p")
    [process] = store.processes()
    assert (process.instance, process.stored, process.report) == ("i", 2, None)
    assert (process.service, process.pid, process.project) == ("s", 7, "p")


# what is said later


def test_what_comes_later_is_filled_in(store: Store) -> None:
    store.append([bare := run("chat", kind="llm", metadata={"a": 1, "b": 1}, attributes={"x": 1})])
    later = {
        "inputs": {"q": "where?"},
        "outputs": "here",
        "documents": [Document("text", "d1", 0.5, {"page": 1})],
        "usage": Usage(3, 4),
        "cost": 0.5,
        "metadata": {"b": 2, "c": 2},
        "attributes": {"y": 2},
        "model": "m",
        "session_id": "s",
        "user_id": "u",
        "tags": ["t"],
    }
    assert store.amend(bare.trace_id, bare.span_id, later)
    merged = {"metadata": {"a": 1, "b": 2, "c": 2}, "attributes": {"x": 1, "y": 2}}
    wanted = {**later, **merged, "documents": tuple(later["documents"]), "tags": ("t",)}
    assert store.trace(bare.trace_id).runs == (replace(bare, **wanted),)


def test_lists_filters_and_menus_follow_what_was_amended(store: Store) -> None:
    store.append([root := run(), call := child(root, kind="llm")])
    fields = {"model": "m", "usage": {"input_tokens": 3, "output_tokens": 4}, "cost": 0.5, "tags": ["t"]}
    assert store.amend(root.trace_id, call.span_id, fields)
    assert store.amend(root.trace_id, root.span_id, {"session_id": "s", "metadata": {"tenant": "t1"}})
    [summary] = store.traces(model="m", session="s", tags="t", tokens=7, metadata={"tenant": "t1"}).items
    assert (summary.input_tokens, summary.cost, summary.tags, summary.session_id) == (3, 0.5, ("t",), "s")
    assert (store.values("model"), store.values("tag"), store.values("session")) == (["m"], ["t"], ["s"])


def test_words_follow_what_was_amended(store: Store) -> None:
    store.append([root := run(outputs="provisional")])
    assert eventually(lambda: len(store.traces(text="provisional")), 1)
    store.amend(root.trace_id, root.span_id, {"outputs": "final words"})
    assert eventually(lambda: len(store.traces(text="final")), 1)
    assert (len(store.traces(text="provisional")), store.traces().items[0].outputs) == (0, "final words")


@loop_over("fields", [{"outputs": "here"}, {"model": "m"}, {"cost": 0.5}, {"outputs": ""}], ids=str)
def test_the_same_run_sent_again_does_not_undo_what_was_amended(store: Store, fields: dict[str, Any]) -> None:
    store.append([root := run(inputs="where?", outputs="a long provisional answer")])
    store.amend(root.trace_id, root.span_id, fields)
    store.append([root])
    store.append([replace(root, end_ns=root.end_ns - 1, outputs="an older and longer provisional answer")])
    assert store.trace(root.trace_id).root == replace(root, **fields)


def test_a_later_run_keeps_what_was_amended_but_for_what_it_brings(store: Store) -> None:
    store.append([started := run(status="unset", metadata={"a": 1})])
    fields = {"inputs": "where?", "outputs": "here", "metadata": {"a": 2, "b": 2}, "tags": ("t",)}
    store.amend(started.trace_id, started.span_id, fields)
    ended = replace(started, end_ns=started.end_ns + 1, status="ok", outputs="there", metadata={"a": 3})
    store.append([ended])
    wanted = replace(ended, inputs="where?", metadata={"a": 3, "b": 2}, tags=("t",))
    assert store.trace(started.trace_id).root == wanted
    store.append([ended, started])
    assert store.trace(started.trace_id).root == wanted


def test_a_fuller_run_wins_over_the_one_that_was_sent_however_much_was_amended(store: Store) -> None:
    store.append([root := run(inputs="where?")])
    store.amend(root.trace_id, root.span_id, {"outputs": "a very long answer " * 10})
    store.append([fuller := replace(root, inputs="where is it?")])
    assert store.trace(root.trace_id).root == replace(fuller, outputs="a very long answer " * 10)


def test_amending_twice_adds_up(store: Store) -> None:
    store.append([root := run()])
    for fields in ({"outputs": "a", "metadata": {"a": 1, "b": 1}}, {"inputs": "q", "metadata": {"b": 2}}):
        assert store.amend(root.trace_id, root.span_id, fields)
    store.append([ended := replace(root, end_ns=root.end_ns + 1)])
    assert store.trace(root.trace_id).root == replace(ended, inputs="q", outputs="a", metadata={"a": 1, "b": 2})
    assert store.count()["spans"] == 1


def test_a_run_that_is_not_there_cannot_be_amended(store: Store) -> None:
    store.append([root := run()])
    store.feedback("f" * 32, "good", 1)
    assert not store.amend(root.trace_id, "f" * 16, {"outputs": "a"})
    assert not store.amend("f" * 32, root.span_id, {"outputs": "a"})
    assert not store.amend("e" * 32, root.span_id, {"outputs": "a"})
    assert store.count()["traces"] == 1


FIELDS: dict[str, Any] = {"inputs": "where?", "outputs": "here", "model": "m", "metadata": {"a": 2}, "tags": ["t"]}


def test_what_was_said_before_a_run_came_is_in_it_from_its_commit_on(store: Store) -> None:
    root = run("chat", kind="llm", outputs="provisional", metadata={"a": 1, "b": 1})
    assert not store.amend(root.trace_id, root.span_id, FIELDS)
    assert store.count()["spans"] == 0
    store.append([root])
    wanted = replace(root, **{**FIELDS, "metadata": {"a": 2, "b": 1}, "tags": ("t",)})
    assert store.trace(root.trace_id).root == wanted
    assert len(store.traces(model="m", tags="t", metadata={"a": 2})) == 1
    assert eventually(lambda: len(store.traces(text="where")), 1)


SAID = (
    {"input_messages": {"2": ["b", "c"]}, "attributes": {"x": 1}},
    {"input_messages": {"1": ["a"]}, "output_messages": {"1": ["z"]}},
    {"model": "m", "attributes": {"y": 2}},
)


@loop_over("order", list(itertools.permutations(range(4))), ids=str)
def test_every_order_of_a_run_and_what_is_said_of_it_gives_the_same_run(store: Store, order: tuple[int, ...]) -> None:
    root = run("chat")
    said = [Amendment(root.trace_id, root.span_id, fields) for fields in SAID]
    for _ in range(2):  # repeats, too
        for step in order:
            if step == len(said):
                store.append([root])
            else:
                store.add_amendments([said[step]])
    given = {"inputs": ["a", "b", "c"], "outputs": ["z"], "model": "m", "attributes": {"x": 1, "y": 2}}
    assert store.trace(root.trace_id).runs == (replace(root, **given),)


@pytest.mark.parametrize("before", [True, False])
def test_messages_are_what_a_run_has_none_of_itself(store: Store, before: bool) -> None:
    root = run("chat", inputs=["its own"])
    said = [Amendment(root.trace_id, root.span_id, SAID[1])]
    steps = [lambda: store.add_amendments(said), lambda: store.append([root])]
    for step in steps if before else reversed(steps):
        step()
    assert store.trace(root.trace_id).root == replace(root, outputs=["z"])
    store.append([ended := replace(root, end_ns=root.end_ns + 1)])
    assert store.trace(root.trace_id).root == replace(ended, outputs=["z"])


@pytest.mark.parametrize("before", [True, False])
def test_a_run_is_found_by_the_response_that_it_holds(store: Store, before: bool) -> None:
    root = run("chat", attributes={"gen_ai.response.id": "chatcmpl-1"})
    said = [Amendment("", "", {"outputs": "here"}, response_id="chatcmpl-1")]
    steps = [lambda: store.add_amendments(said), lambda: store.append([root])]
    answers = [step() for step in (steps if before else reversed(steps))]
    assert answers == ([[False], None] if before else [None, [True]])
    assert store.trace(root.trace_id).root == replace(root, outputs="here")


def test_a_response_that_a_deleted_run_held_finds_none(store: Store) -> None:
    store.append([root := run("chat", attributes={"gen_ai.response.id": "chatcmpl-1"})])
    store.delete(trace_ids=(root.trace_id,))
    assert store.add_amendments([Amendment("", "", {"outputs": "here"}, response_id="chatcmpl-1")]) == [False]


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("response_id", [None, "chatcmpl-1"])
def test_what_a_key_of_one_project_has_said_is_for_no_others_run(
    store: Store, before: bool, response_id: str | None
) -> None:
    root = run("chat", project="p", attributes={"gen_ai.response.id": "chatcmpl-1"})
    ids = ("", "") if response_id else (root.trace_id, root.span_id)
    theirs = [Amendment(*ids, {"outputs": "theirs", "user_id": "u"}, response_id, project="q")]
    mine = [Amendment(*ids, {"outputs": "mine"}, response_id, project="p")]
    steps = [lambda: store.add_amendments(theirs), lambda: store.add_amendments(mine), lambda: store.append([root])]
    for step in steps if before else reversed(steps):
        step()
    assert store.trace(root.trace_id).root == replace(root, outputs="mine")


def test_what_waits_for_a_run_goes_with_its_trace(store: Store) -> None:
    store.append([root := run()])
    late = child(root)
    store.amend(late.trace_id, late.span_id, {"outputs": "secret"})
    store.delete(trace_ids=(root.trace_id,))
    store.append([late])
    assert store.amend(late.trace_id, late.span_id, {"outputs": "secret"})
    assert (store.count()["spans"], store.many([root.trace_id])) == (0, [])


def test_of_many_amendments_one_that_makes_no_sense_keeps_all_away(store: Store) -> None:
    store.append([root := run()])
    with pytest.raises(Refused, match="inptus"):
        store.add_amendments(
            [Amendment(root.trace_id, root.span_id, {"outputs": "a"}), Amendment("f" * 32, "f" * 16, {"inptus": 1})]
        )
    assert store.trace(root.trace_id).root == root


@loop_over(
    ("fields", "told"),
    [({"inptus": 1}, "did you mean 'inputs'"), ({"start_ns": 1}, "'start_ns'"), ({"cost": "much"}, "'cost'.*'much'")],
    ids=["typo", "fixed", "value"],
)
def test_what_a_run_cannot_be_amended_with_is_refused(store: Store, fields: dict[str, Any], told: str) -> None:
    store.append([root := run()])
    with pytest.raises(Refused, match=told):
        store.amend(root.trace_id, root.span_id, fields)
    assert store.trace(root.trace_id).root == root


# lists


def test_pages_follow_each_other_without_gap_or_repeat(store: Store) -> None:
    store.append([run(str(i), start_ns=START + i // 3) for i in range(10)])
    seen, cursor = [], None
    while True:
        page = store.traces(limit=3, cursor=cursor)
        seen += names(page)
        if (cursor := page.next) is None:
            break
    assert sorted(seen, key=int) == [str(i) for i in range(10)]
    assert [int(name) // 3 for name in seen] == sorted((int(name) // 3 for name in seen), reverse=True)


def test_a_bad_cursor_is_refused(store: Store) -> None:
    with pytest.raises(Refused, match="invalid cursor"):
        store.traces(cursor="nonsense")


A = {
    "project": "p",
    "environment": "prod",
    "session_id": "s",
    "user_id": "u",
    "tags": ("x", "y"),
    "metadata": {"tenant": "t1", "ok": True},
}
FILTERS: list[tuple[dict[str, Any], bool]] = [
    ({"project": "p"}, True),
    ({"project": "q"}, False),
    ({"environment": "prod"}, True),
    ({"since_ns": START, "until_ns": START + 1}, True),
    ({"since_ns": START + 1}, False),
    ({"name": "root"}, True),
    ({"name": "search"}, False),
    ({"kind": "agent"}, True),
    ({"any_name": "search"}, True),
    ({"any_name": "sear"}, False),
    ({"any_kind": "retriever"}, True),
    ({"status": "error"}, False),
    ({"status": "ok"}, True),
    ({"error": "timeout ValueError"}, True),
    ({"error": "timeout other"}, False),
    ({"error": "timeout_of"}, True),
    ({"error": "time%of"}, False),
    ({"error": "timeou__of"}, False),
    ({"model": "m-1"}, True),
    ({"model": "m"}, False),
    ({"latency_ms": (">=", 1000)}, True),
    ({"latency_ms": (">", 1000)}, False),
    ({"tokens": ("=", 12)}, True),
    ({"tokens": ("!=", 12)}, False),
    ({"cost": ("<", 0.2)}, True),
    ({"tags": "x"}, True),
    ({"tags": ("x", "z")}, False),
    ({"metadata": {"tenant": "t1", "ok": "true"}}, True),
    ({"metadata": {"tenant": "t2"}}, False),
    ({"session": "s"}, True),
    ({"user": "v"}, False),
    ({"feedback": ("good", "=", "yes")}, True),
    ({"feedback": ("good", "!=", "yes")}, False),
    ({"feedback": ("good", "=", "no")}, False),
    ({"feedback": [("good", "!=", "no"), ("good", ">", 0)]}, True),
    ({"feedback": ("none", "=", "no")}, False),
    ({"feedback": ("good", ">=", 1)}, True),
    ({"feedback": [("good", ">", 0), ("tone", "=", "kind")]}, True),
    ({"feedback": ("tone", "!=", "kind")}, False),
    ({"feedback": ("none", "<", 1)}, False),
    ({"missing": "none"}, True),
    ({"missing": "good"}, False),
    ({"missing": "judge"}, True),
    ({"untried": "none"}, True),
    ({"untried": "judge"}, False),
    ({"untried": ("none", "recall")}, False),
    ({"failed": "judge"}, True),
    ({"skipped": "judge"}, False),
    ({"skipped": "recall"}, True),
    ({"experiment": "e"}, True),
    ({"experiment": ""}, False),
    ({"experiments": ("d", "e")}, True),
    ({"dataset": "numbers"}, True),
    ({"example": "ex"}, True),
    ({"complete": True}, False),
    ({"trace_ids": ("f" * 32,)}, False),
    ({"trace_ids": ()}, False),
]


@pytest.fixture
def filtered(store: Store) -> Store:
    """A store with one trace, of which all of `FILTERS` are true or false."""
    root = run("root", kind="agent", start_ns=START, experiment_id="e", example_id="ex", **A)
    # a fourth span is missing, else the trace would be complete after a few quiet seconds
    counts = {"spanwise.local_root": root.span_id, "spanwise.spans.started": 4, "spanwise.spans.open": 0}
    root = replace(root, attributes=counts)
    failing = child(root, kind="retriever", status="error", error="ValueError: timeout_of it")
    store.append([root, failing, child(root, "chat", kind="llm", model="m-1", usage=Usage(10, 2), cost=0.1)])
    store.save_experiment(Experiment(id="e", name="n", dataset="numbers"))
    on = Target(trace_id=root.trace_id)
    store.add_feedback(
        [
            Feedback(target=on, key="good", score=True),
            Feedback(target=replace(on, span_id=failing.span_id), key="tone", label="kind"),
            Feedback(target=on, key="judge", outcome="error", error="timeout"),
            Feedback(target=on, key="recall", outcome="skip", comment="no documents"),
        ]
    )
    return store


@loop_over(("conditions", "passes"), FILTERS, ids=str)
def test_filters(filtered: Store, conditions: dict[str, Any], passes: bool) -> None:
    assert len(filtered.traces(**conditions)) == passes


@loop_over("verb", ["traces", "feedbacks", "sessions", "aggregate", "delete"])
def test_an_impossible_status_is_refused_wherever_it_is_asked_for(store: Store, verb: str) -> None:
    store.append([run(trace_id="1" * 32, span_id="1" * 16)])
    with pytest.raises(ValueError, match=r"unknown status 'eror'; expected one of: unset, ok, error, cancelled"):
        getattr(store, verb)(status="eror")
    assert store.count()["traces"] == 1


def test_a_status_that_nobody_set_can_be_asked_for(store: Store) -> None:
    store.append([run("ok"), run("unset", status="unset"), run("error", status="error", error="E")])
    assert [names(store.traces(status=word)) for word in ("unset", "ok", "error")] == [
        ["unset"],
        ["unset", "ok"],
        ["error"],
    ]


def test_an_unknown_condition_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="'latency_ms'"):
        store.traces(latency_mss=(">", 1))


SEARCHED = {
    "depot": {"inputs": "It is in the depot in Oslo.", "outputs": ["The lithium battery", "left the Dépôt"]},
    "japanese": {"inputs": "返品の方法を教えてください", "outputs": "電池はリチウムイオンです"},
    "korean": {"inputs": "환불은 언제 되나요?", "outputs": "즉시환불"},
    "chinese": {"inputs": "锂离子电池安全吗？", "outputs": "RAG检索"},
    "decomposed": {"inputs": unicodedata.normalize("NFD", "ガイド café 환급")},
}


# By text: the traces found, latest first
SEARCHES = {
    '"in depot"': [],
    '"depot in"': ["depot"],
    '"DEPOT in" lith': ["depot"],
    "“the dépôt in”": ["depot"],
    '"battery left"': [],  # end of one text and beginning of the next
    '"lithium battery" "in oslo"': ["depot"],
    '"lithi"': [],
    "lithi": ["depot"],
    "thium": [],
    "in": ["depot"],
    "li": [],
    "返品": ["japanese"],
    "返品の方法": ["japanese"],
    "方法 返品": ["japanese"],
    "方法返品": [],
    "い": ["japanese"],
    "リチウム": ["japanese"],
    "ガイド": ["decomposed"],
    "환불": ["korean"],
    "시환": ["korean"],
    "환급": ["decomposed"],
    "电池": ["chinese"],
    "池": ["chinese", "japanese"],
    '"rag检索"': ["chinese"],
    "索rag": [],
}


def test_a_search_finds_phrases_beginnings_and_text_without_spaces(store: Store) -> None:
    store.append([run(name, start_ns=START + n, **fields) for n, (name, fields) in enumerate(SEARCHED.items())])
    assert eventually(
        lambda: [names(store.traces(text=word)) for word in ("oslo", "café")], [["depot"], ["decomposed"]]
    )
    assert {text: names(store.traces(text=text)) for text in SEARCHES} == SEARCHES


@pytest.mark.parametrize(
    "text", ['"', '""""a', '"a" OR b NOT c', "NEAR(a b)", "text:a", "a^2 + -b", "*a", '"a*"* b', "\ue000"]
)
def test_no_search_is_read_as_an_expression_of_the_database(store: Store, text: str) -> None:
    with suppress(Refused):
        assert names(store.traces(text=text)) == []


def test_words_of_any_run_find_the_trace(store: Store) -> None:
    root = run(inputs={"question": "Where is my Parcel?"})
    store.append([root, child(root, outputs=["It left the dépôt on Monday"]), run("other", inputs="monday")])
    assert eventually(lambda: names(store.traces(text="parcel MONDAY")), ["answer"])
    assert names(store.traces(text="depot")) == ["answer"]
    assert names(store.traces(text="mond*")) == ["other", "answer"]
    assert names(store.traces(text='par" OR')) == []


@pytest.mark.process
def test_words_of_a_run_that_was_replaced_are_forgotten(store: Store) -> None:
    root = run(outputs="provisional words")
    store.append([root])
    assert eventually(lambda: len(store.traces(text="provisional")), 1)
    store.append([replace(root, outputs="final words", end_ns=root.end_ns + 1)])
    assert eventually(lambda: len(store.traces(text="final")), 1)
    assert len(store.traces(text="provisional")) == 0


# feedback


def test_a_repeat_overwrites_itself_and_two_votes_do_not(store: Store) -> None:
    store.append([root := run()])
    for author, score in (("ann", 0), ("bob", 1), ("ann", 1)):
        store.feedback(root.trace_id, "good", score, author=author)
    assert [(one.author, one.score) for one in store.feedbacks(key="good")] == [("ann", 1), ("bob", 1)]


def test_feedback_may_come_before_its_trace(store: Store) -> None:
    root = run()
    store.feedback(root.trace_id, "good", True)
    assert len(store.traces()) == 0
    store.append([root])
    assert store.trace(root.trace_id).feedback[0].score is True
    assert names(store.traces(feedback=("good", "=", 1))) == ["answer"]


def test_only_the_newest_score_of_a_key_filters(store: Store) -> None:
    store.append([root := run()])
    on = Target(trace_id=root.trace_id)
    store.add_feedback([Feedback(target=on, key="k", score=0.9, version="2", created_ns=2)])
    store.add_feedback([Feedback(target=on, key="k", score=0.1, version="1", created_ns=1)])
    assert len(store.traces(feedback=("k", "<", 0.5))) == 0
    assert store.traces().items[0].feedback == {"k": 0.9}


def test_taking_feedback_back_brings_the_one_before_forward(store: Store) -> None:
    store.append([root := run()])
    on = Target(trace_id=root.trace_id)
    old, new = (Feedback(target=on, key="k", score=n / 10, version=str(n), created_ns=n) for n in (1, 2))
    store.add_feedback([old, new])
    assert store.delete_feedback([new.id, "unknown"]) == 1
    assert len(store.traces(feedback=("k", "<", 0.15))) == 1


def test_feedback_changes_by_id(store: Store) -> None:
    store.append([root := run()])
    first = store.feedback(root.trace_id, "good", 0.2, comment="why", author="ann")
    failed = Feedback(target=Target(trace_id=root.trace_id), key="judge", outcome="error", error="timeout")
    store.add_feedback([failed])
    made = store.change_feedback({first.id: {"score": 0.9, "metadata": {"n": 1}}, failed.id: {"label": "fine"}})
    assert made == [
        replace(first, score=0.9, metadata={"n": 1}),
        replace(failed, label="fine", outcome="score", error=None),
    ]
    assert sorted(store.feedbacks(), key=lambda one: one.key) == made
    assert len(store.traces(feedback=[("good", ">", 0.5), ("judge", "=", "fine")])) == 1


@pytest.mark.parametrize(
    ("fields", "told"),
    [({"author": "bob"}, "author"), ({"target": {"trace_id": "a"}}, "target"), ({"score": None}, "score None")],
)
def test_what_makes_a_feedback_cannot_change(store: Store, fields: dict[str, Any], told: str) -> None:
    kept = store.feedback("1" * 32, "good", 0.2, author="ann")
    with pytest.raises(Refused, match=told):
        store.change_feedback({kept.id: fields})
    assert list(store.feedbacks()) == [kept]


def test_changes_of_feedback_are_all_or_none(store: Store) -> None:
    kept = store.feedback("1" * 32, "good", 0.2)
    with pytest.raises(NotFound, match="'unknown'"):
        store.change_feedback({kept.id: {"score": 1.0}, "unknown": {"score": 1.0}})
    assert list(store.feedbacks()) == [kept]


def test_every_kind_of_feedback_comes_back_as_it_was(store: Store) -> None:
    span = Target(trace_id="1" * 32, span_id="2" * 16)
    given = [
        Feedback(target=replace(span, document=3), key="relevance", score=0.5, source="model", judge_trace_id="j"),
        Feedback(target=Target(session_id="s"), key="resolved", score=False, source="human", author="ann"),
        Feedback(target=Target(experiment_id="e"), key="f1", label="high", metadata={"n": [1]}, rule="r"),
        Feedback(target=span, key="judge", outcome="error", error="timeout", evaluator="judge", version="3"),
    ]
    store.add_feedback(given)
    assert list(store.feedbacks())[::-1] == sorted(given, key=lambda one: one.created_ns)
    for one in given:
        assert list(store.feedbacks(target=one.target)) == [one]


def test_feedbacks_of_traces_that_pass_in_pages(store: Store) -> None:
    roots = [run(str(i), project="p" if i % 2 else "q") for i in range(6)]
    store.append(roots)
    on = [Target(trace_id=root.trace_id) for root in roots]
    store.add_feedback([Feedback(target=t, key="k", score=float(i), created_ns=i) for i, t in enumerate(on)])
    page = store.feedbacks(project="p", limit=2)
    assert [one.score for one in page] == [5.0, 3.0]
    assert [one.score for one in store.feedbacks(project="p", limit=2, cursor=page.next)] == [1.0]


# sessions, aggregates, values, counts


def test_sessions_sum_up_their_traces(store: Store) -> None:
    store.append([run(session_id="a", user_id="u", usage=Usage(1, 2)), run(session_id="b", status="error", error="E")])
    store.append([run(session_id="a", user_id="u", usage=Usage(3, 4), cost=0.5), run()])
    first, second = store.sessions()
    assert (first.session_id, first.traces, first.user_id, first.input_tokens, first.cost) == ("a", 2, "u", 4, 0.5)
    assert (second.session_id, second.errors) == ("b", 1)
    page = store.sessions(limit=1)
    assert [one.session_id for one in store.sessions(limit=1, cursor=page.next)] == ["b"]


def test_aggregates_over_time(store: Store) -> None:
    store.append([run(start_ns=100 * SECOND + i, end_ns=101 * SECOND + i + i * SECOND) for i in range(4)])
    store.append([run(start_ns=165 * SECOND, end_ns=166 * SECOND, status="error", error="E", usage=Usage(5, 1))])
    first, second = store.aggregate(bucket_ns=60 * SECOND)
    assert (first.start_ns, first.traces, first.errors, first.p50_ms, first.p95_ms) == (60 * SECOND, 4, 0, 2000, 4000)
    assert first.p99_ms == 4000
    assert (second.start_ns, second.errors, second.input_tokens, second.output_tokens) == (120 * SECOND, 1, 5, 1)
    [whole] = store.aggregate()
    assert (whole.traces, whole.start_ns, whole.start_ns + whole.width_ns) == (5, 100 * SECOND, 165 * SECOND + 1)


def test_aggregates_by_model_count_the_calls_tokens(store: Store) -> None:
    root = run()
    calls = [
        child(root, kind="llm", model=m, usage=Usage(n, 0), cost=n / 10) for m, n in (("a", 1), ("b", 2), ("a", 3))
    ]
    store.append([root, *calls])
    found = {one.group: (one.traces, one.input_tokens, one.cost) for one in store.aggregate(group_by="model")}
    assert found == {"a": (1, 4, pytest.approx(0.4)), "b": (1, 2, pytest.approx(0.2))}


def prompted(name: str | None = "greet", version: str | None = None, parent: Run | None = None, **fields: Any) -> Run:
    """A model call with a prompt: in a new trace, or below a parent."""
    call = {"kind": "llm", "prompt_name": name, "prompt_version": version, **fields}
    return run("call", **call) if parent is None else child(parent, "call", **call)


def test_a_trace_lists_the_prompts_agents_finish_reasons_and_longest_wait_of_its_runs(store: Store) -> None:
    root = run(kind="agent", agent_name="planner")
    first = prompted("greet", "v1", root, finish_reasons=("tool_calls",), time_to_first_token_ms=80.0)
    second = prompted("greet", None, root, finish_reasons=("stop", "length"), time_to_first_token_ms=300.5)
    third = prompted(None, "7", root, agent_name="writer")
    store.append([root, first])
    for late in (second, third):
        store.append([late])
    store.append([run()])
    plain, [listed] = store.traces(limit=1), store.traces(agent="planner")
    assert listed.prompts == {"greet": ("v1", None), "": ("7",)}
    assert listed.agents == ("planner", "writer")
    assert listed.finish_reasons == ("tool_calls", "stop", "length")
    assert listed.time_to_first_token_ms == 300.5
    assert [(one.prompts, one.agents, one.finish_reasons, one.time_to_first_token_ms) for one in plain] == [
        ({}, (), (), None)
    ]


def test_a_later_version_of_a_run_replaces_its_labels(store: Store) -> None:
    root = run()
    call = prompted("greet", "v1", root, finish_reasons=("stop",), time_to_first_token_ms=500.0)
    store.append([root, call])
    store.append([replace(call, prompt_version="v2", time_to_first_token_ms=90.0, end_ns=call.end_ns + 1)])
    [listed] = store.traces()
    assert (listed.prompts, listed.time_to_first_token_ms) == ({"greet": ("v2",)}, 90.0)
    store.append([child(root, "more")])
    assert store.traces().items[0].prompts == {"greet": ("v2",)}


def test_traces_are_filtered_by_prompt_agent_finish_reason_and_time_to_first_token(store: Store) -> None:
    both = run()
    store.append([both, prompted("greet", "v1", both), prompted("sum", "v2", both)])
    one = prompted("greet", "v2", agent_name="planner", finish_reasons=("stop", "length"), time_to_first_token_ms=250.0)
    store.append([one, run()])

    def found(**conditions: Any) -> list[str]:
        return ids(store.traces(**conditions))

    assert found(prompt="greet") == [one.trace_id, both.trace_id]
    assert found(prompt_version="v2") == [one.trace_id, both.trace_id]
    assert found(prompt="greet", prompt_version="v2") == [one.trace_id]
    assert found(prompt="greet", prompt_version="v3") == found(prompt="other") == found(agent="other") == []
    assert found(agent="planner") == found(finish_reason="length") == [one.trace_id]
    assert found(time_to_first_token_ms=">=250") == found(time_to_first_token_ms="!=0") == [one.trace_id]
    assert found(time_to_first_token_ms="<250") == []


def test_aggregates_by_prompt_version_chart_and_compare_versions(store: Store) -> None:
    scored = []
    for number, (version, score) in enumerate([("v1", 0.0), ("v1", 0.5), ("v2", 1.0), ("v2", 0.5)]):
        start = (100 + 60 * (number % 2)) * SECOND
        call = prompted("greet", version, start_ns=start, cost=0.5)
        scored.append(Feedback(target=Target(trace_id=call.trace_id), key="good", score=score))
        store.append([call])
    store.append([prompted("sum", "v1"), prompted("greet", None), run()])
    store.add_feedback(scored)
    found = store.aggregate(group_by="prompt_version")
    assert {one.group: (one.traces, one.cost) for one in found} == {
        "greet": (1, 0.0), "greet@v1": (2, 1.0), "greet@v2": (2, 1.0), "sum@v1": (1, 0.0),
    }  # fmt: skip
    compared = store.aggregate(prompt="greet", group_by="prompt_version")
    assert {one.group: one.feedback[0].mean for one in compared if one.feedback} == {"greet@v1": 0.25, "greet@v2": 0.75}
    chart = store.aggregate(prompt="greet", prompt_version="v2", group_by="prompt_version", bucket_ns=60 * SECOND)
    assert [(one.start_ns // SECOND, one.group, one.traces) for one in chart] == [
        (60, "greet@v2", 1),
        (120, "greet@v2", 1),
    ]


def test_of_a_trace_with_two_prompts_only_the_one_asked_for_is_a_group(store: Store) -> None:
    both = run()
    store.append([both, prompted("greet", "v1", both), prompted("greet", "v2", both), prompted("sum", "v1", both)])
    for newest in (1, "all"):
        groups = [one.group for one in store.aggregate(prompt="greet", group_by="prompt_version", newest=newest)]
        assert groups == ["greet@v1", "greet@v2"]
    assert [one.group for one in store.aggregate(group_by="prompt")] == ["greet", "sum"]


def test_aggregates_by_agent_finish_reason_and_time_to_first_token(store: Store) -> None:
    store.append([run(agent_name="a", finish_reasons=("stop",), time_to_first_token_ms=99.9), run(agent_name="b")])
    store.append([run(finish_reasons=("stop", "length"), time_to_first_token_ms=ms) for ms in (100.0, 12_000.0)])

    def counted(group_by: str) -> dict[str | None, int]:
        return {one.group: one.traces for one in store.aggregate(group_by=group_by)}

    assert counted("agent") == {"a": 1, "b": 1}
    assert counted("finish_reason") == {"stop": 3, "length": 2}
    assert counted("time_to_first_token_ms") == {"< 100": 1, "100 to 200": 1, ">= 10000": 1, None: 1}


def test_aggregates_by_tag_and_by_version_of_the_service(store: Store) -> None:
    old, new = ({"service.version": version} for version in ("1.0", "1.1"))
    store.append([run(tags=("a", "b"), resource=old), run(tags=("a",), resource=new), run(resource=new), run()])

    def counted(group_by: str) -> dict[str | None, int]:
        return {one.group: one.traces for one in store.aggregate(group_by=group_by)}

    assert counted("tag") == {"a": 2, "b": 1}
    assert counted("version") == {"1.0": 1, "1.1": 2, None: 1}
    assert len(store.traces(version="1.1")) == 2
    assert len(store.traces(version="1")) == 0


@pytest.mark.parametrize("bucket_ns", [None, 3600 * SECOND])
def test_an_aggregate_tells_whether_all_scores_are_zero_or_one(store: Store, bucket_ns: int | None) -> None:
    scores: dict[str, list[Any]] = {
        "yes": [True, False],
        "ones": [1, 1.0],
        "mixed": [True, 0.5],
        "between": [0.0, 0.5, 1.0],
    }
    scores |= {"label": ["good"], "outside": [-1, 0]}
    for key, given in scores.items():
        for value in given:
            root = run(start_ns=START)
            field = {"label": value} if isinstance(value, str) else {"score": value}
            store.append([root], [Feedback(target=Target(trace_id=root.trace_id), key=key, **field)])
    [bucket] = store.aggregate(bucket_ns=bucket_ns)
    assert {stats.key for stats in bucket.feedback if stats.binary} == {"yes", "ones"}


def test_known_prompts_agents_and_finish_reasons_are_listed(store: Store) -> None:
    store.append([prompted("greet", "v1", agent_name="a", finish_reasons=("stop",), project="p"), prompted(None, "v0")])
    for project in (None, "p"):
        known = {name: store.values(name, project=project) for name in ("prompt", "agent", "finish_reason")}
        assert known == {"prompt": ["greet"], "agent": ["a"], "finish_reason": ["stop"]}
    assert (store.values("prompt_version"), store.values("prompt_version", project="p")) == (["v0", "v1"], ["v1"])


def test_an_amendment_sets_prompt_agent_and_finish_reason(store: Store) -> None:
    call = run(kind="llm")
    store.append([call])
    fields = {"prompt_name": "greet", "prompt_version": "v1", "agent_name": "a", "finish_reasons": ["stop"]}
    assert store.amend(call.trace_id, call.span_id, {**fields, "time_to_first_token_ms": 5.5, "tools": [{"name": "f"}]})
    root = store.trace(call.trace_id).root
    assert (root.prompt_name, root.finish_reasons, root.tools) == ("greet", ("stop",), ({"name": "f"},))
    assert ids(store.traces(prompt="greet", prompt_version="v1", agent="a")) == [call.trace_id]


def test_aggregates_by_error_put_one_fault_of_many_tasks_together(store: Store) -> None:
    task = "RuntimeError: Task <Task pending name='Task-{0}' coro=<f() at 0x7f00dead{0}>> got a Future"
    errors = [task.format(number) for number in (11, 12, 13)] + ["ValueError: no such order\nat line 3"]
    store.append([run(status="error", error=error) for error in errors] + [run()])
    assert {one.group: one.errors for one in store.aggregate(group_by="error")} == {
        "RuntimeError: Task <Task pending name='Task-…' coro=<f() at 0x…>> got a Future": 3,
        "ValueError: no such order": 1,
        None: 0,
    }


def test_a_cancelled_trace_is_neither_ok_nor_an_error(store: Store) -> None:
    cancelled = run(status="cancelled", outputs=["partial"])
    store.append([cancelled, run(), run(status="error", error="E")])
    assert [one.trace_id for one in store.traces(status="cancelled")] == [cancelled.trace_id]
    assert [len(store.traces(status=status)) for status in ("ok", "error")] == [1, 1]
    assert [one.errors for one in store.aggregate()] == [1]
    assert store.trace(cancelled.trace_id).root.status == "cancelled"


def test_aggregates_count_outcomes_apart_and_newest_versions_only(store: Store) -> None:
    roots = [run() for _ in range(4)]
    store.append(roots)
    on = [Target(trace_id=root.trace_id) for root in roots]
    old = Feedback(target=on[0], key="k", score=0.0, version="1", created_ns=1)
    store.add_feedback([old, Feedback(target=on[0], key="k", score=1.0, version="2", created_ns=2)])
    store.add_feedback([Feedback(target=on[1], key="k", score=0.5), Feedback(target=on[2], key="k", outcome="skip")])
    store.add_feedback(
        [Feedback(target=on[3], key="k", outcome="error", error="E"), Feedback(target=on[3], key="l", label="x")]
    )
    k, label = store.aggregate()[0].feedback
    assert (k.n, k.mean, k.minimum, k.maximum, k.failed, k.skipped) == (2, 0.75, 0.5, 1.0, 1, 1)
    assert (label.n, label.labelled, label.mean, label.labels) == (0, 1, None, {"x": 1})


def test_two_peoples_votes_both_count(store: Store) -> None:
    store.append([root := run()])
    for author, score in (("ann", 0), ("bob", 1)):
        store.feedback(root.trace_id, "good", score, author=author)
    [stats] = store.aggregate()[0].feedback
    assert (stats.n, stats.mean) == (2, 0.5)


def test_scores_of_an_experiment_come_without_contents_in_pages(store: Store) -> None:
    runs = [run(experiment_id="e", example_id=f"x{n}", repetition=n % 2, start_ns=START + n) for n in range(5)]
    store.append([*runs, child(runs[0], "below"), run(experiment_id="other")])
    scores = enumerate([(runs[0], 0.25), (runs[0], 0.5), (runs[3], True)])
    targets = [(n, Target(trace_id=of.trace_id), score) for n, (of, score) in scores]
    store.add_feedback([Feedback(target=it, key="k", score=score, created_ns=n) for n, it, score in targets])
    pages = [first := store.scores("e", limit=3), store.scores("e", limit=3, cursor=first.next)]
    rows = [row for page in pages for row in page]
    assert [(row.trace_id, row.example_id, row.repetition) for row in rows] == [
        (of.trace_id, of.example_id, of.repetition) for of in runs
    ]
    assert [row.scores.get("k") for row in rows] == [0.5, None, None, 1.0, None]
    assert (len(first), pages[1].next, store.scores("nowhere").items) == (3, None, ())


def test_scores_say_how_a_run_ended_and_what_has_none(store: Store) -> None:
    store.append([failing := run(experiment_id="e", status="error", error="x")])
    target = Target(trace_id=failing.trace_id)
    skip = Feedback(target=target, key="skipped", outcome="skip", comment="why")
    store.add_feedback([skip, Feedback(target=target, key="tone", label="kind")])
    (row,) = store.scores("e")
    assert (row.status, row.scores) == ("error", {"skipped": None, "tone": "kind"})


def test_known_values(store: Store) -> None:
    store.append([run(model="m", **A), run("b", kind="llm", environment="dev")])
    store.feedback("1" * 32, "good", 1)
    found = {field: store.values(field) for field in ("project", "environment", "name", "kind", "model", "tag")}
    assert found == {
        "project": ["default", "p"],
        "environment": ["dev", "prod"],
        "name": ["answer", "b"],
        "kind": ["chain", "llm"],
        "model": ["m"],
        "tag": ["x", "y"],
    }
    assert (store.values("session"), store.values("user"), store.values("feedback")) == (["s"], ["u"], ["good"])


def test_known_values_of_one_project(store: Store) -> None:
    judged = run(model="m", **{**A, "tags": ("x",)})
    store.append([judged, run("b", kind="llm", environment="dev", model="n", tags=("z",), session_id="t", user_id="v")])
    store.append([run("judge", kind="evaluator", project="judges")])
    store.feedback(judged.trace_id, "good", 1)
    fields = ("environment", "name", "kind", "model", "tag", "session", "user", "feedback", "project")
    assert store.values("project") == ["default", "judges", "p"]
    assert {field: store.values(field, project="p") for field in fields} == {
        "environment": ["prod"],
        "name": ["answer"],
        "kind": ["chain"],
        "model": ["m"],
        "tag": ["x"],
        "session": ["s"],
        "user": ["u"],
        "feedback": ["good"],
        "project": ["p"],
    }
    assert store.values("tag", project="default", limit=1) == ["z"]
    assert store.values("name", project="judges") == store.values("feedback", project="nobody") == []


@loop_over("given", ["1" * 7, "0" * 32, "g" * 32, ""])
def test_feedback_on_an_id_that_no_trace_can_have_is_refused(store: Store, given: str) -> None:
    with pytest.raises(Refused, match=r"trace_id must be 32 hex digits|empty id"):
        store.feedback(given, "k", 1)
    with pytest.raises(Refused, match=r"32 hex digits|empty id"):
        store.add_feedback([Feedback(target=Target(trace_id=given), key="k", score=1.0)])
    with pytest.raises(Refused, match=r"span_id must be 16 hex digits|empty id"):
        store.append([run()], [Feedback(target=Target(trace_id="1" * 32, span_id=given), key="k", score=1.0)])
    assert store.count()["feedbacks"] == 0


def test_feedback_on_a_uuid_is_on_the_trace_of_its_digits(store: Store) -> None:
    judged = run(trace_id="0af7651916cd43dd8448eb211c80319c")
    store.append([judged])
    dashed = "0AF76519-16CD-43DD-8448-EB211C80319C"
    kept = store.feedback(dashed, "k", 1, author="ann")
    store.add_feedback([Feedback(target=Target(trace_id=dashed), key="k", score=0.0, source="human", author="ann")])
    (row,) = store.trace(judged.trace_id).feedback
    assert (row.id, row.target, row.score) == (kept.id, Target(trace_id=judged.trace_id), 0.0)


@loop_over(
    ("given", "score"),
    [(numpy.bool_(True), True), (numpy.float32(0.5), 0.5), (numpy.float64(0.5), 0.5), (numpy.int64(1), 1.0)],
)
def test_scores_of_numpy_are_pythons_own(store: Store, given: Any, score: float | bool) -> None:
    kept = store.feedback("1" * 32, "k", given, author="ann")
    (read,) = store.feedbacks(key="k")
    (changed,) = store.change_feedback({read.id: {"score": given, "metadata": {"n": given}}})
    for one in (kept, read, changed):
        assert (one.score, type(one.score)) == (score, type(score))
    assert changed.metadata == {"n": score}


def test_a_text_is_no_score(store: Store) -> None:
    with pytest.raises(
        ValueError, match=r"'k': the score must be a number or a bool, not '0\.5'; give a text as the label"
    ):
        store.feedback("1" * 32, "k", "0.5")  # type: ignore[arg-type]


def test_counts(store: Store) -> None:
    root = run()
    store.append([root, child(root), run()])
    store.feedback(root.trace_id, "good", 1)
    assert store.count() == {"spans": 3, "traces": 2, "feedbacks": 1}


# deletion


def test_deleting_takes_everything_that_speaks_of_a_trace(store: Store) -> None:
    gone, stays = run("gone", session_id="s", inputs="secret"), run("stays", inputs="secret")
    store.append([gone, child(gone), stays])
    store.feedback(gone.trace_id, "good", 1)
    store.feedback(Target(session_id="s"), "resolved", 1)
    ruled(store)
    [head] = [one for one in store.changes().heads if one.trace_id == gone.trace_id]
    store.decide(slice(on(head), upto=head.cursor))
    assert eventually(lambda: len(store.traces(text="secret")), 2)
    assert store.delete(session="s") == 1
    assert names(store.traces()) == names(store.traces(text="secret")) == ["stays"]
    assert store.count() == {"spans": 1, "traces": 1, "feedbacks": 0}
    assert len(store.decisions()) == 0


def test_nothing_brings_a_deleted_trace_back(store: Store) -> None:
    store.append([root := run(), other := run()])
    assert store.delete(trace_ids=(root.trace_id,)) == 1
    store.append([root, child(root), child(other)])
    store.append([child(root)], [Feedback(target=Target(trace_id=root.trace_id), key="k", score=1)])
    store.feedback(root.trace_id, "k", 1.0)
    assert store.amend(root.trace_id, root.span_id, {"outputs": "late"})  # acknowledged as all the others are
    assert store.count() == {"spans": 2, "traces": 1, "feedbacks": 0}
    assert store.delete(trace_ids=(root.trace_id,)) == 0


def test_pruning_by_age(store: Store) -> None:
    store.append([run("old"), run("new", start_ns=time.time_ns() + 3600 * SECOND)])
    assert store.prune(Retention(project="other", max_age_ns=1)) == 0
    assert store.prune(Retention(max_age_ns=SECOND)) == 1
    assert names(store.traces()) == ["new"]


def test_rules_of_retention_and_space(store: Store) -> None:
    store.set_retention(rule := Retention(project="p", max_age_ns=5, max_bytes=10**9))
    assert store.retention() == [rule]
    store.set_retention(Retention(project="p"))
    assert store.retention() == []
    assert store.vacuum() >= 0


def test_an_empty_filter_deletes_nothing(store: Store) -> None:
    store.append([run()])
    with pytest.raises(Refused, match="every trace"):
        store.delete()
    assert len(store.traces()) == 1


@pytest.mark.parametrize("text", ["", "!?", "\U0001f600"])
def test_a_text_without_a_word_deletes_nothing(store: Store, text: str) -> None:
    store.append([run()])
    with pytest.raises(Refused, match="contains no word"):
        store.delete(text=text)
    assert store.count()["traces"] == 1


def test_an_error_without_a_word_deletes_nothing(store: Store) -> None:
    store.append([run(status="error", error="E")])
    with pytest.raises(Refused, match="contains no word"):
        store.delete(error=" ")
    assert store.count()["traces"] == 1


def test_an_experiment_without_an_id_deletes_nothing(store: Store) -> None:
    store.append([run()])
    with pytest.raises(Refused):
        store.delete_experiment("")
    assert store.count()["traces"] == 1


def test_items_of_queues_go_with_their_traces_and_with_the_last_of_a_session(store: Store) -> None:
    store.append([first := run(session_id="s"), last := run(session_id="s")])
    targets = [Target(trace_id=first.trace_id), Target(session_id="s"), Target(session_id="other")]
    store.enqueue([QueueItem(queue="q", target=target, created_ns=n) for n, target in enumerate(targets)])
    store.delete(trace_ids=(first.trace_id,))
    assert [item.target for item in store.queue("q")] == targets[1:]
    store.delete(trace_ids=(last.trace_id,))
    assert [item.target for item in store.queue("q")] == targets[2:]


def test_a_dataset_is_asked_for_like_any_condition(store: Store) -> None:
    store.append([run(n, experiment_id=n, session_id=n) for n in "abc"])
    for id, dataset in zip("abc", ("d", "d", "other"), strict=True):
        store.save_experiment(Experiment(id=id, name=id, dataset=dataset))
        store.feedback(store.traces(name=id).items[0].trace_id, id, 1)
    assert names(store.traces(dataset="d")) == ["b", "a"]
    assert names(store.traces(dataset="d", experiments=("b", "c"))) == ["b"]
    assert names(store.traces(dataset="none")) == []
    assert (
        {f.key for f in store.feedbacks(dataset="d")}
        == {one.session_id for one in store.sessions(dataset="d")}
        == {"a", "b"}
    )
    assert store.aggregate(dataset="d")[0].traces == 2
    assert store.delete(dataset="d") == 2
    assert names(store.traces()) == ["c"]


def test_deleting_many(store: Store) -> None:
    store.append([run(project="p") for _ in range(450)])
    assert store.delete(project="p") == 450
    assert store.count()["spans"] == 0


def test_an_experiment_goes_with_its_traces_and_feedback(store: Store) -> None:
    store.append([root := run(experiment_id="e"), run()])
    store.save_experiment(Experiment(id="e", name="n", dataset="d"))
    store.feedback(root.trace_id, "good", 1)
    store.feedback(Target(experiment_id="e"), "f1", 0.5)
    assert store.delete_experiment("e")
    assert store.count() == {"spans": 1, "traces": 1, "feedbacks": 0}
    assert not store.delete_experiment("e")


def test_a_session_that_goes_on_is_on_one_page_once(store: Store) -> None:
    at = [{"session_id": f"s{n}", "start_ns": START + n * SECOND, "end_ns": START + n * SECOND} for n in range(4)]
    store.append([run(**fields) for fields in at])
    first = store.sessions(limit=2)
    later = {"start_ns": START + 9 * SECOND, "end_ns": START + 9 * SECOND}
    store.append([run(**{**fields, **later}) for fields in (at[0], at[3])])
    second = store.sessions(limit=2, cursor=first.next)
    assert [one.session_id for one in (*first, *second)] == ["s3", "s2", "s1", "s0"]
    assert second.next is None
    assert [one.session_id for one in store.sessions(limit=2)] == ["s3", "s0"]


def test_pages_of_sessions_follow_each_other(store: Store) -> None:
    store.append([run(session_id=f"s.{n * 7 % 10}") for n in range(40)])
    seen, cursor = [], None
    while True:
        page = store.sessions(limit=3, cursor=cursor)
        seen += [(one.session_id, one.traces) for one in page]
        if (cursor := page.next) is None:
            break
    assert seen == [(f"s.{n * 7 % 10}", 4) for n in reversed(range(30, 40))]


def test_a_deleted_tag_is_offered_no_more(store: Store) -> None:
    store.append([gone := run(tags=("ann", "both")), run(tags=("both",))])
    store.delete(trace_ids=(gone.trace_id,))
    assert store.values("tag") == ["both"]
    store.append([run(tags=("ann",))])
    assert store.values("tag") == ["ann", "both"]


def test_feedback_of_people_alone(store: Store) -> None:
    target = Target(trace_id="a" * 32)
    for source in ("human", "model", "code"):
        store.add_feedback([Feedback(target=target, key="good", score=1.0, source=source, author=source)])
    store.add_feedback([Feedback(target=target, key="other", score=1.0, source="human", author="ann")])
    assert [one.source for one in store.feedbacks(key="good", source="human")] == ["human"]
    assert [one.source for one in store.feedbacks(key="good", source="model")] == ["model"]
    assert len(store.feedbacks(source="human")) == 2


def ids(traces: Iterable[TraceSummary]) -> list[str]:
    return [trace.trace_id for trace in traces]


def many_traces(store: Store, count: int) -> list[str]:
    """Their ids, latest start first, more than two pages of them."""
    runs = [run("answer", trace_id=f"{place + 1:032x}", start_ns=START - place) for place in range(count)]
    store.append(runs)
    return [one.trace_id for one in runs]


def test_each_walks_all_pages(store: Store) -> None:
    there = many_traces(store, 1_201)
    assert ids(store.each(name="answer", since="2025-06-01")) == there
    assert ids(store.each(Filter(name="other"))) == []


def test_each_is_not_misled_by_what_comes_and_goes_meanwhile(store: Store) -> None:
    there = many_traces(store, 1_201)
    walk = store.each()
    seen = ids(islice(walk, 10))
    store.append([run("answer", trace_id="f" * 32, start_ns=START + 1)])
    store.delete(trace_ids=[*there[:5], *there[600:900]])
    assert seen + ids(walk) == [*there[:500], *there[500:600], *there[900:]]


@loop_over(
    "conditions",
    [{"since": "2026-01-02", "until": "2026-01-01"}, {"tokens": "<0"}, {"text": "!?"}, {"session": ""}],
)
def test_what_no_trace_can_pass_is_refused_wherever_it_is_asked(store: Store, conditions: dict[str, Any]) -> None:
    for verb in (store.traces, store.feedbacks, store.sessions, store.aggregate, store.delete):
        with pytest.raises(Refused):
            verb(**conditions)
    with pytest.raises(Refused):
        next(store.each(**conditions))


def test_never_tried_is_told_from_failed_and_skipped(store: Store) -> None:
    store.append([run("answer", trace_id=one * 32) for one in "abcd"])
    a, b, c = (Target(trace_id=one * 32) for one in "abc")
    scored, failed = Feedback(target=a, key="k", score=1.0), Feedback(target=b, key="k", outcome="error", error="boom")
    store.add_feedback([scored, failed, Feedback(target=c, key="k", outcome="skip", comment="no context")])
    rows = {one.trace_id[0]: one for one in store.traces()}
    assert [(rows[one].failed, rows[one].skipped, "k" in rows[one].feedback) for one in "abcd"] == [
        ((), (), True),
        (("k",), (), True),
        ((), ("k",), True),
        ((), (), False),
    ]
    found = {name: ids(store.each(**{name: "k"})) for name in ("untried", "failed", "skipped")}
    assert found == {"untried": ["d" * 32], "failed": ["b" * 32], "skipped": ["c" * 32]}


def test_feedback_is_sent_on_to_nobody_unless_that_was_asked(store: Store) -> None:
    store.feedback("a" * 32, "k", 1.0)
    assert store.outlets() == []


def long_trace(store: Store, n: int = 7) -> Run:
    """A root, under it runs that begin together, and below the second of these one more."""
    root = run(span_id="e" * 16)
    below = [child(root, f"c{i}", span_id=f"{i:016x}", start_ns=root.start_ns + 1 + i // 2) for i in range(1, n - 1)]
    store.append([*reversed(below), child(below[1], "deep", span_id="d" * 16), root])
    return root


@loop_over("limit", [1, 2, 3, 100])
def test_runs_of_a_trace_page_by_page_are_those_of_the_whole(store: Store, limit: int) -> None:
    trace_id = long_trace(store).trace_id
    pages = iterate_pages(lambda cursor: store.runs(trace_id, limit=limit, cursor=cursor))
    assert tuple(pages) == store.trace(trace_id).runs


@loop_over("limit", [1, 2, 3, 100])
def test_the_tree_of_a_trace_comes_page_by_page(store: Store, limit: int) -> None:
    trace_id = long_trace(store).trace_id
    rows = list(iterate_pages(lambda cursor: store.tree(trace_id, limit=limit, cursor=cursor)))
    assert [row.position for row in rows] == list(range(7))
    assert [(row.span_id[-1], row.depth) for row in rows[:2]] == [("e", 0), ("1", 1)]
    assert [(rows[i].name, rows[i + 1].name, rows[i + 1].depth) for i in range(6) if rows[i].name == "c2"] == [
        ("c2", "deep", 2)
    ]


def test_any_run_leads_to_its_page_of_the_tree(store: Store) -> None:
    trace_id = long_trace(store).trace_id
    rows = store.tree(trace_id).items
    for row in rows:
        page = store.tree(trace_id, limit=3, cursor=row.span_id)
        assert page.items == rows[row.position // 3 * 3 :][:3]


def test_the_tree_counts_feedback_and_tells_who_has_lost_a_parent(store: Store) -> None:
    root = run()
    lost = child(root, "lost", parent_id="f" * 16)
    store.append([root, lost])
    aim = Target(trace_id=root.trace_id, span_id=lost.span_id)
    store.add_feedback(
        [Feedback(target=aim, key="k", score=1.0), Feedback(target=aim, key="j", outcome="error", error="boom")]
    )
    first, second = store.tree(root.trace_id)
    assert (first.lost_parent, first.feedback, first.failed) == (False, 0, 0)
    assert (second.lost_parent, second.feedback, second.failed) == (True, 2, 1)


def test_one_run_of_a_trace_can_be_asked_for(store: Store) -> None:
    root = long_trace(store)
    assert store.run(root.trace_id) == root
    assert store.run(root.trace_id, "d" * 16).name == "deep"


def test_parts_of_what_is_not_there_are_not_found(store: Store) -> None:
    trace_id = long_trace(store).trace_id
    for ask in (store.tree, store.runs):
        with pytest.raises(NotFound, match="no trace"):
            ask("f" * 32)
        with pytest.raises(NotFound, match="no run 'nope'"):
            ask(trace_id, cursor="nope")
    for given in (("f" * 32,), (trace_id, "nope")):
        with pytest.raises(NotFound):
            store.run(*given)


def test_menus_leave_out_what_only_judgements_have(store: Store) -> None:
    judge = run("polite", kind="evaluator", environment="judges")
    both = run("answer", kind="evaluator", environment="prod")
    store.append([judge, child(judge, kind="llm", model="judge-model", environment="judges")])
    store.append(
        [both, child(both, kind="llm", model="gpt-5", environment="prod"), first := run("answer", environment="prod")]
    )
    store.append([child(first, kind="llm", model="gpt-5", environment="prod"), run("summarize", environment="test")])
    known = {field: store.values(field) for field in ("environment", "name", "model")}
    assert known == {"environment": ["prod", "test"], "name": ["answer", "summarize"], "model": ["gpt-5"]}
