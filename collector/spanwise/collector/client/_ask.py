"""A verb's arguments as a request, and its answer as what the verb returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from spanwise.collector import _wire
from spanwise.collector._verbs import Call, Sent
from spanwise.collector._verbs._call import PLACEHOLDER
from spanwise.collector.client._transport import Transport, segment
from spanwise.collector.errors import NotFound, TooLarge
from spanwise.collector.filters import Filter, combined
from spanwise.collector.records import Page

T = TypeVar("T")


def ask(transport: Transport, call: Call, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """Send a verb's request. A long list that is its only argument goes in several. Raises `StoreError`."""
    values = _values(call, args, given)
    if call.paged and (values.get("limit") or 0) > call.most:
        return _pages(transport, call, values)
    if call.listed is None:
        return _once(transport, call, values)
    name = call.listed.name
    answers = [_halved(transport, call, name, batch) for batch in batches(values[name], call.batch)]
    return _joined(call, list(chain.from_iterable(answers)))


def _pages(transport: Transport, call: Call, values: Mapping[str, Any]) -> Page[Any]:
    """One page of more than the server gives at once."""
    items: list[Any] = []
    cursor, left = values.get("cursor"), values["limit"]
    while True:
        page = _once(transport, call, {**values, "cursor": cursor, "limit": min(left, call.most)})
        items += page.items
        cursor, left = page.next, left - len(page.items)
        if cursor is None or left <= 0:
            return Page(items=tuple(items), next=cursor)


def _halved(transport: Transport, call: Call, name: str, batch: Sequence[Any]) -> list[Any]:
    """The answers to a batch: to halves of it where all of it is too large for one request."""
    try:
        return [_once(transport, call, {name: batch})]
    except TooLarge:
        if len(batch) < 2:
            raise
        half = len(batch) // 2
        return [*_halved(transport, call, name, batch[:half]), *_halved(transport, call, name, batch[half:])]


def _values(call: Call, args: tuple[Any, ...], given: dict[str, Any]) -> Mapping[str, Any]:
    named = dict(zip(call.positional, args, strict=False)) | given
    if len(named) == len(args) + len(given) and (values := {**call.defaults, **named}).keys() == call.names:
        return values
    try:  # it spreads, or says what is wrong, at ten times the price
        bound = call.signature.bind(*args, **given)
    except TypeError as error:
        raise TypeError(f"{call.name}() {error}") from None  # as Python says it of a function
    bound.apply_defaults()
    return bound.arguments


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Slices of a size."""
    return (items[start : start + size] for start in range(0, len(items), size))


def _once(transport: Transport, call: Call, values: Mapping[str, Any]) -> Any:
    path, query, body = _path(call.path, values), _query(call.sent, values), _body(call, values)
    try:
        answer = transport.ask(_kind(call), call.method, path, query, body, patient=call.patient)
    except NotFound:
        if call.count and call.returns is bool:  # there was none
            return False
        raise
    if call.count:
        return call.returns(answer[call.count])
    return None if call.returns is None else answer


def _kind(call: Call) -> Any:
    return Any if call.returns is None else call.answers


def _joined(call: Call, answers: Sequence[Any]) -> Any:
    if call.count:
        return sum(answers)
    return None if call.returns is None else list(chain.from_iterable(answers))


def _path(path: str, values: Mapping[str, Any]) -> str:
    return PLACEHOLDER.sub(lambda match: segment(values[match[1]]), path)


def _query(sent: Sequence[Sent], values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    items: list[tuple[str, Any]] = []
    for argument in sent:
        if argument.place == "filter":
            items.append((argument.alias, _json(_filter(argument, sent, values))))
        elif argument.place == "query":
            items += [(argument.alias, value) for value in _texts(argument, values[argument.name])]
    return items


def _filter(argument: Sent, sent: Sequence[Sent], values: Mapping[str, Any]) -> Filter:
    conditions = next((values[other.name] for other in sent if other.place == "conditions"), None)
    return combined(values[argument.name], conditions)


def _texts(argument: Sent, value: Any) -> Sequence[Any]:
    """The values of one name in a query string."""
    if argument.is_list:
        return list(value)
    if value is None:
        return [""] if argument.empty_is_none else []
    return [_json(value) if argument.record else value]


def _body(call: Call, values: Mapping[str, Any]) -> Any:
    if call.whole:
        return values[call.whole.name]
    return {field.name: values[field.name] for field in call.fields} or None


def _json(value: Any) -> str:
    return _wire.encode(value).decode()
