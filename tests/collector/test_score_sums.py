"""Weighted sums of the scores of rules: equal to the estimates from all rows, whatever happens to traces and scores."""

import pytest

from collector.deciding import HOUR, ruled
from collector.making import run
from collector.ruled import done, taken
from collector.score_histories import History, compare
from spanwise.collector.errors import Refused
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
