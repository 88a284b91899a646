"""`/v1/logs`: evaluation results become feedback."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from collector.making import run
from collector.otlp import (
    JSON,
    PROTOBUF,
    altered,
    attribute,
    log_record,
    logs_request,
    post,
    rejected_logs,
)
from spanwise.collector.dialects import Amendment, RawLog, read_feedback
from spanwise.collector.dialects.translation import LOG_DIALECTS
from spanwise.collector.errors import Refused
from spanwise.collector.ingest import Receiver
from spanwise.collector.ingest.otlp_receiver import SignalRoute
from spanwise.collector.ingest.otlp_signals import LOGS, read_log_item
from spanwise.collector.records import Feedback, ProcessReport, Run, Target
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

ROOT = run()
EVENT = "gen_ai.evaluation.result"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        store.append([ROOT])
        with Server(store) as running:
            yield running


def read(**attributes: Any) -> Feedback:
    named = {name.replace("__", "."): value for name, value in attributes.items()}
    return read_feedback(RawLog(ROOT.trace_id, ROOT.span_id, 7, {"gen_ai.evaluation.name": "k"} | named))


def score(value: Any, **others: Any) -> Feedback:
    return read(**{"gen_ai.evaluation.score.value": value}, **others)


@pytest.mark.process
def test_an_event_in_protobuf_is_feedback_on_its_span(server: Server) -> None:
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    record = records.add(event_name=EVENT, trace_id=bytes.fromhex(ROOT.trace_id), span_id=bytes.fromhex(ROOT.span_id))
    record.time_unix_nano = 5
    record.attributes.append(attribute("gen_ai.evaluation.name", "relevance"))
    record.attributes.append(attribute("gen_ai.evaluation.score.value", AnyValue(double_value=0.75)))
    record.attributes.append(attribute("gen_ai.evaluation.explanation", "near enough"))
    records.add(event_name="something.else")
    response = httpx.post(
        f"{server.url}/v1/logs", content=request.SerializeToString(), headers={"content-type": PROTOBUF}
    )
    assert (response.status_code, response.content) == (200, b"")  # the other is accepted, too, and not kept
    [kept] = server.store.trace(ROOT.trace_id).feedback
    assert kept.target == Target(trace_id=ROOT.trace_id, span_id=ROOT.span_id)
    assert (kept.key, kept.score, kept.comment, kept.created_ns) == ("relevance", 0.75, "near enough", 5)


def test_an_event_in_json(server: Server) -> None:
    pairs = {"gen_ai.evaluation.name": "tone", "gen_ai.evaluation.score.label": "polite", "event.name": EVENT}
    attributes = [{"key": key, "value": {"stringValue": value}} for key, value in pairs.items()]
    record = {"traceId": ROOT.trace_id, "observedTimeUnixNano": "9", "attributes": attributes}
    body = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record, {"traceId": 5}]}]}]}
    response = httpx.post(
        f"{server.url}/v1/logs", content=json.dumps(body).encode(), headers={"content-type": JSON}, timeout=60
    )
    assert response.json()["partialSuccess"]["rejectedLogRecords"] == "1"
    [kept] = server.store.trace(ROOT.trace_id).feedback
    assert (kept.key, kept.label, kept.target, kept.created_ns) == ("tone", "polite", Target(trace_id=ROOT.trace_id), 9)


def test_scores() -> None:
    assert score(0.5).score == 0.5
    assert score(1.0, spanwise__feedback__boolean=True).score is True
    assert score(False).score is False
    with pytest.raises(ValueError, match="'NaN' is not a finite number"):
        score("NaN")
    with pytest.raises(ValueError, match="outcome 'score' with score None"):
        read()


def test_an_event_without_a_trace_is_about_the_session_that_it_names() -> None:
    said = {"gen_ai.evaluation.name": "solved", "gen_ai.evaluation.score.value": 1.0, "session.id": "s-1"}
    item = read_log_item(RawLog("", None, 7, said, EVENT), lambda *_: None)
    assert isinstance(item, Feedback)
    assert item.target == Target(session_id="s-1")


def test_an_error_is_no_score() -> None:
    failed = score(0.0, error__type="timeout", spanwise__feedback__error="Timeout: after 30 s")
    assert (failed.outcome, failed.score, failed.error) == ("error", None, "Timeout: after 30 s")
    assert failed.metadata["error.type"] == "timeout"
    assert read(error__type="timeout").error == "timeout"


def test_a_skip_says_why() -> None:
    skipped = read(spanwise__feedback__outcome="skip", **{"gen_ai.evaluation.explanation": "no documents"})
    assert (skipped.outcome, skipped.comment) == ("skip", "no documents")


def test_what_the_convention_lacks() -> None:
    found = score(
        1.0,
        spanwise__feedback__source="human",
        spanwise__feedback__author="ann",
        spanwise__feedback__metadata='{"a": 1}',
        spanwise__feedback__scope="trace",
        spanwise__feedback__id="x1",
        vendor__extra="kept",
    )
    assert (found.source, found.author, found.target, found.id) == (
        "human",
        "ann",
        Target(trace_id=ROOT.trace_id),
        "x1",
    )
    assert found.metadata == {"a": 1, "vendor.extra": "kept"}
    assert score(1.0, spanwise__feedback__document=2).target.document == 2


# content that comes in log records


def details(log: RawLog) -> Amendment | None:
    """As OpenTelemetry's GenAI instrumentations send messages beside the span."""
    if log.event != "gen_ai.client.inference.operation.details" or log.span_id is None:
        return None
    return Amendment(log.trace_id, log.span_id, {"outputs": log.body})


class Amendable:
    """What `TraceStore.add_amendments` promises: all or nothing where one is refused; False for a run to come."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}

    def add_amendments(self, amendments: Sequence[Amendment]) -> list[bool]:
        if any(one.fields["outputs"] == "bad" for one in amendments):
            raise Refused("outputs cannot be 'bad'")
        for one in amendments:
            self.fields |= one.fields if one.span_id == ROOT.span_id else {}
        return [one.span_id == ROOT.span_id for one in amendments]


def amend(span_id: str, *contents: str) -> tuple[dict[str, Any], tuple[int, str]]:
    """What a store has then, and what the answer says of what it could not take."""
    store, event = Amendable(), "gen_ai.client.inference.operation.details"
    values = [AnyValue(string_value=content) for content in contents]
    records = [log_record(ROOT.trace_id, span_id, event_name=event, body=value) for value in values]
    route = SignalRoute(Receiver(store), altered(LOGS, read=partial(read_log_item, dialects=[*LOG_DIALECTS, details])))
    return store.fields, rejected_logs(post(route, logs_request(*records)).content)


def test_a_log_record_amends_its_span() -> None:
    assert amend(ROOT.span_id, "hello") == ({"outputs": "hello"}, (0, ""))


def test_content_of_a_span_that_is_not_here_yet_is_taken() -> None:
    assert amend("ab" * 8, "hello") == ({}, (0, ""))


def test_content_that_the_store_refuses_costs_its_neighbours_nothing() -> None:
    assert amend(ROOT.span_id, "bad", "good") == ({"outputs": "good"}, (1, "1 × outputs cannot be 'bad'"))


# what our tracer says beside its spans


def say(server: Server, event: str, attributes: dict[str, Any], span: Run | None = None, **resource: str) -> Any:
    """Send an event, and return what the answer says: status, header, what was refused."""
    request = ExportLogsServiceRequest()
    group = request.resource_logs.add()
    group.resource.attributes.extend(attribute(name.replace("__", "."), value) for name, value in resource.items())
    record = group.scope_logs.add().log_records.add(event_name=event, time_unix_nano=5)
    if span is not None:
        record.trace_id, record.span_id = bytes.fromhex(span.trace_id), bytes.fromhex(span.span_id)
    for name, value in attributes.items():
        given = AnyValue(int_value=value) if isinstance(value, int) else AnyValue(string_value=value)
        record.attributes.append(attribute(name, given))
    headers = {"content-type": PROTOBUF}
    response = httpx.post(f"{server.url}/v1/logs", content=request.SerializeToString(), headers=headers, timeout=60)
    return response.status_code, response.headers["spanwise-collector"], rejected_logs(response.content)


def test_a_run_that_has_started_is_kept_beside_the_runs(server: Server) -> None:
    begun = run()
    told = {"spanwise.span.name": "slow", "openinference.span.kind": "TOOL", "spanwise.span.parent": "ab" * 8}
    told["spanwise.local_root"] = "cd" * 8
    answer = say(server, "spanwise.span.started", told, begun, service__instance__id="i", service__name="shop")
    assert answer == (200, "1", (0, ""))
    [kept] = server.store.running()
    assert (kept.trace_id, kept.span_id, kept.name, kept.kind) == (begun.trace_id, begun.span_id, "slow", "tool")
    assert (kept.parent_id, kept.local_root, kept.start_ns) == ("ab" * 8, "cd" * 8, 5)
    assert (kept.instance, kept.project) == ("i", "shop")


def test_a_start_without_a_span_and_with_odd_values(server: Server) -> None:
    assert say(server, "spanwise.span.started", {})[2][0] == 1
    request = logs_request(log_record(ROOT.trace_id, "", event_name="spanwise.span.started"))
    response = httpx.post(f"{server.url}/v1/logs", content=request, headers={"content-type": PROTOBUF}, timeout=60)
    assert rejected_logs(response.content)[0] == 1
    odd = {
        "spanwise.span.name": 7,
        "openinference.span.kind": 3,
        "spanwise.span.parent": "no id",
        "spanwise.local_root": 9,
    }
    assert say(server, "spanwise.span.started", odd, run())[2] == (0, "")
    [kept] = server.store.running()
    assert (kept.name, kept.kind, kept.parent_id, kept.local_root) == ("7", "3", None, None)


def test_what_a_process_says_of_its_spans_needs_no_trace(server: Server) -> None:
    counts = {f"spanwise.process.{name}": n for n, name in enumerate(("started", "open", "delivered", "spilled"))}
    told = {**counts, "spanwise.process.pending": 4, "spanwise.process.dropped": '{"queue_full": 5, "odd": "x"}'}
    answer = say(server, "spanwise.process.report", {**told, "process.pid": 77}, service__instance__id="i")
    assert answer == (200, "1", (0, ""))
    [process] = server.store.processes()
    assert process.report == ProcessReport(
        instance="i", reported_ns=5, open=1, delivered=2, spilled=3, pending=4, dropped={"queue_full": 5}, pid=77
    )
    assert server.store.count()["feedbacks"] == 0


def test_a_report_of_nobody_is_refused_and_odd_counts_are_none(server: Server) -> None:
    assert "requires the resource attribute 'service.instance.id'" in say(server, "spanwise.process.report", {})[2][1]
    odd = {"spanwise.process.started": "many", "spanwise.process.open": -1, "spanwise.process.dropped": "[1"}
    assert say(server, "spanwise.process.report", odd, service__instance__id="i")[2] == (0, "")
    assert server.store.processes()[0].report == ProcessReport(instance="i", reported_ns=5)


def test_every_answer_says_whose_collector_it_is(server: Server) -> None:
    for path in ("traces", "logs"):
        for response in (httpx.post(f"{server.url}/v1/{path}"), httpx.get(f"{server.url}/v1/{path}")):
            assert (response.status_code >= 400, response.headers["spanwise-collector"]) == (True, "1")


def test_a_senders_claim_outranks_nothing() -> None:
    found = read(gen_ai__evaluation__name="k", gen_ai__evaluation__score__value=1.0, spanwise__feedback__claim=2**62)
    assert found.claim is None
    assert found.metadata == {"spanwise.feedback.claim": 2**62}
