"""Our own mistakes: an exception in one dialect, reader or decoder costs no neighbour."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from collector.making import run
from collector.otlp import altered, attribute, log_record, logs_request, post, rejected, rejected_logs, request, span
from looped_cases import loop_over
from polling import until
from spanwise.collector.dialects import Draft, RawSpan, read_run
from spanwise.collector.dialects.translation import DIALECTS, LOG_DIALECTS
from spanwise.collector.errors import Closed, Refused, Unavailable
from spanwise.collector.ingest import Limits, Receiver
from spanwise.collector.ingest.otlp_receiver import SignalRoute
from spanwise.collector.ingest.otlp_signals import LOGS, TRACES, Signal, read_log_item
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.collector.records import Run
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.database.group_commit import WriteJob

ROOT = run()


def vendor(draft: Draft) -> None:
    """What an eleventh dialect may get wrong."""
    if "vendor" in draft.namespaces:
        draft.attributes["vendor.list"].get("x")


def fails(*args: Any) -> Any:
    raise KeyError("ours")


@dataclass
class Outcome:
    answer: httpx.Response
    stored: Mapping[str, int]
    numbers: list[str]  # of /metrics


def outcome(path: Path, signal: Signal[Any], body: bytes, *runs: Run) -> Outcome:
    """What becomes of one request to a real store that holds some runs."""
    metrics = Metrics()
    with SQLiteStore(path / "a.db") as store:
        store.append(runs)
        receiver = Receiver(store, metrics)
        answer = post(SignalRoute(receiver, signal), body)
        receiver.close()
        return Outcome(answer, store.count(), metrics.text().splitlines())


def test_a_dialect_that_fails_loses_no_span(tmp_path):
    signal = altered(TRACES, read=partial(read_run, dialects=[*DIALECTS, vendor]))
    found = outcome(tmp_path, signal, request(span(), span(attributes=[attribute("vendor.list", "s")])))
    assert (found.answer.status_code, found.answer.content, found.stored["spans"]) == (200, b"", 2)
    assert 'spanwise_dialect_errors_total{dialect="vendor"} 1' in found.numbers


def test_a_span_on_which_we_fail_is_told_and_its_neighbours_are_kept(tmp_path):
    def raw_span(item: Any, *args: Any) -> RawSpan:
        return fails() if item[0].name == "bad" else TRACES.protobuf.raw(item, *args)

    found = outcome(tmp_path, altered(TRACES, raw=raw_span), request(span("bad"), span(), span("bad")))
    assert rejected(found.answer.content) == (2, "2 × the collector failed: KeyError('ours')")
    assert (found.answer.status_code, found.stored["spans"]) == (200, 1)
    assert 'spanwise_refused_total{signal="traces",reason="internal"} 2' in found.numbers


def test_a_resource_on_which_we_fail_costs_its_own_spans(tmp_path):
    def resource(message: Resource, limits: Limits) -> dict:
        return fails() if message.attributes else {}

    bad = ExportTraceServiceRequest.FromString(request(span(), span()))
    bad.resource_spans[0].resource.attributes.append(attribute("a", "b"))
    found = outcome(tmp_path, altered(TRACES, resource=resource), bad.SerializeToString() + request(span()))
    assert rejected(found.answer.content) == (2, "2 × resource: the collector failed: KeyError('ours')")
    assert found.stored["spans"] == 1


@loop_over(
    ("field", "value"),
    [
        ("span_id", "x"),
        ("name", 5),
        ("documents", ({"content": "a"},)),
        ("documents", []),
        ("tags", "abc"),
        ("usage", {}),
        ("cost", "1"),
    ],
)
def test_what_a_run_cannot_have_costs_only_the_dialect_that_filled_it_in(field, value):
    def wrong(draft: Draft) -> None:
        draft.fields[field] = value

    faults: list[str] = []
    raw = RawSpan(trace_id="1" * 32, span_id="2" * 16, name="a", attributes={"gen_ai.request.model": "m"})
    found = read_run(raw, lambda dialect, error: faults.append(dialect), [wrong, *DIALECTS])
    assert (faults, found) == (["wrong"], read_run(raw))


def test_a_request_on_which_we_fail_as_a_whole_is_not_to_be_sent_again(tmp_path, caplog):
    found = outcome(tmp_path, altered(TRACES, parse=fails), request(span()))
    assert (found.answer.status_code, found.answer.headers.get("retry-after")) == (500, None)
    assert Status.FromString(found.answer.content).code == 13
    assert 'spanwise_requests_refused_total{signal="traces",reason="decoding"} 1' in found.numbers
    assert [record.exc_info[0] for record in caplog.records] == [KeyError]


def test_a_reader_of_log_records_that_fails_leaves_them_to_the_others(tmp_path):
    signal = altered(LOGS, read=partial(read_log_item, dialects=[fails, *LOG_DIALECTS]))
    score = [attribute("gen_ai.evaluation.name", "k"), attribute("gen_ai.evaluation.score.label", "good")]
    good = log_record(ROOT.trace_id, ROOT.span_id, event_name="gen_ai.evaluation.result", attributes=score)
    found = outcome(tmp_path, signal, logs_request(good, log_record(ROOT.trace_id, ROOT.span_id)), ROOT)
    assert rejected_logs(found.answer.content) == (1, "1 × the collector failed: KeyError('ours')")
    assert found.stored["feedbacks"] == 1
    assert 'spanwise_dialect_errors_total{dialect="fails"} 2' in found.numbers


@pytest.mark.parametrize(
    ("error", "status", "code", "after"),
    [
        (OSError("gone"), 503, 14, "5"),
        (Unavailable("full", 1.2), 503, 14, "2"),
        (Refused("newer"), 400, 3, None),
        (Closed("on its way out"), 503, 14, "1"),
    ],
)
def test_what_a_store_cannot_do_is_answered_by_whether_it_may_work_later(error, status, code, after):
    class Broken:
        def append(self, runs: Sequence[Run]) -> None:
            raise error

    answer = post(Receiver(Broken()).routes["/v1/traces"], request(span()))
    assert (answer.status_code, answer.headers.get("retry-after")) == (status, after)
    assert Status.FromString(answer.content).code == code


def test_a_server_that_waits_no_longer_has_what_is_under_way_sent_again(tmp_path):
    """As when it is told to stop, and half a minute later something still has not been kept."""
    sent, began, go_on = list[MutableMapping[str, Any]](), threading.Event(), threading.Event()
    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", b"application/x-protobuf")]}

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": request(span()), "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def cut_off(store: SQLiteStore, route: SignalRoute[Any]) -> None:
        task = asyncio.ensure_future(route(scope, receive, send))
        await asyncio.to_thread(until, lambda: store._file.writer.depth)
        task.cancel()
        await asyncio.wait([task])

    def hold(_: object) -> bool:
        began.set()
        return go_on.wait(60)

    with SQLiteStore(tmp_path / "a.db") as store, closing(Receiver(store)) as receiver:
        store._file.put(WriteJob(weight=64, action=hold))
        assert began.wait(60)
        try:
            asyncio.run(cut_off(store, SignalRoute(receiver, TRACES)))
        finally:
            go_on.set()
    assert (sent[0]["status"], dict(sent[0]["headers"])[b"retry-after"]) == (503, b"1")
