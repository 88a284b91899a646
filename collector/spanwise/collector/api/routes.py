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
    REQUIRED,
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
from spanwise.collector.query_scheduler import QueryScheduler
from spanwise.collector.security.authorization import get_request_store

ID_PARAMETERS = ("trace_id", "span_id")  # the store has these ids in lower case


class OperationEndpoint:
    """Endpoint of one operation. It calls `run` with the store as the first argument, or without `run` the store's own
    method.
    """

    def __init__(self, operation: Operation, run: Callable[..., Any] | None = None) -> None:
        self.operation, self.run = operation, run
        # FastAPI reads the parameters from here
        self.__signature__ = inspect.Signature(list(_parameters(operation)), return_annotation=Response)

    async def __call__(self, request: Request, **sent: Any) -> Response:
        """Run the operation on the store, restricted to the project of the request's key.

        Raises `StoreError`, and `ValueError` for invalid JSON.
        """
        operation, work = self.operation, partial(self._call_store, request, sent)
        if operation.method != "GET" and operation.permission != "read":  # a write must not be interrupted
            return await run_in_threadpool(work)
        scheduler: QueryScheduler = request.app.state.query_scheduler
        reads_many_traces = operation.scans or (  # it aggregates or filters
            self._non_conditions is not None and not self._non_conditions.issuperset(request.query_params)
        )
        return await scheduler.answer(request, work, wide=reads_many_traces, endless=not operation.query_timeout)

    @cached_property
    def _non_conditions(self) -> frozenset[str] | None:
        """Return the query parameters that are not filter conditions; None if the operation takes no conditions."""
        arguments = self.operation.arguments
        if all(argument.place != "filter" for argument in arguments):
            return None
        return frozenset(argument.alias for argument in arguments if argument.place == "query")

    def _call_store(self, request: Request, sent: Mapping[str, Any]) -> Response:
        operation = self.operation
        body: Any = None if operation.body_type is None else self._decode_body(sent["body"])
        values = {argument.name: _argument_value(argument, request, sent, body) for argument in operation.arguments}
        # The change feed and leases have their limits in the body, and check these themselves.
        check_limit(sent.get("limit"), operation.max_limit)
        if operation.list_argument and operation.batch > 1:
            check_count(len(values[operation.list_argument.name]), self._max_items)
        bound = inspect.BoundArguments(operation.signature, values)
        store = get_request_store(request)
        if (respond := STREAMED_OPERATIONS.get(operation.function)) and is_streaming_store(store):
            return respond(request.app.state.query_scheduler, store, *bound.args, **bound.kwargs)
        run = getattr(store, operation.name) if self.run is None else partial(self.run, store)
        result = run(*bound.args, **bound.kwargs)
        if operation.count:
            result = {operation.count: int(result)}
        elif operation.returns is None:
            result = {"stored": len(body)} if operation.list_argument else body
        return json_response(result)

    def _decode_body(self, body: bytes) -> Any:
        """Decode a body; a single record becomes a list of one.

        Raises `TooLarge` for too many records before it decodes them.
        """
        if self.operation.list_argument:
            if body.lstrip()[:1] == b"{":
                body = b"[%s]" % body
            if len(body) > MIN_COUNTED_BYTES:
                check_count(record_encoding.count_items(body), self._max_items)
        return record_encoding.decode(self.operation.body_type, body)

    @property
    def _max_items(self) -> int:
        """Return the maximum length of a list. It is lower for reads, because the response holds a whole trace per
        id.
        """
        return self.operation.batch if self.operation.permission == "read" else MAX_LIST_SIZE


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
                return {name: _to_changed_fields(value) for name, value in body.items()}
            return _to_changed_fields(body)
        case "query":
            value = sent[argument.alias]
            if value == "" and argument.empty_is_none:
                return None
            is_record = value is not None and argument.record
            return record_encoding.decode(argument.record, value.encode()) if is_record else value
        case "path":
            return sent[argument.name].lower() if argument.name in ID_PARAMETERS else sent[argument.name]


def _to_changed_fields(body: Any) -> Any:
    return get_changed_fields(body) if isinstance(body, RecordChanges) else body


def _parameters(operation: Operation) -> Iterator[inspect.Parameter]:
    yield _parameter("request", Request)
    for argument in operation.arguments:
        if argument.place == "path":
            yield _parameter(argument.name, str)
        elif argument.place == "query":
            yield _parameter(argument.alias, _annotation(argument), argument.default)
    if operation.body_type is not None:
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

    `body` and `response` are the types of its JSON bodies for OpenAPI; they are None if it has no such body.
    """

    method: str
    path: str
    permission: RequiredPermission
    handler: Callable[..., Any]  # function that FastAPI calls
    name: str
    tag: str
    description: str
    body: Any = None
    response: Any = None
    media: str = ""  # media type of a response other than JSON


def operation_route(operation: Operation, run: Callable[..., Any] | None = None) -> RouteSpec:
    """Return the route of a store operation. With `run`, this function is called with the store as its first
    argument.
    """
    body = operation.body_type
    if operation.list_argument and operation.list_argument is operation.body_argument:
        [item] = get_args(body)
        body = body | item if is_dataclass(item) else body  # a single record may be sent without a list
    return RouteSpec(
        operation.method,
        operation.path,
        operation.permission,
        OperationEndpoint(operation, run),
        operation.name,
        operation.tag,
        operation.description,
        body,
        operation.response_type,
    )


def operation_routes(table: type) -> Iterator[RouteSpec]:
    """Yield the routes of a table's operations. A function in `OPERATION_OVERRIDES` replaces the store's method."""
    for row in list_operations(table):
        if run := OPERATION_OVERRIDES.get(row.name):
            row = describe_operation(
                run,
                f"{row.method} {row.path}",
                row.tag,
                permission=row.permission,
                count=row.count,
                batch=row.batch,
            )
        yield operation_route(row, run)


def extra_route(run: Callable[..., Any], request: str, tag: str, permission: RequiredPermission = "write") -> RouteSpec:
    """Return the route of a function that is not a store operation."""
    return operation_route(describe_operation(run, request, tag, permission=permission), run)


def health_route(
    path: str, permission: RequiredPermission, handler: Callable[..., Any], response: Any = None, media: str = ""
) -> RouteSpec:
    """Return the route of a health or metrics endpoint, which takes no records and returns none."""
    name, description = handler.__name__, handler.__doc__ or ""
    return RouteSpec("GET", path, permission, handler, name, "health", description, response=response, media=media)


def langfuse_route(path: str, handler: Callable[..., Any], body: Any) -> RouteSpec:
    """Return the route of an endpoint for Langfuse's SDKs, which needs the same permission as sending spans."""
    name, description = f"langfuse_{handler.__name__}", handler.__doc__ or ""
    return RouteSpec("POST", path, "ingest", handler, name, "feedback", description, body)


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
    extra_route(operation_validation.check_alert, "POST /api/alerts/check", "alerts", permission="read"),
    extra_route(operation_validation.describe_dataset, "PATCH /api/datasets/{name:path}", "datasets"),
)


def install_routes(app: FastAPI, routes: Iterable[RouteSpec]) -> None:
    """Add routes to an application."""
    for row in routes:
        app.add_api_route(
            row.path, row.handler, methods=[row.method], name=row.name, tags=[row.tag], description=row.description
        )
        if row.tag == "health":  # some probes use HEAD
            app.add_api_route(row.path, row.handler, methods=["HEAD"], include_in_schema=False)
