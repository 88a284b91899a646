"""Routes of the API: store operations, health, metrics, Langfuse's scores, sign-in, OpenAPI description."""

from __future__ import annotations

import inspect
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cached_property, partial, reduce
from operator import or_
from typing import Annotated, Any, TypeAlias, get_args

import msgspec
from fastapi import FastAPI, Query, Request, Response
from fastapi.openapi.utils import get_openapi
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse

from spanwise.collector import pages, record_encoding
from spanwise.collector.address_parsing import safe_redirect_path
from spanwise.collector.api import http_conversion
from spanwise.collector.api.http_conversion import (
    MIN_COUNTED_BYTES,
    STREAMED_OPERATIONS,
    IntegerParameter,
    LimitParameter,
    RequestBody,
    check_count,
    check_limit,
    is_streaming_store,
    json_response,
    parse_query_filter,
    validate_feedback,
)
from spanwise.collector.dialects import read_langfuse_score
from spanwise.collector.errors import Closed, Forbidden, Refused
from spanwise.collector.ingest import ItemRefused, check_ids, scope_or_refuse
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
from spanwise.collector.pages.components import rendering
from spanwise.collector.prometheus_metrics import Metrics, RuleMetrics
from spanwise.collector.query_scheduler import QueryScheduler
from spanwise.collector.record_corrections import correct_feedback_time
from spanwise.collector.records import JSON, Feedback
from spanwise.collector.security import (
    Authenticator,
    BrowserSessions,
    Refusal,
    SessionCookie,
    build_session_cookie,
    get_access,
    get_request_store,
    hash_key,
    hash_session_id,
    read_session_cookie,
)
from spanwise.collector.stores import LocalStore, Store

# Health, readiness and Prometheus endpoints.

PROMETHEUS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def install_health(app: FastAPI, metrics: Metrics, ready: Callable[[], bool]) -> None:
    """Set the state that the health endpoints report: metrics, readiness and start time."""
    started = time.time()
    metrics.gauge("spanwise_start_time_seconds", lambda: started)
    app.state.metrics, app.state.ready, app.state.rule_metrics = metrics, ready, RuleMetrics()


async def healthz(request: Request) -> Response:
    """Report that the server is alive; for authorized callers also its process id and store."""
    status: dict[str, str | int | None] = {"status": "ok", "service": "spanwise"}
    if get_access(request.scope).known:
        store: Store = request.app.state.store
        status |= {"pid": os.getpid(), "store": store.where if isinstance(store, LocalStore) else None}
    return json_response(status)


async def readyz(request: Request) -> Response:
    """Report whether the server accepts spans: 503 while it starts, stops or cannot write; with the reason if
    authorized.
    """
    store: Store = request.app.state.store
    problem: str | None = "the server is starting or stopping"
    if request.app.state.ready():
        try:
            problem = store.trouble() if isinstance(store, LocalStore) else None
        except Closed as error:
            problem = str(error)
    if problem is None:
        return json_response({"ready": True})
    return json_response({"ready": False} | ({"why": problem} if get_access(request.scope).known else {}), 503)


def metrics(request: Request) -> Response:
    """Return metrics in Prometheus' text format."""
    numbers: Metrics = request.app.state.metrics
    rules: RuleMetrics = request.app.state.rule_metrics
    get_access(request.scope).require_all_projects("/metrics")
    store: Store = request.app.state.store
    health = store.health() if isinstance(store, LocalStore) else {}
    gauges = {f"spanwise_store_{name}": float(value) for name, value in health.items()}
    return Response(numbers.text(gauges) + rules.text(store), media_type=PROMETHEUS_MEDIA_TYPE)


# Langfuse-compatible endpoints for scores and score batches.

Score: TypeAlias = dict[str, Any]
SCORE_EVENT = "score-create"
PLACEHOLDER_SPAN_ID = "1" * 16


class Batch(msgspec.Struct):
    """Batch of events as Langfuse's SDKs 2 and 3 send it. An event has `id`, `type`, `timestamp` and `body`."""

    batch: list[dict[str, Any]]
    metadata: Any = None


def scores(request: Request, body: RequestBody) -> Response:
    """Store scores as feedback. A list is answered with 202, or 207 if some are refused; a single score with its id."""
    content = record_encoding.decode(list[Score] | Score, body)
    rows = content if isinstance(content, list) else [content]
    check_count(len(rows))
    stored = _store_scores(request, [_read_score(score) for score in rows])
    faults = [str(result) for result in stored if isinstance(result, ValueError)]
    if isinstance(content, dict):
        if faults:
            error = stored[0]
            foreign = isinstance(error, ItemRefused) and error.reason == "project"
            raise Forbidden(str(error)) if foreign else Refused(str(error))
        return json_response({"id": content.get("id") or stored[0].id})
    if not faults:
        return json_response({"message": "Accepted"}, 202)
    errors = [{"message": fault} for fault in faults]
    return json_response({"accepted": len(stored) - len(faults), "rejected": len(faults), "errors": errors}, 207)


def ingestion(request: Request, body: RequestBody) -> Response:
    """Store a batch of scores as feedback. The response is 207, with a status per event; other events are refused."""
    events = record_encoding.decode(Batch, body).batch
    check_count(len(events))
    stored = _store_scores(request, [_read_event(event) for event in events])
    pairs = list(zip((id if isinstance(id := event.get("id"), str) else "" for event in events), stored, strict=True))
    successes = [{"id": id, "status": 201} for id, result in pairs if isinstance(result, Feedback)]
    errors = [
        {"id": id, "status": 400, "message": str(result), "error": "InvalidRequestError"}
        for id, result in pairs
        if isinstance(result, ValueError)
    ]
    return json_response({"successes": successes, "errors": errors}, 207)


def _read_event(event: Mapping[str, JSON]) -> Feedback | ValueError:
    kind, score = event.get("type"), event.get("body")
    if kind != SCORE_EVENT:
        message = f"only {SCORE_EVENT} events are accepted; send spans by OTLP, as the SDK does from version 3 on"
        return ValueError(f"unsupported event type {kind!r:.100}: {message}")
    if not isinstance(score, dict):
        return ValueError(f"the body of a {SCORE_EVENT} event must be an object, got {score!r:.100}")
    return _read_score(score, event.get("timestamp"))


def _read_score(score: Score, sent: JSON = None) -> Feedback | ValueError:
    try:
        feedback = correct_feedback_time(validate_feedback(read_langfuse_score(score, sent)))
        if feedback.target.trace_id is not None:
            check_ids(feedback.target.trace_id, feedback.target.span_id or PLACEHOLDER_SPAN_ID, "")
        return feedback
    except (ValueError, OverflowError) as error:
        return error if isinstance(error, ValueError) else ValueError(str(error))


def _store_scores(request: Request, read: Sequence[Feedback | ValueError]) -> Sequence[Any]:
    """Store the feedback durably. Return it, with a refusal in place of each row outside of the key's project."""
    store: Store = request.app.state.store
    project = get_access(request.scope).project
    if project is not None:
        good = [row for row in read if isinstance(row, Feedback)]
        allowed = iter(scope_or_refuse(store, project, good))
        read = [next(allowed) if isinstance(row, Feedback) else row for row in read]
    if rows := [row for row in read if isinstance(row, Feedback)]:
        store.add_feedback(rows)
    return read


# Sign-in and sign-out routes of the browser session.

SIGN_IN_ROUTES = (("GET", "/sign-in"), ("POST", "/sign-in"), ("POST", "/sign-out"))


async def sign_in_page(request: Request) -> Response:
    """Render the sign-in form; redirect to the first page if no key is needed."""
    authenticator: Authenticator = request.app.state.authenticator
    if not authenticator.locked:
        return _redirect("/")
    return pages.render_sign_in(request, safe_redirect_path(request.query_params.get("next", "")))


async def sign_in(request: Request) -> Response:
    """Start a session for a key with read permission, and redirect to the requested page."""
    fields = await pages.read_form(request, ("key", "next"), bond=b"")
    address = safe_redirect_path(fields.get("next", ""))
    authenticator: Authenticator = request.app.state.authenticator
    if not authenticator.locked:
        return _redirect(address)
    key = hash_key(fields.get("key", "").strip())
    access = await authenticator.authenticate(key, request.client.host if request.client else "")
    if not isinstance(access, Refusal) and not access.may("read"):
        access = Refusal(403, "the API key lacks the scope 'read', which all pages need")
    if isinstance(access, Refusal):
        return pages.render_sign_in(
            request, address, refused=access.message, status=access.status, after=access.retry_after
        )
    _end_session(request)
    cookie = _request_cookie(request)
    browser_sessions: BrowserSessions = request.app.state.browser_sessions
    return _redirect(address, cookie.format_set_cookie(browser_sessions.begin(key, secure=cookie.secure)))


async def sign_out(request: Request) -> Response:
    """End the session and delete the cookie."""
    await pages.read_form(request, (), bond=hash_session_id(_session_id(request)))
    _end_session(request)
    return _redirect("/sign-in", _request_cookie(request).format_delete_cookie())


def _session_id(request: Request) -> str:
    sent = read_session_cookie(request.scope["headers"], request.headers.get("host", ""))
    return sent[0] if sent else ""


def _end_session(request: Request) -> None:
    browser_sessions: BrowserSessions = request.app.state.browser_sessions
    browser_sessions.end(_session_id(request))


def _request_cookie(request: Request) -> SessionCookie:
    """Return the session cookie for a request. The cookie is marked secure if the browser uses TLS.

    The `Origin` header shows whether the browser uses TLS without a proxy, `X-Forwarded-Proto` whether it does behind
    one.
    """
    origin, proxy = request.headers.get("origin", ""), request.headers.get("x-forwarded-proto", "")
    secure = origin.startswith("https://") or proxy.strip().lower() == "https"
    return build_session_cookie(request.headers.get("host", ""), secure=secure)


def _redirect(address: str, cookie: str | None = None) -> Response:
    response = RedirectResponse(address, 303, headers={"cache-control": "no-store"})
    if cookie is not None:
        response.headers["set-cookie"] = cookie
    return response


def install_sign_in(app: FastAPI) -> None:
    """Add the sign-in routes to an application."""
    for (method, path), answer in zip(SIGN_IN_ROUTES, (sign_in_page, sign_in, sign_out), strict=True):
        app.add_route(path, _with_error_page(answer), methods=[method], include_in_schema=False)


def _with_error_page(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def call(request: Request) -> Response:
        try:
            return await answer(request)
        except Refused as error:
            return pages.render_refusal(request, 400, str(error))

    return call


# Route table of the API, and the endpoint that serves a store operation.

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
    "amend": http_conversion.amend,
    "append": http_conversion.append,
    "add_amendments": http_conversion.add_amendments,
    "add_feedback": http_conversion.add_feedback,
    "add_running": http_conversion.add_running,
    "book": http_conversion.book,
    "delete_experiment": http_conversion.delete_experiment,
    "settle": http_conversion.settle,
}
ROUTES = (
    health_route("/healthz", "open", healthz, dict[str, str | int | None]),
    health_route("/readyz", "open", readyz, dict[str, bool]),
    health_route("/metrics", "read", metrics, media=PROMETHEUS_MEDIA_TYPE),
    *operation_routes(TraceOperations),
    extra_route(http_conversion.append_runs, "POST /api/runs", "traces"),
    extra_route(http_conversion.delete_trace, "DELETE /api/traces/{trace_id}", "traces"),
    langfuse_route("/api/public/scores", scores, list[Score] | Score),
    langfuse_route("/api/public/ingestion", ingestion, Batch),
    *operation_routes(ControlOperations),
    extra_route(http_conversion.check_alert, "POST /api/alerts/check", "alerts", permission="read"),
    extra_route(http_conversion.describe_dataset, "PATCH /api/datasets/{name:path}", "datasets"),
)


def install_routes(app: FastAPI, routes: Iterable[RouteSpec]) -> None:
    """Add routes to an application."""
    for row in routes:
        app.add_api_route(
            row.path, row.handler, methods=[row.method], name=row.name, tags=[row.tag], description=row.description
        )
        if row.tag == "health":  # some probes use HEAD
            app.add_api_route(row.path, row.handler, methods=["HEAD"], include_in_schema=False)


# OpenAPI description of the API, and its HTML reference page.

_TEXT = {"type": "string"}
_ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string"}, "message": {"type": "string"}},
    "required": ["error", "message"],
}
_ERRORS = {
    status: {"description": description, "content": {"application/json": {"schema": _ERROR}}}
    for status, description in (
        ("400", "Refused: an argument or the body is invalid; the message names it"),
        ("422", "Too slow: the query exceeds the server's time limit; narrow it"),
    )
}
SCHEMA_REFERENCE = "#/components/schemas/{name}"


def install_openapi(app: FastAPI, rows: Sequence[RouteSpec]) -> None:
    """Make `app.openapi()` include request and response bodies of these routes."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _describe_api(app, rows)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _describe_api(app: FastAPI, rows: Sequence[RouteSpec]) -> dict[str, Any]:
    description = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    kinds = [kind for row in rows for kind in (row.body, row.response) if kind is not None]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=SCHEMA_REFERENCE)
    description.setdefault("components", {}).setdefault("schemas", {}).update(components)
    by_kind = iter(schemas)
    for row in rows:
        operation = description["paths"][row.path.replace(":path", "")][row.method.lower()]
        if row.body is not None:
            operation["requestBody"] = {"required": True, "content": _json_content(next(by_kind))}
        if row.response is not None:
            operation["responses"]["200"] = {"description": "Done", "content": _json_content(next(by_kind))}
        if row.media:
            operation["responses"]["200"] = {"description": "Done", "content": {row.media: {"schema": _TEXT}}}
        if row.permission != "open":
            operation["responses"] |= _ERRORS
    return description


def _json_content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


@dataclass(frozen=True, slots=True)
class OperationDoc:
    """One operation of the API for the reference page."""

    method: str
    path: str
    tag: str
    says: str
    parameters: tuple[tuple[str, str, str], ...]  # name, location, type
    takes: str  # JSON Schema; "" without a body
    answers: str


def reference_page(request: Request) -> Response:
    """Render the API reference: all operations by tag, and the schemas of their records."""
    description = request.app.openapi()
    by_tag: dict[str, list[OperationDoc]] = {}
    for operation in _list_operation_docs(description):
        by_tag.setdefault(operation.tag, []).append(operation)
    schemas = {name: _schema_text(schema) for name, schema in sorted(description["components"]["schemas"].items())}
    return rendering.render_page(
        request, "docs.html", switcher=False, tags=by_tag, schemas=schemas, version=description["info"]["version"]
    )


def _list_operation_docs(description: dict[str, Any]) -> Iterator[OperationDoc]:
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            yield OperationDoc(
                method=method.upper(),
                path=path,
                tag=(operation.get("tags") or ["others"])[0],
                says=operation.get("description") or operation.get("summary") or "",
                parameters=tuple(
                    (parameter["name"], parameter["in"], _type_name(parameter.get("schema", {})))
                    for parameter in operation.get("parameters", ())
                ),
                takes=_body_schema(operation.get("requestBody")),
                answers=_body_schema(operation["responses"].get("200")),
            )


def _body_schema(content: dict[str, Any] | None) -> str:
    schema = ((content or {}).get("content") or {}).get("application/json", {}).get("schema")
    return _schema_text(schema) if schema else ""


def _type_name(schema: dict[str, Any]) -> str:
    kinds = [_type_name(one) for one in schema.get("anyOf", ())]
    return " or ".join(kinds) if kinds else str(schema.get("type", "any"))


def _schema_text(schema: Any) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False).replace("#/components/schemas/", "")
