"""Kinds of telemetry, and requests of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from assay.collector.intake._decode import Codec

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Signal(Generic[T]):
    """What OTLP calls a signal: how its requests are decoded and answered, whatever carries them."""

    name: str
    protobuf: Codec[T]
    json: Codec[T]
    response: type[Message]
    refused_field: str  # of the response's `partial_success`


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """One request as it arrived, inflated."""

    signal: Signal[T]
    codec: Codec[T]
    body: bytes
    project: str | None = None  # to which its sender's key is bound
    admit: Callable[[int], object] = int  # told the bytes that it takes once it is decoded; raises `Retryable`
