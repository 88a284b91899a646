"""What every feed of changes does: each change is seen, in order, and each head says what rules ask of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from collector.conformance_traces import eventually
from collector.making import SECOND, child, run
from looped_cases import loop_over
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.filters import Filter
from spanwise.collector.records import Experiment, Feedback, OpenRun, Target, TraceHead
from spanwise.collector.stores import Store
from spanwise.tracer import attribute_names as names


def said(trace_id: str, score: float = 1.0, **fields: Any) -> Feedback:
    return Feedback(**{"target": Target(trace_id=trace_id), "key": "k", "score": score, "created_ns": 1, **fields})


def only(store: Store, *filters: Filter) -> TraceHead:
    [head] = store.changes(filters=filters).heads
    return head


def follow(store: Store, after: str | None = None, limit: int = 1000) -> list[TraceHead]:
    """All that stands in the feed after a position, slice by slice."""
    found: list[TraceHead] = []
    while (slice := store.changes(after, limit=limit)).heads:
        found, after = [*found, *slice.heads], slice.cursor
    return found


def test_the_feed_has_each_trace_where_it_last_changed(store: Store) -> None:
    store.append([a := run("a"), b := run("b")])
    store.append([run("c")])
    first = follow(store, limit=1)
    assert [head.trace_id for head in first[:2]] == [a.trace_id, b.trace_id]
    store.append([child(a)])
    [moved] = follow(store, first[-1].cursor)
    assert (moved.trace_id, moved.span_count) == (a.trace_id, 2)
    assert [head.trace_id for head in follow(store)][-1] == a.trace_id
    assert len(follow(store)) == 3


def test_a_slice_without_news_keeps_the_cursor(store: Store) -> None:
    assert store.changes().heads == ()
    store.append([run()])
    whole = store.changes()
    again = store.changes(whole.cursor)
    assert (again.heads, again.cursor) == ((), whole.cursor)
    assert again.now_ns >= whole.now_ns >= whole.heads[0].changed_ns


def test_the_same_runs_again_change_nothing_and_fuller_ones_do(store: Store) -> None:
    store.append([root := run()])
    before = only(store)
    store.append([root])
    assert only(store) == before
    store.append([replace(root, outputs="more")])
    after = only(store)
    assert after.change == after.runs_change > before.change


@pytest.mark.parametrize(
    "speak",
    [
        lambda store, id: store.add_feedback([said(id)]),
        lambda store, id: store.add_feedback([said(id, id="1", rule="r"), said(id, id="2")]),
        lambda store, id: store.append([], [said(id, target=Target(trace_id=id, span_id="1" * 16))]),
        lambda store, id: store.feedback(id, "k", 0.0),
        lambda store, id: store.change_feedback({"old": {"score": 0.0}}),
        lambda store, id: store.delete_feedback(["old"]),
        lambda store, id: store.add_feedback([said(id, id="old", target=Target(session_id="s"))]),
    ],
    ids=["add", "among others", "on a span", "vote", "change", "delete", "move away"],
)
def test_feedback_without_a_rule_is_a_change_but_not_of_the_runs(
    store: Store, speak: Callable[[Store, str], Any]
) -> None:
    store.append([root := run()], [said(root.trace_id, id="old", key="old")])
    before = only(store)
    speak(store, root.trace_id)
    after = only(store)
    assert after.change > before.change
    assert after.runs_change == before.runs_change


@pytest.mark.parametrize(
    "speak",
    [
        lambda store, id: store.add_feedback([said(id, key="old", id="old")]),
        lambda store, id: store.add_feedback([said(id, rule="r", claim=2)]),
        lambda store, id: store.delete_feedback(["ruled", "unknown"]),
        lambda store, id: store.change_feedback({"ruled": {"score": 0.0}}),
        lambda store, id: store.feedback(Target(session_id="s"), "k", 0.0),
    ],
    ids=["the same again", "of a rule", "a rule's deleted", "a rule's changed", "on a session"],
)
def test_what_is_no_change(store: Store, speak: Callable[[Store, str], Any]) -> None:
    store.append([root := run(session_id="s")])
    store.add_feedback([said(root.trace_id, id="old", key="old"), said(root.trace_id, id="ruled", rule="r")])
    before = only(store)
    speak(store, root.trace_id)
    assert only(store) == before


def test_feedback_that_comes_before_its_trace_waits_for_it(store: Store) -> None:
    store.add_feedback([said("1" * 32, score=0.0)])
    assert store.changes().heads == ()
    store.append([run(trace_id="1" * 32)])
    head = only(store, Filter(feedback=(("k", "<", 0.5),)))
    assert head.passes == (True,)


def test_an_amendment_is_a_change_of_the_runs_unless_it_says_nothing_new(store: Store) -> None:
    store.append([root := run()])
    before = only(store)
    store.amend(root.trace_id, root.span_id, {"outputs": "now"})
    after = only(store)
    assert after.runs_change > before.runs_change
    store.amend(root.trace_id, root.span_id, {"outputs": "now"})
    assert only(store) == after


@loop_over("cursor", ["", "x", "-1", "1.5", "٣", "9" * 18, "9" * 40, "1 OR 1"])
def test_what_is_no_position_in_the_feed_is_refused(store: Store, cursor: str) -> None:
    store.append([run()])
    with pytest.raises(Refused, match="no position in this store's feed"):
        store.changes(cursor)


def test_a_head_says_what_rules_ask(store: Store) -> None:
    store.append([root := run(project="p", environment="e", experiment_id="x", session_id="s"), child(root)])
    head = only(store)
    assert (head.project, head.environment, head.experiment_id, head.session_id) == ("p", "e", "x", "s")
    assert (head.start_ns, head.span_count, head.rooted, head.judgement) == (root.start_ns, 2, True, False)
    assert (head.settled, head.whole, head.probability, head.partial) == (None, True, None, False)
    assert head.size > 0


def test_without_its_root_a_trace_is_not_rooted(store: Store) -> None:
    root = run()
    store.append([child(root)])
    assert not only(store).rooted
    store.append([root])
    assert only(store).rooted


LOCAL = {names.LOCAL_ROOT: "b" * 16}


@loop_over(
    ("attributes", "probability"),
    [
        ({}, None),
        (LOCAL, 1.0),
        ({**LOCAL, "spanwise.sample_rate": 0.25}, 0.25),
        ({"otel.trace_state": "ot=th:8"}, 0.5),
        ({"otel.trace_state": "x=1, ot=rv:1;th:0 , y=2"}, 1.0),
        ({**LOCAL, "otel.trace_state": "ot=th:fd70a4"}, 1 - 0xFD70A400000000 / 2**56),
        ({"otel.trace_state": "ot=rv:12345678901234"}, None),
        ({"otel.trace_state": "ot=th:xyz"}, None),
        ({"otel.trace_state": "ot=th:123456789012345"}, None),
        ({**LOCAL, "spanwise.sample_rate": "often"}, 1.0),
        ({"otel.trace_state": "ot=th:fffffffffffff0"}, None),  # 2e-16: one such trace would be the whole mean
        ({**LOCAL, "otel.trace_state": "ot=th:fffffffffffff"}, None),
        ({**LOCAL, "spanwise.sample_rate": 0.00009}, None),
        ({**LOCAL, "spanwise.sample_rate": 0.0001}, 0.0001),
    ],
)
def test_the_probability_of_head_sampling_is_what_the_root_says(
    store: Store, attributes: dict[str, Any], probability: float | None
) -> None:
    store.append([root := run(attributes=attributes), child(root, attributes={**LOCAL, "spanwise.sample_rate": 0.125})])
    assert follow(store)[-1].probability == probability


def test_what_the_head_kept_for_an_error_alone_is_partial(store: Store) -> None:
    store.append([run(attributes={**LOCAL, names.PARTIAL: True})])
    head = only(store)
    assert (head.partial, head.probability) == (True, 1.0)


@loop_over(
    "marked",
    [
        {"kind": "evaluator"},
        {"resource": {names.MONITOR: True}},
        {"attributes": {names.MONITOR: True}},
        {"attributes": {"otel.trace_state": f"x=1,spanwise={'a' * 32}-{'b' * 16}-03"}},
        {"attributes": {"otel.trace_state": f"spanwise={'a' * 32}-{'b' * 16}-03-th:c;rv:12345678901234,x=1"}},
    ],
    ids=["kind", "resource", "attribute", "tracestate", "tracestate of a foreign trace"],
)
def test_an_evaluators_own_trace_is_told_by_kind_or_by_a_mark(store: Store, marked: dict[str, Any]) -> None:
    store.append([run(**marked)])
    assert follow(store)[-1].judgement


def test_a_mark_on_any_span_is_enough_and_an_experiments_evaluator_is_none(store: Store) -> None:
    store.append([root := run(), child(root, resource={names.MONITOR: True})])
    store.append([run(kind="evaluator", experiment_id="e")])
    store.append([run(attributes={"otel.trace_state": f"spanwise={'a' * 32}-{'b' * 16}-01"})])
    assert [head.judgement for head in follow(store)] == [True, False, False]


FILTERS = (
    Filter(),
    Filter(name="a"),
    Filter(status="error"),
    Filter(feedback=(("k", "<", 0.5),)),
    Filter(missing=("k",)),
    Filter(untried=("k",)),
    Filter(any_kind="retriever", tags=("x",)),
    Filter(kind="evaluator"),
    Filter(metadata={"tenant": "t"}, latency_ms=(">=", 1000)),
)


def test_each_filter_passes_what_a_list_of_it_has(store: Store) -> None:
    store.append([a := run("a", tags=("x",)), child(a, kind="retriever"), run("b", status="error", error="no")])
    store.append([run("a", metadata={"tenant": "t"}), run("judge", kind="evaluator")], [said(a.trace_id, 0.0)])
    heads = store.changes(filters=FILTERS).heads
    for place, filter in enumerate(FILTERS):
        listed = {summary.trace_id for summary in store.traces(filter)}
        assert {head.trace_id for head in heads if head.passes[place]} == listed
        assert all(head.passes[place] is not None for head in heads)


def test_conditions_on_feedback_do_not_see_what_rules_gave(store: Store) -> None:
    store.append([root := run()])
    store.add_feedback([said(root.trace_id, 0.0), said(root.trace_id, 1.0, rule="r", created_ns=2)])
    low, high, untried = (
        Filter(feedback=(("k", "<", 0.5),)),
        Filter(feedback=(("k", ">", 0.5),)),
        Filter(untried=("k",)),
    )
    assert only(store, low, high, untried).passes == (True, False, False)
    assert [one.seen for one in store.explain(root.trace_id, high)] == [0.0]


def test_words_are_not_told_before_the_index_has_them(store: Store) -> None:
    store.append([root := run(inputs="refund please")])
    assert only(store, Filter(text="refund"), Filter(text="refund", name="other")).passes == (None, False)
    [condition] = store.explain(root.trace_id, Filter(text="refund"))
    assert (condition.passes, condition.seen) == (None, "not in the text index yet")
    assert eventually(lambda: only(store, Filter(text="refund"), Filter(text="absent")).passes, (True, False))
    assert [one.passes for one in store.explain(root.trace_id, Filter(text="refund"))] == [True]


def test_a_filter_that_time_alone_changes_is_refused(store: Store) -> None:
    with pytest.raises(Refused, match="cannot have the condition `complete`"):
        store.changes(filters=[Filter(name="a"), Filter(complete=True)])


def test_what_is_read_at_once_is_bounded(store: Store) -> None:
    store.append([root := run()])
    assert len(store.changes(limit=10**12).heads) == 1
    assert store.changes(limit=-1).heads == ()
    with pytest.raises(Refused, match="at most 500 filters can be evaluated at once, got 501"):
        store.changes(filters=[Filter()] * 501)
    many = Filter(missing=tuple(map(str, range(450))))
    assert [one.passes for one in store.explain(root.trace_id, many)] == [True] * 450


def test_a_run_that_has_started_is_a_change_but_none_of_the_runs(store: Store) -> None:
    store.append([root := run(attributes={**LOCAL, names.SPANS_STARTED: 1, names.SPANS_OPEN: 0})])
    before = only(store)
    begun = OpenRun(trace_id=root.trace_id, span_id="c" * 16, name="n", kind="tool", start_ns=1)
    store.add_running([begun])
    after = only(store)
    assert after.change > before.change
    assert (after.runs_change, after.settled) == (before.runs_change, False)
    store.add_running([begun])
    assert only(store) == after


def test_what_was_dropped_is_told_beside_what_is_settled(store: Store) -> None:
    counts = {**LOCAL, names.SPANS_STARTED: 2, names.SPANS_OPEN: 0, names.SPANS_DROPPED: 1}
    store.append([run(span_id="b" * 16, attributes=counts)])
    head = only(store)
    assert (head.settled, head.whole) == (True, False)


def test_a_dataset_is_asked_for_as_in_lists(store: Store) -> None:
    store.save_experiment(Experiment(id="e", name="e", dataset="d", dataset_version=1))
    store.append([run(experiment_id="e"), other := run()])
    assert [head.passes for head in store.changes(filters=[Filter(dataset="d")]).heads] == [(True,), (False,)]
    assert [one.passes for one in store.explain(other.trace_id, Filter(dataset="d"))] == [False]


def test_explaining_says_of_each_condition_what_was_seen(store: Store) -> None:
    store.append([root := run("a", tags=("x",), metadata={"n": 1}, start_ns=SECOND, end_ns=3 * SECOND)])
    filter = Filter(name="b", latency_ms=("<", 500.0), tags=("x", "y"), metadata={"n": "1"}, missing=("k",))
    told = [(one.name, one.wanted, one.seen, one.passes) for one in store.explain(root.trace_id, filter)]
    assert [(name, seen, passes) for name, _, seen, passes in told] == [
        ("name", "a", False),
        ("latency_ms", 2000.0, False),
        ("tags", ["x"], True),
        ("tags", ["x"], False),
        ("metadata", "1", True),
        ("missing", None, True),
    ]
    assert [list(wanted) if name == "latency_ms" else wanted for name, wanted, _, _ in told] == [
        *("b", ["<", 500.0], "x", "y", {"n": "1"}, "k")
    ]


def test_a_judgement_is_left_out_without_a_word_and_explained(store: Store) -> None:
    store.append([root := run(kind="evaluator")])
    assert [(one.name, one.passes) for one in store.explain(root.trace_id, Filter())] == [("judgement", False)]
    assert all(one.passes for one in store.explain(root.trace_id, Filter(kind="evaluator")))


def test_a_trace_that_is_not_there_cannot_be_explained(store: Store) -> None:
    store.add_feedback([said("1" * 32)])
    with pytest.raises(NotFound, match="11111111"):
        store.explain("1" * 32, Filter(name="a"))


def test_a_reader_beside_two_writers_misses_nothing(store: Store) -> None:
    roots = [run(trace_id=f"{n:032x}") for n in range(1, 41)]
    done = threading.Event()

    def write(mine: int) -> None:
        for root in roots[mine::2]:
            store.append([root])
            store.append([child(root)])
            store.feedback(root.trace_id, "k", 1.0)

    writers = [threading.Thread(target=write, args=(mine,)) for mine in (0, 1)]
    watcher = threading.Thread(target=lambda: ([one.join() for one in writers], done.set()))
    for thread in (*writers, watcher):
        thread.start()
    seen: dict[str, TraceHead] = {}
    after: str | None = None
    while not done.is_set():
        slice = store.changes(after, limit=7)
        seen |= {head.trace_id: head for head in slice.heads}
        after = slice.cursor
    watcher.join()
    seen |= {head.trace_id: head for head in follow(store, after, limit=7)}
    assert seen == {head.trace_id: head for head in store.changes().heads}
    assert len(seen) == 40
    assert all(head.span_count == 2 for head in seen.values())


def test_deleted_traces_leave_the_feed_and_their_numbers_are_not_given_out_again(store: Store) -> None:
    store.append([root := run()])
    before = only(store)
    store.delete(trace_ids=(root.trace_id,))
    assert store.changes(before.cursor).heads == store.changes().heads == ()
    store.append([run()])
    assert only(store).change > before.change


# claims


def test_of_a_rule_a_target_and_an_evaluator_only_the_highest_claim_stands(store: Store) -> None:
    store.append([root := run()])
    of = {"rule": "r", "evaluator": "e"}
    store.add_feedback([said(root.trace_id, key=key, claim=1, **of) for key in ("a", "b")])
    store.add_feedback([said(root.trace_id, 0.5, key="a", claim=2, version="2", **of)])
    store.add_feedback([said(root.trace_id, 0.0, key=key, claim=1, **of) for key in ("a", "b", "c")])
    assert [(one.key, one.score, one.claim) for one in store.trace(root.trace_id).feedback] == [("a", 0.5, 2)]


def test_claims_of_one_request_are_weighed_too_and_others_are_left_alone(store: Store) -> None:
    store.append([root := run()])
    rows = [said(root.trace_id, key="a", claim=2, rule="r", evaluator="e")]
    rows += [said(root.trace_id, key="b", claim=1, rule="r", evaluator=name) for name in ("e", "f")]
    rows += [said(root.trace_id, key="c", rule="other", evaluator="e"), said(root.trace_id, key="d")]
    store.add_feedback(rows)
    kept = sorted((one.key, one.evaluator) for one in store.feedbacks() if one.rule)
    assert kept == [("a", "e"), ("b", "f"), ("c", "e")]


def test_a_rules_feedback_has_one_id_in_all_versions() -> None:
    ids = {said("1" * 32, rule="r", evaluator="e", version=version, author=version).id for version in "12"}
    assert len(ids) == 1
    assert len({said("1" * 32, evaluator="e", version=version).id for version in "12"}) == 2


def test_claims_come_back_as_they_were(store: Store) -> None:
    store.add_feedback([said("1" * 32, rule="r", claim=7), said("2" * 32)])
    assert sorted(str(one.claim) for one in store.feedbacks()) == ["7", "None"]
