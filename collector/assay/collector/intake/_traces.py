"""`/v1/traces`: requests of spans become runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from assay.collector.dialects import read
from assay.collector.intake import _json, _protobuf, _salvage
from assay.collector.intake._decode import Codec, Group
from assay.collector.intake._limits import Limits
from assay.collector.records import JSON, Run

S = TypeVar("S")


def _run(span: Span, resource: dict[str, JSON], scope: InstrumentationScope, limits: Limits) -> Run:
    return read(_protobuf.raw_span(span, resource, scope, limits))


def _parse(body: bytes) -> Iterable[Group]:
    request = ExportTraceServiceRequest.FromString(body)
    return [(group.resource, part.scope, part.spans) for group in request.resource_spans for part in group.scope_spans]


def _split(body: bytes) -> Iterable[Group]:
    for resource, scope, items in _salvage.groups(body):
        yield Resource.FromString(resource), InstrumentationScope.FromString(scope), items


PROTOBUF: Codec[Run] = Codec(
    errors=(DecodeError, _salvage.Malformed),
    parse=_parse,
    split=_split,
    parse_item=Span.FromString,
    resource=_protobuf.resource,
    convert=_run,
)


class Part(_json.Camel, Generic[S]):
    """Spans of one scope."""

    scope: _json.JSONScope | None = None
    spans: list[S] | None = None


class Whole(_json.Camel, Generic[S]):
    """Spans of one resource."""

    resource: _json.JSONResource | None = None
    scope_spans: list[Part[S]] | None = None


class Request(_json.Camel, Generic[S]):
    """An export request."""

    resource_spans: list[Whole[S]] | None = None


REQUEST = msgspec.json.Decoder(Request[_json.JSONSpan])
ENVELOPE = msgspec.json.Decoder(Request[msgspec.Raw])


def _json_run(span: _json.JSONSpan, resource: dict[str, JSON], scope: _json.JSONScope, limits: Limits) -> Run:
    return read(_json.raw_span(span, resource, scope, limits))


def _groups(request: Request[Any]) -> list[Group]:
    return [
        (whole.resource, part.scope or _json.NO_SCOPE, part.spans or ())
        for whole in request.resource_spans or ()
        for part in whole.scope_spans or ()
    ]


JSON_: Codec[Run] = Codec(
    errors=_json.ERRORS,
    parse=lambda body: _groups(REQUEST.decode(body)),
    split=lambda body: _groups(ENVELOPE.decode(_json.mended(body))),
    parse_item=msgspec.json.Decoder(_json.JSONSpan).decode,
    resource=_json.resource,
    convert=_json_run,
)
