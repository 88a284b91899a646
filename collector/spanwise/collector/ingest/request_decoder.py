"""Decoding of one OTLP request: codec interface, item-by-item recovery, and the decoded items with refusals.

All OTLP signals have the same layout: items in groups by scope, in groups by resource. A request that cannot be
parsed as a whole is parsed again item by item, so that one bad item does not lose the others. The same holds for
items on which a dialect or the decoder fails. A large request is parsed item by item from the start, so that only one
parsed item is in memory at a time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

from spanwise.collector.dialects import FaultHandler, SideRecord, TranslatedSpan, log_dialect_error, log_once
from spanwise.collector.former_names import present_names
from spanwise.collector.ingest.ingest_errors import (
    ItemRefused,
    PermanentError,
    SideRecordRefused,
    UnparsableRequest,
)
from spanwise.collector.ingest.limits import LARGE_BODY_BYTES, Allowance, Limits, check_item_count
from spanwise.collector.records import JSON

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
