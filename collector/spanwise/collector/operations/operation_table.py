"""Table of the store operations: method, path, permission and project scope, mapped to HTTP requests.

If two paths match a URL, the first row of the table answers. Longer paths therefore come first. A name in a path may
hold slashes (`:path`). The module `spanwise.collector.api.routes` adds the endpoints that are not store operations.
The column `project` is documented in `spanwise.collector.operations.project_scope`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache, cached_property, partial, wraps
from types import NoneType, UnionType
from typing import Any, Literal, Protocol, TypedDict, TypeVar, Union, Unpack, cast, get_args, get_origin, get_type_hints

import msgspec

from spanwise.collector.filters import Filter
from spanwise.collector.records import CHANGEABLE_FIELDS, DatasetKind, Example, Feedback, Page
from spanwise.collector.stores import ControlStore as Control
from spanwise.collector.stores import TraceStore as Traces

# Mapping of a function signature to an HTTP request: path, query, body and response.
#
# The function takes the store first: it is a method of a store protocol, or a handler of the API. Its other arguments
# are sent
#
# - in the path, if the path names them;
# - for GET and DELETE in the query string: a record as JSON, a list by repeating the name, None by leaving it out (or as
#   an empty text, if the default is not None); a `Filter` and its `**conditions` as conditions of the query string;
# - for POST and PATCH in the body: a record, a list or a mapping that is the only argument is the body itself, others are
#   its fields by name. `*records` is one record or a list of them. `**fields` are the changeable fields of the returned
#   record: they form the body, and all other arguments go into the query string.

REQUIRED: Any = msgspec.NODEFAULT


class RecordChanges(msgspec.Struct):
    """Changes of a record's fields; fields that are left out are `UNSET`."""


def define_body(name: str, fields: Iterable[tuple[str, Any, Any]]) -> type[msgspec.Struct]:
    """Define a body type from tuples (name, type, default). The type ignores unknown fields."""
    return msgspec.defstruct(name, list(fields), kw_only=True, module=__name__)


@cache
def define_changes(record: type) -> type[RecordChanges]:
    """Define a body type with the `CHANGEABLE_FIELDS` of a record, all optional. The type refuses other fields."""
    kinds, unset = get_type_hints(record), msgspec.UNSET
    made = msgspec.defstruct(
        f"{record.__name__}Change",
        [
            # a field that is a record itself accepts a partial change
            (name, (dict[str, Any] if is_dataclass(kinds[name]) else kinds[name]) | msgspec.UnsetType, unset)
            for name in CHANGEABLE_FIELDS[record]
        ],
        bases=(RecordChanges,),
        forbid_unknown_fields=True,
        module=__name__,
        namespace={"__doc__": f"Fields of a {record.__name__.lower()} that may change."},
    )
    return cast(type[RecordChanges], made)


def get_changed_fields(change: RecordChanges) -> dict[str, Any]:
    """Return the fields that a body contains."""
    return {name: value for name, value in msgspec.structs.asdict(change).items() if value is not msgspec.UNSET}


Method = Literal["GET", "POST", "PATCH", "DELETE"]
RequiredPermission = Literal["open", "read", "write", "ingest", "feedback", "admin"]
ProjectScope = Literal["filter", "argument", "trace", "method", "forbidden"]
ArgumentPlace = Literal["path", "query", "filter", "conditions", "field", "body"]
MAX_PAGE_SIZE, MAX_LIST_SIZE = 1000, 10_000  # maximum items of a page, and of a list without pages
PATH_PLACEHOLDER = re.compile(r"{(\w+)(?::path)?}")
_VARIADIC_KINDS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Argument:
    """One argument of an operation: `kind` is its type in the request, `alias` its name in a query string."""

    name: str
    place: ArgumentPlace
    kind: Any
    default: Any
    alias: str
    many: bool = False  # True for `*records`, which is sent as one record or a list

    @cached_property
    def record(self) -> Any:
        """Return the argument's record type, without None; None if it is not a record."""
        return next((kind for kind in get_union_members(self.kind) if is_dataclass(kind)), None)

    @cached_property
    def is_list(self) -> bool:
        """Return whether the argument is a sequence other than a string."""
        return get_origin(self.kind) is Sequence

    @cached_property
    def empty_is_none(self) -> bool:
        """Return whether None must be sent as an empty text, because leaving the argument out would select another
        default.
        """
        return self.default not in (None, REQUIRED) and NoneType in get_union_members(self.kind)


class OperationOptions(TypedDict, total=False):
    """Options of an operation in addition to method and path.

    - `permission` is the permission that a key needs; by default read for GET, write for other methods.
    - `project` is how the operation is restricted for a key of one project; by default the key is refused. See
      `spanwise.collector.operations.project_scope`.
    - `wire` is {argument: (type, default)} for arguments whose type or default in the request differs from the
      function's.
    - `alias` is {argument: name in a query string}.
    - `count` is the response field for a number or boolean; by default "deleted" for DELETE, "" for other methods.
    - `batch` is the maximum number of items per request, for a list that is the only argument.
    - `scans` marks a query that reads many traces even without a filter. The server runs few of these at once.
    - `query_timeout` False removes the server's time limit for a query.
    - `client_timeout` False removes the client's time limit for the request.
    """

    permission: RequiredPermission
    project: ProjectScope
    wire: Mapping[str, tuple[Any, Any]]
    alias: Mapping[str, str]
    count: str
    batch: int
    scans: bool
    query_timeout: bool
    client_timeout: bool


@dataclass(frozen=True, kw_only=True)
class Operation:
    """HTTP request of a store method or API handler. `signature` is that of the function, without the store argument.

    `OperationOptions` describes the other fields.
    """

    function: Callable[..., Any]
    signature: inspect.Signature
    method: Method
    path: str
    tag: str
    permission: RequiredPermission
    description: str  # first paragraph of the function's docstring, without the errors that it raises
    arguments: tuple[Argument, ...]
    returns: Any  # return type of the function; None if it returns nothing
    count: str
    batch: int
    scans: bool
    query_timeout: bool
    client_timeout: bool

    @property
    def name(self) -> str:
        """Return the function's name."""
        return self.function.__name__

    @cached_property
    def list_argument(self) -> Argument | None:
        """Return the argument if it is the only one and a list, so that it can be sent in batches; None otherwise."""
        return self.arguments[0] if len(self.arguments) == 1 and self.arguments[0].is_list else None

    @cached_property
    def is_paged(self) -> bool:
        """Return whether the operation returns a `Page`."""
        return get_origin(self.returns) is Page

    @property
    def max_limit(self) -> int:
        """Return the highest `limit` of one request."""
        return MAX_PAGE_SIZE if self.is_paged else MAX_LIST_SIZE

    @cached_property
    def body_argument(self) -> Argument | None:
        """Return the argument that is sent as the whole body; None if there is none."""
        return next((argument for argument in self.arguments if argument.place == "body"), None)

    @cached_property
    def body_fields(self) -> tuple[Argument, ...]:
        """Return the arguments that are sent as fields of the body."""
        return tuple(argument for argument in self.arguments if argument.place == "field")

    @cached_property
    def body_type(self) -> Any:
        """Return the type of the body; None if there is none."""
        if self.body_argument:
            return self.body_argument.kind
        fields = [(field.name, field.kind, field.default) for field in self.body_fields]
        return define_body(self.name.title().replace("_", ""), fields) if fields else None

    @cached_property
    def response_type(self) -> Any:
        """Return the type of the response.

        It is {field: number} if `count` is set, or if a list is sent and nothing is returned. Otherwise it is the
        return type of the function, or the type of the body if the function returns nothing.
        """
        if self.count or (self.returns is None and self.list_argument):
            return dict[str, int]
        return self.body_type if self.returns is None else self.returns


def describe_operation(
    function: Callable[..., Any], request: str, tag: str, **options: Unpack[OperationOptions]
) -> Operation:
    """Return the operation of a function. `request` is method and path, such as `"GET /api/things/{name:path}"`.

    `tag` groups the operations in the API reference.
    """
    method, path = cast(tuple[Method, str], request.split())
    signature, hints = inspect.signature(function), get_type_hints(function)
    parameters = list(signature.parameters.values())[1:]
    wire, alias = options.get("wire", {}), options.get("alias", {})
    is_variadic = any(parameter.kind in _VARIADIC_KINDS for parameter in parameters)
    is_only = is_variadic or len(parameters) - len(PATH_PLACEHOLDER.findall(path)) == 1
    arguments = []
    for parameter in parameters:
        name, many = parameter.name, parameter.kind is parameter.VAR_POSITIONAL
        kind: Any
        kind, default = wire.get(name, (hints[name], parameter.default))
        place = _argument_place(parameter.replace(annotation=kind), method, path, is_only, is_variadic)
        if place == "body" and many:
            kind = kind | list[kind]
        elif place == "body" and parameter.kind is parameter.VAR_KEYWORD:
            kind = define_changes(hints["return"])
        default = REQUIRED if default is parameter.empty else default
        arguments.append(Argument(name, place, kind, default, alias.get(name, name), many))
    summary = inspect.cleandoc(function.__doc__ or "").split("\n\n")[0]
    return Operation(
        function=function,
        signature=signature.replace(parameters=parameters),
        method=method,
        path=path,
        tag=tag,
        permission=options.get("permission", "read" if method == "GET" else "write"),
        description=re.split(r"\sRaises?\s", summary)[0],
        arguments=tuple(arguments),
        returns=None if hints["return"] is NoneType else hints["return"],
        count=options.get("count", "deleted" if method == "DELETE" else ""),
        batch=options.get("batch", 1),
        scans=options.get("scans", False),
        query_timeout=options.get("query_timeout", True),
        client_timeout=options.get("client_timeout", True),
    )


def _argument_place(
    parameter: inspect.Parameter, method: Method, path: str, is_only: bool, is_variadic: bool
) -> ArgumentPlace:
    """Return the place of an argument in the request, by the rules in the module's docstring."""
    members = get_union_members(parameter.annotation)
    if parameter.name in PATH_PLACEHOLDER.findall(path):
        return "path"
    if method in ("GET", "DELETE"):
        if parameter.kind in _VARIADIC_KINDS:
            return "conditions"
        return "filter" if Filter in members else "query"
    if parameter.kind in _VARIADIC_KINDS:
        return "body"
    if is_variadic:
        return "query"
    return "body" if is_only and not all(map(_is_scalar, members)) else "field"


def get_union_members(kind: Any) -> tuple[Any, ...]:
    """Return the member types of a union; for any other type, the type itself."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _is_scalar(kind: Any) -> bool:
    return kind in (str, int, float, bool, NoneType) or get_origin(kind) is Literal


F = TypeVar("F", bound=Callable[..., Any])


class OperationSender(Protocol):
    """Protocol of classes whose methods are created by `store_operation`."""

    def _send(self, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Send a request with the method's arguments, and return the result from the response."""


def store_operation(method: F, request: str, tag: str, **options: Unpack[OperationOptions]) -> F:
    """Create a client method from a method of a store protocol.

    Example: `dataset = store_operation(ControlStore.dataset, "GET …", "datasets")`. For type checkers, the created
    method has the type of the protocol's method.
    """
    # evaluated on first use, to keep imports fast
    operation = cache(partial(describe_operation, method, request, tag, **options))

    @wraps(method)
    def send(self: OperationSender, *args: Any, **kwargs: Any) -> Any:
        return self._send(operation(), args, kwargs)

    send.operation = operation  # type: ignore[attr-defined]
    send.project_scope = options.get("project", "forbidden")  # type: ignore[attr-defined]
    return cast(F, send)


def list_operations(table: type) -> Iterator[Operation]:
    """Yield the operations of a table, in order."""
    return (member.operation() for member in vars(table).values() if hasattr(member, "operation"))


def list_project_scopes(*tables: type) -> dict[str, ProjectScope]:
    """Return how each operation of the tables is restricted to a project, by name."""
    members = (member for table in tables for member in vars(table).items())
    return {name: member.project_scope for name, member in members if hasattr(member, "project_scope")}


# Table of the store operations: method, path, required permission and project scope of each.

# maximum items of one request, far below the server's limit, so that no batch is refused for its number of items
MAX_BATCH_ITEMS, MAX_BATCH_IDS = 1000, 500


class TraceOperations:
    """Operations of `TraceStore`.

    `close` is not an HTTP operation. `feedback` is sent as an `add_feedback` request, `each` as several `traces`
    requests, and `to_pandas` as several `table_page` requests.
    """

    append = store_operation(Traces.append, "POST /api/traces", "traces", project="method")
    amend = store_operation(Traces.amend, "PATCH /api/runs/{trace_id}/{span_id}", "traces", project="method")
    add_amendments = store_operation(
        Traces.add_amendments, "POST /api/amendments", "traces", project="method", batch=MAX_BATCH_ITEMS
    )
    traces = store_operation(Traces.traces, "GET /api/traces", "traces", project="filter")
    delete = store_operation(
        Traces.delete, "DELETE /api/traces", "traces", permission="admin", project="filter", client_timeout=False
    )
    many = store_operation(
        Traces.many,
        "POST /api/traces/many",
        "traces",
        permission="read",
        project="method",
        batch=MAX_BATCH_IDS,
        scans=True,
    )
    tree = store_operation(Traces.tree, "GET /api/traces/{trace_id}/tree", "traces", project="trace")
    runs = store_operation(Traces.runs, "GET /api/traces/{trace_id}/runs", "traces", project="trace")
    run = store_operation(Traces.run, "GET /api/traces/{trace_id}/run", "traces", project="trace")
    trace = store_operation(Traces.trace, "GET /api/traces/{trace_id}", "traces", project="method")
    table_page = store_operation(Traces.table_page, "GET /api/tables/{table}", "traces", project="method")
    scores = store_operation(Traces.scores, "GET /api/scores", "feedback", project="method")
    sessions = store_operation(Traces.sessions, "GET /api/sessions", "traces", project="filter")
    aggregate = store_operation(Traces.aggregate, "GET /api/aggregate", "traces", project="filter", scans=True)
    measure_sums = store_operation(
        Traces.measure_sums,
        "POST /api/measure-sums",
        "traces",
        permission="read",
        project="argument",
        scans=True,
    )
    values = store_operation(Traces.values, "GET /api/values/{field}", "traces", project="argument")
    changes = store_operation(
        Traces.changes,
        "POST /api/changes",
        "traces",
        permission="read",
        project="method",
        query_timeout=False,  # pages are small, and a time limit could stop a monitor at one page forever
    )
    heads = store_operation(
        Traces.heads, "POST /api/heads", "traces", permission="read", project="argument", query_timeout=False
    )
    explain = store_operation(
        Traces.explain, "POST /api/explain/{trace_id}", "traces", permission="read", project="trace"
    )
    count = store_operation(Traces.count, "GET /api/count", "traces")

    running = store_operation(Traces.running, "GET /api/running", "traces", project="argument")
    add_running = store_operation(
        Traces.add_running, "POST /api/running", "traces", project="method", batch=MAX_BATCH_ITEMS
    )
    processes = store_operation(Traces.processes, "GET /api/processes", "traces", project="method")
    add_reports = store_operation(
        Traces.add_reports, "POST /api/processes", "traces", project="method", batch=MAX_BATCH_ITEMS
    )

    outlets = store_operation(Traces.outlets, "GET /api/outlets", "feedback", permission="admin")
    feedbacks = store_operation(Traces.feedbacks, "GET /api/feedback", "feedback", project="method")
    add_feedback = store_operation(
        Traces.add_feedback,
        "POST /api/feedback",
        "feedback",
        permission="feedback",
        project="method",
        batch=MAX_BATCH_ITEMS,
    )
    change_feedback = store_operation(
        Traces.change_feedback,
        "PATCH /api/feedback",
        "feedback",
        wire={"changes": (dict[str, define_changes(Feedback)], REQUIRED)},  # type: ignore[misc]
    )
    delete_feedback = store_operation(
        Traces.delete_feedback,
        "DELETE /api/feedback",
        "feedback",
        alias={"ids": "id"},
        batch=MAX_BATCH_IDS,
        client_timeout=False,
    )

    prune = store_operation(
        Traces.prune, "POST /api/prune", "keeping", permission="admin", count="deleted", client_timeout=False
    )
    vacuum = store_operation(
        Traces.vacuum, "POST /api/vacuum", "keeping", permission="admin", count="freed_bytes", client_timeout=False
    )


class ControlOperations:
    """Operations of `ControlStore` except `close`."""

    datasets = store_operation(Control.datasets, "GET /api/datasets", "datasets")
    versions = store_operation(Control.versions, "GET /api/datasets/{name:path}/versions", "datasets")
    examples = store_operation(Control.examples, "GET /api/datasets/{dataset:path}/examples", "datasets")
    save_examples = store_operation(
        Control.save_examples,
        "POST /api/datasets/{dataset:path}/examples",
        "datasets",
        wire={"examples": (Sequence[Example], ()), "kind": (DatasetKind | None, None)},
    )
    dataset = store_operation(Control.dataset, "GET /api/datasets/{name:path}", "datasets")
    delete_dataset = store_operation(Control.delete_dataset, "DELETE /api/datasets/{name:path}", "datasets")

    experiments = store_operation(Control.experiments, "GET /api/experiments", "experiments", project="argument")
    save_experiment = store_operation(Control.save_experiment, "POST /api/experiments", "experiments", project="method")
    experiment = store_operation(
        Control.experiment, "GET /api/experiments/{id_or_name:path}", "experiments", project="method"
    )
    change_experiment = store_operation(
        Control.change_experiment, "PATCH /api/experiments/{id:path}", "experiments", project="method"
    )
    delete_experiment = store_operation(
        Control.delete_experiment, "DELETE /api/experiments/{id:path}", "experiments", project="method"
    )

    rules = store_operation(Control.rules, "GET /api/rules", "monitor", project="argument")
    save_rule = store_operation(Control.save_rule, "POST /api/rules", "monitor", project="method")
    settings = store_operation(Control.settings, "GET /api/settings/{name:path}", "monitor", project="argument")
    change_rule = store_operation(Control.change_rule, "PATCH /api/rules/{name:path}", "monitor", project="argument")
    delete_rule = store_operation(Control.delete_rule, "DELETE /api/rules/{name:path}", "monitor", project="argument")

    cursor = store_operation(Control.cursor, "GET /api/cursor", "monitor", project="argument")
    decide = store_operation(Control.decide, "POST /api/decide", "monitor")
    decisions = store_operation(Control.decisions, "GET /api/decisions", "monitor", project="argument")
    delete_decisions = store_operation(Control.delete_decisions, "DELETE /api/decisions", "monitor", project="argument")
    claim = store_operation(Control.claim, "POST /api/claim", "monitor", project="argument")
    renew = store_operation(Control.renew, "POST /api/renew", "monitor")
    finish = store_operation(Control.finish, "POST /api/finish", "monitor")

    acquire = store_operation(Control.acquire, "POST /api/leases/acquire", "monitor")
    release = store_operation(Control.release, "POST /api/leases/release", "monitor")
    leases = store_operation(Control.leases, "GET /api/leases", "monitor")
    delete_lease = store_operation(Control.delete_lease, "DELETE /api/leases/{name:path}", "monitor")
    book = store_operation(Control.book, "POST /api/budgets/book", "monitor")
    settle = store_operation(Control.settle, "POST /api/budgets/settle", "monitor")
    booked = store_operation(Control.booked, "GET /api/budgets", "monitor")
    spend = store_operation(Control.spend, "GET /api/spend", "monitor", project="argument")
    delete_budget = store_operation(Control.delete_budget, "DELETE /api/budgets/{budget:path}", "monitor")
    why = store_operation(Control.why, "GET /api/why/{trace_id}", "monitor", project="trace")
    status = store_operation(Control.status, "GET /api/status", "monitor", project="argument")
    report = store_operation(Control.report, "POST /api/workers", "monitor")
    weighted = store_operation(Control.weighted, "GET /api/weighted", "monitor", project="argument")
    score_sums = store_operation(
        Control.score_sums, "GET /api/score-sums", "monitor", project="argument", alias={"groups": "group"}
    )

    score_groups = store_operation(Control.score_groups, "GET /api/score-groups", "monitor", project="argument")

    undecided = store_operation(Control.undecided, "GET /api/undecided/{rule:path}", "monitor", project="argument")
    alerts = store_operation(Control.alerts, "GET /api/alerts", "alerts", project="argument")
    save_alert = store_operation(Control.save_alert, "POST /api/alerts", "alerts", project="method")
    record_look = store_operation(Control.record_look, "POST /api/alert-looks", "alerts")
    alert_events = store_operation(Control.alert_events, "GET /api/alert-events", "alerts", project="argument")
    alert_groups = store_operation(Control.alert_groups, "GET /api/alert-groups", "alerts", project="argument")
    acknowledge_alert = store_operation(
        Control.acknowledge_alert, "POST /api/alerts/{name:path}/acknowledge", "alerts", project="argument"
    )
    snooze_alert = store_operation(
        Control.snooze_alert, "POST /api/alerts/{name:path}/snooze", "alerts", project="argument"
    )
    test_alert = store_operation(Control.test_alert, "POST /api/alerts/{name:path}/test", "alerts", project="argument")
    change_alert = store_operation(Control.change_alert, "PATCH /api/alerts/{name:path}", "alerts", project="argument")
    delete_alert = store_operation(Control.delete_alert, "DELETE /api/alerts/{name:path}", "alerts", project="argument")

    notifications = store_operation(Control.notifications, "GET /api/notifications", "monitor", project="argument")
    # for notifiers; the targets belong to the server, not to one project
    count_due_deliveries = store_operation(
        Control.count_due_deliveries, "GET /api/deliveries", "monitor", permission="admin"
    )
    due_deliveries = store_operation(
        Control.due_deliveries, "GET /api/deliveries/{target:path}", "monitor", permission="admin"
    )
    record_delivery = store_operation(Control.record_delivery, "POST /api/deliveries", "monitor", permission="admin")

    is_full = store_operation(Control.is_full, "GET /api/full", "keeping")
    preview_backfill = store_operation(
        Control.preview_backfill,
        "POST /api/backfills/preview",
        "monitor",
        permission="read",
        project="argument",
        scans=True,
        query_timeout=False,
    )
    start_backfill = store_operation(Control.start_backfill, "POST /api/backfills", "monitor", project="argument")
    backfills = store_operation(Control.backfills, "GET /api/backfills", "monitor", project="argument")
    change_backfill = store_operation(
        Control.change_backfill, "POST /api/backfills/{id}", "monitor", project="argument"
    )

    retention = store_operation(Control.retention, "GET /api/retention", "keeping")
    set_retention = store_operation(Control.set_retention, "POST /api/retention", "keeping", permission="admin")

    keys = store_operation(Control.keys, "GET /api/keys", "keys", permission="admin")
    save_key = store_operation(Control.save_key, "POST /api/keys", "keys", permission="admin")
    delete_key = store_operation(Control.delete_key, "DELETE /api/keys/{id}", "keys", permission="admin")

    audit = store_operation(Control.audit, "GET /api/audit", "keys", permission="admin")

    queues = store_operation(Control.queues, "GET /api/queues", "queues")
    enqueue = store_operation(Control.enqueue, "POST /api/queues", "queues", batch=MAX_BATCH_ITEMS)
    resolve = store_operation(
        Control.resolve,
        "PATCH /api/queues/items/{item_id}",
        "queues",
        wire={"status": (Literal["waiting", "done", "skipped"], REQUIRED)},
    )
    queue = store_operation(Control.queue, "GET /api/queues/{name:path}", "queues")


PROJECT_SCOPES = list_project_scopes(TraceOperations, ControlOperations)
