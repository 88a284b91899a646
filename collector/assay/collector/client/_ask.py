"""A verb's arguments as a request, and its answer as what the verb returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from assay.collector import _wire
from assay.collector._verbs import PLACEHOLDER, Call, Sent
from assay.collector.client._transport import Transport, segment
from assay.collector.errors import NotFound
from assay.collector.filters import combined

T = TypeVar("T")


def ask(transport: Transport, call: Call, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:
    """Send a verb's request. A long list that is its only argument goes in several. Raises `StoreError`."""
    values = _values(call, args, given)
    if call.listed is None:
        return _once(transport, call, values)
    name = call.listed.name
    return _joined(call, (_once(transport, call, {name: batch}) for batch in batches(values[name], call.batch)))


def _values(call: Call, args: tuple[Any, ...], given: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        bound = call.signature.bind(*args, **given)
    except TypeError as error:
        raise TypeError(f"{call.name}() {error}") from None  # as Python says it of a function
    bound.apply_defaults()
    return bound.arguments


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Slices of a size."""
    return (items[start : start + size] for start in range(0, len(items), size))


def _once(transport: Transport, call: Call, values: Mapping[str, Any]) -> Any:
    path, query, body = _path(call.path, values), _query(call.sent, values), _body(call.sent, values)
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


def _joined(call: Call, answers: Iterator[Any]) -> Any:
    if call.count:
        return sum(answers)
    lists = [answer for answer in answers if answer is not None]
    return None if call.returns is None else list(chain.from_iterable(lists))


def _path(path: str, values: Mapping[str, Any]) -> str:
    return PLACEHOLDER.sub(lambda found: segment(values[found[1]]), path)


def _query(sent: Sequence[Sent], values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    items = []
    for argument in sent:
        if argument.place == "filter":
            conditions = next((values[other.name] for other in sent if other.place == "conditions"), None)
            items.append((argument.alias, _json(combined(values[argument.name], conditions))))
        elif argument.place == "query":
            items += [(argument.alias, value) for value in _texts(argument, values[argument.name])]
    return items


def _texts(argument: Sent, value: Any) -> Sequence[Any]:
    """The values of one name in a query string."""
    if argument.is_list:
        return list(value)
    if value is None:
        return [""] if argument.empty_is_none else []
    return [_json(value) if argument.record else value]


def _body(sent: Sequence[Sent], values: Mapping[str, Any]) -> Any:
    if whole := next((argument for argument in sent if argument.place == "body"), None):
        return values[whole.name]
    return {argument.name: values[argument.name] for argument in sent if argument.place == "field"} or None


def _json(value: Any) -> str:
    return _wire.encode(value).decode()
