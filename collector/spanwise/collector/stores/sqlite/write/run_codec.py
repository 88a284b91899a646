"""Encoding of runs as compressed rows and back, with sampling probability and monitor mark of a span.

Encoding needs no database and may run in any thread or process. A `Batch` consists of plain tuples, lists and bytes.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from math import isfinite
from typing import Any, NamedTuple

import orjson
import zstandard

from spanwise.collector.record_corrections import FORMER, PRESENT
from spanwise.collector.records import JSON, Document, Event, Link, Run, Usage, make_fast_constructor
from spanwise.collector.stores.search_terms import add_leaves
from spanwise.collector.stores.sqlite.database.table_rows import INT_MAX, clean, dumps, loads
from spanwise.collector.stores.sqlite.search.searchable_text import join_leaves
from spanwise.tracer import attribute_names as names
from spanwise.tracer.http_connections import get_destination

TRACE_STATE = "otel.trace_state"  # attribute with the tracestate as received
SAMPLE_RATE = "spanwise.sample_rate"  # sent by earlier versions of our tracer instead of a threshold
# Smallest accepted sampling probability. A lower one counts as unknown, because one such trace would dominate the
# mean.
MIN_PROBABILITY = 1e-4
# Bit in the flags of our tracestate entry. The entry is `trace id-span id-flags`, followed by `-ot` in a foreign
# trace
MONITOR_FLAG = 2


class SamplingInfo(NamedTuple):
    """Sampling information of a span.

    - `probability` of being kept by head sampling; None if it is unknown or below `MIN_PROBABILITY`.
    - `partial`: the trace was kept only because of an error in it.
    - `judgement`: the span was made by a monitor or called by one.
    """

    probability: float | None
    partial: bool
    judgement: bool


ALWAYS_SAMPLED = SamplingInfo(1.0, False, False)
_UNKNOWN_SAMPLING = SamplingInfo(None, False, False)
_SAMPLING_ATTRIBUTES = (SAMPLE_RATE, names.PARTIAL, names.MONITOR, TRACE_STATE)


def read_sampling_info(attributes: Mapping[str, JSON], resource: Mapping[str, JSON]) -> SamplingInfo:
    """Return the sampling information in the attributes and the resource of a span."""
    is_own_span = names.LOCAL_ROOT in attributes
    if names.MONITOR not in resource and attributes.keys().isdisjoint(
        _SAMPLING_ATTRIBUTES
    ):  # faster than a loop over all attributes, because it looks up only these few names
        return ALWAYS_SAMPLED if is_own_span else _UNKNOWN_SAMPLING
    state = attributes.get(TRACE_STATE)
    members = (member.strip().partition("=") for member in state.split(",")) if isinstance(state, str) else ()
    entries = {key: value for key, _, value in members}
    partial = attributes.get(names.PARTIAL) is True
    is_judgement = (
        resource.get(names.MONITOR) is True or attributes.get(names.MONITOR) is True or _has_monitor_flag(entries)
    )
    return SamplingInfo(_read_probability(attributes, entries, 1.0 if is_own_span else None), partial, is_judgement)


def _read_probability(
    attributes: Mapping[str, JSON], entries: Mapping[str, str], otherwise: float | None
) -> float | None:
    """Return the rate that our tracer states, else the probability from OpenTelemetry's threshold, else `otherwise`."""
    rate = attributes.get(SAMPLE_RATE)
    if isinstance(rate, (int, float)) and isfinite(rate) and 0 < rate <= 1:
        stated: float | None = float(rate)
    else:
        stated = _threshold_probability(entries["ot"]) if "ot" in entries else otherwise
    return None if stated is not None and stated < MIN_PROBABILITY else stated


def _threshold_probability(entry: str) -> float | None:
    """Return 1 − th/2⁵⁶ for `th:…` (hex digits without trailing zeros), or None without a threshold (OTEP 235)."""
    fields = dict(field.partition(":")[::2] for field in entry.split(";"))
    try:
        threshold = int(fields["th"].ljust(14, "0"), 16)
    except (KeyError, ValueError):
        return None
    return 1 - threshold / 2**56 if 0 <= threshold < 2**56 else None


def _has_monitor_flag(entries: Mapping[str, str]) -> bool:
    try:
        entry = entries.get(PRESENT) or entries.get(FORMER, "")
        return bool(int(entry.split("-", 3)[2], 16) & MONITOR_FLAG)
    except (IndexError, ValueError):
        return False


# Measured with a dictionary: payloads are a sixth smaller than with level 1, for 2 µs more per span. Levels 4 and 5
# gain nothing.
COMPRESSION_LEVEL = 3
# Size of a dictionary's hash tables, as a power of two: half of the level's default for large dictionaries. Smaller
# tables leave more of the processor's cache (1 MB) to decoding. Measured: saves 2 of 13 µs per span, and makes a span
# of 334 bytes 6 bytes larger.
HASH_LOG = 16
# limit of one run: above that of any model, and low enough that totals of many traces fit into 64 bits
TOKENS_MAX = 2**40
COUNT_MAX = 2**31
SPAN_KIND = "otel.span.kind"  # see `dialects.translation`
MAX_RESPONSE_ID_CHARACTERS = 200
ZSTD_FRAME_HEADER = zstandard.FRAME_HEADER  # first bytes of compressed data; JSON never begins with them


class SpanCounts(NamedTuple):
    """Counts of spans and calls under a local root, at the end of one of its spans."""

    started: int
    open: int
    dropped: int = 0
    calls_sent: int = 0


class RunLabels(NamedTuple):
    """Prompt, agent, finish reasons and time to the first token of a run that has at least one of them."""

    prompt_name: str | None
    prompt_version: str | None
    agent_name: str | None
    finish_reasons: tuple[str, ...]
    time_to_first_token_ms: float | None


class Fact(NamedTuple):
    """A run without its payload: the columns of `spans`, then the fields that only the trace summary needs."""

    span_id: str
    parent_id: str | None
    name: str
    kind: str
    status: str
    error: str | None
    start_ns: int
    end_ns: int
    model: str | None
    input_tokens: int | None
    output_tokens: int | None
    cost: float | None
    session_id: str | None
    user_id: str | None
    size: int  # bytes of the payload before compression
    project: str
    environment: str
    experiment_id: str | None
    example_id: str | None
    repetition: int
    tags: tuple[str, ...]
    metadata: str | None  # JSON object of its scalar values
    local_root: str | None
    counts: SpanCounts | None  # reported by its process at the end of this span
    sampling: SamplingInfo  # sampling information, and the monitor mark
    sent: int | None = None  # of an amended run: `size` without the amendments
    response_id: str | None = None  # id that the model gave its response
    route: str | None = None  # destination of a call; "" for a span that continues a call of another process
    labels: RunLabels | None = None  # None if the run has none, as most runs


MIN_COLUMNAR_FACTS = 10  # minimum number of facts that are pickled in columns
SPAN_COLUMN_COUNT = 15  # number of fields of a Fact that are columns of `spans`
# Makes a Fact from all fields in a tuple; a call with that many arguments takes twice as long.
_make_fact: Callable[[Iterable[Any]], Fact] = partial(tuple.__new__, Fact)


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
    return Batch(traces, list(map(_make_fact, facts)), *others)


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
        stored, (fact, payload) = _encode_or_repair(run)
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


def extract_fact(run: Run) -> Fact:
    """Return the fact of a run: its columns and the fields for summaries."""
    return _encode_or_repair(run)[1][0]


def encode_amended_run(run: Run, fields: Mapping[str, JSON], sent: int) -> tuple[Fact, bytes]:
    """Encode a run with its amendments applied; `sent` is its size without them.

    The payload also keeps the amended fields separately.
    """
    _, (fact, payload) = _encode_or_repair(run)
    whole = payload[:-1] + b',"amended":' + dumps([sent, fields]).encode() + b"}"
    return fact._replace(size=len(whole), sent=sent), whole


def _encode_or_repair(run: Run) -> tuple[Run, tuple[Fact, bytes]]:
    """Encode a run; return it as stored, with its fact and payload."""
    try:
        return run, _encode_run(run)
    except (TypeError, ValueError, OverflowError, RecursionError, AttributeError):
        mended = _repair_run(run)
        return mended, _encode_run(mended)


def _encode_run(run: Run) -> tuple[Fact, bytes]:
    fields = _build_payload(run)
    try:
        payload = orjson.dumps(fields)
    except TypeError:  # a key is not text; the option costs time
        payload = orjson.dumps(fields, option=orjson.OPT_NON_STR_KEYS)
    usage, attributes, start_ns, end_ns = run.usage, run.attributes, run.start_ns, run.end_ns
    prompt = (run.prompt_name, run.prompt_version)
    labels = (*prompt, run.agent_name, run.finish_reasons, run.time_to_first_token_ms)
    # Raises `TypeError` if a column cannot store its text. The payload was checked when it was encoded.
    texts = (run.name, run.kind, run.error, run.model, run.session_id, run.user_id, run.project, run.environment)
    orjson.dumps((run.trace_id, run.span_id, run.parent_id, texts, run.experiment_id, run.example_id))
    fact = (
        run.span_id,
        run.parent_id,
        run.name,
        run.kind,
        run.status,
        run.error,
        start_ns if 0 <= start_ns <= INT_MAX else max(0, min(start_ns, INT_MAX)),
        end_ns if 0 <= end_ns <= INT_MAX else max(0, min(end_ns, INT_MAX)),
        run.model,
        max(0, min(usage.input_tokens, TOKENS_MAX)) if usage else None,
        max(0, min(usage.output_tokens, TOKENS_MAX)) if usage else None,
        run.cost,
        run.session_id,
        run.user_id,
        len(payload),
        run.project,
        run.environment,
        run.experiment_id,
        run.example_id,
        run.repetition,
        run.tags,
        _comparable_metadata(run.metadata) if run.metadata else None,
        *(_read_counts(attributes) if names.LOCAL_ROOT in attributes else _NO_COUNTS),
        read_sampling_info(attributes, run.resource),
        None,
        read_response_id(attributes) if names.RESPONSE_ID in attributes else None,
        _read_route(run) if SPAN_KIND in attributes or (run.parent_id and names.LOCAL_ROOT in attributes) else None,
        None if labels == _NO_LABELS else RunLabels(*labels),
    )
    return _make_fact(fact), payload


_NO_COUNTS = (None, None)
_NO_LABELS = (None, None, None, (), None)


def read_response_id(attributes: Mapping[str, JSON]) -> str | None:
    """Return the id that a model gave its response; None if it is missing or too long to be one.

    A span that fetches the response of an earlier call does not count, because what is said of the response concerns
    that call.
    """
    if attributes.get(names.OPERATION) == "fetch_response":
        return None
    id = attributes.get(names.RESPONSE_ID)
    return id if isinstance(id, str) and 0 < len(id) <= MAX_RESPONSE_ID_CHARACTERS and id.isascii() else None


def _read_route(run: Run) -> str | None:
    attributes = run.attributes
    kind = attributes.get(SPAN_KIND)
    if kind in ("client", "producer"):
        return get_destination(attributes)
    continues = kind in ("server", "consumer") or attributes.get(names.LOCAL_ROOT) == run.span_id
    return "" if continues and run.parent_id is not None else None


def _read_counts(attributes: Mapping[str, JSON]) -> tuple[str | None, SpanCounts | None]:
    root = attributes.get(names.LOCAL_ROOT)
    if not isinstance(root, str):
        return None, None
    started, still_open = attributes.get(names.SPANS_STARTED), attributes.get(names.SPANS_OPEN)
    if not isinstance(started, int) or not isinstance(still_open, int):
        return root, None
    return root, SpanCounts(
        started if -COUNT_MAX < started < COUNT_MAX else COUNT_MAX,
        still_open if -COUNT_MAX < still_open < COUNT_MAX else COUNT_MAX,
        _read_count(attributes, names.SPANS_DROPPED),
        _read_count(attributes, names.CALLS_SENT),
    )


def _read_count(attributes: Mapping[str, JSON], name: str) -> int:
    """Return a count that senders omit if it is 0, clamped to a range that columns and totals can hold."""
    value = attributes.get(name)
    return max(0, min(value, COUNT_MAX)) if isinstance(value, int) else 0


def _comparable_metadata(metadata: Mapping[str, JSON]) -> str | None:
    """Return the metadata that filters can compare, as JSON: scalar values of at most 200 characters."""
    plain = {str(key): value for key, value in metadata.items() if isinstance(value, (str, int, float, bool))}
    return dumps({key: value for key, value in plain.items() if len(str(value)) <= 200}) if plain else None


def _build_payload(run: Run) -> dict[str, JSON]:
    """Return the fields of a run that have no column, without empty ones."""
    payload: dict[str, JSON] = {"inputs": run.inputs, "outputs": run.outputs}
    if run.documents:
        payload["documents"] = [(d.content, d.id, d.score, d.metadata) for d in run.documents]
    if run.attributes:
        payload["attributes"] = run.attributes
    if run.events:
        payload["events"] = [(e.name, min(e.time_ns, INT_MAX), e.attributes) for e in run.events]
    if run.links:
        payload["links"] = [(link.trace_id, link.span_id, link.attributes) for link in run.links]
    if run.metadata:
        payload["metadata"] = run.metadata
    if run.tags:
        payload["tags"] = run.tags
    if run.usage and run.usage.details:
        payload["usage"] = run.usage.details
    if run.experiment_id is not None:
        payload["experiment"] = (run.experiment_id, run.example_id, run.repetition)
    if run.project != "default":
        payload["project"] = run.project
    if run.environment != "default":
        payload["environment"] = run.environment
    if run.prompt_name is not None or run.prompt_version is not None:
        payload["prompt"] = (run.prompt_name, run.prompt_version)
    if run.agent_name is not None:
        payload["agent"] = run.agent_name
    if run.finish_reasons:
        payload["finish_reasons"] = run.finish_reasons
    if run.time_to_first_token_ms is not None:
        payload["time_to_first_token_ms"] = run.time_to_first_token_ms
    if run.tools:
        payload["tools"] = run.tools
    return payload


def _repair_run(run: Run) -> Run:
    """Return the run with lone surrogates, huge integers, too deep nesting and foreign objects replaced."""
    fields = {name: clean(getattr(run, name)) for name in Run.__slots__}
    fields.update({name: getattr(run, name) for name in ("start_ns", "end_ns", "repetition", "usage")})
    fields["documents"] = tuple(Document(*map(clean, (d.content, d.id, d.score, d.metadata))) for d in run.documents)
    fields["events"] = tuple(
        Event(clean(e.name), max(-INT_MAX, min(e.time_ns, INT_MAX)), clean(e.attributes)) for e in run.events
    )
    fields["links"] = tuple(Link(*map(clean, (x.trace_id, x.span_id, x.attributes))) for x in run.links)
    fields.update({name: tuple(fields[name]) for name in ("tags", "finish_reasons", "tools")})
    return Run(**fields)


_new_run: Callable[..., Run] = make_fast_constructor(Run)


def decode_run(trace_id: str, columns: Sequence[Any], payload: Mapping[str, JSON], resource: Mapping[str, JSON]) -> Run:
    """Decode the run of a row. `columns` are the first `SPAN_COLUMN_COUNT` fields of its `Fact`."""
    experiment_id, example_id, repetition = payload.get("experiment", (None, None, 0))
    prompt_name, prompt_version = payload.get("prompt", (None, None))
    tokens_in, tokens_out = columns[9], columns[10]
    usage = None if tokens_in is None else Usage(tokens_in, tokens_out, payload.get("usage", {}))
    return _new_run(
        trace_id=trace_id,
        span_id=columns[0],
        parent_id=columns[1],
        name=columns[2],
        kind=columns[3],
        status=columns[4],
        error=columns[5],
        start_ns=columns[6],
        end_ns=columns[7],
        model=columns[8],
        usage=usage,
        cost=columns[11],
        session_id=columns[12],
        user_id=columns[13],
        inputs=payload.get("inputs"),
        outputs=payload.get("outputs"),
        documents=tuple(Document(*d) for d in payload["documents"]) if "documents" in payload else (),
        attributes=payload.get("attributes", {}),
        events=tuple(Event(*e) for e in payload["events"]) if "events" in payload else (),
        links=tuple(Link(*link) for link in payload["links"]) if "links" in payload else (),
        metadata=payload.get("metadata", {}),
        tags=tuple(payload.get("tags", ())),
        project=payload.get("project", "default"),
        environment=payload.get("environment", "default"),
        experiment_id=experiment_id,
        example_id=example_id,
        repetition=repetition,
        resource=resource,
        prompt_name=prompt_name,
        prompt_version=prompt_version,
        agent_name=payload.get("agent"),
        finish_reasons=tuple(payload.get("finish_reasons", ())),
        time_to_first_token_ms=payload.get("time_to_first_token_ms"),
        tools=tuple(payload.get("tools", ())),
    )


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
    "SPAN_COLUMN_COUNT",
    "ZSTD_FRAME_HEADER",
    "Batch",
    "Fact",
    "PayloadCompressor",
    "PayloadDecoder",
    "RunEncoder",
    "SpanCounts",
    "decode_run",
    "encode",
    "encode_amended_run",
    "extract_fact",
    "read_dictionary_id",
]
