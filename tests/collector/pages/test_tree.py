import pytest

from collector.making import SECOND, child, run
from spanwise.collector.pages.traces.trace_detail import get_time_range, list_nodes
from spanwise.collector.pages.traces.tree_rows import TreeRow, place_rows
from spanwise.collector.records import Trace


def build_rows(trace: Trace) -> list[TreeRow]:
    return place_rows(list_nodes(trace), *get_time_range(trace))


def test_children_stand_below_their_parents_by_start():
    root = run()
    first, second = child(root, "first"), child(root, "second", start_ns=root.start_ns + 2)
    inner = child(first, "inner")
    rows = build_rows(Trace(root, (second, inner, first, root)))
    assert [(row.run.name, row.run.depth) for row in rows] == [("answer", 0), ("first", 1), ("inner", 2), ("second", 1)]


def test_a_run_whose_parent_is_missing_stands_as_a_root():
    root = run()
    orphan = child(root, "orphan", parent_id="f" * 16)
    assert [(row.run.name, row.run.lost_parent) for row in build_rows(Trace(root, (root, orphan)))] == [
        ("answer", False),
        ("orphan", True),
    ]


def test_a_ring_of_parents_hides_nothing():
    one, two = run("one"), run("two")
    one, two = child(two, "one", span_id=one.span_id), child(one, "two", span_id=two.span_id)
    assert {row.run.name for row in build_rows(Trace(one, (one, two)))} == {"one", "two"}


def test_bars_lie_on_the_clock_of_the_trace():
    root = run()
    half = child(root, "half", start_ns=root.start_ns + SECOND // 4, end_ns=root.start_ns + 3 * SECOND // 4)
    assert [(row.left, row.width) for row in build_rows(Trace(root, (root, half)))] == [(0, 100), (25, 50)]


@pytest.mark.process
def test_a_deep_trace_needs_no_recursion():
    runs = [run()]
    for _ in range(3_000):
        runs.append(child(runs[-1]))
    assert build_rows(Trace(runs[0], tuple(runs)))[-1].run.depth == 3_000
