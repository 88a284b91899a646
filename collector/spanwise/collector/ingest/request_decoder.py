"""Decoding of one OTLP request: codec interface, item-by-item recovery, and the decoded items with refusals.

OTLP lays its signals out alike: items in groups by scope, in groups by resource. A request that cannot be parsed as a
whole is parsed again item by item, so that a bad one does not take the good ones with it; nor does one on which our
own code fails. A large request is read item by item from the start: one at a time is in memory as it was parsed.
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
from spanwise.collector.ingest.limits import LARGE_BODY_BYTES, MAX_GROUPS, Allowance, Limits
from spanwise.collector.records import JSON

T = TypeVar("T")


class Scope(NamedTuple):
    """What made the items of a group."""

    name: str
    version: str


# (resource, scope, items), resource and items in the classes of the encoding
Group: TypeAlias = tuple[Any, Any, Sequence[Any]]


ITEMS_PER_PAUSE, PAUSE_SECONDS = (
    50,
    0.002,
)  # items of a large request, after which its thread rests for so many seconds: others go first


def _no_hint(body: bytes) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """One kind of request in one encoding: bytes → groups of items → raw spans or log records → what is kept.

    `parse`, `split` and `parse_item` raise one of `errors`, `resource` and `raw` an `ItemRefused`; all of them
    `Permanent` where a request is too much.
    """

    errors: tuple[type[Exception], ...]
    parse: Callable[[bytes], Iterable[Group]]
    split: Callable[[bytes, int], Iterable[Group]]  # the same with items left as bytes; of so many items at most
    parse_item: Callable[[Any], Any]
    resource: Callable[[Any, Allowance], dict[str, JSON]]
    raw: Callable[[Any, dict[str, JSON], Any, Allowance], Any]  # of an item, its resource and scope
    # by the dialects, of what is raw; None: nothing to keep, and no fault in it
    read: Callable[[Any, FaultHandler], T | TranslatedSpan | None]
    hint: Callable[[bytes], str] = _no_hint  # in words, what was passed over though its sender meant it


def decode(codec: Codec[T], body: bytes, limits: Limits, rest: float = PAUSE_SECONDS) -> DecodedRequest[T]:
    """The items of a request. Raises `Permanent` if it is no such request, or too large. `rest` is for large ones."""
    allowance = Allowance(limits)
    decoded: DecodedRequest[T] = DecodedRequest()  # `Decoded[T]()` would take some microseconds more
    if len(body) < LARGE_BODY_BYTES:
        try:
            _decode_whole(codec, body, allowance, decoded)
        except UnparsableRequest as unparsed:  # nothing of what was read by then counts
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
    check_count(sum(len(items) for _, _, items in groups), allowance.limits.spans)
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
    """Take the items that can be parsed. Raises `Permanent` if something is wrong, and not one of them can."""
    try:
        for resource, scope, items in codec.split(body, allowance.limits.spans):
            good = _parse_items(codec, items, decoded, rest)
            _convert_items(codec, resource, scope, good, len(items), allowance, decoded)
    except codec.errors as malformed:
        raise PermanentError("malformed", f"the body is not an OTLP request: {malformed}") from error
    if (error or decoded.unparsed) and not decoded.parsed:
        raise PermanentError("malformed", f"the body is not an OTLP request: {decoded.reason or error}") from error


def _parse_items(codec: Codec[T], items: Iterable[Any], decoded: DecodedRequest[T], rest: float) -> Iterator[Any]:
    """Each item as it is asked for; those that cannot be parsed are refused."""
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


INVALID_IDS = ("", "0" * 16, "0" * 32)
MAX_REASONS = 3  # reasons in one answer


@dataclass(slots=True)
class DecodedRequest(Generic[T]):
    """Items of a request that can be kept, the reasons why others cannot, and the dialects that failed on some."""

    items: list[T] = field(default_factory=list)
    also: list[SideRecord] = field(default_factory=list)  # what they say beside, kept in the same commit
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)  # by a word for counters, a sentence for people
    beside: Counter[tuple[str, str]] = field(default_factory=Counter)  # alike, of what is said beside: costs no item
    faults: Counter[str] = field(default_factory=Counter)  # by dialect
    passed: int = 0  # items in which nothing is wrong, and nothing for us
    parsed: int = 0  # of those that were parsed one by one
    unparsed: int = 0
    values: int = 0  # in all items together, beside their bytes
    hint: str = ""  # what was passed over though its sender meant it
    made: int = 0  # runs that stand in `items` as `Rows`, in the place of each of them

    def refuse(self, error: Exception, part: str = "", count: int = 1) -> None:
        """Count items that cannot be kept, for a reason in a part of them; all but `ItemRefused` is a fault of ours."""
        if not isinstance(error, ItemRefused):
            log_once("the collector failed on an item of a request, which is refused", error)
        refusal = classify_item_error(error)
        counter = self.beside if isinstance(refusal, SideRecordRefused) else self.refused
        counter[refusal.reason, part + str(refusal)] += count

    def keep_whole(self, whole: TranslatedSpan) -> None:
        """Keep an item, and what it says beside; what makes no sense of that is refused alone."""
        self.items.append(cast(T, whole.run))
        for said in whole.also:
            if isinstance(said, ValueError):
                self.refuse(said)
            else:
                self.also.append(said)

    def fault(self, dialect: str, error: Exception) -> None:
        """Count an item that was read without this dialect, as that failed."""
        self.faults[dialect] += 1
        log_dialect_error(dialect, error)

    @property
    def count(self) -> int:
        """How many items can be kept."""
        return self.made or len(self.items)

    @property
    def refused_count(self) -> int:
        """How many items were refused."""
        return self.refused.total()

    @property
    def refused_by_reason(self) -> Counter[str]:
        """How many items were refused, by the word for counters."""
        return _count_by_reason(self.refused)

    @property
    def beside_by_reason(self) -> Counter[str]:
        """How much of what is said beside was refused, by the word for counters."""
        return _count_by_reason(self.beside)

    @property
    def reason(self) -> str:
        """The reasons for people, the most frequent first, then what else they may want to know."""
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


def check_ids(trace_id: str, span_id: str, parent_id: str) -> str | None:
    """The parent's id, None if there is none. Raises `ItemRefused` for ids that OpenTelemetry calls invalid."""
    if len(trace_id) != 32 or trace_id in INVALID_IDS:
        raise ItemRefused("ids", f"trace id {trace_id[:64]!r} is not 16 bytes other than all zeros")
    if len(span_id) != 16 or span_id in INVALID_IDS:
        raise ItemRefused("ids", f"span id {span_id[:64]!r} is not 8 bytes other than all zeros")
    if parent_id in INVALID_IDS:
        return None
    if len(parent_id) != 16:
        raise ItemRefused("ids", f"parent span id {parent_id[:64]!r} is not 8 bytes")
    return parent_id


def check_groups(count: int) -> None:
    """Raises `Permanent` if a request has too many groups."""
    if count > MAX_GROUPS:
        raise PermanentError("too_many", f"{count:,} groups in one request, at most {MAX_GROUPS:,}: send less")


def check_count(count: int, most: int) -> None:
    """Raises `Permanent` if a request has too many items."""
    if count > most:
        raise PermanentError("too_many", f"{count:,} items in one request, at most {most:,}: send less")
