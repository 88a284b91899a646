"""What a list shows of a trace does not depend on how its spans came."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.making import START, child, run
from spanwise.collector.records import Run, TraceSummary, Usage
from spanwise.collector.stores.run_codec import extract_fact
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.table_rows import loads
from spanwise.collector.stores.trace_summary import SummaryRow, summarize_trace

_numbers = itertools.count(1)


def rolled(*runs: Run) -> SummaryRow:
    return summarize_trace([extract_fact(one) for one in runs])[0]


def own(one: Run, root: Run, calls: int = 0, **counts: int) -> Run:
    names = {f"spanwise.spans.{name}": value for name, value in counts.items()}
    sent = {"spanwise.calls.sent": calls} if calls else {}
    return replace(one, attributes={"spanwise.local_root": root.span_id, **names, **sent})


# strategies: a tree as the position of each span's parent (-1: none; one that never comes: 99), and an order of arrival
trees = st.lists(st.integers(-1, 7), min_size=1, max_size=8)
usages = st.none() | st.builds(Usage, st.integers(0, 9), st.integers(0, 9))


@st.composite
def traces(draw: st.DrawFn) -> list[Run]:
    trace_id = f"{next(_numbers):032x}"
    found = []
    for position, parent in enumerate(draw(trees)):
        above = None if parent == -1 else f"{parent if parent < position else 99:016x}"
        start = START + draw(st.integers(0, 3))
        found.append(
            run(
                f"n{position % 3}",
                trace_id=trace_id,
                span_id=f"{position:016x}",
                parent_id=above,
                start_ns=start,
                end_ns=start + draw(st.integers(0, 5)),
                usage=draw(usages),
                model=draw(st.sampled_from([None, "a", "b"])),
                tags=tuple(draw(st.lists(st.sampled_from("xyz"), max_size=2, unique=True))),
                status=draw(st.sampled_from(["ok", "error"])),
                session_id=draw(st.sampled_from([None, "s"])),
                attributes=draw(st.just({}) | said(position)),
            )
        )
    return found


def said(position: int) -> st.SearchStrategy[dict[str, Any]]:
    """Counts, as a local root has them or a span that ends after one."""
    few = st.integers(0, 3)
    root = st.sampled_from([f"{position:016x}", f"{0:016x}"])
    names = ("spanwise.spans.started", "spanwise.spans.open", "spanwise.spans.dropped", "spanwise.calls.sent")
    return st.fixed_dictionaries({"spanwise.local_root": root}, optional=dict.fromkeys(names, few))


@pytest.mark.process
@given(found=traces(), data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_any_requests_any_repeats_give_the_same_trace(
    tmp_path: Path, found: list[Run], data: st.DataObject
) -> None:
    arrivals = data.draw(st.permutations(found + data.draw(st.lists(st.sampled_from(found), max_size=3))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(arrivals)), max_size=3)))
    with SQLiteStore(tmp_path / f"{next(_numbers)}.db") as one, SQLiteStore(tmp_path / f"{next(_numbers)}.db") as other:
        one.append(found)
        for begin, end in itertools.pairwise([0, *cuts, len(arrivals)]):
            other.append(arrivals[begin:end])
        assert unordered(other.traces().items[0]) == unordered(one.traces().items[0])
        assert other.trace(found[0].trace_id).root == one.trace(found[0].trace_id).root
        assert other.check(deep=True) == []


def unordered(summary: TraceSummary) -> TraceSummary:
    return replace(summary, tags=tuple(sorted(summary.tags)))


def test_two_of_three_are_counted_as_two() -> None:
    root = run(usage=Usage(1, 10), tags=("a",), model="m")
    failing = [child(root, f"n{n}", status="error", error="E", kind="tool") for n in (1, 2)]
    rolled_up = rolled(root, *failing)
    assert (rolled_up.span_count, rolled_up.error_count, rolled_up.status) == (3, 2, "ok")
    assert (rolled_up.names, rolled_up.kinds) == ('["answer","n1","n2"]', '["chain","tool"]')
    assert rolled_up.size == sum(extract_fact(one).size for one in (root, *failing))


def test_what_the_root_does_not_say_is_that_of_the_first_span_that_does() -> None:
    root = run()
    first = child(root, session_id="s", user_id="u", experiment_id="e", example_id="x", metadata={"k": 1})
    second = child(root, session_id="t", user_id="v", experiment_id="f", example_id="y", metadata={"k": 2})
    rolled_up = rolled(root, first, second)
    assert (rolled_up.session_id, rolled_up.user_id) == ("s", "u")
    assert (rolled_up.experiment_id, rolled_up.example_id, rolled_up.metadata) == ("e", "x", '{"k":1}')
    own = replace(root, session_id="r", user_id="w", experiment_id="g", example_id="z", metadata={"k": 3})
    rolled_up = rolled(first, own, second)
    assert (rolled_up.session_id, rolled_up.user_id) == ("r", "w")
    assert (rolled_up.experiment_id, rolled_up.example_id, rolled_up.metadata) == ("g", "z", '{"k":3}')


def test_each_model_has_its_own_calls_tokens_and_cost() -> None:
    root = run()
    a, b = (child(root, model=m, usage=Usage(n, 10 * n), cost=n / 2) for m, n in (("a", 1), ("b", 3)))
    free = child(root, model="a")
    nameless = child(root, usage=Usage(5, 5), cost=5.0)
    assert loads(rolled(root, a, b, free, nameless).models or "") == {"a": [2, 1, 10, 0.5], "b": [1, 3, 30, 1.5]}
    assert rolled(root).models is None


def test_nothing_counted_is_no_cost_and_no_tags() -> None:
    rolled_up = rolled(run(), run(trace_id="1" * 32))
    assert (rolled_up.cost, rolled_up.tags, rolled_up.metadata, rolled_up.input_tokens) == (None, None, None, 0)
    assert rolled(run(cost=0.0)).cost == 0.0


def test_the_span_of_a_trace_is_from_the_first_start_to_the_last_end() -> None:
    root = run(start_ns=50, end_ns=60)
    early, late = child(root, start_ns=40, end_ns=45), child(root, start_ns=55, end_ns=90)
    rolled_up = rolled(root, early, late)
    assert (rolled_up.start_ns, rolled_up.end_ns, rolled_up.name) == (40, 90, "answer")


def test_the_latest_counts_of_a_local_root_tell() -> None:
    root = run()
    still_open, closed = own(root, root, started=2, open=1), own(child(root), root, started=2, open=0)
    assert rolled(still_open, closed).complete == 1
    assert rolled(own(root, root, started=3, open=0), own(child(root), root, started=2, open=0)).complete == 0


def test_the_root_is_the_earliest_span_without_a_parent() -> None:
    late, early = run("late", trace_id="1" * 32, start_ns=9), run("early", trace_id="1" * 32, start_ns=5)
    assert rolled(late, early).name == "early"


def test_a_true_root_comes_before_an_earlier_orphan() -> None:
    root = run("root", start_ns=9)
    orphan = run("orphan", trace_id=root.trace_id, parent_id="f" * 16, start_ns=5)
    assert (rolled(orphan, root).name, rolled(orphan, root).start_ns) == ("root", 5)


def test_parents_in_a_circle_do_no_harm() -> None:
    one = run("one", span_id="1" * 16, parent_id="2" * 16, usage=Usage(1, 0))
    two = run("two", trace_id=one.trace_id, span_id="2" * 16, parent_id="1" * 16, usage=Usage(2, 0), start_ns=START * 2)
    assert rolled(one, two).name == "one"
    assert rolled(one, two).input_tokens > 0


def test_parents_in_a_circle_beside_counted_spans_end_somewhere() -> None:
    root = run()
    one = run("one", trace_id=root.trace_id, span_id="1" * 16, parent_id="2" * 16)
    two = run("two", trace_id=root.trace_id, span_id="2" * 16, parent_id="1" * 16)
    assert rolled(own(root, root, started=1, open=0), one, two).complete is None


def test_a_framework_around_a_client_counts_the_call_once() -> None:
    outer = run(kind="llm", usage=Usage(10, 5), cost=1.0)
    inner = child(outer, kind="llm", usage=Usage(10, 5))
    found = rolled(outer, inner)
    assert (found.input_tokens, found.output_tokens, found.cost) == (10, 5, 1.0)


def test_several_local_roots_must_all_be_there() -> None:
    root = run()
    remote = child(root, "remote")
    first, second = own(root, root, started=1, open=0), own(remote, remote, started=2, open=0)
    assert rolled(first).complete == 1
    assert rolled(first, second).complete == 0
    assert rolled(first, second, own(child(remote), remote)).complete == 1


def test_a_local_root_below_a_parent_that_has_not_arrived_needs_a_quiet_period() -> None:
    remote = run(parent_id="f" * 16)
    assert rolled(own(remote, remote, started=1, open=0)).complete is None


def test_dropped_spans_are_not_waited_for_and_counted_once() -> None:
    root = run()
    before = own(root, root, started=4, open=1, dropped=1)
    last = own(child(root), root, started=4, open=0, dropped=2)
    assert (rolled(before, last).complete, rolled(before, last).dropped) == (1, 2)


def test_what_two_processes_have_dropped_adds_up() -> None:
    root = run()
    remote = child(root)
    first, second = own(root, root, started=2, open=0, dropped=1), own(remote, remote, started=3, open=0, dropped=2)
    assert rolled(first, second).dropped == 3


def test_a_call_that_went_out_is_waited_for_in_quiet() -> None:
    root = run()
    caller, answered = own(root, root, started=1, open=0, calls=2), child(root)
    remote = own(answered, answered, started=1, open=0)
    second = child(root)
    assert (rolled(caller).complete, rolled(caller).calls_sent) == (None, 2)
    assert rolled(caller, remote).complete is None
    assert rolled(caller, remote, own(second, second, started=1, open=0)).complete == 1


def test_a_call_of_one_process_is_not_answered_below_another() -> None:
    root = run()
    remote = child(root)
    further = child(remote)
    first, second = own(root, root, started=1, open=0, calls=2), own(remote, remote, started=1, open=0, calls=1)
    assert rolled(first, second, own(further, further, started=1, open=0)).complete is None


def test_an_open_span_tells_more_than_a_call_that_was_not_answered() -> None:
    root = run()
    assert rolled(own(root, root, started=2, open=1, calls=1)).complete == 0


@pytest.mark.parametrize("odd", [-1, 2**70, True, "3", None, 1.5])
def test_odd_counts_do_no_harm(tmp_path: Path, odd: object) -> None:
    names = ("spanwise.spans.started", "spanwise.spans.open", "spanwise.spans.dropped", "spanwise.calls.sent")
    root = run()
    root = replace(root, attributes={"spanwise.local_root": root.span_id, **dict.fromkeys(names, odd)})
    with SQLiteStore(tmp_path / "odd.db") as store:
        store.append([root])
        [summary] = store.traces()
    assert summary.dropped in (0, 1, 2**31)


@pytest.mark.parametrize("named", [True, False])
def test_children_count_for_the_local_root_above_them(named: bool) -> None:
    root = run()
    below = child(root)
    assert rolled(own(root, root, started=2, open=0), own(below, root) if named else below).complete == 1
