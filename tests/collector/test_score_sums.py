"""Weighted sums of the scores of rules: equal to the estimates from all rows, whatever happens to traces and scores."""

import os
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest

from collector import former_file
from collector.conformance_traces import eventually
from collector.deciding import HOUR, ruled
from collector.making import run
from collector.ruled import KEY, done, taken
from collector.score_histories import FROM, UNTIL, History, compare
from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter
from spanwise.collector.records import Experiment, Feedback, Target
from spanwise.collector.stores import CombinedStore, estimate_over_time, summarize_rule
from spanwise.collector.stores.sqlite import SQLiteControl, SQLiteStore, SQLiteTraces, open_snapshot
from spanwise.collector.stores.sqlite.maintenance.backup_and_recovery import recover
from spanwise.collector.stores.sqlite.score_sums import background_sums, sum_queries, sum_tables
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


@pytest.mark.process
@pytest.mark.parametrize("seed", range(4))
def test_sums_equal_the_estimates_from_all_rows_after_any_history(tmp_path, seed):
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        history = History(store, seed)
        register(store, ("default", "r", "tag"), ("default", "r", "name"), ("default", "s", "tag"))
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


@pytest.mark.process
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


@pytest.mark.process
@pytest.mark.parametrize("bucket_ns", [None, HOUR])
@pytest.mark.parametrize("group_by", [None, "tag", "name"])
def test_a_store_of_two_backends_weighs_the_same_means(scored, bucket_ns, group_by):
    two_backends = CombinedStore(SQLiteTraces(scored._file), SQLiteControl(scored._file))
    window = {"since_ns": FROM, "until_ns": UNTIL, "bucket_ns": bucket_ns, "group_by": group_by}
    for project in ("default", "other"):
        expected = scored.aggregate(project=project, **window)
        found = two_backends.aggregate(project=project, **window)
        assert any(stats.effective for bucket in expected for stats in bucket.feedback)
        assert [replace(one, feedback=()) for one in found] == [replace(one, feedback=()) for one in expected]
        for bucket, wanted in zip(found, expected, strict=True):
            for stats, other in zip(bucket.feedback, wanted.feedback, strict=True):
                for name in ("mean", "low", "high", "effective", "unweighted"):
                    value = getattr(other, name)
                    assert getattr(stats, name) == (None if value is None else pytest.approx(value, rel=1e-6)), name
                assert stats.shares.keys() == other.shares.keys()
                for label, share in other.shares.items():
                    values = zip(stats.shares[label], share, strict=True)
                    assert all(a == b or a == pytest.approx(b, rel=1e-6) for a, b in values)


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


@pytest.mark.parametrize(
    "by", [{"experiment": "e"}, {"experiments": ["e"]}, {"dataset": "d"}, {"group_by": "experiment"}]
)
def test_scores_of_an_experiment_keep_their_plain_mean(store, by):
    ruled(store)
    store.save_experiment(Experiment(id="e", name="e", dataset="d"))
    score_many(store, 3, experiment_id="e")
    store.append([run(trace_id="a" * 32, experiment_id="e")])
    store.add_feedback([Feedback(target=Target(trace_id="a" * 32), key=KEY, score=1.0, rule="r")])  # without a decision
    score_many(store, 3, start=2 * HOUR)
    found = {bucket.group: bucket.feedback[0] for bucket in store.aggregate(**by)}
    stats = found.pop("e" if "group_by" in by else None)
    assert (stats.n, stats.mean, stats.effective, stats.unweighted) == (4, 0.75, None, 0)
    assert {group: live.effective for group, live in found.items()} == ({None: 3.0} if "group_by" in by else {})


def score_many(store, count, *, name="r", rate=0.5, start=HOUR, **fields):
    """Traces that started a second apart, all scored by a rule; their heads."""
    before = store.changes(limit=1_000).cursor
    store.append([run(start_ns=start + number * 10**9, **fields) for number in range(count)])
    heads = list(store.changes(before, limit=1_000).heads)
    taken(store, name, heads, rate=rate)
    done(store, name, *[("scored", number % 3 > 0) for number in range(count)])
    return heads


def read_sums(store, **options):
    return store.score_sums("r", since_ns=0, until_ns=24 * HOUR, block_s=3600, **options)


def table(store, name):
    with store._file.read() as reader:
        return reader.db.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall()


@pytest.mark.process
def test_the_background_thread_applies_what_no_query_has_applied(tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        ruled(store)
        score_many(store, 20)
        assert eventually(lambda: len(table(store, "score_contributions, (SELECT 1)")) == 20)
        assert table(store, "score_changes, (SELECT 1)") == []


def test_deleting_everything_leaves_no_sums(tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        ruled(store)
        register(store, ("default", "r", "tag"))
        score_many(store, 20, session_id="talk", tags=("x",))
        assert read_sums(store)
        store.delete(name="answer")
        assert read_sums(store) == []
        for name in ("score_sums", "score_clusters", "score_contributions"):
            assert table(store, name) == []


def test_large_weights_that_come_and_go_leave_small_ones_exact(tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        ruled(store)
        score_many(store, 30, rate=1.0)
        before = table(store, "score_sums")
        read_sums(store)
        before = table(store, "score_sums")
        heavy = score_many(store, 10, rate=1e-6, start=HOUR + 60 * 10**9)
        assert read_sums(store)[0].weight > 1e7
        store.delete(trace_ids=tuple(head.trace_id for head in heavy))
        read_sums(store)
        assert table(store, "score_sums") == before


@pytest.mark.process
def test_an_older_file_is_filled_in_the_background_with_right_answers_meanwhile(tmp_path, monkeypatch):
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        ruled(store)
        score_many(store, 50)
        expected = read_sums(store)
    with sqlite3.connect(tmp_path / "spanwise.db") as db:
        former_file.lower_version(db, 25)
    monkeypatch.setattr(background_sums, "CHANGES_PER_TRANSACTION", 5)
    monkeypatch.setattr(sum_queries, "MAX_APPLIED", 10)
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        assert read_sums(store) == expected
        assert eventually(lambda: table(store, "score_changes, (SELECT 1)") == [])
        assert read_sums(store) == expected


def test_sums_of_a_recovered_file_are_those_of_the_damaged_one(tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        ruled(store)
        score_many(store, 20, session_id="talk")
        expected = read_sums(store)
    recover(str(tmp_path / "spanwise.db"), str(tmp_path / "new.db"))
    with SQLiteStore(tmp_path / "new.db") as store:
        assert read_sums(store) == expected


def test_a_file_that_can_only_be_read_answers_from_its_rows(tmp_path):
    path = tmp_path / "spanwise.db"
    with SQLiteStore(path) as store:
        ruled(store)
        score_many(store, 5)
        expected = read_sums(store)
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO score_changes SELECT id FROM traces")
    with open_snapshot(path) as store:
        assert read_sums(store) == expected


@pytest.mark.process
def test_a_kill_between_a_score_and_its_sum_loses_nothing(tmp_path):
    code = """
import os, signal, sys
from collector.test_score_sums import *
background_sums.ScoreSummer.round = lambda self: False
store = SQLiteStore(sys.argv[1])
ruled(store)
score_many(store, 10)
read_sums(store)
score_many(store, 10, start=2 * HOUR)
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = tmp_path / "spanwise.db"
    killed = subprocess.run(
        [sys.executable, "-c", code, str(path)], check=False, env=os.environ | {"PYTHONPATH": ":".join(sys.path)}
    )
    assert killed.returncode == -signal.SIGKILL
    with closing(sqlite3.connect(path)) as db:  # a store would apply them at once
        assert db.execute("SELECT count(*) FROM score_changes").fetchone() == (10,)
    with SQLiteStore(path) as store:
        assert [(sums.n, sums.weight) for sums in read_sums(store)] == [(10, 20.0), (10, 20.0)]


def test_values_beyond_the_limit_of_a_grouping_are_in_one_group(tmp_path, monkeypatch):
    monkeypatch.setattr(sum_tables, "MAX_GROUPS", 3)
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        ruled(store)
        register(store, ("default", "r", "user"))
        for number in range(6):
            score_many(store, 2, user_id=f"u{number}")
            store.score_groups("r", by="user", since_ns=0, until_ns=24 * HOUR)
        groups = store.score_groups("r", by="user", since_ns=0, until_ns=24 * HOUR)
        assert groups == {sum_tables.OTHER_GROUPS: 6, "u0": 2, "u1": 2, "u2": 2}
        store.delete(user="u0")
        score_many(store, 1, user_id="u9")
        score_many(store, 1, user_id="u8")
        assert store.score_groups("r", by="user", since_ns=0, until_ns=24 * HOUR)["u1"] == 2


def test_labels_beyond_the_limit_of_a_key_still_count_as_labelled(tmp_path, monkeypatch):
    monkeypatch.setattr(sum_tables, "MAX_LABELS", 2)
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        ruled(store)
        store.append([run(trace_id=f"{number:032x}", start_ns=HOUR) for number in range(1, 6)])
        heads = store.changes().heads
        taken(store, "r", heads, rate=0.5)
        given = [
            Feedback(target=Target(trace_id=head.trace_id), key="k", label=f"l{n}", rule="r")
            for n, head in enumerate(heads)
        ]
        store.add_feedback(given)
        shares = {sums.label: (sums.n, sums.total) for sums in read_sums(store)}
        assert len(shares) == 2
        assert set(shares.values()) == {(5, 2.0)}


def test_the_share_of_a_label_is_weighted(store):
    ruled(store)
    store.append([run(trace_id=f"{number:032x}", start_ns=HOUR) for number in range(1, 5)])
    heads = store.changes().heads
    taken(store, "r", heads[:2], rate=0.1)
    taken(store, "r", heads[2:], rate=1.0)
    labels = ("ham", "spam", "ham", "ham")
    store.add_feedback(
        [
            Feedback(target=Target(trace_id=head.trace_id), key="k", label=label, rule="r")
            for head, label in zip(heads, labels, strict=True)
        ]
    )
    window = {"since_ns": 0, "until_ns": 24 * HOUR, "bucket_ns": 24 * HOUR}
    points = {point.label: point.estimate for point in estimate_over_time(store, store.rules()[0], **window)}
    assert points["ham"].mean == pytest.approx(12 / 22)
    assert points["spam"].mean == pytest.approx(10 / 22)
    assert points["ham"].binary
    [bucket] = store.aggregate()
    assert bucket.feedback[0].shares["ham"][0] == pytest.approx(12 / 22)


def test_a_check_finds_sums_that_differ_from_the_scores(tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        ruled(store)
        score_many(store, 5)
        read_sums(store)
        assert store.check() == []
        store._file.write(lambda db: db.execute("UPDATE score_sums SET total = total + 1"))
        assert store.check() == ["1 weighted sums of rules and days that differ from their scores"]


@pytest.mark.parametrize(("score", "probability"), [(1e308, 0.5), (-1e308, 1.0), (1.0, 1e-300)])
def test_scores_beyond_all_bounds_are_left_out_and_harm_no_others(tmp_path, score, probability):
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        ruled(store)
        before = store.changes(limit=1_000).cursor
        store.append([run(start_ns=HOUR), run(start_ns=HOUR + 1)])
        one, other = store.changes(before).heads
        taken(store, "r", [one], rate=probability)
        taken(store, "r", [other], rate=0.5)
        done(store, "r", ("scored", score), ("scored", 1.0))
        [sums] = read_sums(store)
        assert (sums.n, sums.weight, sums.left_out) == (1, 2.0, 1)
        store.delete(trace_ids=(one.trace_id,))
        [sums] = read_sums(store)
        assert (sums.n, sums.weight, sums.left_out, sums.left_out_total) == (1, 2.0, 0, 0.0)


def test_queries_see_every_score_that_was_stored_before_them(tmp_path):
    """While others write and read."""
    with SQLiteStore(tmp_path / "spanwise.db") as store, ThreadPoolExecutor(4) as pool:
        ruled(store)
        store.append([run(trace_id=f"{number:032x}", start_ns=HOUR) for number in range(1, 101)])
        stored = []

        def write(number):
            target = Target(trace_id=f"{number:032x}")
            store.add_feedback([Feedback(target=target, key="k", score=1.0, rule="r")])
            stored.append(number)

        def read():
            count = len(stored)
            return count, sum(sums.left_out for sums in read_sums(store))

        writes = [pool.submit(write, number) for number in range(1, 101)]
        reads = [pool.submit(read) for _ in range(30)]
        for future in writes:
            future.result()
        assert all(found >= count for count, found in (future.result() for future in reads))
        assert read()[1] == 100


def test_a_turn_of_a_session_has_rows_for_its_grain_and_its_hour_alone(tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        ruled(store)
        score_many(store, 20, session_id="talk")
        assert store.score_sums("r", since_ns=0, until_ns=24 * HOUR)
        with store._file.read() as reader:
            levels = [level for (level,) in reader.db.execute("SELECT DISTINCT level FROM score_clusters ORDER BY 1")]
        assert levels == [0, 1]


def test_sums_of_sessions_of_an_older_file_are_right_after_its_migration(tmp_path):
    path = tmp_path / "spanwise.db"
    with SQLiteStore(path) as store:
        history = History(store, 3)
        for _ in range(150):
            history.step()
        compare(store)
    with closing(sqlite3.connect(path)) as db:
        former_file.lower_version(db, 33)
        # such files have rows of sessions in wider blocks, too, and mark sessions with several blocks
        spanning = "(SELECT count(DISTINCT o.block) FROM score_clusters o WHERE (o.level, o.series, o.session) = (1, c.series, c.session)) > 1"
        db.execute(f"UPDATE score_clusters AS c SET spans = {spanning} WHERE level = 1")
        db.execute(
            "INSERT INTO score_clusters SELECT series, 3, block / 24, session, label, weight, total, exact, 1 FROM score_clusters WHERE level = 1 AND true ON CONFLICT DO NOTHING"
        )
        db.commit()
    with SQLiteStore(path) as store:
        assert compare(store) > 10
        history = History(store, 4)
        history.traces = {head.trace_id: head.project for head in store.changes(limit=1_000).heads}
        for _ in range(60):
            history.step()
        compare(store)
