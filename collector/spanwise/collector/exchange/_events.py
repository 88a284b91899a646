"""Feedback as OTLP log events under OpenTelemetry's names, and back to equal feedback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spanwise.collector import _wire
from spanwise.collector.dialects import Fault, LogItem, RawLog, written
from spanwise.collector.exchange._spans import EXACT, LIMITS
from spanwise.collector.exchange._values import attributes
from spanwise.collector.former_names import present_feedback, present_names
from spanwise.collector.intake import _json
from spanwise.collector.intake._decode import Codec, decode
from spanwise.collector.intake._logs import read_item
from spanwise.collector.records import Feedback
from spanwise.tracer import attributes as names


def _read(log: RawLog, fault: Fault) -> LogItem | None:
    exact = present_names(log.attributes).get(EXACT)
    return present_feedback(_wire.decode(Feedback, exact)) if isinstance(exact, str) else read_item(log, fault)


EVENTS: Codec[LogItem] = _json.codec("Logs", "logRecords", _json.JSONRecord, _json.raw_log, _read)


def request(feedback: Sequence[Feedback]) -> bytes:
    """An `ExportLogsServiceRequest` as JSON."""
    records = [_record(one) for one in feedback]
    for one, record in zip(feedback, records, strict=True):
        if decode(EVENTS, _encoded([record]), LIMITS).items != [one]:
            record["attributes"] += attributes({EXACT: _wire.encode(one).decode()})
    return _encoded(records)


def _encoded(records: Sequence[dict[str, Any]]) -> bytes:
    return _wire.encode({"resourceLogs": [{"scopeLogs": [{"scope": {"name": "spanwise"}, "logRecords": records}]}]})


def _record(one: Feedback) -> dict[str, Any]:
    target = one.target
    trace = {"traceId": target.trace_id} if target.trace_id else {}
    span = {"spanId": target.span_id} if target.span_id else {}
    named = {"timeUnixNano": str(one.created_ns), "eventName": names.EVALUATION_EVENT}
    return {**named, **trace, **span, "attributes": attributes(written(one))}
