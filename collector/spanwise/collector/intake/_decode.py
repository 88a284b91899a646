"""From the bytes of a request to what can be kept of it, alike for all signals, protobuf and JSON.

OTLP lays its signals out alike: items in groups by scope, in groups by resource. A request that cannot be parsed as a
whole is parsed again item by item, so that a bad one does not take the good ones with it; nor does one on which our
own code fails. A large request is read item by item from the start: one at a time is in memory as it was parsed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from spanwise.collector.dialects import Fault, Whole
from spanwise.collector.former_names import present_names
from spanwise.collector.intake._decoded import Decoded, check_count
from spanwise.collector.intake._errors import ItemRefused, Permanent, Unparsed
from spanwise.collector.intake._large import LARGE
from spanwise.collector.intake._limits import Allowance, Limits
from spanwise.collector.records import JSON

T = TypeVar("T")


class Scope(NamedTuple):
    """What made the items of a group."""

    name: str
    version: str


# (resource, scope, items), resource and items in the classes of the encoding
Group: TypeAlias = tuple[Any, Any, Sequence[Any]]


SOME, REST = 50, 0.002  # items of a large request, after which its thread rests for so many seconds: others go first


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
    read: Callable[[Any, Fault], T | Whole | None]
    hint: Callable[[bytes], str] = _no_hint  # in words, what was passed over though its sender meant it


def decode(codec: Codec[T], body: bytes, limits: Limits, rest: float = REST) -> Decoded[T]:
    """The items of a request. Raises `Permanent` if it is no such request, or too large. `rest` is for large ones."""
    allowance = Allowance(limits)
    decoded: Decoded[T] = Decoded()  # `Decoded[T]()` would take some microseconds more
    if len(body) < LARGE:
        try:
            _whole(codec, body, allowance, decoded)
        except Unparsed as unparsed:  # nothing of what was read by then counts
            allowance, decoded = Allowance(limits), Decoded()
            _one_by_one(codec, body, allowance, decoded, unparsed)
    else:
        _one_by_one(codec, body, allowance, decoded, rest=rest)
    decoded.values, decoded.hint = allowance.used, codec.hint(body)
    if decoded.hint and not (decoded.items or decoded.passed or decoded.refused):
        raise Permanent("malformed", f"nothing is kept of this request: {decoded.hint}")
    return decoded


def _whole(codec: Codec[T], body: bytes, allowance: Allowance, decoded: Decoded[T]) -> None:
    try:
        groups = list(codec.parse(body))
    except codec.errors as error:
        _one_by_one(codec, body, allowance, decoded, error)
        return
    check_count(sum(len(items) for _, _, items in groups), allowance.limits.spans)
    for resource, scope, items in groups:
        _convert(codec, resource, scope, items, len(items), allowance, decoded)


def _convert(
    codec: Codec[T],
    resource: Any,
    scope: Any,
    items: Iterable[Any],
    count: int,
    allowance: Allowance,
    decoded: Decoded[T],
) -> None:
    try:
        attributes = dict(present_names(codec.resource(resource, allowance)))
    except Permanent:
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
            elif isinstance(kept, Whole):
                decoded.keep_whole(kept)
            else:
                keep(kept)
        except (Permanent, Unparsed):
            raise
        except Exception as error:
            decoded.refuse(error)


def _one_by_one(
    codec: Codec[T],
    body: bytes,
    allowance: Allowance,
    decoded: Decoded[T],
    error: Exception | None = None,
    rest: float = REST,
) -> None:
    """Take the items that can be parsed. Raises `Permanent` if something is wrong, and not one of them can."""
    try:
        for resource, scope, items in codec.split(body, allowance.limits.spans):
            good = _parsed(codec, items, decoded, rest)
            _convert(codec, resource, scope, good, len(items), allowance, decoded)
    except codec.errors as malformed:
        raise Permanent("malformed", f"the body is not an OTLP request: {malformed}") from error
    if (error or decoded.unparsed) and not decoded.parsed:
        raise Permanent("malformed", f"the body is not an OTLP request: {decoded.reason or error}") from error


def _parsed(codec: Codec[T], items: Iterable[Any], decoded: Decoded[T], rest: float) -> Iterator[Any]:
    """Each item as it is asked for; those that cannot be parsed are refused."""
    for number, item in enumerate(items, 1):
        if rest and number % SOME == 0:
            time.sleep(rest)
        try:
            parsed = codec.parse_item(item)
        except codec.errors as error:
            decoded.unparsed += 1
            decoded.refuse(ItemRefused("malformed", f"cannot be parsed: {error or type(error).__name__}"))
        else:
            decoded.parsed += 1
            yield parsed
