from assay.collector.pages.kit import chart
from assay.collector.pages.traces import _tree
from assay.collector.records import Bucket, Trace
from collector.making import SECOND, child, run


def test_children_stand_below_their_parents_by_start():
    root = run()
    first, second = child(root, "first"), child(root, "second", start_ns=root.start_ns + 2)
    inner = child(first, "inner")
    rows = _tree.rows(Trace(root, (second, inner, first, root)))
    assert [(row.run.name, row.depth) for row in rows] == [("answer", 0), ("first", 1), ("inner", 2), ("second", 1)]


def test_a_run_whose_parent_is_missing_stands_as_a_root():
    root = run()
    orphan = child(root, "orphan", parent_id="f" * 16)
    assert [(row.run.name, row.lost_parent) for row in _tree.rows(Trace(root, (root, orphan)))] == [
        ("answer", False),
        ("orphan", True),
    ]


def test_a_ring_of_parents_hides_nothing():
    one, two = run("one"), run("two")
    one, two = child(two, "one", span_id=one.span_id), child(one, "two", span_id=two.span_id)
    assert {row.run.name for row in _tree.rows(Trace(one, (one, two)))} == {"one", "two"}


def test_bars_lie_on_the_clock_of_the_trace():
    root = run()
    half = child(root, "half", start_ns=root.start_ns + SECOND // 4, end_ns=root.start_ns + 3 * SECOND // 4)
    assert [(row.left, row.width) for row in _tree.rows(Trace(root, (root, half)))] == [(0, 100), (25, 50)]


def test_a_deep_trace_needs_no_recursion():
    runs = [run()]
    for _ in range(3_000):
        runs.append(child(runs[-1]))
    assert _tree.rows(Trace(runs[0], tuple(runs)))[-1].depth == 3_000


def test_a_window_holds_at_most_48_buckets_of_a_round_width():
    for span in (1, 60, 3_600, 86_400, 400 * 86_400, 30_000 * 86_400):
        view = chart.window(1_750_000_000 * SECOND, (1_750_000_000 + span) * SECOND)
        assert view.since_ns <= 1_750_000_000 * SECOND < (1_750_000_000 + span) * SECOND < view.until_ns
        assert len(range(view.since_ns, view.until_ns, view.width_ns)) <= 49


def test_empty_buckets_are_filled_in():
    view = chart.Window(0, 3, 1)
    assert [bucket.traces for bucket in chart.filled([Bucket(start_ns=1, width_ns=1, traces=5)], view)] == [0, 5, 0]


def test_the_highest_bar_fills_the_box_and_nothing_draws_nothing():
    assert [bar.height for bar in chart.bars([0, 5, 10])] == [chart.HEIGHT / 2, chart.HEIGHT]
    assert chart.bars([]) == []
