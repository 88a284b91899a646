"""Plain values as OTLP's JSON has them: protobuf's JSON mapping, but for ids, which are in hex."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from spanwise.collector.records import JSON


def value(plain: JSON) -> dict[str, Any]:
    """An `AnyValue`; what JSON has no number for, or 64 bits no room, is a text."""
    match plain:
        case None:
            return {}
        case bool():
            return {"boolValue": plain}
        case int():
            return {"intValue": str(plain)} if -(2**63) <= plain < 2**63 else {"stringValue": str(plain)}
        case float():
            return {"doubleValue": plain} if math.isfinite(plain) else {"stringValue": str(plain)}
        case Mapping():
            return {"kvlistValue": {"values": attributes(plain)}}
        case list() | tuple():
            return {"arrayValue": {"values": [value(member) for member in plain]}}
    return {"stringValue": str(plain)}


def attributes(plain: Mapping[str, JSON]) -> list[dict[str, Any]]:
    """A list of `KeyValue`."""
    return [{"key": str(name), "value": value(given)} for name, given in plain.items()]
