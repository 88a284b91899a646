"""Weighted sums of the scores of rules: equal to the estimates from all rows, whatever happens to traces and scores."""

import pytest

from collector.deciding import HOUR, ruled
from collector.making import run
from collector.ruled import done, taken
from collector.score_histories import FROM, UNTIL, History, compare
from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter
from spanwise.collector.records import Feedback, Target
from spanwise.collector.stores import summarize_rule
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.score_sums.sum_tables import register_grouping

GRAIN = 150_000_000_000


def test_sums_have_the_weights_of_the_decisions(store):
    ruled(store)
    before = store.changes(limit=1_000).cursor
    store.append([run(start_ns=HOUR), run(start_ns=HOUR + 1), run(start_ns=HOUR + GRAIN)])
    heads = store.changes(before).heads
    taken(store, "r", heads, rate=0.5)
    done(store, "r", ("scored", 1.0), ("scored", 0.5), ("failed", "ValueError: no"))
    first, second = store.score_sums("r", since_ns=HOUR, until_ns=2 * HOUR)
    assert (first.start_ns, first.n, first.weight, first.total, first.graded) == (HOUR, 2, 4.0, 3.0, 1)
    assert (first.weight_squares, first.products, first.total_squares) == (8.0, 6.0, 5.0)
    assert (second.start_ns, second.n, second.failed) == (HOUR + GRAIN, 0, 1)


def test_a_window_must_consist_of_whole_grains(store):
    with pytest.raises(Refused, match="block_s must be a multiple of 150, got 100"):
        store.score_sums("r", since_ns=0, until_ns=HOUR, block_s=100)
    with pytest.raises(Refused, match="since_ns must be a multiple of 150 seconds, got 1"):
        store.score_sums("r", since_ns=1, until_ns=HOUR)


def register(store, *groupings):
    for project, rule, by in groupings:
        store._file.write(lambda db, p=project, r=rule, b=by: register_grouping(db, p, r, b))


@pytest.mark.parametrize("seed", range(4))
def test_sums_equal_the_estimates_from_all_rows_after_any_history(tmp_path, seed):
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        history = History(store, seed)
        register(store, ("default", "r", "tag"), ("default", "r", "name"))
        for part in range(8):
            for _ in range(15):
                history.step()
            if part == 4:
                register(store, ("other", "r", "tag"))
            compare(store)
        assert compare(store) > 10


def test_groups_are_counted_with_and_without_a_registered_grouping(store):
    ruled(store)
    before = store.changes(limit=1_000).cursor
    store.append([run(start_ns=HOUR, tags=tags) for tags in (("x",), ("x", "y"), (), ("y",), ("y",))])
    heads = store.changes(before).heads
    taken(store, "r", heads, rate=0.5)
    done(store, "r", *[("scored", 1.0)] * 5)
    window = {"since_ns": 0, "until_ns": 24 * HOUR}
    assert store.score_groups("r", by="tag", **window) == {"y": 3, "x": 2}
    sums = store.score_sums("r", by="tag", groups=["x"], block_s=3600, **window)
    assert [(one.group, one.start_ns, one.n, one.weight) for one in sums] == [("x", HOUR, 2, 4.0)]
    with pytest.raises(Refused, match="unknown field 'color'"):
        store.score_groups("r", by="color", **window)


@pytest.fixture
def scored(tmp_path):
    """A store with a history of scored traces, and its rule with most scores."""
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        history = History(store, 7)
        for _ in range(120):
            history.step()
        yield store


def stats_of(buckets):
    return {(bucket.start_ns, stats.key): stats for bucket in buckets for stats in bucket.feedback}


@pytest.mark.parametrize("bucket_ns", [None, GRAIN, 4 * GRAIN, HOUR, 6 * HOUR, 24 * HOUR])
def test_aggregates_have_the_same_weighted_means_from_sums_and_from_traces(scored, bucket_ns):
    window = {"project": "other", "since_ns": FROM, "until_ns": UNTIL, "bucket_ns": bucket_ns}
    from_sums = stats_of(scored.aggregate(**window))
    from_traces = stats_of(scored.aggregate(Filter(excluded=(("name", "x"),)), **window))
    assert from_sums.keys() == from_traces.keys()
    assert any(stats.low is not None for stats in from_sums.values()) or bucket_ns in (GRAIN, 4 * GRAIN)
    for place, stats in from_sums.items():
        for name in ("mean", "low", "high", "effective"):
            value = getattr(from_traces[place], name)
            wanted = None if value is None else pytest.approx(value, rel=1e-6)
            assert getattr(stats, name) == wanted, (name, place)
        assert stats.shares.keys() == from_traces[place].shares.keys()


def test_an_aggregate_has_the_mean_of_the_summary(store):
    ruled(store)
    before = store.changes(limit=1_000).cursor
    store.append([run(start_ns=HOUR + number, session_id=f"s{number % 7}") for number in range(40)])
    heads = store.changes(before).heads
    taken(store, "r", heads[:20], rate=1.0)
    taken(store, "r", heads[20:], rate=0.1)
    done(store, "r", *[("scored", number % 3 > 0) for number in range(40)])
    [summary] = summarize_rule(store, store.rules()[0])
    [bucket] = store.aggregate(since_ns=0, until_ns=24 * HOUR)
    [stats] = bucket.feedback
    assert (stats.mean, stats.low, stats.high) == pytest.approx((summary.mean, summary.low, summary.high))
    assert stats.effective == pytest.approx(summary.effective)
    assert (stats.n, stats.unweighted) == (40, 0)


def test_scores_that_no_rule_gave_keep_their_plain_mean(store):
    store.append([run(trace_id="a" * 32), run(trace_id="b" * 32)])
    given = [
        Feedback(target=Target(trace_id=id * 32), key="good", score=score) for id, score in (("a", 1.0), ("b", 0.5))
    ]
    store.add_feedback(given)
    [bucket] = store.aggregate()
    [stats] = bucket.feedback
    assert (stats.mean, stats.effective, stats.low) == (0.75, None, None)
