"""`/v1/metrics`: accepted, counted and dropped, for SDKs that send all three signals and complain of a 404."""

from __future__ import annotations

from typing import Any

import msgspec
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from spanwise.collector.dialects import Fault
from spanwise.collector.intake import _json, _salvage
from spanwise.collector.intake._decode import Codec
from spanwise.collector.intake._limits import Allowance
from spanwise.collector.intake._signal import Signal
from spanwise.collector.records import JSON

MOST = 50_000  # metrics in one request


def _nothing(item: Any, resource: dict[str, JSON], scope: Any, allowance: Allowance) -> None:
    return None


def _dropped(item: None, fault: Fault) -> None:
    return None


PROTOBUF: Codec[None] = Codec(
    errors=(_salvage.Malformed,),
    parse=lambda body: _salvage.groups(body, MOST),
    split=_salvage.groups,
    parse_item=bytes,
    resource=lambda resource, allowance: {},
    raw=_nothing,
    read=_dropped,
)
JSON_: Codec[None] = _json.codec("Metrics", "metrics", msgspec.Raw, _nothing, _dropped)

METRICS = Signal("metrics", PROTOBUF, JSON_, ExportMetricsServiceResponse, "rejected_data_points")
