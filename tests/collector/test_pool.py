"""The connections that read: what ends a query, who gets the connection next, and who needs none of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from collector.making import run
from polling import until
from spanwise.collector.errors import Closed, StoreError, TooSlow, Unavailable
from spanwise.collector.request_context import CancellableQuery, query_context
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.database.connections import MAX_READERS, ReaderPool

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT {} FROM n"
SORTED = ENDLESS.format("x") + " ORDER BY hex(x) DESC"
JOINED = ENDLESS.format("group_concat(x % 2)")
PREFIX = "SELECT count(*) FROM (SELECT rowid FROM words WHERE words MATCH 'w* OR x*')"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "spanwise.db") as made:
        yield made


@pytest.fixture
def readers(store: SQLiteStore) -> Iterator[ReaderPool]:
    made = ReaderPool(store.path, time.time_ns, wait=0.2)
    yield made
    made.close()


@pytest.mark.parametrize("sql", [ENDLESS.format("sum(x)"), SORTED, JOINED])
def test_a_question_ends_when_its_time_is_over(readers: ReaderPool, sql: str) -> None:
    told = pytest.raises(TooSlow, match=r"GET /x took longer than 0.05 seconds")
    with query_context(CancellableQuery("GET /x", 0.05)), told, readers.acquire() as reader:
        reader.db.execute(sql).fetchall()


def test_a_loop_over_rows_ends_with_its_question(store: SQLiteStore) -> None:
    store.append([run(inputs="x")])
    with query_context(CancellableQuery("a list", None)) as question, store._file.read() as reader:
        [blob] = reader.db.execute("SELECT payload FROM spans").fetchone()
        assert reader.payload(blob)["inputs"] == "x"
        question.leave()
        with pytest.raises(Closed, match="the client has disconnected"):
            reader.payload(blob)


def test_a_question_whose_time_is_over_begins_nothing(readers: ReaderPool) -> None:
    with query_context(CancellableQuery("late", -1.0)), pytest.raises(TooSlow), readers.acquire():
        raise AssertionError


def stopped(readers: ReaderPool, sql: str, rows: Callable[[], bool] = lambda: True) -> StoreError:
    """What a query raises that nobody waits for any more, and that is interrupted from another thread."""
    question, failed, inside = CancellableQuery("a query", None), list[StoreError](), threading.Event()

    def ask() -> None:
        try:
            with query_context(question), readers.acquire() as reader:
                inside.set()
                reader.db.execute(sql).fetchall()
        except StoreError as error:
            failed.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    inside.wait()
    question.leave()
    while thread.is_alive():
        question.interrupt()
        thread.join(0.01)
    return failed[0]


@pytest.mark.parametrize("sql", [ENDLESS.format("sum(x)"), SORTED, JOINED])
def test_a_question_ends_when_its_caller_leaves(readers: ReaderPool, sql: str) -> None:
    assert isinstance(stopped(readers, sql), Closed)


@pytest.mark.slow  # to fill an index in which one step takes long
def test_one_long_step_of_the_text_index_is_interrupted(store: SQLiteStore, readers: ReaderPool) -> None:
    words = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 300000)"
    fill = f"{words} INSERT INTO words (rowid, text) SELECT x, 'w' || x || ' x' || x FROM n"
    store._file.write(lambda db: db.execute(fill).rowcount)
    with readers.acquire() as reader:
        began = time.thread_time()
        reader.db.execute(PREFIX).fetchall()
        whole = time.thread_time() - began
    question = CancellableQuery("a beginning", whole / 4)
    timer = threading.Timer(whole / 4 + 0.005, question.interrupt)
    timer.start()
    with query_context(question), pytest.raises(TooSlow), readers.acquire() as reader:
        while True:  # once may be over before the moment comes
            reader.db.execute(PREFIX).fetchall()
    timer.join()


def test_who_comes_next_meets_no_interrupt_that_came_late(readers: ReaderPool) -> None:
    stopped(readers, ENDLESS.format("sum(x)"))
    assert readers._free == []  # that connection is closed
    question = CancellableQuery("gone", None)
    with query_context(question), readers.acquire() as reader:
        before = reader
    question.interrupt()
    with readers.acquire() as reader:
        assert reader is before
        assert reader.db.execute("SELECT 1").fetchall() == [(1,)]


def test_the_writer_is_not_stopped_with_a_question(store: SQLiteStore) -> None:
    with query_context(CancellableQuery("late", -1.0)) as question:
        question.interrupt()
        store.append([run("kept")])
    assert [trace.name for trace in store.traces()] == ["kept"]


@pytest.mark.process
def test_who_finds_all_readers_busy_is_told_to_come_again(readers: ReaderPool) -> None:
    with ExitStack() as held:
        for _ in range(MAX_READERS):
            held.enter_context(readers.acquire())
        with pytest.raises(Unavailable, match="all 8 readers") as told, readers.acquire():
            raise AssertionError
    assert told.value.retry_after == 2.0
    with readers.acquire():
        pass


@pytest.mark.process
def test_numbers_and_the_text_index_need_none_of_the_readers(store: SQLiteStore) -> None:
    store.append([run(inputs="needle")])
    with ExitStack() as held:
        for _ in range(MAX_READERS):
            held.enter_context(store._file.read())
        until(lambda: store.health()["text_index_waiting_traces"] == 0)
    assert len(store.traces(text="needle").items) == 1


def test_a_reader_that_raises_goes_back_into_the_pool(readers: ReaderPool) -> None:
    for _ in range(MAX_READERS + 1):
        with pytest.raises(KeyboardInterrupt), readers.acquire():
            raise KeyboardInterrupt
