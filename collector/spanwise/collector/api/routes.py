"""Route table of the API, and the endpoint that serves a store operation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cached_property, partial, reduce
from operator import or_
from typing import Annotated, Any, get_args

from fastapi import FastAPI, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from spanwise.collector import record_encoding
from spanwise.collector.api import health_endpoints, langfuse_endpoints, operation_validation
from spanwise.collector.api.http_conversion import (
    MIN_COUNTED_BYTES,
    STREAMED_OPERATIONS,
    IntegerParameter,
    LimitParameter,
    RequestBody,
    is_streaming_store,
    json_response,
    parse_query_filter,
)
from spanwise.collector.api.operation_validation import check_count, check_limit
from spanwise.collector.operations import (
    MAX_LIST_SIZE,
    Argument,
    ControlOperations,
    Operation,
    RecordChanges,
    RequiredPermission,
    TraceOperations,
    describe_operation,
    get_changed_fields,
    get_union_members,
    list_operations,
)
from spanwise.collector.operations.request_mapping import REQUIRED
from spanwise.collector.query_scheduler import QueryScheduler
from spanwise.collector.security.authorization import get_request_store
from spanwise.collector.stores import TraceStore

ID_PARAMETERS = ("trace_id", "span_id")  # the store has these ids in lower case
SCAN_OPERATIONS = (TraceStore.aggregate, TraceStore.many)  # these scan many traces even without a filter
UNBOUNDED_OPERATIONS = (
    TraceStore.changes,
)  # monitors read the change feed in pages of limited size; a time limit could stop them at one page forever


class OperationEndpoint:
    """Endpoint of one operation. It calls `run` with the store as the first argument, or without `run` the store's own
    method.
    """

    def __init__(self, call: Operation, run: Callable[..., Any] | None = None) -> None:
        self.call, self.run, self.takes = call, run, call.takes
        # FastAPI reads the parameters from here
        self.__signature__ = inspect.Signature(list(_parameters(call)), return_annotation=Response)

    async def __call__(self, request: Request, **sent: Any) -> Response:
        """Run the operation on the store, restricted to the project of the request's key.

        Raises `StoreError`, and `ValueError` for invalid JSON.
        """
        work = partial(self._call_store, request, sent)
        if self.call.method != "GET" and self.call.needs != "read":  # a write must not be interrupted
            return await run_in_threadpool(work)
        lanes: QueryScheduler = request.app.state.lanes
        return await lanes.answer(
            request, work, wide=self._is_wide(request), endless=self.call.function in UNBOUNDED_OPERATIONS
        )

    def _is_wide(self, request: Request) -> bool:
        """Return whether the operation may read many traces: it aggregates or filters."""
        if self.call.function in SCAN_OPERATIONS or self._conditions is None:
            return self.call.function in SCAN_OPERATIONS
        return any(name not in self._conditions for name in request.query_params)

    @cached_property
    def _conditions(self) -> frozenset[str] | None:
        """Return the query parameters that are not filter conditions; None if the operation takes no conditions."""
        if all(argument.place != "filter" for argument in self.call.sent):
            return None
        return frozenset(argument.alias for argument in self.call.sent if argument.place == "query")

    def _call_store(self, request: Request, sent: Mapping[str, Any]) -> Response:
        body = None if self.takes is None else self._read(sent["body"])
        values = {argument.name: _argument_value(argument, request, sent, body) for argument in self.call.sent}
        # The change feed and leases have their limits in the body, and check these themselves.
        check_limit(sent.get("limit"), self.call.most)
        if self.call.listed and self.call.batch > 1:
            check_count(len(values[self.call.listed.name]), self._most)
        bound = inspect.BoundArguments(self.call.signature, values)
        store = get_request_store(request)
        if (write := STREAMED_OPERATIONS.get(self.call.function)) and is_streaming_store(store):
            return write(request.app.state.lanes, store, *bound.args, **bound.kwargs)
        run = getattr(store, self.call.name) if self.run is None else partial(self.run, store)
        return json_response(self._response_value(run(*bound.args, **bound.kwargs), body))

    def _read(self, body: bytes) -> Any:
        """Decode a body; a single record becomes a list of one.

        Raises `TooLarge` for too many records before it decodes them.
        """
        if self.call.listed and body.lstrip()[:1] == b"{":
            body = b"[%s]" % body
        if self.call.listed and len(body) > MIN_COUNTED_BYTES:
            check_count(record_encoding.count_items(body), self._most)
        return record_encoding.decode(self.takes, body)

    @property
    def _most(self) -> int:
        """Return the maximum length of a list. It is lower for reads, because the response holds a whole trace per
        id.
        """
        return self.call.batch if self.call.needs == "read" else MAX_LIST_SIZE

    def _response_value(self, value: Any, body: Any) -> Any:
        if self.call.count:
            return {self.call.count: int(value)}
        if self.call.returns is not None:
            return value
        return {"stored": len(body)} if self.call.listed else body


def _argument_value(argument: Argument, request: Request, sent: Mapping[str, Any], body: Any) -> Any:
    match argument.place:
        case "filter":
            return parse_query_filter(request, sent)
        case "conditions":
            return {}
        case "field":
            return getattr(body, argument.name)
        case "body":
            if argument.many:
                return body if isinstance(body, list) else [body]
            if isinstance(body, dict):
                return {name: _value_from_change(value) for name, value in body.items()}
            return _value_from_change(body)
        case "query":
            value = sent[argument.alias]
            if value == "" and argument.empty_is_none:
                return None
            is_record = value is not None and argument.record
            return record_encoding.decode(argument.record, value.encode()) if is_record else value
        case "path":
            return sent[argument.name].lower() if argument.name in ID_PARAMETERS else sent[argument.name]


def _value_from_change(body: Any) -> Any:
    return get_changed_fields(body) if isinstance(body, RecordChanges) else body


def _parameters(call: Operation) -> Iterator[inspect.Parameter]:
    yield _parameter("request", Request)
    for argument in call.sent:
        if argument.place == "path":
            yield _parameter(argument.name, str)
        elif argument.place == "query":
            yield _parameter(argument.alias, _annotation(argument), argument.default)
    if call.takes is not None:
        yield _parameter("body", RequestBody)


def _parameter(name: str, kind: Any, default: Any = REQUIRED) -> inspect.Parameter:
    empty = inspect.Parameter.empty if default is REQUIRED else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=empty)


def _annotation(argument: Argument) -> Any:
    """Return the type annotation with which FastAPI checks a query argument.

    A list is sent by repeating its name, a record as JSON text. Integers must be in SQLite's range.
    """
    if argument.is_list:
        return Annotated[list[str], Query()]
    if argument.record:
        return str | None
    integer = LimitParameter if argument.name == "limit" else IntegerParameter
    return reduce(or_, (integer if kind is int else kind for kind in get_union_members(argument.kind)))


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """Route of the API.

    `takes` and `answers` are the types of its JSON bodies for OpenAPI; they are None if it has no such body.
    """

    method: str
    path: str
    needs: RequiredPermission
    handler: Callable[..., Any]  # function that FastAPI calls
    name: str
    tag: str
    says: str
    takes: Any = None
    answers: Any = None
    media: str = ""  # media type of a response other than JSON


def operation_route(call: Operation, run: Callable[..., Any] | None = None) -> RouteSpec:
    """Return the route of a store operation. With `run`, this function is called with the store as its first
    argument.
    """
    handler, takes = OperationEndpoint(call, run), call.takes
    if call.listed and call.listed is call.whole:
        [item] = get_args(takes)
        takes = takes | item if is_dataclass(item) else takes  # a single record may be sent without a list
    return RouteSpec(call.method, call.path, call.needs, handler, call.name, call.tag, call.says, takes, call.answers)


def operation_routes(table: type) -> Iterator[RouteSpec]:
    """Yield the routes of a table's operations. A function in `OPERATION_OVERRIDES` replaces the store's method."""
    for verb in list_operations(table):
        if run := OPERATION_OVERRIDES.get(verb.name):
            more = describe_operation(
                run, f"{verb.method} {verb.path}", tag=verb.tag, needs=verb.needs, count=verb.count, batch=verb.batch
            )
            yield operation_route(more, run)
        else:
            yield operation_route(verb)


def extra_route(run: Callable[..., Any], request: str, tag: str) -> RouteSpec:
    """Return the route of a function that is not a store operation."""
    return operation_route(describe_operation(run, request, tag=tag), run)


def health_route(
    path: str, needs: RequiredPermission, handler: Callable[..., Any], answers: Any = None, media: str = ""
) -> RouteSpec:
    """Return the route of a health or metrics endpoint, which takes no records and returns none."""
    says = handler.__doc__ or ""
    return RouteSpec("GET", path, needs, handler, handler.__name__, "health", says, answers=answers, media=media)


def langfuse_route(path: str, handler: Callable[..., Any], takes: Any) -> RouteSpec:
    """Return the route of an endpoint for Langfuse's SDKs, which needs the same permission as sending spans."""
    name, says = f"langfuse_{handler.__name__}", handler.__doc__ or ""
    return RouteSpec("POST", path, "ingest", handler, name, "feedback", says, takes)


OPERATION_OVERRIDES: dict[str, Callable[..., Any]] = {
    "amend": operation_validation.amend,
    "append": operation_validation.append,
    "add_amendments": operation_validation.add_amendments,
    "add_feedback": operation_validation.add_feedback,
    "add_running": operation_validation.add_running,
    "book": operation_validation.book,
    "delete_experiment": operation_validation.delete_experiment,
    "settle": operation_validation.settle,
}
ROUTES = (
    health_route("/healthz", "open", health_endpoints.healthz, dict[str, str | int | None]),
    health_route("/readyz", "open", health_endpoints.readyz, dict[str, bool]),
    health_route("/metrics", "read", health_endpoints.metrics, media=health_endpoints.PROMETHEUS_MEDIA_TYPE),
    *operation_routes(TraceOperations),
    extra_route(operation_validation.append_runs, "POST /api/runs", "traces"),
    extra_route(operation_validation.delete_trace, "DELETE /api/traces/{trace_id}", "traces"),
    langfuse_route(
        "/api/public/scores", langfuse_endpoints.scores, list[langfuse_endpoints.Score] | langfuse_endpoints.Score
    ),
    langfuse_route("/api/public/ingestion", langfuse_endpoints.ingestion, langfuse_endpoints.Batch),
    *operation_routes(ControlOperations),
    extra_route(operation_validation.describe_dataset, "PATCH /api/datasets/{name:path}", "datasets"),
)


def install_routes(app: FastAPI, routes: Iterable[RouteSpec]) -> None:
    """Add routes to an application."""
    for row in routes:
        app.add_api_route(
            row.path, row.handler, methods=[row.method], name=row.name, tags=[row.tag], description=row.says
        )
        if row.tag == "health":  # some probes use HEAD
            app.add_api_route(row.path, row.handler, methods=["HEAD"], include_in_schema=False)
