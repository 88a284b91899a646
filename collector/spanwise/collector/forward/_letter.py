"""One request that is passed on, as it lies on disk: a line that says what it is, then the body as it came."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

# Of each signal its request, and what its lists are called, outermost first; in JSON, and then in protobuf
_SHAPES: dict[str, tuple[type[Message], tuple[str, str, str], tuple[str, str, str]]] = {
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
Choose = Callable[[int, Any], bool]  # by the number of an item, and the item as its encoding has it


class _Head(msgspec.Struct, array_like=True, frozen=True):
    signal: str
    json: bool
    hops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Letter:
    """A request: `signal` is OTLP's word (traces, logs, metrics), `hops` are the collectors that passed it on."""

    signal: str
    json: bool
    hops: tuple[str, ...]
    body: bytes

    def packed(self) -> bytes:
        """As one record of a spool."""
        return msgspec.json.encode(_Head(self.signal, self.json, self.hops)) + b"\n" + self.body

    def chosen(self, choose: Choose) -> Letter | None:
        """The same with those items alone, and with everything around them; None if none is left.

        Raises `ValueError` for a body that only item by item can be read.
        """
        body = _in_json(self, choose) if self.json else _in_protobuf(self, choose)
        return None if body is None else replace(self, body=body)

    def halves(self) -> list[Letter]:
        """The same in two, item by item; nothing if there are not two. Raises `ValueError` as `chosen` does."""
        count = 0

        def counted(number: int, item: Any) -> bool:
            nonlocal count
            count = number + 1
            return True

        self.chosen(counted)
        if count < 2:
            return []
        parts = (
            self.chosen(lambda number, _: number < count // 2),
            self.chosen(lambda number, _: number >= count // 2),
        )
        return [part for part in parts if part is not None]


def unpacked(record: bytes) -> Letter:
    """What `packed` made. Raises `ValueError` for anything else."""
    head, divided, body = record.partition(b"\n")
    try:
        about = msgspec.json.decode(head, type=_Head)
    except msgspec.DecodeError as error:
        raise ValueError(f"the record is none of ours: {error}") from error
    if not divided or about.signal not in _SHAPES:
        raise ValueError(f"the record is none of ours: it is of signal {about.signal!r}")
    return Letter(about.signal, about.json, about.hops, body)


def joined(letters: Sequence[Letter]) -> Letter:
    """Several requests in protobuf as one, which a message of nothing but lists is when its parts follow each other."""
    return letters[0] if len(letters) == 1 else replace(letters[0], body=b"".join(letter.body for letter in letters))


def alike(one: Letter, other: Letter) -> bool:
    """Whether two requests can be joined."""
    return not one.json and (one.signal, one.json, one.hops) == (other.signal, other.json, other.hops)


def _in_protobuf(letter: Letter, choose: Choose) -> bytes | None:
    kind, _, (resources, scopes, items) = _SHAPES[letter.signal]
    request: Any = kind()
    try:
        request.ParseFromString(letter.body)
    except DecodeError as error:
        raise ValueError(f"the body can only be read item by item: {error}") from error
    kept, numbers = False, _numbers()
    for resource in getattr(request, resources):
        for scope in getattr(resource, scopes):
            found = getattr(scope, items)
            chosen = [item for item in found if choose(next(numbers), item)]
            if len(chosen) < len(found):
                del found[:]
                found.extend(chosen)
            kept = kept or bool(chosen)
    return bytes(request.SerializeToString()) if kept else None


def _in_json(letter: Letter, choose: Choose) -> bytes | None:
    _, (resources, scopes, items), _ = _SHAPES[letter.signal]
    kept, numbers = False, _numbers()
    try:
        request = msgspec.json.decode(letter.body)
        for resource in request.get(resources) or ():
            for scope in resource.get(scopes) or ():
                scope[items] = [item for item in scope.get(items) or () if choose(next(numbers), item)]
                kept = kept or bool(scope[items])
    except (msgspec.DecodeError, AttributeError, TypeError) as error:
        raise ValueError(f"the body can only be read item by item: {error}") from error
    return msgspec.json.encode(request) if kept else None


def _numbers() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1
