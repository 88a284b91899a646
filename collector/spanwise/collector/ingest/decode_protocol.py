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
REQUEST_HEADER = struct.Struct("<QB?")  # size of the body that follows, index in `CODECS`, and whether to return rows
# sent instead of a codec index: the body is the row encoder for later requests, and no reply follows
ENCODER_UPDATE = 255
LENGTH_PREFIX = struct.Struct("<Q")  # size of the message that follows
READY_BYTE = b"\x01"


RowEncoder: TypeAlias = Callable[[Sequence[Any]], Any]  # encodes runs as rows of the store, which `EncodedRows` carries


class WorkerSettings(NamedTuple):
    """First message to a worker process: limits and settings."""

    limits: Limits
    encode: RowEncoder | None
    nice: int
    seconds: float  # CPU time for one request, after which the process ends itself
    patience: float  # wall time for one request, after which the server kills the process
    memory: int  # limit of the data segment in bytes
    prices: dict[Any, Any]  # prices of models that the server has cached


class WorkerReply(NamedTuple):
    """Reply to one request; its items follow in chunks of the given `sizes`."""

    decoded: DecodedRequest[Any] | None  # its list of items is empty, because the items follow
    refused: tuple[str, str] | None  # reason and message of a `PermanentError`
    sizes: list[int]
    seconds: float  # CPU time
    log_lines: list[str]  # for the server's log


@dataclass(slots=True)
class EncodedRows:
    """Runs of a request, encoded as rows of the store. The rows stay pickled until they are written."""

    pickled: bytes | bytearray

    def take(self) -> Any:
        """Return the unpickled rows. Callable once, because it frees the pickled bytes."""
        pickled, self.pickled = self.pickled, b""
        return pickle.loads(pickled)
