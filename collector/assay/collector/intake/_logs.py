"""`/v1/logs`: events named `gen_ai.evaluation.result` become feedback; other records are not for us.

Source of the names: OpenTelemetry GenAI semantic conventions v1.41.1, `model/gen-ai/events.yaml`; what they lack
(source, author, …) travels under `assay.feedback.*`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from assay.collector.dialects import RawFeedback, read_feedback
from assay.collector.intake import _json, _protobuf, _salvage
from assay.collector.intake._decode import Codec, Group
from assay.collector.intake._decoded import check_ids, check_time
from assay.collector.intake._errors import ItemRefused
from assay.collector.intake._limits import Limits
from assay.collector.records import JSON, Feedback
from assay.tracer import attributes as names

R = TypeVar("R")


def _feedback(event: str, trace_id: str, span_id: str, time_ns: int, attributes: dict[str, JSON]) -> Feedback:
    event = event or str(attributes.pop("event.name", ""))
    if event != names.EVALUATION_EVENT:
        raise ItemRefused(
            "not_an_evaluation", f"event {event[:64]!r} is not kept: of logs only {names.EVALUATION_EVENT!r} is"
        )
    check_ids(trace_id, span_id or "1" * 16, "")
    raw = RawFeedback(trace_id, span_id or None, check_time(time_ns) or time.time_ns(), attributes)
    try:
        return read_feedback(raw)
    except ValueError as error:
        raise ItemRefused("value", str(error)) from error


def _record(record: LogRecord, resource: dict[str, JSON], scope: InstrumentationScope, limits: Limits) -> Feedback:
    attributes = _protobuf.attributes(record.attributes, limits)
    time_ns = record.time_unix_nano or record.observed_time_unix_nano
    return _feedback(record.event_name, record.trace_id.hex(), record.span_id.hex(), time_ns, attributes)


def _parse(body: bytes) -> Iterable[Group]:
    request = ExportLogsServiceRequest.FromString(body)
    return [
        (group.resource, part.scope, part.log_records) for group in request.resource_logs for part in group.scope_logs
    ]


def _split(body: bytes) -> Iterable[Group]:
    for resource, scope, items in _salvage.groups(body):
        yield Resource.FromString(resource), InstrumentationScope.FromString(scope), items


PROTOBUF: Codec[Feedback] = Codec(
    errors=(DecodeError, _salvage.Malformed),
    parse=_parse,
    split=_split,
    parse_item=LogRecord.FromString,
    resource=_protobuf.resource,
    convert=_record,
)


class JSONRecord(_json.Camel):
    """A log record."""

    time_unix_nano: _json.Integer | None = None
    observed_time_unix_nano: _json.Integer | None = None
    event_name: str | None = None
    trace_id: str | None = None
    span_id: str | None = None
    attributes: list[_json.KeyValue] | None = None


class Part(_json.Camel, Generic[R]):
    """Records of one scope."""

    scope: _json.JSONScope | None = None
    log_records: list[R] | None = None


class Whole(_json.Camel, Generic[R]):
    """Records of one resource."""

    resource: _json.JSONResource | None = None
    scope_logs: list[Part[R]] | None = None


class Request(_json.Camel, Generic[R]):
    """An export request."""

    resource_logs: list[Whole[R]] | None = None


REQUEST = msgspec.json.Decoder(Request[JSONRecord])
ENVELOPE = msgspec.json.Decoder(Request[msgspec.Raw])


def _json_record(record: JSONRecord, resource: dict[str, JSON], scope: _json.JSONScope, limits: Limits) -> Feedback:
    attributes = _json.attributes(record.attributes, limits)
    time_ns = _json.integer(record.time_unix_nano) or _json.integer(record.observed_time_unix_nano)
    trace_id, span_id = _json.hexadecimal(record.trace_id), _json.hexadecimal(record.span_id)
    return _feedback(record.event_name or "", trace_id, span_id, time_ns, attributes)


def _groups(request: Request[Any]) -> list[Group]:
    return [
        (whole.resource, part.scope or _json.NO_SCOPE, part.log_records or ())
        for whole in request.resource_logs or ()
        for part in whole.scope_logs or ()
    ]


JSON_: Codec[Feedback] = Codec(
    errors=_json.ERRORS,
    parse=lambda body: _groups(REQUEST.decode(body)),
    split=lambda body: _groups(ENVELOPE.decode(_json.mended(body))),
    parse_item=msgspec.json.Decoder(JSONRecord).decode,
    resource=_json.resource,
    convert=_json_record,
)
