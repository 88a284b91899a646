"""What was deleted stays away for a while, on one SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from collector.making import SECOND, child, run
from spanwise.collector.records import Feedback, Retention, Target
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.write.side_tables import Tombstones


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "spanwise.db"


@pytest.fixture
def store(file: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(file) as made:
        yield made


def tombstones(store: SQLiteStore) -> Tombstones:
    return store._traces._file.appender.tombstones


def pruned(store: SQLiteStore) -> bool:
    return store._traces._file.write(lambda _: tombstones(store).prune())


def buried(store: SQLiteStore) -> int:
    with closing(sqlite3.connect(store.path)) as db:
        return int(db.execute("SELECT count(*) FROM tombstones").fetchone()[0])


def expire(store: SQLiteStore) -> None:
    """As if their time had passed."""
    store._traces._file.write(lambda db: db.execute("UPDATE tombstones SET until_ns = 1"))


def test_what_comes_for_a_deleted_trace_is_counted_also_after_a_restart(store: SQLiteStore, file: Path) -> None:
    store.append([root := run()])
    store.delete(trace_ids=(root.trace_id,))
    store.append([root, child(root)])
    assert store.health()["came_after_deletion_total"] == 2
    store.close()
    with SQLiteStore(file) as again:
        again.append([root], [Feedback(target=Target(trace_id=root.trace_id), key="k", score=1)])
        again.amend(root.trace_id, root.span_id, {"outputs": "x"})
        assert again.health()["came_after_deletion_total"] == 3
        assert again.count()["spans"] == 0


def test_after_their_time_a_trace_may_come_again(store: SQLiteStore) -> None:
    store.append([root := run()])
    store.delete(trace_ids=(root.trace_id,))
    expire(store)
    store.append([root])
    assert store.trace(root.trace_id).runs == (root,)
    assert pruned(store)
    assert not pruned(store)
    assert buried(store) == 0


def test_there_are_never_more_than_a_bound(store: SQLiteStore) -> None:
    store.append(roots := [run() for _ in range(5)])
    for root in roots:  # one by one: in the order of their deletion
        store.delete(trace_ids=(root.trace_id,))
    tombstones(store).bound = 2
    assert pruned(store)
    store.append(roots)
    assert {summary.trace_id for summary in store.traces()} == {root.trace_id for root in roots[:3]}


def test_deleted_twice_it_stays_away_for_the_whole_time_again(store: SQLiteStore) -> None:
    store.append([root := run()])
    store.delete(trace_ids=(root.trace_id,))
    expire(store)
    store.append([root])
    store.delete(trace_ids=(root.trace_id,))
    store.append([root])
    assert (store.count()["traces"], buried(store)) == (0, 1)


def test_a_deletion_that_was_rolled_back_buries_nothing(store: SQLiteStore) -> None:
    store.append([root := run()])
    file = store._traces._file

    def fail(_: sqlite3.Connection) -> None:
        file.appender.tombstones.put([root.trace_id, "2" * 32])
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        file.write(fail)
    store.append([run(trace_id="2" * 32)])
    assert store.count()["traces"] == 2


def test_what_retention_gives_up_stays_away_too(store: SQLiteStore) -> None:
    store.append([root := run()])
    store.prune(Retention(max_age_ns=SECOND))
    store.append([root])
    assert store.count()["traces"] == 0


def test_a_judgement_of_a_deleted_trace_goes_when_it_is_known_to_be_one(store: SQLiteStore) -> None:
    store.append([root := run(), judge := run(kind="evaluator"), innocent := run()])
    on = Target(trace_id=root.trace_id)
    store.delete(trace_ids=(root.trace_id,))
    late = {"target": on, "score": 1.0}
    store.add_feedback([Feedback(key="k", judge_trace_id=judge.trace_id, **late)])
    store.add_feedback([Feedback(key="l", judge_trace_id=innocent.trace_id, **late)])
    assert [summary.trace_id for summary in store.traces()] == [innocent.trace_id]
    store.append([judge])
    assert len(store.traces(kind="evaluator")) == 0


def test_judgements_go_with_their_trace_and_stay_away(store: SQLiteStore) -> None:
    store.append([root := run(), judge := run(kind="evaluator")])
    on = Target(trace_id=root.trace_id)
    store.add_feedback([Feedback(target=on, key="k", score=1, judge_trace_id=judge.trace_id)])
    store.delete(trace_ids=(root.trace_id,))
    store.append([judge, child(judge)])
    assert store.count() == {"spans": 0, "traces": 0, "feedbacks": 0}


def test_a_judgement_that_is_still_on_its_way_does_not_come_after_its_trace_has_gone(store: SQLiteStore) -> None:
    store.append([root := run(), marked := run(kind="llm", resource={"spanwise.monitor": True})])
    on, judge = Target(trace_id=root.trace_id), run(kind="evaluator")
    for key, id in (("k", judge.trace_id), ("l", marked.trace_id)):
        store.add_feedback([Feedback(target=on, key=key, score=1, source="model", judge_trace_id=id)])
    store.delete(trace_ids=(root.trace_id,))
    store.append([judge, child(judge)])
    assert store.count() == {"spans": 0, "traces": 0, "feedbacks": 0}


def test_what_a_vote_names_is_no_judgement_that_would_be_kept_away(store: SQLiteStore) -> None:
    store.append([root := run()])
    vote = Feedback(target=Target(trace_id=root.trace_id), key="k", score=1, source="human", judge_trace_id="2" * 32)
    store.add_feedback([vote])
    store.delete(trace_ids=(root.trace_id,))
    store.append([run(trace_id="2" * 32)])
    assert store.count()["traces"] == 1
