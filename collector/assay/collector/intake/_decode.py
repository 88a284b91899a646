"""From the bytes of a request to what can be kept of it, alike for traces and logs, protobuf and JSON.

OTLP lays traces and logs out alike: items in groups by scope, in groups by resource. A request that cannot be parsed as
a whole is parsed again item by item, so that a bad one does not take the good ones with it; nor does one on which our
own code fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from assay.collector.dialects import Fault
from assay.collector.intake._decoded import Decoded, check_count
from assay.collector.intake._errors import ItemRefused, Permanent
from assay.collector.intake._limits import Limits
from assay.collector.records import JSON

T = TypeVar("T")
# (resource, scope, items), in the classes of the encoding
Group: TypeAlias = tuple[Any, Any, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """One kind of request in one encoding: bytes → groups of items → raw spans or log records → what is kept.

    `parse`, `split` and `parse_item` raise one of `errors`, `resource` and `raw` an `ItemRefused`.
    """

    errors: tuple[type[Exception], ...]
    parse: Callable[[bytes], Iterable[Group]]
    split: Callable[[bytes], Iterable[Group]]  # the same with items left as bytes
    parse_item: Callable[[Any], Any]
    resource: Callable[[Any, Limits], dict[str, JSON]]
    raw: Callable[[Any, dict[str, JSON], Any, Limits], Any]  # of an item, its resource and scope
    read: Callable[[Any, Fault], T]  # by the dialects, of what is raw


def decode(codec: Codec[T], body: bytes, limits: Limits) -> Decoded[T]:
    """The items of a request. Raises `Permanent` if it is no such request, or too large."""
    decoded = Decoded[T]()
    try:
        groups = list(codec.parse(body))
    except codec.errors as error:
        groups = _salvaged(codec, body, limits, decoded, error)
    check_count(sum(len(items) for _, _, items in groups), limits)
    for group in groups:
        _convert(codec, group, limits, decoded)
    return decoded


def _convert(codec: Codec[T], group: Group, limits: Limits, decoded: Decoded[T]) -> None:
    resource, scope, items = group
    try:
        attributes = codec.resource(resource, limits)
    except Exception as error:
        decoded.refuse(error, "resource: ", len(items))
        return
    raw, read, keep, fault = codec.raw, codec.read, decoded.items.append, decoded.fault
    for item in items:
        try:
            keep(read(raw(item, attributes, scope, limits), fault))
        except Exception as error:
            decoded.refuse(error)


def _salvaged(codec: Codec[T], body: bytes, limits: Limits, decoded: Decoded[T], error: Exception) -> list[Group]:
    """The groups with those items that can be parsed. Raises `Permanent` if there is not one."""
    try:
        groups = list(codec.split(body))
    except codec.errors as malformed:
        raise Permanent("malformed", f"the body is not an OTLP request: {malformed}") from error
    check_count(sum(len(items) for _, _, items in groups), limits)
    parsed: list[Group] = [(resource, scope, _parsed(codec, items, decoded)) for resource, scope, items in groups]
    if not any(items for _, _, items in parsed):
        raise Permanent("malformed", f"the body is not an OTLP request: {decoded.reason or error}") from error
    return parsed


def _parsed(codec: Codec[T], items: Iterable[Any], decoded: Decoded[T]) -> list[Any]:
    parsed = []
    for item in items:
        try:
            parsed.append(codec.parse_item(item))
        except codec.errors as error:
            decoded.refuse(ItemRefused("malformed", f"cannot be parsed: {error or type(error).__name__}"))
    return parsed
