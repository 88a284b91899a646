"""A request of the table as FastAPI serves it: arguments in from path, query string and body, records out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial, reduce
from operator import or_
from typing import Annotated, Any

from fastapi import Query, Request, Response
from starlette.concurrency import run_in_threadpool

from spanwise.collector import _wire
from spanwise.collector._access import store_of
from spanwise.collector._lanes import Lanes
from spanwise.collector._verbs import LONGEST, Call, Change, Sent, given, kinds
from spanwise.collector._verbs._forms import REQUIRED
from spanwise.collector.api._bounds import check_limit, few
from spanwise.collector.api._http import CHECKED, Body, Limit, Number, conditions, reply
from spanwise.collector.api._streamed import STREAMED, streams
from spanwise.collector.stores import TraceStore

IDS = ("trace_id", "span_id")  # which are kept in lower case
WIDE = (TraceStore.aggregate, TraceStore.many)  # questions about many traces, also without a condition
ENDLESS = (TraceStore.changes,)  # what rules follow, in pages of so many rows: stopped, they would never come by


class Endpoint:
    """Answers one request of the table. `run` takes the store first; without it the store's own verb is called."""

    def __init__(self, call: Call, run: Callable[..., Any] | None = None) -> None:
        self.call, self.run, self.takes = call, run, call.takes
        self.__signature__ = inspect.Signature(list(_parameters(call)), return_annotation=Response)  # FastAPI reads it

    async def __call__(self, request: Request, **sent: Any) -> Response:
        """Do what is asked with the store that this request may see. Raises `StoreError`; `ValueError` for bad JSON."""
        work = partial(self._done, request, sent)
        if not self._asks:
            return await run_in_threadpool(work)
        lanes: Lanes = request.app.state.lanes
        return await lanes.answer(request, work, wide=self._is_wide(request), endless=self.call.function in ENDLESS)

    @property
    def _asks(self) -> bool:
        """Whether it reads and does nothing else, so that it can be stopped anywhere."""
        return self.call.method == "GET" or self.call.needs == "read"

    def _is_wide(self, request: Request) -> bool:
        """Whether it may look at many traces: it sums up, or looks for those that pass."""
        if self.call.function in WIDE or self._conditions is None:
            return self.call.function in WIDE
        return any(name not in self._conditions for name in request.query_params)

    @cached_property
    def _conditions(self) -> frozenset[str] | None:
        """The names in its query string that are no conditions; None where it takes no conditions."""
        if all(argument.place != "filter" for argument in self.call.sent):
            return None
        return frozenset(argument.alias for argument in self.call.sent if argument.place == "query")

    def _done(self, request: Request, sent: Mapping[str, Any]) -> Response:
        body = None if self.takes is None else self._read(sent["body"])
        values = {argument.name: _value(argument, request, sent, body) for argument in self.call.sent}
        check_limit(sent.get("limit"), self.call.most)  # the feed and claims, which come in bodies, bound themselves
        if self.call.listed and self.call.batch > 1:
            few(len(values[self.call.listed.name]), self._most)
        bound = inspect.BoundArguments(self.call.signature, values)
        store = store_of(request)
        if (write := STREAMED.get(self.call.function)) and streams(store):
            return write(request.app.state.lanes, store, *bound.args, **bound.kwargs)
        run = getattr(store, self.call.name) if self.run is None else partial(self.run, store)
        return reply(self._answer(run(*bound.args, **bound.kwargs), body))

    def _read(self, body: bytes) -> Any:
        """What a body holds; one record is a list of one. Raises `TooLarge` before records are made of too many."""
        if self.call.listed and body.lstrip()[:1] == b"{":
            body = b"[%s]" % body
        if self.call.listed and len(body) > CHECKED:
            few(_wire.count(body), self._most)
        return _wire.decode(self.takes, body)

    @property
    def _most(self) -> int:
        """Records of a list: what is asked for is whole traces, and costs more than what is brought."""
        return self.call.batch if self.call.needs == "read" else LONGEST

    def _answer(self, value: Any, body: Any) -> Any:
        if self.call.count:
            return {self.call.count: int(value)}
        if self.call.returns is not None:
            return value
        return {"stored": len(body)} if self.call.listed else body


def _value(argument: Sent, request: Request, sent: Mapping[str, Any], body: Any) -> Any:
    match argument.place:
        case "filter":
            return conditions(request, sent)
        case "conditions":
            return {}
        case "field":
            return getattr(body, argument.name)
        case "body":
            return _from_body(argument, body)
        case "query":
            return _from_query(argument, sent[argument.alias])
        case "path":
            return sent[argument.name].lower() if argument.name in IDS else sent[argument.name]


def _from_body(argument: Sent, body: Any) -> Any:
    if argument.many:
        return body if isinstance(body, list) else [body]
    if isinstance(body, dict):
        return {name: _from_change(value) for name, value in body.items()}
    return _from_change(body)


def _from_change(body: Any) -> Any:
    return given(body) if isinstance(body, Change) else body


def _from_query(argument: Sent, value: Any) -> Any:
    if value == "" and argument.empty_is_none:
        return None
    return _wire.decode(argument.record, value.encode()) if value is not None and argument.record else value


def _parameters(call: Call) -> Iterator[inspect.Parameter]:
    yield _parameter("request", Request)
    for argument in call.sent:
        if argument.place == "path":
            yield _parameter(argument.name, str)
        elif argument.place == "query":
            yield _parameter(argument.alias, _annotation(argument), argument.default)
    if call.takes is not None:
        yield _parameter("body", Body)


def _parameter(name: str, kind: Any, default: Any = REQUIRED) -> inspect.Parameter:
    empty = inspect.Parameter.empty if default is REQUIRED else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=empty)


def _annotation(argument: Sent) -> Any:
    """What FastAPI checks: a list is a name repeated, a record the text of its JSON; integers are what tables hold."""
    if argument.is_list:
        return Annotated[list[str], Query()]
    if argument.record:
        return str | None
    integer = Limit if argument.name == "limit" else Number
    return reduce(or_, (integer if kind is int else kind for kind in kinds(argument.kind)))
