"""The queue in front of ClickHouse, and the two threads that write from it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import pytest

from collector.conformance_traces import eventually
from collector.making import run
from spanwise.collector.errors import Closed, Unavailable
from spanwise.collector.records import Feedback, Target
from spanwise.collector.stores.clickhouse import inserter
from spanwise.collector.stores.clickhouse.inserter import BUSY_COLLECT_ROWS, COLLECT_ROWS, Inserter, Job
from spanwise.collector.stores.clickhouse.span_rows import SpanBatch, encode_runs


class Database:
    """Writes last until `answer` is set. `begun` has the number of rows of each, `traces` the traces of its jobs."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.traces: list[list[str]] = []
        self.answer = threading.Event()
        self.error: Exception | None = None

    def write(self, jobs: Sequence[Job]) -> None:
        self.begun.append(sum(job.rows for job in jobs))
        self.traces.append([job.batch.trace_ids[0] for job in jobs if job.batch.trace_ids])
        assert self.answer.wait(60)
        if self.error is not None:
            raise self.error


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def queue(database: Database) -> Iterator[Inserter]:
    queue = Inserter(database.write)
    yield queue
    database.answer.set()
    queue.close()


def put(queue: Inserter, rows: int, *, trace_id: str | None = None, is_urgent: bool = False) -> Future[None]:
    batch = encode_runs([run()])
    trace_ids = [trace_id or batch.trace_ids[0]] * rows
    return queue.put(SpanBatch(trace_ids, [batch.rows[0]] * rows), (), is_urgent=is_urgent)


def test_a_large_write_begins_while_another_is_in_progress(queue: Inserter, database: Database) -> None:
    put(queue, COLLECT_ROWS)
    assert eventually(lambda: database.begun, [COLLECT_ROWS])
    put(queue, BUSY_COLLECT_ROWS)
    assert eventually(lambda: len(database.begun), 2)
    assert queue.depth == 0


def test_rows_that_come_during_a_write_are_collected(
    queue: Inserter, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inserter, "COLLECT_SECONDS", 600.0)
    put(queue, COLLECT_ROWS)
    assert eventually(lambda: database.begun, [COLLECT_ROWS])
    futures = [put(queue, COLLECT_ROWS), put(queue, COLLECT_ROWS)]
    assert not eventually(lambda: len(database.begun), 2, seconds=0.3)
    database.answer.set()
    for future in futures:
        future.result(60)
    assert sum(database.begun) == 3 * COLLECT_ROWS
    assert len(database.begun) == 2


def test_a_caller_that_waits_is_served_while_a_write_is_in_progress(queue: Inserter, database: Database) -> None:
    put(queue, COLLECT_ROWS)
    assert eventually(lambda: database.begun, [COLLECT_ROWS])
    put(queue, 1, is_urgent=True)
    assert eventually(lambda: database.begun, [COLLECT_ROWS, 1])


def test_few_rows_wait_for_others_no_longer_than_agreed(queue: Inserter, database: Database) -> None:
    put(queue, 1)
    assert eventually(lambda: database.begun, [1])
    put(queue, 2)
    assert eventually(lambda: database.begun, [1, 2])


def test_a_trace_is_in_one_write_at_a_time_and_its_spans_keep_their_order(queue: Inserter, database: Database) -> None:
    first = put(queue, COLLECT_ROWS, trace_id="a")
    assert eventually(lambda: database.begun, [COLLECT_ROWS])
    waiting = [put(queue, 10, trace_id="a"), put(queue, 20, trace_id="a")]
    put(queue, BUSY_COLLECT_ROWS, trace_id="b")
    assert eventually(lambda: database.begun, [COLLECT_ROWS, BUSY_COLLECT_ROWS])
    database.answer.set()
    for future in (first, *waiting):
        future.result(60)
    assert database.traces == [["a"], ["b"], ["a", "a"]]
    assert database.begun[2] == 30


def test_urgent_rows_of_a_trace_wait_for_the_write_in_progress(queue: Inserter, database: Database) -> None:
    put(queue, COLLECT_ROWS, trace_id="a")
    assert eventually(lambda: database.begun, [COLLECT_ROWS])
    urgent = put(queue, 1, trace_id="a", is_urgent=True)
    assert not eventually(lambda: len(database.begun), 2, seconds=0.3)
    database.answer.set()
    assert urgent.result(60) is None
    assert put(queue, 1, trace_id="a").result(60) is None


def test_closing_waits_for_rows_of_a_trace_that_is_written(queue: Inserter, database: Database) -> None:
    put(queue, COLLECT_ROWS, trace_id="a")
    assert eventually(lambda: database.begun, [COLLECT_ROWS])
    second = put(queue, 1, trace_id="a")
    closing = threading.Thread(target=queue.close)
    closing.start()
    assert not eventually(second.done, seconds=0.3)
    database.answer.set()
    closing.join(60)
    assert second.result(0) is None


def test_both_threads_go_on_after_one_has_taken_all_rows(queue: Inserter, database: Database) -> None:
    database.answer.set()
    for _ in range(3):  # both wait for the same row each time, and one gets it
        put(queue, 1).result(60)
    database.answer.clear()
    put(queue, COLLECT_ROWS)
    assert eventually(lambda: len(database.begun), 4)
    put(queue, BUSY_COLLECT_ROWS)
    assert eventually(lambda: len(database.begun), 5)


def test_closing_writes_what_is_queued(queue: Inserter, database: Database) -> None:
    futures = [put(queue, COLLECT_ROWS), put(queue, 1)]
    database.answer.set()
    queue.close()
    assert [future.result(0) for future in futures] == [None, None]
    with pytest.raises(Closed):
        put(queue, 1)


def test_a_database_that_is_away_fails_one_write_and_not_the_next(queue: Inserter, database: Database) -> None:
    database.error = Unavailable("away", 1.0)
    database.answer.set()
    with pytest.raises(Unavailable, match="away"):
        put(queue, 1).result(60)
    assert queue.trouble == "away"
    database.error = None
    assert put(queue, 1).result(60) is None
    assert queue.trouble is None


def test_a_request_that_was_given_up_does_not_stop_the_thread(queue: Inserter, database: Database) -> None:
    database.answer.set()
    for _ in range(inserter.WRITERS):
        given_up, waiting = put(queue, COLLECT_ROWS // 2), put(queue, COLLECT_ROWS // 2)
        given_up.cancel()
        waiting.result(30)
    put(queue, COLLECT_ROWS).result(30)


def test_a_later_version_of_feedback_waits_for_the_earlier_one(queue: Inserter, database: Database) -> None:
    feedback = Feedback(target=Target(trace_id="a"), key="good", score=1.0)
    first = queue.put(SpanBatch([], []), [feedback], is_urgent=True)
    eventually(lambda: database.begun == [1])
    second = queue.put(SpanBatch([], []), [feedback], is_urgent=True)
    put(queue, 1, is_urgent=True)
    eventually(lambda: len(database.begun) == 2)
    database.answer.set()
    for future in (first, second):
        future.result(30)
    assert database.begun == [1, 1, 1]
