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
    classify_item_error,
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


ITEMS_PER_PAUSE, PAUSE_SECONDS = (
    50,
    0.002,
)  # A thread that decodes a large request pauses after this many items, for this many seconds, to let other threads run


def _no_hint(body: bytes) -> str:
    return ""


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
    # return a hint about ignored data, such as fields with wrong names, that the sender wanted to be stored
    hint: Callable[[bytes], str] = _no_hint


def decode(codec: Codec[T], body: bytes, limits: Limits, rest: float = PAUSE_SECONDS) -> DecodedRequest[T]:
    """Decode the items of a request. Raises `PermanentError` if it is malformed or too large.

    While it decodes a large request, the thread sleeps for `rest` seconds every `ITEMS_PER_PAUSE` items.
    """
    allowance = Allowance(limits)
    decoded: DecodedRequest[T] = DecodedRequest()  # `DecodedRequest[T]()` would take some microseconds more
    if len(body) < LARGE_BODY_BYTES:
        try:
            _decode_whole(codec, body, allowance, decoded)
        except UnparsableRequest as unparsed:  # discard the items that were read so far
            allowance, decoded = Allowance(limits), DecodedRequest()
            _decode_items(codec, body, allowance, decoded, unparsed)
    else:
        _decode_items(codec, body, allowance, decoded, rest=rest)
    decoded.values, decoded.hint = allowance.used, codec.hint(body)
    if decoded.hint and not (decoded.items or decoded.passed or decoded.refused):
        raise PermanentError("malformed", f"nothing is kept of this request: {decoded.hint}")
    return decoded


def _decode_whole(codec: Codec[T], body: bytes, allowance: Allowance, decoded: DecodedRequest[T]) -> None:
    try:
        groups = list(codec.parse(body))
    except codec.errors as error:
        _decode_items(codec, body, allowance, decoded, error)
        return
    check_item_count(sum(len(items) for _, _, items in groups), allowance.limits.spans)
    for resource, scope, items in groups:
        _convert_items(codec, resource, scope, items, len(items), allowance, decoded)


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
    raw, read, keep, fault = codec.raw, codec.read, decoded.items.append, decoded.fault
    for item in items:
        try:
            kept = read(raw(item, attributes, scope, allowance), fault)
            if kept is None:
                decoded.passed += 1
            elif isinstance(kept, TranslatedSpan):
                decoded.keep_whole(kept)
            else:
                keep(kept)
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
    rest: float = PAUSE_SECONDS,
) -> None:
    """Decode the items that can be parsed. Raises `PermanentError` if there is an error and no item can be parsed."""
    try:
        for resource, scope, items in codec.split(body, allowance.limits.spans):
            good = _parse_items(codec, items, decoded, rest)
            _convert_items(codec, resource, scope, good, len(items), allowance, decoded)
    except codec.errors as malformed:
        raise PermanentError("malformed", f"the body is not an OTLP request: {malformed}") from error
    if (error or decoded.unparsed) and not decoded.parsed:
        raise PermanentError("malformed", f"the body is not an OTLP request: {decoded.reason or error}") from error


def _parse_items(codec: Codec[T], items: Iterable[Any], decoded: DecodedRequest[T], rest: float) -> Iterator[Any]:
    """Yield each parsed item on demand; refuse those that cannot be parsed."""
    for number, item in enumerate(items, 1):
        if rest and number % ITEMS_PER_PAUSE == 0:
            time.sleep(rest)
        try:
            parsed = codec.parse_item(item)
        except codec.errors as error:
            decoded.unparsed += 1
            decoded.refuse(ItemRefused("malformed", f"cannot be parsed: {error or type(error).__name__}"))
        else:
            decoded.parsed += 1
            yield parsed


MAX_REASONS = 3  # reasons in one response


@dataclass(slots=True)
class DecodedRequest(Generic[T]):
    """Items of a request to store, the refused items with the reasons, and the dialects that failed."""

    items: list[T] = field(default_factory=list)
    also: list[SideRecord] = field(default_factory=list)  # side records, stored in the same commit
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)  # by (label for metrics, message for users)
    # the same for side records; their spans are kept
    beside: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)  # number of items by the dialect that failed
    passed: int = 0  # valid items that hold nothing to store
    parsed: int = 0  # number of items that could be parsed, if the request was parsed item by item
    unparsed: int = 0
    values: int = 0  # number of values in all items
    hint: str = ""  # as in `Codec.hint`
    made: int = 0  # number of runs that `items` holds in encoded form, as `EncodedRows`

    def refuse(self, error: Exception, part: str = "", count: int = 1) -> None:
        """Count refused items with the reason; any error other than `ItemRefused` is a bug and is logged."""
        if not isinstance(error, ItemRefused):
            log_once("the collector failed on an item of a request, which is refused", error)
        refusal = classify_item_error(error)
        counter = self.beside if isinstance(refusal, SideRecordRefused) else self.refused
        counter[refusal.reason, part + str(refusal)] += count

    def keep_whole(self, whole: TranslatedSpan) -> None:
        """Add a run and its side records. Refuse invalid side records, but keep the run."""
        self.items.append(cast(T, whole.run))
        for said in whole.also:
            if isinstance(said, ValueError):
                self.refuse(said)
            else:
                self.also.append(said)

    def fault(self, dialect: str, error: Exception) -> None:
        """Count and log an item that was translated without a dialect, because the dialect failed."""
        self.faults[dialect] += 1
        log_dialect_error(dialect, error)

    @property
    def count(self) -> int:
        """Return the number of items to store."""
        return self.made or len(self.items)

    @property
    def refused_count(self) -> int:
        """Return the number of refused items."""
        return self.refused.total()

    @property
    def refused_by_reason(self) -> Counter[str]:
        """Return the number of refused items by label."""
        return _count_by_reason(self.refused)

    @property
    def beside_by_reason(self) -> Counter[str]:
        """Return the number of refused side records by label."""
        return _count_by_reason(self.beside)

    @property
    def reason(self) -> str:
        """Return the reasons as text, the most frequent first, followed by the hint."""
        return "; ".join(filter(None, (_format_reasons(self.refused), _format_reasons(self.beside), self.hint)))


def _count_by_reason(refused: Counter[tuple[str, str]]) -> Counter[str]:
    counts = Counter[str]()
    for (reason, _), count in refused.items():
        counts[reason] += count
    return counts


def _format_reasons(refused: Counter[tuple[str, str]]) -> str:
    if not refused:
        return ""
    shown = [f"{count} × {message}" for (_, message), count in refused.most_common(MAX_REASONS)]
    return "; ".join(shown) + ("; …" if len(refused) > MAX_REASONS else "")
