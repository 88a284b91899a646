"""Kinds of telemetry, and requests of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from spanwise.collector.intake._decode import Codec

T = TypeVar("T")
HOPS = b"spanwise-forwarded"  # a header, or gRPC's metadata: the marks of the collectors that passed a request on
MOST_MARKS = 32  # that are read of it


@dataclass(frozen=True, slots=True)
class Signal(Generic[T]):
    """What OTLP calls a signal: how its requests are decoded and answered, whatever carries them."""

    name: str
    protobuf: Codec[T]
    json: Codec[T]
    response: type[Message]
    refused_field: str  # of the response's `partial_success`


@dataclass(slots=True)
class Request(Generic[T]):
    """One request as it arrived, inflated. `hops` names the collectors that have passed it on."""

    signal: Signal[T]
    codec: Codec[T]
    body: bytes  # none any more once it is decoded, where nobody is to have it as it came
    project: str | None = None  # to which its sender's key is bound
    hops: tuple[str, ...] = ()
    refused: tuple[object, ...] = ()  # items that its sender had no right to bring, as the keepers before found
    admit: Callable[[int], object] = int  # told the bytes that it takes once it is decoded; raises `Retryable`


def hops(marks: str) -> tuple[str, ...]:
    """What that header says: the marks, the first collector's first."""
    return tuple(mark.strip()[:64] for mark in marks.split(",")[:MOST_MARKS] if mark.strip()) if marks else ()
