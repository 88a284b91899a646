"""From the bytes of a request to what can be kept of it, alike for traces and logs, protobuf and JSON.

OTLP lays traces and logs out alike: items in groups by scope, in groups by resource. A request that cannot be parsed as
a whole is parsed again item by item, so that a bad one does not take the good ones with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from assay.collector.intake._decoded import Decoded, check_count
from assay.collector.intake._errors import ItemRefused, RequestRefused
from assay.collector.intake._limits import Limits
from assay.collector.records import JSON

T = TypeVar("T")
# (resource, scope, items), in the classes of the encoding
Group: TypeAlias = tuple[Any, Any, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """One kind of request in one encoding. All functions but `convert` and `resource` raise one of `errors`."""

    errors: tuple[type[Exception], ...]
    parse: Callable[[bytes], Iterable[Group]]
    split: Callable[[bytes], Iterable[Group]]  # the same with items left as bytes
    parse_item: Callable[[Any], Any]
    resource: Callable[[Any, Limits], dict[str, JSON]]
    convert: Callable[[Any, dict[str, JSON], Any, Limits], T]


def decode(codec: Codec[T], body: bytes, limits: Limits) -> Decoded[T]:
    """The items of a request. Raises `RequestRefused` if it is no such request (400), or too large (413)."""
    decoded = Decoded[T]()
    try:
        groups = list(codec.parse(body))
    except codec.errors as error:
        groups = _salvaged(codec, body, limits, decoded, error)
    check_count(sum(len(items) for _, _, items in groups), limits)
    for group in groups:
        _keep(codec, group, limits, decoded)
    return decoded


def _keep(codec: Codec[T], group: Group, limits: Limits, decoded: Decoded[T]) -> None:
    resource, scope, items = group
    try:
        attributes = codec.resource(resource, limits)
    except ItemRefused as error:
        decoded.refuse(error, f"resource: {error}", len(items))
        return
    for item in items:
        try:
            decoded.items.append(codec.convert(item, attributes, scope, limits))
        except ItemRefused as error:
            decoded.refuse(error)


def _salvaged(codec: Codec[T], body: bytes, limits: Limits, decoded: Decoded[T], error: Exception) -> list[Group]:
    """The groups with those items that can be parsed. Raises `RequestRefused` (400) if there is not one."""
    try:
        groups = list(codec.split(body))
    except codec.errors as malformed:
        raise RequestRefused(400, "malformed", f"the body is not an OTLP request: {malformed}") from error
    check_count(sum(len(items) for _, _, items in groups), limits)
    found: list[Group] = [(resource, scope, _parsed(codec, items, decoded)) for resource, scope, items in groups]
    if not any(items for _, _, items in found):
        raise RequestRefused(400, "malformed", f"the body is not an OTLP request: {decoded.reason or error}") from error
    return found


def _parsed(codec: Codec[T], items: Iterable[Any], decoded: Decoded[T]) -> list[Any]:
    found = []
    for item in items:
        try:
            found.append(codec.parse_item(item))
        except codec.errors as error:
            decoded.refuse(ItemRefused("malformed", f"cannot be parsed: {error or type(error).__name__}"))
    return found
