"""Taking in, without a transport: where the work is done, who keeps, what is counted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, cast

import httpx
import pytest

from collector.making import run
from collector.otlp import PROTOBUF, altered, attribute, request, span
from spanwise.collector.dialects import RawSpan, read_run
from spanwise.collector.errors import Refused, Unavailable
from spanwise.collector.ingest import Limits, StoreSink
from spanwise.collector.ingest.decode_pool import DecodePool, Offloader
from spanwise.collector.ingest.otlp_receiver import IngestPipeline
from spanwise.collector.ingest.otlp_signals import TRACES, Request
from spanwise.collector.ingest.request_decoder import (
    LARGE_BODY_BYTES,
    DecodedRequest,
    ItemRefused,
    PermanentError,
    RetryableError,
    check_ids,
    count_by_reason,
    decode,
)
from spanwise.collector.ingest.store_sink import BATCH_SIZE
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.collector.records import Run
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore


class Kept:
    """A keeper that remembers what it was given."""

    def __init__(self, *refusals: ItemRefused) -> None:
        self.requests: list[bytes] = []
        self.items: list[Any] = []
        self.refusals = refusals

    async def keep(self, request: Request[Any], items: Sequence[Any]) -> Sequence[ItemRefused]:
        self.requests.append(request.body)
        self.items += items
        return self.refusals


class Failing:
    def __init__(self, error: Exception) -> None:
        self.error = error

    async def keep(self, request: Request[Any], items: Sequence[Any]) -> Sequence[ItemRefused]:
        raise self.error


def take(body: bytes, *keepers: Any, metrics: Metrics | None = None, signal: Any = TRACES) -> DecodedRequest[Run]:
    offloader, metrics = Offloader(), metrics or Metrics()
    decoders = DecodePool(0, cast("Any", None), offloader, metrics, Limits())
    pipeline = IngestPipeline(keepers, decoders, offloader, metrics)
    try:
        return asyncio.run(pipeline.process(Request(signal, signal.protobuf, body)))
    finally:
        offloader.close()


def test_items_that_cannot_be_parsed_count_against_the_bound_too():
    """They are looked at one by one: that costs most."""
    bad = request(span("NAME")).replace(b"NAME", b"\xff\xfe\xff\xfe")
    for count, reason in ((3, "malformed"), (4, "too_many")):
        with pytest.raises(PermanentError) as refused:
            decode(TRACES.protobuf, bad * count, Limits(spans=3))
        assert refused.value.reason == reason
    assert len(decode(TRACES.protobuf, request(span()) * 3, Limits(spans=3)).items) == 3
    with pytest.raises(PermanentError, match="4 items in one request, at most 3: send less"):
        decode(TRACES.protobuf, request(span()) * 4, Limits(spans=3))


def test_every_keeper_gets_the_request_and_its_items():
    first, second, body = Kept(), Kept(), request(span("a"), span("b"))
    take(body, first, second)
    assert [item.name for item in first.items] == ["a", "b"]
    assert (second.items, second.requests) == (first.items, [body])


def test_a_request_of_nothing_is_handed_to_nobody():
    kept, metrics = Kept(), Metrics()
    assert take(request(span(trace_id=b"")), kept, metrics=metrics).refused_count == 1
    assert kept.requests == []
    assert "spanwise_commit_seconds_count" not in metrics.text()


@pytest.mark.parametrize(
    ("error", "kind", "reason", "retry_after"),
    [
        (Unavailable("full", 7.0), RetryableError, "unavailable", 7.0),
        (Refused("newer file"), PermanentError, "refused", None),
        (ZeroDivisionError("ours"), RetryableError, "internal", 5.0),
    ],
)
def test_what_a_keeper_cannot_do_is_permanent_or_retryable(error, kind, reason, retry_after):
    with pytest.raises(kind) as refused:
        take(request(span()), Failing(error))
    assert (refused.value.reason, getattr(refused.value, "retry_after", None)) == (reason, retry_after)


def test_what_is_kept_and_refused_is_counted_once():
    metrics = Metrics()
    take(request(span(), span(), span(trace_id=b"")), Kept(ItemRefused("no_span", "x")), Kept(), metrics=metrics)
    assert metrics.value("spanwise_received_total") == 3
    assert metrics.value("spanwise_refused_total", signal="traces", reason="ids") == 1
    assert metrics.value("spanwise_refused_total", signal="traces", reason="no_span") == 1
    assert metrics.value("spanwise_stored_total") == 1
    timed = {line for line in metrics.text().splitlines() if "_seconds_count" in line}
    assert timed == {"spanwise_commit_seconds_count 1", "spanwise_acknowledgement_seconds_count 1"}


def test_what_was_refused_is_counted_although_the_rest_could_not_be_kept():
    metrics = Metrics()
    with pytest.raises(RetryableError):
        take(request(span(), span(trace_id=b"")), Failing(OSError()), metrics=metrics)
    assert (metrics.value("spanwise_refused_total"), metrics.value("spanwise_stored_total")) == (1, 0)


@pytest.mark.parametrize(
    ("size", "thread"), [(LARGE_BODY_BYTES - 1, "MainThread"), (LARGE_BODY_BYTES, "spanwise-large_0")]
)
def test_large_bodies_are_decoded_beside_the_event_loop(size, thread):
    threads = []

    def read_here(raw: RawSpan, *args: Any) -> Run:
        threads.append(threading.current_thread().name)
        return read_run(raw, *args)

    short = request(span(attributes=[attribute("a", "x" * 300_000)]))
    body = request(span(attributes=[attribute("a", "x" * (300_000 + size - len(short)))]))
    assert len(body) == size
    take(body, Kept(), signal=altered(TRACES, read=read_here))
    assert threads == [thread]


class Encoding:
    """A `Serving` over a store that tells where runs are encoded."""

    where, is_exclusive = "here", True

    def __init__(self, store: SQLiteStore) -> None:
        self.store, self.announce = store, store.announce
        self.health, self.trouble = store.health, store.trouble

    def append_async(self, runs: Sequence[Run]) -> Any:
        self.thread = threading.current_thread().name
        return self.store.append_async(runs)


@pytest.mark.parametrize(("many", "thread"), [(BATCH_SIZE - 1, "MainThread"), (BATCH_SIZE, "spanwise-large_0")])
def test_many_runs_are_encoded_beside_the_event_loop(tmp_path, many, thread):
    beside = Offloader()
    with SQLiteStore(tmp_path / "a.db") as store:
        encoding = Encoding(store)
        keep = StoreSink(encoding, beside).keep
        runs = [run() for _ in range(many)]
        assert asyncio.run(keep(Request(TRACES, TRACES.protobuf, b""), runs)) == ()
        assert (encoding.thread, store.count()["spans"]) == (thread, many)
    beside.close()


def test_a_store_that_only_waits_is_waited_for_beside_the_event_loop():
    class Plain:
        def append(self, runs: Sequence[Run]) -> None:
            self.runs, self.thread = list(runs), threading.current_thread()

    store, given = Plain(), [run()]
    asyncio.run(StoreSink(store, Offloader()).keep(Request(TRACES, TRACES.protobuf, b""), given))
    assert store.runs == given
    assert store.thread is not threading.main_thread()


def large_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("spanwise-large")}


def test_the_thread_for_large_bodies_ends_with_the_server(tmp_path):
    body = request(*[span(attributes=[attribute("a", "x" * LARGE_BODY_BYTES)]) for _ in range(9)])
    of_others = large_threads()
    with SQLiteStore(tmp_path / "a.db") as store:
        with Server(store) as server:
            httpx.post(f"{server.url}/v1/traces", content=body, headers={"content-type": PROTOBUF}, timeout=60)
            assert len(large_threads() - of_others) == 1
        assert large_threads() <= of_others


@pytest.mark.parametrize(("parent", "found"), [("", None), ("0" * 16, None), ("ab" * 8, "ab" * 8)])
def test_zeros_are_no_parent(parent, found):
    assert check_ids("1" * 32, "2" * 16, parent) == found


@pytest.mark.parametrize("ids", [("1" * 31, "2" * 16, ""), ("1" * 32, "2" * 17, ""), ("1" * 32, "2" * 16, "3" * 15)])
def test_ids_of_another_length_are_none(ids):
    with pytest.raises(ItemRefused, match="bytes"):
        check_ids(*ids)


def test_the_reasons_told_are_the_three_most_frequent():
    decoded = DecodedRequest[Run]()
    for reason, count in (("a", 1), ("b", 2), ("c", 3)):
        decoded.refuse(ItemRefused("x", reason), count=count)
    assert decoded.reason == "3 × c; 2 × b; 1 × a"
    decoded.refuse(ItemRefused("y", "d"), "resource: ", 4)
    assert decoded.reason == "4 × resource: d; 3 × c; 2 × b; …"
    assert (decoded.refused_count, count_by_reason(decoded.refused)) == (10, {"x": 6, "y": 4})


def test_a_request_without_items_reaches_every_keeper():
    """One that forwards passes on bodies, plain log records too."""
    first, second = Kept(), Kept()
    take(b"", first, second)
    assert (first.requests, second.requests) == ([b""], [b""])


def test_an_item_that_two_keepers_refuse_is_refused_once():
    metrics, refusal = Metrics(), ItemRefused("refused", "not this one")
    decoded = take(request(span()) * 3, Kept(refusal), Kept(refusal), metrics=metrics)
    assert decoded.refused_count == 1
    assert metrics.value("spanwise_stored_total", signal="traces") == 2
