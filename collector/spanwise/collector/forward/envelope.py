"""Forwarded request in its on-disk format: header line and body, with splitting, joining and conversion to protobuf."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import msgspec
from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

# signal → request class; names of its nested lists, outermost first, in JSON and in protobuf
_SIGNAL_SHAPES: dict[str, tuple[type[Message], tuple[str, str, str], tuple[str, str, str]]] = {
    "traces": (
        ExportTraceServiceRequest,
        ("resourceSpans", "scopeSpans", "spans"),
        ("resource_spans", "scope_spans", "spans"),
    ),
    "logs": (
        ExportLogsServiceRequest,
        ("resourceLogs", "scopeLogs", "logRecords"),
        ("resource_logs", "scope_logs", "log_records"),
    ),
    "metrics": (
        ExportMetricsServiceRequest,
        ("resourceMetrics", "scopeMetrics", "metrics"),
        ("resource_metrics", "scope_metrics", "metrics"),
    ),
}
ItemSelector = Callable[[int, Any], bool]  # takes the index of an item, and the item in its encoding's class


class _Header(msgspec.Struct, array_like=True, frozen=True):
    signal: str
    json: bool
    hops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Envelope:
    """Forwarded request. `signal` is traces, logs or metrics; `hops` are the marks of the collectors that forwarded
    it.
    """

    signal: str
    json: bool
    hops: tuple[str, ...]
    body: bytes

    def packed(self) -> bytes:
        """Encode the envelope as one record of the spool."""
        return msgspec.json.encode(_Header(self.signal, self.json, self.hops)) + b"\n" + self.body

    def chosen(self, choose: ItemSelector) -> Envelope | None:
        """Return the envelope with only the selected items, under their resources and scopes; None if no item is
        selected.

        Raises `ValueError` if the body cannot be parsed as a whole.
        """
        body = _select_json_items(self, choose) if self.json else _select_protobuf_items(self, choose)
        return None if body is None else replace(self, body=body)

    def to_protobuf(self) -> bytes:
        """Return the body as protobuf. Raises `ValueError` if a JSON body cannot be converted."""
        if not self.json:
            return self.body
        kind: Any = _SIGNAL_SHAPES[self.signal][0]
        try:
            request = json_format.ParseDict(
                _encode_ids(msgspec.json.decode(self.body)), kind(), ignore_unknown_fields=True
            )
        except (msgspec.DecodeError, json_format.ParseError, TypeError, RecursionError) as error:
            raise ValueError(f"the body cannot be converted to protobuf: {error}") from error
        return bytes(request.SerializeToString())

    def halves(self) -> list[Envelope]:
        """Split the items into two envelopes. Return [] for fewer than two items.

        Raises `ValueError` if the body cannot be parsed as a whole.
        """
        total = 0

        def count_item(index: int, _: Any) -> bool:
            nonlocal total
            total = index + 1
            return True

        self.chosen(count_item)
        middle = total // 2
        if not middle:
            return []
        parts = self.chosen(lambda index, _: index < middle), self.chosen(lambda index, _: index >= middle)
        return [part for part in parts if part is not None]


_ID_FIELDS = ("traceId", "spanId", "parentSpanId")


def _encode_ids(value: Any) -> Any:
    """Return a JSON request with ids in base64, as protobuf's JSON has them. OTLP's JSON has them in hexadecimal."""
    if isinstance(value, list):
        return [_encode_ids(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64encode(bytes.fromhex(item)).decode()
        if key in _ID_FIELDS and isinstance(item, str)
        else _encode_ids(item)
        for key, item in value.items()
    }


def unpack_envelope(record: bytes) -> Envelope:
    """Decode a spool record that `Envelope.packed` has encoded. Raises `ValueError` for any other record."""
    head, newline, body = record.partition(b"\n")
    try:
        header = msgspec.json.decode(head, type=_Header)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a forwarded request: {error}") from error
    if not newline or header.signal not in _SIGNAL_SHAPES:
        raise ValueError(f"not a forwarded request: unknown signal {header.signal!r}")
    return Envelope(header.signal, header.json, header.hops, body)


def join_envelopes(envelopes: Sequence[Envelope]) -> Envelope:
    """Join protobuf requests into one. Concatenated bytes parse as one request, because protobuf appends repeated
    fields.
    """
    return (
        envelopes[0]
        if len(envelopes) == 1
        else replace(envelopes[0], body=b"".join(envelope.body for envelope in envelopes))
    )


def can_join(one: Envelope, other: Envelope) -> bool:
    """Return whether two requests can be joined: protobuf of the same signal, with the same marks."""
    return not one.json and (one.signal, one.json, one.hops) == (other.signal, other.json, other.hops)


def _select_protobuf_items(envelope: Envelope, choose: ItemSelector) -> bytes | None:
    kind, _, (resources, scopes, items) = _SIGNAL_SHAPES[envelope.signal]
    request: Any = kind()
    try:
        request.ParseFromString(envelope.body)
    except DecodeError as error:
        raise ValueError(f"the body cannot be parsed as a whole: {error}") from error
    is_any_selected, numbers = False, count()
    for resource in getattr(request, resources):
        for scope in getattr(resource, scopes):
            found = getattr(scope, items)
            selected = [item for item in found if choose(next(numbers), item)]
            if len(selected) < len(found):
                del found[:]
                found.extend(selected)
            is_any_selected = is_any_selected or bool(selected)
    return bytes(request.SerializeToString()) if is_any_selected else None


def _select_json_items(envelope: Envelope, choose: ItemSelector) -> bytes | None:
    _, (resources, scopes, items), _ = _SIGNAL_SHAPES[envelope.signal]
    is_any_selected, numbers = False, count()
    try:
        request = msgspec.json.decode(envelope.body)
        for resource in request.get(resources) or ():
            for scope in resource.get(scopes) or ():
                scope[items] = [item for item in scope.get(items) or () if choose(next(numbers), item)]
                is_any_selected = is_any_selected or bool(scope[items])
    except (msgspec.DecodeError, AttributeError, TypeError) as error:
        raise ValueError(f"the body cannot be parsed as a whole: {error}") from error
    return msgspec.json.encode(request) if is_any_selected else None
