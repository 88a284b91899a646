"""Encoding of runs as compressed rows and back.

Encoding needs no database and may run in any thread or process. A `Batch` consists of plain tuples, lists and bytes.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import zstandard

from spanwise.collector.records import JSON, Run
from spanwise.collector.stores.run_codec import Fact, RunLabels, SamplingInfo, SpanCounts, encode_run, make_fact
from spanwise.collector.stores.search_terms import add_leaves
from spanwise.collector.stores.sqlite.search.searchable_text import join_leaves
from spanwise.collector.stores.table_rows import clean, dumps, loads

# Measured with a dictionary: payloads are a sixth smaller than with level 1, for 2 µs more per span. Levels 4 and 5
# gain nothing.
COMPRESSION_LEVEL = 3
# Size of a dictionary's hash tables, as a power of two: half of the level's default for large dictionaries. Smaller
# tables leave more of the processor's cache (1 MB) to decoding. Measured: saves 2 of 13 µs per span, and makes a span
# of 334 bytes 6 bytes larger.
HASH_LOG = 16
ZSTD_FRAME_HEADER = zstandard.FRAME_HEADER  # first bytes of compressed data; JSON never begins with them


MIN_COLUMNAR_FACTS = 10  # minimum number of facts that are pickled in columns


class Batch(NamedTuple):
    """Runs and feedback, encoded and ready to be written. Can be pickled for the same version of Python."""

    traces: dict[str, list[int]]  # trace id -> positions in the lists below
    facts: list[Fact]
    payloads: list[bytes]  # as JSON, or compressed, which begins with `ZSTD_FRAME_HEADER`
    resources: list[int]  # position in `resource_blobs`
    resource_blobs: list[str]
    feedback: Sequence[list[Any]] = ()  # rows of `feedback_table.encode_feedback`
    texts: Mapping[str, str] = {}  # by trace, for the full-text index, as `searchable_text.join_leaves` returns them

    def __reduce__(self) -> tuple[Callable[..., Batch], tuple[Any, ...]]:
        """Serialize many facts in columns of plain values, which takes half the time of pickling each fact."""
        if len(self.facts) < MIN_COLUMNAR_FACTS:
            return Batch, tuple(self)
        fields = zip(*self.facts, strict=True)
        columns: list[Any] = [column[:1] if column.count(column[0]) == len(column) else [*column] for column in fields]
        for at in _NAMED_TUPLE_FIELDS:
            columns[at] = type(columns[at])([value and tuple(value) for value in columns[at]])
        # if all values of a column are equal, the column is a tuple of that value
        parts: Any = (columns, *self[:1], *self[2:])
        try:
            return _unpickle_batch, (marshal.dumps(parts),)
        except ValueError:  # a value has a type that marshal does not support
            return Batch, tuple(self)


def _unpickle_batch(packed: bytes) -> Batch:
    columns, traces, *others = marshal.loads(packed)
    for at, kind in _NAMED_TUPLE_FIELDS.items():
        columns[at] = type(columns[at])([value and kind(value) for value in columns[at]])
    count = len(others[0])
    facts = zip(*[repeat(column[0], count) if type(column) is tuple else column for column in columns], strict=True)
    return Batch(traces, list(map(make_fact, facts)), *others)


# Fields of a `Fact` that are named tuples, by position
_NAMED_TUPLE_FIELDS: Mapping[int, Callable[..., Any]] = {
    Fact._fields.index("counts"): partial(tuple.__new__, SpanCounts),
    Fact._fields.index("sampling"): partial(tuple.__new__, SamplingInfo),
    Fact._fields.index("labels"): partial(tuple.__new__, RunLabels),
}


def encode(runs: Sequence[Run]) -> Batch:
    """Encode runs as a batch. Never raises: values that SQLite or JSON cannot store are repaired."""
    traces: dict[str, list[int]] = {}
    facts, payloads, resources, blobs = list[Fact](), list[bytes](), list[int](), list[str]()
    resource_positions: dict[int, int] = {}
    leaves_by_trace: dict[str, dict[str, None]] = {}
    last, positions, leaves = None, list[int](), dict[str, None]()  # spans of a trace are usually consecutive
    for position, run in enumerate(runs):
        stored, (fact, payload) = encode_run(run)
        trace_id = run.trace_id
        if trace_id != last:
            last, trace_id = trace_id, clean(trace_id)
            positions, leaves = traces.setdefault(trace_id, []), leaves_by_trace.setdefault(trace_id, {})
        positions.append(position)
        add_leaves(leaves, stored.inputs, stored.outputs, payload)
        facts.append(fact)
        payloads.append(payload)
        resource = resource_positions.get(id(run.resource))
        if resource is None:  # equal resources of several requests become one row when they are written
            resource = resource_positions[id(run.resource)] = len(blobs)
            blobs.append(dumps(run.resource))
        resources.append(resource)
    texts = {trace_id: join_leaves(leaves) for trace_id, leaves in leaves_by_trace.items()}
    return Batch(traces, facts, payloads, resources, blobs, (), texts)


class PayloadCompressor:
    """Compressor of payloads, with a dictionary if there is one. For one thread."""

    def __init__(self, dictionary: bytes | None = None) -> None:
        data = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        if data is not None:
            tables = zstandard.ZstdCompressionParameters.from_level(
                COMPRESSION_LEVEL, dict_size=len(data), hash_log=HASH_LOG
            )
            data.precompute_compress(compression_params=tables)
        self._compressor = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, dict_data=data)

    def all(self, payloads: Sequence[bytes]) -> list[bytes]:
        """Compress all payloads in one call into C, which releases the interpreter lock only once. Payloads that are
        already compressed stay as they are.
        """
        plain = [payload for payload in payloads if not payload.startswith(ZSTD_FRAME_HEADER)]
        if len(plain) == len(payloads):
            return self._all(plain)
        compressed = iter(self._all(plain))
        return [payload if payload.startswith(ZSTD_FRAME_HEADER) else next(compressed) for payload in payloads]

    def _all(self, payloads: list[bytes]) -> list[bytes]:
        if len(payloads) < 4:
            return [self._compressor.compress(payload) for payload in payloads]
        compressed = self._compressor.multi_compress_to_buffer(list[bytes | bytearray | memoryview](payloads))
        return [compressed[i].tobytes() for i in range(len(compressed))]


class RunEncoder:
    """Callable version of `encode` that compresses payloads, with a dictionary if there is one. Can be pickled; for one
    thread.
    """

    def __init__(self, dictionary: bytes | None = None) -> None:
        self._dictionary = dictionary
        self._compressor: PayloadCompressor | None = None  # created on first use, which may be in another process

    def __call__(self, runs: Sequence[Run]) -> Batch:
        """Encode runs as a batch with compressed payloads."""
        if self._compressor is None:
            self._compressor = PayloadCompressor(self._dictionary)
        batch = encode(runs)
        return batch._replace(payloads=self._compressor.all(batch.payloads))

    def __reduce__(self) -> tuple[type[RunEncoder], tuple[bytes | None]]:
        return RunEncoder, (self._dictionary,)


def read_dictionary_id(payloads: Sequence[bytes]) -> int:
    """Return the id of the dictionary with which the payloads of one batch are compressed; 0 without dictionary or
    compression.
    """
    frame = next((payload for payload in payloads if payload.startswith(ZSTD_FRAME_HEADER)), None)
    return 0 if frame is None else zstandard.get_frame_parameters(frame).dict_id


class PayloadDecoder:
    """Decoder of payloads. The header of a compressed payload has the id of its dictionary. For one thread at a time."""

    def __init__(self, dictionaries: Mapping[int, bytes]) -> None:
        self._known = {number: zstandard.ZstdCompressionDict(data) for number, data in dictionaries.items()}
        self._by_id: dict[int, zstandard.ZstdDecompressor] = {0: zstandard.ZstdDecompressor()}

    def knows_frame(self, blob: bytes) -> bool:
        """Return whether the dictionary of this payload is available."""
        number = zstandard.get_frame_parameters(blob).dict_id
        return number == 0 or number in self._known

    def raw(self, blob: bytes) -> bytes:
        """Return the JSON text of a payload."""
        number = zstandard.get_frame_parameters(blob).dict_id
        if number not in self._by_id:
            self._by_id[number] = zstandard.ZstdDecompressor(dict_data=self._known[number])
        return self._by_id[number].decompress(blob)

    def payload(self, blob: bytes) -> dict[str, JSON]:
        """Return the JSON object of a payload."""
        payload: dict[str, JSON] = loads(self.raw(blob))
        return payload


__all__ = [
    "ZSTD_FRAME_HEADER",
    "Batch",
    "PayloadCompressor",
    "PayloadDecoder",
    "RunEncoder",
    "encode",
    "read_dictionary_id",
]
