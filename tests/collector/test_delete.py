"""Deleting much: found once, in pieces, beside others who delete and who write; cut off in the middle."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from collector.making import child, run
from spanwise.collector.filters import Filter
from spanwise.collector.records import Feedback, Retention, Target
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.maintenance.deletion import (
    BATCH_TRACES,
    MAX_SPANS,
    MIN_SPANS,
    TRANSACTION_SECONDS,
    DeletionPace,
)

MANY = 2 * BATCH_TRACES + 50


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "spanwise.db"


@pytest.fixture
def store(file: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(file) as store:
        roots = [run(metadata={"of": "them"}, start_ns=1000 + n // 3) for n in range(MANY)]
        store.append([*roots, *(child(root) for root in roots), run("stays", metadata={"of": "others"})])
        yield store


THEM = Filter(metadata={"of": "them"})


def test_what_passes_is_found_once_lot_by_lot(store: SQLiteStore) -> None:
    lots, after = [], None
    while lot := store.find_deletable_traces(THEM, after):
        lots.append(lot.traces)
        if (after := lot.next) is None:
            break
    assert list(map(len, lots)) == [BATCH_TRACES, BATCH_TRACES, 50]
    assert len({trace_id for lot in lots for trace_id in lot}) == MANY


@pytest.mark.process
def test_all_lots_go_and_nothing_else(store: SQLiteStore) -> None:
    commits = store.health()["commits"]
    assert store.delete(THEM) == MANY
    assert [trace.name for trace in store.traces()] == ["stays"]
    assert store.health()["commits"] - commits > MANY * 2 / MAX_SPANS, "in pieces"
    assert store.check(deep=True) == []


def test_two_who_delete_the_same_at_once(store: SQLiteStore) -> None:
    with ThreadPoolExecutor(2) as pool:
        counts = list(pool.map(lambda _: store.delete(THEM), range(2)))
    assert sum(counts) == MANY
    assert store.check(deep=True) == []


def test_traces_that_grow_while_they_are_deleted(store: SQLiteStore) -> None:
    traces = [trace.trace_id for trace in store.traces(THEM, limit=MANY)]
    with ThreadPoolExecutor(1) as pool:
        deleted = pool.submit(store.delete, THEM)
        for trace_id in traces:
            store.append([run("late", trace_id=trace_id, parent_id="1" * 16)])
        assert deleted.result() == MANY
    assert [trace.name for trace in store.traces()] == ["stays"]
    assert store.check(deep=True) == []


def test_what_comes_meanwhile_stays_so_that_a_deletion_ends(store: SQLiteStore) -> None:
    upto = store.latest_trace_number()
    store.append([run("new", metadata={"of": "them"}, start_ns=10**6)])
    assert store.find_deletable_traces(THEM, upto=upto) == store.find_deletable_traces(
        Filter(metadata={"of": "them"}, until_ns=10**6)
    )


def test_retention_goes_the_same_way(store: SQLiteStore) -> None:
    store.add_feedback(
        [Feedback(target=Target(trace_id=f"{n + 1:032x}"), key="k", score=1.0) for n in range(BATCH_TRACES + 10)]
    )
    assert store.prune(Retention(max_age_ns=0)) == MANY + 1
    assert (store.count()["feedbacks"], store.check()) == (0, [])


def test_a_long_trace_goes_alone_and_short_ones_together(store: SQLiteStore) -> None:
    long = run("long", start_ns=1)
    store.append([long, *(child(long) for _ in range(MIN_SPANS))])
    gone = store.find_deletable_traces(Filter())
    assert gone is not None
    with store._file.read() as reader:
        ids = [long.trace_id, *gone.traces[:BATCH_TRACES]]
        pieces = list(DeletionPace().pieces(reader.db, [ids[0], *ids[1:]]))
    assert pieces[0] == [long.trace_id]
    assert max(map(len, pieces)) > 10


def test_pieces_take_about_a_moment() -> None:
    pace = DeletionPace()
    for _ in range(20):
        pace.record(pace.spans, TRANSACTION_SECONDS / 4)
    assert pace.spans == MAX_SPANS
    for _ in range(20):
        pace.record(pace.spans, 100 * TRANSACTION_SECONDS)
    assert pace.spans == MIN_SPANS
    pace.record(1, 0.0)  # too little to learn from
    assert pace.spans == MIN_SPANS


KILLED = """
import os, signal, sqlite3, sys
from spanwise.collector.stores.sqlite import database_file
from spanwise.collector.stores.sqlite.write_connection import SQLiteWriteConnection

class Connection(SQLiteWriteConnection):
    left = 3
    def execute(self, sql, *rest):
        if sql.startswith(sys.argv[2]):
            Connection.left -= 1
            if not Connection.left:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(sql, *rest)

database_file.SQLiteWriteConnection = Connection
from spanwise.collector.filters import Filter
from spanwise.collector.stores.sqlite import SQLiteStore
SQLiteStore(sys.argv[1]).delete(Filter(metadata={"of": "them"}))
"""


@pytest.mark.process
@pytest.mark.parametrize("statement", ["DELETE FROM spans", "DELETE FROM traces"])
def test_a_deletion_that_is_killed_leaves_whole_traces_and_goes_on(
    store: SQLiteStore, file: Path, statement: str
) -> None:
    store.close()
    killed = subprocess.run([sys.executable, "-c", KILLED, str(file), statement], check=False)
    assert killed.returncode == -9
    with SQLiteStore(file) as again:
        assert again.check(deep=True) == []
        left = len(again.traces(THEM, limit=1000))
        assert again.delete(THEM) == left
        assert [trace.name for trace in again.traces()] == ["stays"]


def test_much_feedback_goes_in_pieces_and_is_all_there(store: SQLiteStore) -> None:
    [about] = store.traces(name="stays")
    commits = store.health()["commits"]
    given = [Feedback(target=Target(trace_id=about.trace_id), key=f"k{n}", score=1.0) for n in range(1000)]
    store.add_feedback([*given, given[0]])
    assert len(store.feedbacks(limit=2000)) == 1000
    assert store.health()["commits"] - commits >= 4
