"""Decoding of one OTLP request: limits, refusals, codec interface, and recovery item by item.

All OTLP signals have the same layout: items in groups by scope, in groups by resource. A request that cannot be
parsed as a whole is parsed again item by item, so that one bad item does not lose the others. The same holds for
items on which a dialect or the decoder fails. A large request is parsed item by item from the start, so that only one
parsed item is in memory at a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

from spanwise.collector.dialects import FaultHandler, SideRecord, TranslatedSpan, log_dialect_error, log_once
from spanwise.collector.errors import Closed, Refused, SpanwiseError, Unavailable
from spanwise.collector.record_corrections import SENT_PREFIX, present_names
from spanwise.collector.records import JSON, Feedback, Run, Target, Usage
from spanwise.collector.stores.trace_assembly import FEEDBACK_FIELD, apply_amendment, encode_fields, make_feedback

# Errors that refuse a request (permanent or retryable) or a single item of one.


class ItemRefused(SpanwiseError, ValueError):
    """Refusal of one span or log record; the other items of the request are kept.

    The label `reason` is for metrics. If the sender had no permission for the item, `item` holds it, so that no other
    sink receives it either.
    """

    def __init__(self, reason: str, message: str, item: object = None) -> None:
        super().__init__(message)
        self.reason, self.item = reason, item


class SideRecordRefused(ItemRefused):
    """Refusal of a side record of a span; the span itself is kept."""


class PermanentError(Refused):
    """Refusal of a request that can never be accepted as it is. `reason` is a short label for metrics."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class RetryableError(Unavailable):
    """Refusal of a request that may be accepted when it is sent again after `retry_after` seconds."""

    def __init__(self, reason: str, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message, retry_after)
        self.reason = reason


class UnparsableRequest(Exception):
    """Internal signal: the fast path parsed a request that OTLP's own classes cannot parse as a whole."""


RequestRefused = (PermanentError, RetryableError)  # all errors that ingest raises


def classify_store_error(error: Exception) -> PermanentError | RetryableError:
    """Convert an error of the store to the error for the sender.

    An unexpected error is retryable, because it may not occur again.
    """
    if isinstance(error, Unavailable):
        return RetryableError("unavailable", str(error), error.retry_after)
    if isinstance(error, Closed):  # this server is shutting down; the next one may accept it
        return RetryableError("closed", str(error))
    if isinstance(error, Refused):
        return PermanentError("refused", str(error))
    return RetryableError("internal", f"the collector failed: {error!r}", 5.0)


# Limits of requests, JSON bodies, ids, names and texts, and the size thresholds for large requests.

MIB = 1024 * 1024
MAX_TOKENS, MAX_COST = 2**53, 1e12  # upper bounds: floating-point totals stay exact, and no real cost is higher
# maximum number of groups by resource in a request, and of groups by scope. A group costs about as much as a span
MAX_GROUPS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of ingest.

    A span that exceeds `attributes`, `depth` or `value_bytes` is refused alone. Any other limit refuses the request.
    """

    request_bytes: int = 32 * MIB  # of one body, compressed and decompressed
    pending_bytes: int = 48 * MIB  # of all bodies of OTLP and the API that are being read, decoded or written
    stall_seconds: float = 30.0  # wait for the next chunk of a body: a stalled body occupies pending memory
    decode_seconds: float = 15.0  # CPU time for one body in a worker process; a process that exceeds it ends
    spans: int = 50_000  # spans or log records per request
    values: int = 500_000  # attributes, list and map elements, events and links of all spans of a request
    attributes: int = 10_000  # per span, event, link or resource
    depth: int = 32  # of lists and maps within an attribute
    value_bytes: int = 8 * MIB  # of one text or bytes value


class Allowance:
    """Limits of one request, and the number of values that it has used.

    Values are counted because two bytes on the wire can become a hundred in memory.
    """

    __slots__ = ("attributes", "depth", "limits", "used", "value_bytes", "values")

    def __init__(self, limits: Limits) -> None:
        self.limits, self.used, self.values = limits, 0, limits.values
        self.attributes, self.depth, self.value_bytes = limits.attributes, limits.depth, limits.value_bytes

    def use(self, values: int) -> None:
        """Count values. Raises `PermanentError` beyond the limit of a request."""
        self.used += values
        if self.used > self.values:
            raise PermanentError("too_many", f"more than {self.values:,} values in one request: send less")


def check_groups(resources: int, scopes: int) -> None:
    """Raise `PermanentError` if a request has too many groups by resource or by scope."""
    if max(resources, scopes) > MAX_GROUPS:
        raise PermanentError(
            "too_many", f"{max(resources, scopes):,} groups in one request, at most {MAX_GROUPS:,}: send less"
        )


def check_item_count(count: int, maximum: int) -> None:
    """Raise `PermanentError` if a request has too many items."""
    if count > maximum:
        raise PermanentError("too_many", f"{count:,} items in one request, at most {maximum:,}: send less")


INVALID_IDS = ("", "0" * 16, "0" * 32)


def check_ids(trace_id: str, span_id: str, parent_id: str) -> str | None:
    """Return the parent's id, None if there is none. Raises `ItemRefused` for ids that OpenTelemetry calls invalid."""
    if len(trace_id) != 32 or trace_id in INVALID_IDS:
        raise ItemRefused("ids", f"trace id {trace_id[:64]!r} is not 16 bytes other than all zeros")
    if len(span_id) != 16 or span_id in INVALID_IDS:
        raise ItemRefused("ids", f"span id {span_id[:64]!r} is not 8 bytes other than all zeros")
    if parent_id in INVALID_IDS:
        return None
    if len(parent_id) != 16:
        raise ItemRefused("ids", f"parent span id {parent_id[:64]!r} is not 8 bytes")
    return parent_id


LARGE_BODY_BYTES = 512 * 1024  # larger bodies are decoded outside of the event loop, and wait for a lane
# larger bodies use a second lane, and after each one, free memory is returned to the operating system
HUGE_BODY_BYTES = 4 * 1024 * 1024
# Requests with at least this many runs are encoded outside of the event loop and written in batches of this size. It
# also limits a commit of amendments, and of feedback that arrived with runs.
BATCH_SIZE = 250


def release_free_memory() -> None:
    """Return freed memory to the operating system; otherwise the C library keeps it for the next large request."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)


MAX_JSON_OBJECTS = 600_000  # objects and lists in one body
MAX_JSON_VALUES = 3_000_000  # elements of objects and lists, counted by commas
# a JSON string; an unterminated one matches to the end of the body, so that no input is scanned twice
JSON_STRING = rb'"(?:[^"\\]++|\\.)*+"?'
COUNT_CHUNK_BYTES = 256 * 1024  # bytes counted per step, so that other threads can run in between
_JSON_STRING_PATTERN = re.compile(JSON_STRING, re.DOTALL)


def check_json(body: bytes) -> bytes:
    """Return the body unchanged. Raises `PermanentError` if it has too many objects or values.

    A first, fast count includes brackets and commas within strings. Only if it exceeds a limit, a second count leaves
    them out.
    """
    objects, values = _count_values(body, 0, len(body))
    if (objects > MAX_JSON_OBJECTS or values > MAX_JSON_VALUES) and _exceeds_limits(body):
        raise PermanentError(
            "too_many", f"more than {MAX_JSON_OBJECTS:,} objects or {MAX_JSON_VALUES:,} values in one body: send less"
        )
    return body


def _exceeds_limits(body: bytes) -> bool:
    """Return whether there are too many values outside of strings, without copying the body."""
    objects = values = position = 0
    for string in _JSON_STRING_PATTERN.finditer(body):
        brackets, commas = _count_values(body, position, string.start())
        objects, values, position = objects + brackets, values + commas, string.end()
        if objects > MAX_JSON_OBJECTS or values > MAX_JSON_VALUES:
            return True
    brackets, commas = _count_values(body, position, len(body))
    return objects + brackets > MAX_JSON_OBJECTS or values + commas > MAX_JSON_VALUES


def _count_values(body: bytes, start: int, end: int) -> tuple[int, int]:
    """Return the number of opening brackets, and of commas, in a part of a text."""
    objects = values = 0
    for begin in range(start, end, COUNT_CHUNK_BYTES):
        until = min(begin + COUNT_CHUNK_BYTES, end)
        objects += body.count(b"{", begin, until) + body.count(b"[", begin, until)
        values += body.count(b",", begin, until)
    return objects, values


# maximum characters of a name and of an error text, and maximum number of tags
MAX_NAME_CHARS, MAX_ERROR_CHARS, MAX_TAGS = 2_000, 16_000, 100
NAME_FIELDS = (
    "name",
    "kind",
    "model",
    "session_id",
    "user_id",
    "project",
    "environment",
    "experiment_id",
    "example_id",
    "prompt_name",
    "prompt_version",
    "agent_name",
)


def truncate_fields(run: Run) -> Run:
    """Return the run with long fields truncated, and with their original values in its attributes.

    If no field is too long, return the same object.
    """
    if (
        len(run.name) <= MAX_NAME_CHARS
        and len(run.kind) <= MAX_NAME_CHARS
        and len(run.project) <= MAX_NAME_CHARS
        and len(run.environment) <= MAX_NAME_CHARS
        and (run.model is None or len(run.model) <= MAX_NAME_CHARS)
        and (run.session_id is None or len(run.session_id) <= MAX_NAME_CHARS)
        and (run.user_id is None or len(run.user_id) <= MAX_NAME_CHARS)
        and (run.error is None or len(run.error) <= MAX_ERROR_CHARS)
        and (not run.tags or (len(run.tags) <= MAX_TAGS and max(map(len, run.tags)) <= MAX_NAME_CHARS))
        and (run.experiment_id is None or len(run.experiment_id) <= MAX_NAME_CHARS)
        and (run.example_id is None or len(run.example_id) <= MAX_NAME_CHARS)
        and (run.prompt_name is None or len(run.prompt_name) <= MAX_NAME_CHARS)
        and (run.prompt_version is None or len(run.prompt_version) <= MAX_NAME_CHARS)
        and (run.agent_name is None or len(run.agent_name) <= MAX_NAME_CHARS)
        and (
            not run.finish_reasons
            or (len(run.finish_reasons) <= MAX_TAGS and max(map(len, run.finish_reasons)) <= MAX_NAME_CHARS)
        )
    ):
        return run
    return _truncate(run)


def _truncate(run: Run) -> Run:
    max_chars = {**dict.fromkeys(NAME_FIELDS, MAX_NAME_CHARS), "error": MAX_ERROR_CHARS}
    texts: dict[str, str] = {name: getattr(run, name) or "" for name in max_chars}
    truncated: dict[str, Any] = {
        name: text[: max_chars[name]] for name, text in texts.items() if len(text) > max_chars[name]
    }
    originals: dict[str, Any] = {f"{SENT_PREFIX}{name}": texts[name] for name in truncated}
    for name, listed in (("tags", run.tags), ("finish_reasons", run.finish_reasons)):
        if len(listed) > MAX_TAGS or any(len(text) > MAX_NAME_CHARS for text in listed):
            truncated[name] = tuple(text[:MAX_NAME_CHARS] for text in listed[:MAX_TAGS])
            originals[f"{SENT_PREFIX}{name}"] = list(listed)
    return replace(run, **truncated, attributes={**run.attributes, **originals}) if truncated else run


def check_feedback_names(feedback: Feedback) -> None:
    """Raise `ItemRefused` if a name or an id in the feedback is too long."""
    labels = (feedback.key, feedback.label, feedback.author, feedback.evaluator, feedback.version, feedback.rule)
    target = feedback.target
    for name in (*labels, feedback.id, target.session_id, target.experiment_id, target.project):
        if name is not None and len(name) > MAX_NAME_CHARS:
            raise ItemRefused(
                "too_long",
                f"feedback {feedback.key[:40]!r} has a name of {len(name):,} characters, at most {MAX_NAME_CHARS:,}:"
                " send longer text as the comment",
            )


def check_amendment(fields: Mapping[str, JSON]) -> None:
    """Raise `ItemRefused` for values that no run may have, `Refused` for fields that runs do not have."""
    run = apply_amendment(_EMPTY_RUN, encode_fields(fields))
    if truncate_fields(run) is not run:
        raise ItemRefused(
            "too_long", f"{', '.join(fields)} of a run: names may have up to {MAX_NAME_CHARS:,} characters"
        )
    if run.cost is not None and not 0 <= run.cost <= MAX_COST:
        raise ItemRefused("value", f"cost must be from 0 to {MAX_COST:,.0f}, got {run.cost!r}")
    for feedback in make_feedback(Target(trace_id="0" * 32), fields.get(FEEDBACK_FIELD) or {}):
        check_feedback_names(feedback)
    usage = run.usage or Usage()
    for tokens in (usage.input_tokens, usage.output_tokens, *usage.details.values()):
        if not 0 <= tokens <= MAX_TOKENS:
            raise ItemRefused("value", f"token counts must be from 0 to 2^53, got {tokens!r}")


_EMPTY_RUN = Run(trace_id="", span_id="", name="", start_ns=0, end_ns=0)


# Decoding of one OTLP request: codec interface, item-by-item recovery, and the decoded items with refusals.

T = TypeVar("T")


class Scope(NamedTuple):
    """Instrumentation scope of a group of items."""

    name: str
    version: str


# (resource, scope, items); resource and items are instances of the encoding's classes
Group: TypeAlias = tuple[Any, Any, Sequence[Any]]


# A thread that decodes a large request pauses after this many items, for this many seconds, to let other threads run.
ITEMS_PER_PAUSE, PAUSE_SECONDS = 50, 0.002


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """Decoder of one signal in one encoding. It converts bytes to groups of items, items to raw ones, and these to
    records.

    The functions `parse`, `split` and `parse_item` raise one of `errors`; `resource` and `raw` raise
    `ItemRefused`. All of them raise `PermanentError` if a request exceeds a limit.
    """

    errors: tuple[type[Exception], ...]
    parse: Callable[[bytes], Iterable[Group]]
    split: Callable[[bytes, int], Iterable[Group]]  # like `parse`, with items left as bytes, up to a maximum number
    parse_item: Callable[[Any], Any]
    resource: Callable[[Any, Allowance], dict[str, JSON]]
    raw: Callable[[Any, dict[str, JSON], Any, Allowance], Any]  # arguments: item, resource, scope, allowance
    # applies the dialects to a raw item; None if it is valid but holds nothing to store
    read: Callable[[Any, FaultHandler], T | TranslatedSpan | None]
    # returns a hint about ignored data, such as fields with wrong names, that the sender wanted to be stored
    hint: Callable[[bytes], str] = lambda body: ""


def decode(codec: Codec[T], body: bytes, limits: Limits, pause: float = PAUSE_SECONDS) -> DecodedRequest[T]:
    """Decode the items of a request. Raises `PermanentError` if it is malformed or too large.

    While it decodes a large request, the thread sleeps for `pause` seconds every `ITEMS_PER_PAUSE` items.
    """
    allowance = Allowance(limits)
    decoded: DecodedRequest[T] = DecodedRequest()  # `DecodedRequest[T]()` would take a few microseconds more
    parse_errors: tuple[type[Exception], ...] = (UnparsableRequest, *codec.errors)
    if len(body) < LARGE_BODY_BYTES:
        try:
            groups = list(codec.parse(body))
            check_item_count(sum(len(items) for _, _, items in groups), limits.spans)
            for resource, scope, items in groups:
                _convert_items(codec, resource, scope, items, len(items), allowance, decoded)
        except parse_errors as error:
            allowance, decoded = Allowance(limits), DecodedRequest()  # discard the items that were read so far
            _decode_items(codec, body, allowance, decoded, error)
    else:
        _decode_items(codec, body, allowance, decoded, pause=pause)
    decoded.values, decoded.hint = allowance.used, codec.hint(body)
    if decoded.hint and not (decoded.items or decoded.ignored or decoded.refused):
        raise PermanentError("malformed", f"the request has no data to store: {decoded.hint}")
    return decoded


def _convert_items(
    codec: Codec[T],
    resource: Any,
    scope: Any,
    items: Iterable[Any],
    count: int,
    allowance: Allowance,
    decoded: DecodedRequest[T],
) -> None:
    try:
        attributes = dict(present_names(codec.resource(resource, allowance)))
    except PermanentError:
        raise
    except Exception as error:
        decoded.refuse(error, "resource: ", count)
        return
    raw, read, add, fault = codec.raw, codec.read, decoded.items.append, decoded.fault
    for item in items:
        try:
            record = read(raw(item, attributes, scope, allowance), fault)
            if record is None:
                decoded.ignored += 1
            elif isinstance(record, TranslatedSpan):
                decoded.add_translated_span(record)
            else:
                add(record)
        except (PermanentError, UnparsableRequest):
            raise
        except Exception as error:
            decoded.refuse(error)


def _decode_items(
    codec: Codec[T],
    body: bytes,
    allowance: Allowance,
    decoded: DecodedRequest[T],
    error: Exception | None = None,
    pause: float = 0,
) -> None:
    """Decode the items that can be parsed, one by one. `error` is the reason why the whole request cannot be parsed.

    Raises `PermanentError` if the request or all its items are malformed.
    """
    parsed = malformed = 0

    def parse(items: Iterable[Any]) -> Iterator[Any]:
        """Parse each item on demand; refuse those that cannot be parsed."""
        nonlocal parsed, malformed
        for number, item in enumerate(items, 1):
            if pause and number % ITEMS_PER_PAUSE == 0:
                time.sleep(pause)
            try:
                message = codec.parse_item(item)
            except codec.errors as problem:
                malformed += 1
                decoded.refuse(ItemRefused("malformed", f"cannot be parsed: {problem or type(problem).__name__}"))
            else:
                parsed += 1
                yield message

    try:
        for resource, scope, items in codec.split(body, allowance.limits.spans):
            _convert_items(codec, resource, scope, parse(items), len(items), allowance, decoded)
    except codec.errors as problem:
        raise PermanentError("malformed", f"the body is not an OTLP request: {problem}") from error
    if (error or malformed) and not parsed:
        raise PermanentError("malformed", f"the body is not an OTLP request: {decoded.reason or error}") from error


MAX_REASONS = 3  # reasons in one response


@dataclass(slots=True)
class DecodedRequest(Generic[T]):
    """Items of a request to store, the refused items with the reasons, and the dialects that failed."""

    items: list[T] = field(default_factory=list)
    side_records: list[SideRecord] = field(default_factory=list)  # stored in the same commit
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)  # by (label for metrics, message for users)
    # the same for side records; their spans are stored
    refused_side_records: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)  # number of items by the dialect that failed
    ignored: int = 0  # valid items that hold nothing to store
    values: int = 0  # number of values in all items
    hint: str = ""  # as in `Codec.hint`
    row_count: int = 0  # number of runs that `items` holds in encoded form, as `EncodedRows`

    def refuse(self, error: Exception, prefix: str = "", count: int = 1) -> None:
        """Count refused items with the reason; any error other than `ItemRefused` is a bug and is logged."""
        if not isinstance(error, ItemRefused):
            log_once("the collector failed on an item of a request; the item is refused", error)
            error = ItemRefused("internal", f"the collector failed: {error!r:.200}")
        counter = self.refused_side_records if isinstance(error, SideRecordRefused) else self.refused
        counter[error.reason, prefix + str(error)] += count

    def add_translated_span(self, translated: TranslatedSpan) -> None:
        """Add a run and its side records. Refuse invalid side records, but keep the run."""
        self.items.append(cast(T, translated.run))
        for record in translated.also:
            if isinstance(record, ValueError):
                self.refuse(record)
            else:
                self.side_records.append(record)

    def fault(self, dialect: str, error: Exception) -> None:
        """Count and log an item that was translated without a dialect, because the dialect failed."""
        self.faults[dialect] += 1
        log_dialect_error(dialect, error)

    @property
    def count(self) -> int:
        """Return the number of items to store."""
        return self.row_count or len(self.items)

    @property
    def refused_count(self) -> int:
        """Return the number of refused items."""
        return self.refused.total()

    @property
    def reason(self) -> str:
        """Return the reasons as text, the most frequent first, followed by the hint."""
        parts = []
        for refused in (self.refused, self.refused_side_records):
            parts += [f"{count} × {message}" for (_, message), count in refused.most_common(MAX_REASONS)]
            parts += ["…"] if len(refused) > MAX_REASONS else []
        return "; ".join([*parts, self.hint] if self.hint else parts)


def count_by_reason(refused: Counter[tuple[str, str]]) -> Counter[str]:
    """Return the number of refused items by label."""
    counts = Counter[str]()
    for (reason, _), count in refused.items():
        counts[reason] += count
    return counts
