"""Writing to ClickHouse: several collectors at once, repeats, months, large traces, and a server that is away."""

from __future__ import annotations

import math
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from collector.clickhouse_server import ClickHouseServer
from collector.making import SECOND, child, run
from collector.separate_networks import separate_network
from spanwise.collector.errors import Closed, Unavailable
from spanwise.collector.records import Amendment, Feedback, OpenRun, Run, Target
from spanwise.collector.stores.clickhouse import ClickHouseTraces, inserter, span_writer
from spanwise.collector.stores.clickhouse.connection import MAX_CONNECTIONS
from spanwise.collector.stores.clickhouse.span_rows import encode_runs

pytestmark = pytest.mark.process
DAY = 86_400 * SECOND


@pytest.fixture
def traces(empty_clickhouse: str) -> Iterator[ClickHouseTraces]:
    with closing(ClickHouseTraces(empty_clickhouse)) as traces:
        yield traces


@pytest.fixture
def other(empty_clickhouse: str, traces: ClickHouseTraces) -> Iterator[ClickHouseTraces]:
    """A second collector on the same database."""
    with closing(ClickHouseTraces(empty_clickhouse)) as other:
        yield other


def wait_until(look: Callable[[], Any], seconds: float = 30) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def only(traces: ClickHouseTraces) -> Any:
    [summary] = traces.traces()
    return summary


def count_rows(traces: ClickHouseTraces, table: str) -> int:
    return int(traces._db.query(f"SELECT count() FROM {table}")[0][0])


def test_a_batch_sent_twice_is_stored_once_and_is_one_change(traces: ClickHouseTraces) -> None:
    root = run(outputs="x")
    runs = [root, child(root)]
    traces.append(runs)
    cursor = traces.changes().cursor
    traces.append(runs)
    assert (only(traces).span_count, traces.count()["spans"]) == (2, 2)
    assert traces.changes(cursor).heads == ()


class LossyProxy:
    """Proxy in front of a server. It drops the answer of every insert into a table while `drops` is above 0."""

    def __init__(self, port: int, table: str) -> None:
        self._port, self._mark, self.drops = port, b"INSERT INTO `" + table.encode(), 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(("127.0.0.1", self._port)) as server:
            threading.Thread(target=self._answer, args=(server, client), daemon=True).start()
            while data := client.recv(2**20):
                if self._mark in data:
                    self._is_insert = True
                server.sendall(data)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(2**20):
                if self._is_insert and self.drops > 0:
                    self.drops, self._is_insert = self.drops - 1, False
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(data)

    _is_insert = False


@pytest.mark.parametrize("table", ["spans", "traces"])
def test_an_insert_whose_answer_is_lost_is_stored_once(
    clickhouse_server: ClickHouseServer, empty_clickhouse: str, traces: ClickHouseTraces, table: str
) -> None:
    address = urlsplit(empty_clickhouse)
    with closing(LossyProxy(address.port or 8123, table)) as proxy:
        through = urlunsplit(address._replace(netloc=f"default@127.0.0.1:{proxy.port}"))
        with closing(ClickHouseTraces(through)) as lossy:
            proxy.drops = 1
            lossy.append([root := run()])
            assert proxy.drops == 0
    assert count_rows(traces, table) == 1
    assert traces.trace(root.trace_id).root == root


def test_the_same_span_at_two_collectors_is_one_span(traces: ClickHouseTraces, other: ClickHouseTraces) -> None:
    root = run()
    threads = [
        threading.Thread(target=each.append, args=([root, child(root, span_id="c" * 16)],)) for each in (traces, other)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert only(traces).span_count == only(other).span_count == 2


def test_of_two_versions_the_fuller_one_stands_whichever_comes_last(
    traces: ClickHouseTraces, other: ClickHouseTraces
) -> None:
    partial = run(outputs=None)
    full = replace(partial, outputs="all of it", end_ns=partial.end_ns + 5)
    traces.append([full])
    # a collector that does not know of the stored version, because it read before the other inserted
    other._spans.insert({partial.trace_id: {partial.span_id: encode_runs([partial]).rows[0]}}, {})
    other.append([child(partial)])
    trace = traces.trace(full.trace_id)
    assert trace.root.outputs == "all of it"
    assert only(traces).span_count == 2


def write_part(url: str, runs: Sequence[Run], ready: Any) -> None:
    with closing(ClickHouseTraces(url)) as traces:
        ready.wait()
        for each in runs:
            traces.append([each])


def test_a_trace_at_two_collectors_at_once_has_a_complete_summary(
    empty_clickhouse: str, traces: ClickHouseTraces
) -> None:
    context = multiprocessing.get_context("spawn")
    ready, root = context.Barrier(2), run()
    halves = [[child(root, f"part {n}", span_id=f"{n:016x}") for n in range(first, 41, 2)] for first in (1, 2)]
    halves[0].append(root)
    workers = [context.Process(target=write_part, args=(empty_clickhouse, half, ready)) for half in halves]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert only(traces).span_count == len(traces.trace(root.trace_id).runs) == 41
    assert only(traces).name == root.name


def test_a_collector_that_died_before_the_summary_is_made_good_by_the_repeat(traces: ClickHouseTraces) -> None:
    root = run()
    spans = [root, child(root)]
    traces.append([root])
    rows = {row.fact.span_id: row for row in encode_runs(spans).rows}
    traces._spans.insert({root.trace_id: rows}, {})  # and no summary, as after a kill
    assert only(traces).span_count == 1
    traces.append(spans)
    assert only(traces).span_count == 2


def write_until_killed(url: str, acknowledged: Any) -> None:
    with closing(ClickHouseTraces(url)) as traces:
        while True:
            root = run()
            traces.append([root, child(root)], [Feedback(target=Target(trace_id=root.trace_id), key="k", score=1.0)])
            acknowledged.send(root.trace_id)


def test_all_that_a_killed_collector_acknowledged_is_complete(empty_clickhouse: str, traces: ClickHouseTraces) -> None:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    worker = context.Process(target=write_until_killed, args=(empty_clickhouse, sender))
    worker.start()
    sender.close()
    ids = [receiver.recv() for _ in range(8)]
    worker.kill()
    worker.join(60)
    with suppress(EOFError):
        while True:
            ids.append(receiver.recv())
    found = {summary.trace_id: (summary.span_count, summary.feedback) for summary in traces.traces(limit=1000)}
    assert {id: found.get(id) for id in ids} == dict.fromkeys(ids, (2, {"k": 1.0}))
    assert {head.trace_id for head in traces.changes().heads} >= set(ids)


def test_a_span_sent_again_in_another_month_is_returned_once(traces: ClickHouseTraces) -> None:
    root = run()
    traces.append([root])
    traces.append([replace(root, start_ns=root.start_ns - 60 * DAY, end_ns=root.end_ns + 1)])
    assert len(traces.trace(root.trace_id).runs) == 1
    assert only(traces).start_ns == root.start_ns - 60 * DAY
    parts = "SELECT uniqExact(partition) FROM system.parts WHERE active AND table = 'spans' AND database = currentDatabase()"
    assert traces._db.query(parts) == [(2,)]


def test_a_batch_may_span_more_months_than_an_insert_may_have_partitions(traces: ClickHouseTraces) -> None:
    runs = [run(start_ns=SECOND + month * 31 * DAY, end_ns=2 * SECOND + month * 31 * DAY) for month in range(110)]
    traces.append(runs)
    assert traces.count() == {"spans": 110, "traces": 110, "feedbacks": 0}


def test_hostile_text_is_stored_as_it_is(traces: ClickHouseTraces) -> None:
    odd = "'; DROP TABLE spans; -- \\ {x:String} \x00 \t\n 語 %s"
    root = run(
        odd, inputs={odd: odd}, session_id=odd, user_id=odd, tags=(odd,), metadata={odd: odd}, project=odd, model=odd
    )
    traces.append([root], [Feedback(target=Target(trace_id=root.trace_id), key=odd, label=odd, author=odd)])
    assert traces.trace(root.trace_id).root == root
    [summary] = traces.traces(name=odd, project=odd, session=odd)
    assert summary.feedback == {odd: odd}
    assert count_rows(traces, "spans") == 1


@pytest.mark.parametrize("number", [math.nan, math.inf, 10**400, -(2**70)], ids=["nan", "inf", "huge", "negative"])
@pytest.mark.parametrize("field", ["cost", "time_to_first_token_ms"])
def test_a_number_that_no_database_can_store_is_missing(traces: ClickHouseTraces, field: str, number: float) -> None:
    root = run(**{field: number})
    traces.append([root])
    before = traces.changes().cursor
    traces.append([root])
    assert traces.changes(before).heads == ()
    assert getattr(traces.run(root.trace_id), field) is None
    assert getattr(only(traces), field) is None


def test_text_that_utf8_cannot_encode_is_found_nowhere(traces: ClickHouseTraces) -> None:
    traces.append([run()])
    assert traces.find_stored_feedback({"\ud800"}) == set()
    assert traces.delete_feedback(["\ud800"]) == 0
    assert traces.find_stored_traces({"\ud800"}) == set()
    assert traces.many(["\ud800"]) == []
    traces.add_running([OpenRun(trace_id="\ud800", span_id="1" * 16, name="answer")])
    assert [one.trace_id for one in traces.running()] == ["?"]


def test_a_large_trace_is_summed_up_now_and_then(traces: ClickHouseTraces, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_writer, "LARGE_TRACE_SPANS", 3)
    monkeypatch.setattr(span_writer, "LARGE_TRACE_SECONDS", 2.0)
    root = run()
    traces.append([root, *(child(root) for _ in range(4))])
    traces.append([child(root)])
    traces.append([child(root)])
    assert only(traces).span_count == 5
    assert len(traces.trace(root.trace_id).runs) == 7
    assert wait_until(lambda: only(traces).span_count == 7)
    assert traces._db.query("SELECT count() FROM pending_summaries FINAL") == [(0,)]


def test_another_collector_finishes_the_summary_of_one_that_died(
    traces: ClickHouseTraces, other: ClickHouseTraces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_writer, "LARGE_TRACE_SPANS", 3)
    monkeypatch.setattr(span_writer, "LARGE_TRACE_SECONDS", 1.0)
    traces._maintenance.close()
    root = run()
    traces.append([root, *(child(root) for _ in range(4))])
    traces.append([child(root)])
    assert wait_until(lambda: only(other).span_count == 6)


def test_a_span_of_a_deleted_trace_is_acknowledged_and_not_stored(
    traces: ClickHouseTraces, other: ClickHouseTraces
) -> None:
    root = run()
    traces.append([root], [Feedback(target=Target(trace_id=root.trace_id), key="good", score=1.0)])
    lot = traces.find_deletable_traces(traces_of(root))
    assert lot is not None
    assert traces.delete_traces([lot]) == 1
    for each in (traces, other):
        each.append([child(root)], [Feedback(target=Target(trace_id=root.trace_id), key="late", score=1.0)])
    assert traces.count() == {"spans": 0, "traces": 0, "feedbacks": 0}
    assert other.health()["came_after_deletion_total"] == 2


def traces_of(root: Run) -> Any:
    from spanwise.collector.filters import Filter

    return Filter(trace_ids=(root.trace_id,))


def test_a_trace_deleted_while_its_spans_are_inserted_does_not_remain(
    traces: ClickHouseTraces, other: ClickHouseTraces, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = run()
    traces.append([root])
    insert = traces._spans.insert

    def insert_after_deletion(*arguments: Any) -> None:
        lot = other.find_deletable_traces(traces_of(root))
        assert lot is not None
        other.delete_traces([lot])
        insert(*arguments)

    monkeypatch.setattr(traces._spans, "insert", insert_after_deletion)
    traces.append([child(root)])
    assert traces.count() == {"spans": 0, "traces": 0, "feedbacks": 0}
    assert count_rows(traces, "spans") == 0


def test_an_amendment_and_its_span_at_two_collectors_meet(traces: ClickHouseTraces, other: ClickHouseTraces) -> None:
    root = run()
    fields = {"outputs": "amended", "feedback": {"a": {"key": "good", "score": 1.0}}}
    assert traces.add_amendments([Amendment(root.trace_id, root.span_id, fields)]) == [False]
    other.append([root])
    trace = traces.trace(root.trace_id)
    assert trace.root.outputs == "amended"
    assert [one.key for one in trace.feedback] == ["good"]
    other.append([root])  # sent again
    assert traces.trace(root.trace_id).root.outputs == "amended"


def test_a_value_that_is_set_again_is_the_present_one(traces: ClickHouseTraces, other: ClickHouseTraces) -> None:
    root = run()
    traces.append([root])
    for collector, score in ((traces, 1.0), (other, 0.0), (traces, 1.0)):
        rating = {"key": "good", "score": score, "source": "human", "author": "a"}
        assert collector.amend(root.trace_id, root.span_id, {"outputs": score, "feedback": {"a": rating}})
    trace = other.trace(root.trace_id)
    assert trace.root.outputs == 1.0
    assert [one.score for one in trace.feedback] == [1.0]


def test_an_amended_span_inserted_by_a_collector_that_does_not_know_of_it_stays_amended(
    traces: ClickHouseTraces, other: ClickHouseTraces
) -> None:
    root = run()
    traces.append([root])
    assert traces.amend(root.trace_id, root.span_id, {"outputs": "amended"})
    other._spans.insert({root.trace_id: {root.span_id: encode_runs([root]).rows[0]}}, {})
    assert traces.trace(root.trace_id).root.outputs == "amended"


def test_a_started_run_does_not_stay_open_after_its_span_came_elsewhere(
    traces: ClickHouseTraces, other: ClickHouseTraces
) -> None:
    root = run()
    started = OpenRun(trace_id=root.trace_id, span_id=root.span_id, name="answer")
    traces.add_running([started])
    assert [one.span_id for one in other.running()] == [root.span_id]
    other.append([root])
    assert traces.running() == []
    traces.add_running([started])
    assert other.running() == []


def test_many_requests_become_few_writes(traces: ClickHouseTraces) -> None:
    futures = [traces.append_async([run()]) for _ in range(500)]
    for future in futures:
        future.result(60)
    assert traces.count()["spans"] == 500
    assert traces.health()["writes"] <= 10


def test_a_full_queue_is_unavailable(traces: ClickHouseTraces, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inserter, "MAX_QUEUED_ROWS", 3)
    monkeypatch.setattr(inserter, "COLLECT_SECONDS", 1.0)
    futures = [traces.append_async([run(), run()])]
    with pytest.raises(Unavailable, match="2 rows wait to be written to ClickHouse"):
        traces.append_async([run(), run()])
    futures[0].result(30)
    assert traces.count()["spans"] == 2


def test_a_closed_store_says_so(empty_clickhouse: str) -> None:
    traces = ClickHouseTraces(empty_clickhouse)
    future = traces.append_async([run()])
    traces.close()
    traces.close()
    assert future.result(0) is None
    with pytest.raises(Closed):
        traces.append([run()])
    with pytest.raises(Closed):
        traces.count()


def test_what_was_acknowledged_before_the_server_was_killed_is_there(
    clickhouse_server: ClickHouseServer, traces: ClickHouseTraces
) -> None:
    if not clickhouse_server.can_be_killed:
        pytest.skip("this server is not the tests' own")
    root = run(outputs="kept")
    traces.append([root])
    clickhouse_server.kill()
    try:
        with pytest.raises(Unavailable, match="cannot be reached") as caught:
            traces.append([run()])
        assert caught.value.retry_after > 0
        assert traces.trouble() is not None
        assert traces.health()["writable"] == 0
    finally:
        clickhouse_server.start()
    assert traces.trace(root.trace_id).root == root
    traces.append([child(root)])
    assert only(traces).span_count == 2
    assert traces.trouble() is None


@pytest.mark.slow
def test_a_network_that_is_cut_makes_the_store_unavailable_until_it_is_mended() -> None:
    with separate_network() as network:
        server = ClickHouseServer(network.address, network.name)
        try:
            with server.database() as url, closing(ClickHouseTraces(url)) as traces:
                kept = run()
                traces.append([kept])
                network.cut()
                for _ in range(2):
                    began = time.monotonic()
                    with pytest.raises(Unavailable, match="cannot be reached"):
                        traces.append([run()])
                    assert time.monotonic() - began < 45
                network.mend()
                assert wait_until(lambda: answers(traces), 60)
                traces.append([child(kept)])
                assert len(traces.trace(kept.trace_id).runs) == 2
        finally:
            server.stop()


def answers(traces: ClickHouseTraces) -> bool:
    try:
        return traces.count()["spans"] > 0
    except Unavailable:
        return False


def test_many_threads_share_the_connections(traces: ClickHouseTraces) -> None:
    """More threads than connections are kept."""
    root = run()
    traces.append([root])
    with ThreadPoolExecutor(3 * MAX_CONNECTIONS) as threads:
        found = list(threads.map(lambda _: traces.trace(root.trace_id).root, range(6 * MAX_CONNECTIONS)))
    assert found == [root] * (6 * MAX_CONNECTIONS)


def test_a_forked_process_writes_on_connections_of_its_own(traces: ClickHouseTraces) -> None:
    root = run()
    traces.append([root])
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            traces.append([child(root)])
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    traces.append([child(root)])
    assert only(traces).span_count == 3
