"""Messages between the server and a decode worker process."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from spanwise.collector.ingest.limits import Limits
from spanwise.collector.ingest.otlp_signals import LOGS, METRICS, TRACES
from spanwise.collector.ingest.request_decoder import DecodedRequest

CODECS = tuple(codec for signal in (TRACES, LOGS, METRICS) for codec in (signal.protobuf, signal.json))
REQUEST_HEADER = struct.Struct("<QB?")  # bytes of the body, which follows; place in `CODECS`; whether rows are wanted
ENCODER_UPDATE = (
    255  # in the place of a codec: the body is the encoder of all requests that follow, which is not answered
)
LENGTH_PREFIX = struct.Struct("<Q")  # bytes of what follows
READY_BYTE = b"\x01"


RowEncoder: TypeAlias = Callable[[Sequence[Any]], Any]  # runs → rows of the store, which `Rows` carry


class WorkerSettings(NamedTuple):
    """What a process is told first."""

    limits: Limits
    encode: RowEncoder | None
    nice: int
    seconds: float  # of CPU for one request, after which the process ends itself
    patience: float  # seconds after which the server ends it
    memory: int  # bytes of data that it may have
    prices: dict[Any, Any]  # of models, as far as the server knows them


class WorkerReply(NamedTuple):
    """What came of a request; its items follow in pieces, of the sizes told here."""

    decoded: DecodedRequest[Any] | None  # without its items
    refused: tuple[str, str] | None  # reason and words of a `Permanent`
    sizes: list[int]
    seconds: float  # of CPU
    told: list[str]  # for the log


@dataclass(slots=True)
class EncodedRows:
    """Runs of a request as rows of the store, pickled until they are written."""

    pickled: bytes | bytearray

    def taken(self) -> Any:
        """What the store's encoder made; to be asked for once, as it is let go here."""
        pickled, self.pickled = self.pickled, b""
        return pickle.loads(pickled)
