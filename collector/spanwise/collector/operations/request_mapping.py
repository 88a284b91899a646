"""Mapping of a function signature to an HTTP request: path, query, body and response.

The function takes the store first: it is a method of a store protocol, or a handler of the API. Its other arguments
are sent

- in the path, if the path names them;
- for GET and DELETE in the query string: a record as JSON, a list by repeating the name, None by leaving it out (or as
  an empty text, if the default is not None); a `Filter` and its `**conditions` as conditions of the query string;
- for POST and PATCH in the body: a record, a list or a mapping that is the only argument is the body itself, others are
  its fields by name. `*records` is one record or a list of them. `**fields` are the changeable fields of the returned
  record: they form the body, and all other arguments go into the query string.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache, cached_property, partial, wraps
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    Protocol,
    Required,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from spanwise.collector.filters import Filter
from spanwise.collector.records import CHANGEABLE_FIELDS, Page

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
ArgumentPlace = Literal["path", "query", "filter", "conditions", "field", "body"]
MAX_PAGE_SIZE, MAX_LIST_SIZE = 1000, 10_000  # maximum items of a page, and of a list without pages
PATH_PLACEHOLDER = re.compile(r"{(\w+)(?::path)?}")


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


@dataclass(frozen=True, kw_only=True)
class Operation:
    """HTTP request of a store method or API handler. `signature` is that of the function, without the store argument."""

    function: Callable[..., Any]
    signature: inspect.Signature
    method: Method
    path: str
    tag: str
    needs: RequiredPermission  # permission that a key needs
    says: str  # description in the API reference
    sent: tuple[Argument, ...]
    returns: Any  # return type of the function; None if it returns nothing
    count: str  # response field for a number or boolean result; "" to return the result itself
    batch: int  # maximum number of items per request, for a list that is the only argument
    patient: bool  # the client sets no time limit on the request

    @property
    def name(self) -> str:
        """Return the function's name."""
        return self.function.__name__

    @cached_property
    def names(self) -> frozenset[str]:
        """Return the names of all arguments. A variadic argument gets a "*" in front, which cannot occur in a keyword
        argument.
        """
        parameters = self.signature.parameters.values()
        return frozenset(
            f"*{parameter.name}" if parameter.kind in _VARIADIC_KINDS else parameter.name for parameter in parameters
        )

    @cached_property
    def positional(self) -> tuple[str, ...]:
        """Return the names of arguments that callers may pass by position."""
        parameters = self.signature.parameters.values()
        return tuple(parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD)

    @cached_property
    def defaults(self) -> Mapping[str, Any]:
        """Return the default values of optional arguments by name."""
        parameters = self.signature.parameters.values()
        return {
            parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty
        }

    @cached_property
    def listed(self) -> Argument | None:
        """Return the argument if it is the only one and a list, so that it can be sent in batches; None otherwise."""
        return self.sent[0] if len(self.sent) == 1 and self.sent[0].is_list else None

    @cached_property
    def paged(self) -> bool:
        """Return whether the operation returns a `Page`."""
        return get_origin(self.returns) is Page

    @property
    def most(self) -> int:
        """Return the highest `limit` of one request."""
        return MAX_PAGE_SIZE if self.paged else MAX_LIST_SIZE

    @cached_property
    def whole(self) -> Argument | None:
        """Return the argument that is sent as the whole body; None if there is none."""
        return next((sent for sent in self.sent if sent.place == "body"), None)

    @cached_property
    def fields(self) -> tuple[Argument, ...]:
        """Return the arguments that are sent as fields of the body."""
        return tuple(sent for sent in self.sent if sent.place == "field")

    @cached_property
    def takes(self) -> Any:
        """Return the type of the body; None if there is none."""
        if self.whole:
            return self.whole.kind
        fields = [(field.name, field.kind, field.default) for field in self.fields]
        return define_body(self.name.title().replace("_", ""), fields) if fields else None

    @cached_property
    def answers(self) -> Any:
        """Return the type of the response.

        It is {field: number} if `count` is set, or if a list is sent and nothing is returned. Otherwise it is the
        return type of the function, or the type of the body if the function returns nothing.
        """
        if self.count or (self.returns is None and self.listed):
            return dict[str, int]
        return self.takes if self.returns is None else self.returns


class OperationOptions(TypedDict, total=False):
    """Options of an operation in addition to method and path.

    - `wire` is {argument: (type, default)} for arguments whose type or default in the request differs from the
      function's.
    - `alias` is {argument: name in a query string}.
    - `needs` is the required permission; by default read for GET, write for other methods.
    - `says` is the description; by default the first paragraph of the docstring without its "Raises" part.
    - `count` is the response field for a number or boolean; by default "deleted" for DELETE, "" for other
      methods.
    - `batch` is the maximum number of items per request, for a list that is the only argument.
    - `patient` removes the time limit.
    """

    tag: Required[str]
    needs: RequiredPermission
    says: str
    wire: Mapping[str, tuple[Any, Any]]
    alias: Mapping[str, str]
    count: str
    batch: int
    patient: bool


def describe_operation(function: Callable[..., Any], request: str, **how: Unpack[OperationOptions]) -> Operation:
    """Return the operation of a function. `request` is method and path, such as `"GET /api/things/{name:path}"`."""
    method, path = cast(tuple[Method, str], request.split())
    signature, hints = inspect.signature(function), get_type_hints(function)
    parameters = list(signature.parameters.values())[1:]
    travelling = []
    for parameter in parameters:
        kind, default = how.get("wire", {}).get(parameter.name, (hints[parameter.name], parameter.default))
        travelling.append(parameter.replace(annotation=kind, default=default))
    return Operation(
        function=function,
        signature=signature.replace(parameters=parameters),
        method=method,
        path=path,
        tag=how["tag"],
        needs=how.get("needs", "read" if method == "GET" else "write"),
        says=how.get("says") or inspect.cleandoc(function.__doc__ or "").split("\n\n")[0].partition(" Raises ")[0],
        sent=_list_arguments(travelling, method, path, how.get("alias", {}), hints["return"]),
        returns=None if hints["return"] is NoneType else hints["return"],
        count=how.get("count", "deleted" if method == "DELETE" else ""),
        batch=how.get("batch", 1),
        patient=how.get("patient", False),
    )


def get_union_members(kind: Any) -> tuple[Any, ...]:
    """Return the member types of a union; for any other type, the type itself."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _list_arguments(
    parameters: Sequence[inspect.Parameter], method: Method, path: str, alias: Mapping[str, str], returns: Any
) -> tuple[Argument, ...]:
    in_path = PATH_PLACEHOLDER.findall(path)
    spread = any(parameter.kind in _VARIADIC_KINDS for parameter in parameters)
    alone = spread or len(parameters) - len(in_path) == 1
    sent = []
    for parameter in parameters:
        place = "path" if parameter.name in in_path else _argument_place(parameter, method, alone, spread)
        kind: Any = parameter.annotation
        if place == "body" and parameter.kind is parameter.VAR_POSITIONAL:
            kind = kind | list[kind]
        elif place == "body" and parameter.kind is parameter.VAR_KEYWORD:
            kind = define_changes(returns)
        default = REQUIRED if parameter.default is parameter.empty else parameter.default
        name = alias.get(parameter.name, parameter.name)
        sent.append(Argument(parameter.name, place, kind, default, name, parameter.kind is parameter.VAR_POSITIONAL))
    return tuple(sent)


def _argument_place(parameter: inspect.Parameter, method: Method, alone: bool, spread: bool) -> ArgumentPlace:
    if method in ("GET", "DELETE"):
        if parameter.kind in _VARIADIC_KINDS:
            return "conditions"
        return "filter" if Filter in get_union_members(parameter.annotation) else "query"
    if spread and parameter.kind not in _VARIADIC_KINDS:
        return "query"
    whole = parameter.kind in _VARIADIC_KINDS or not all(map(_is_scalar, get_union_members(parameter.annotation)))
    return "body" if alone and whole else "field"


def _is_scalar(kind: Any) -> bool:
    return kind in (str, int, float, bool, NoneType) or get_origin(kind) is Literal


_VARIADIC_KINDS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


F = TypeVar("F", bound=Callable[..., Any])


class OperationSender(Protocol):
    """Protocol of classes whose methods are created by `store_operation`."""

    def _ask(self, call: Operation, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        """Send a request with the method's arguments, and return the result from the response."""


def store_operation(method: F, request: str, **how: Unpack[OperationOptions]) -> F:
    """Create a client method from a method of a store protocol.

    Example: `dataset = store_operation(ControlStore.dataset, "GET …", …)`. The options `how` are those of
    `describe_operation`. For type checkers, the created method has the type of the protocol's method.
    """
    row = cache(partial(describe_operation, method, request, **how))  # evaluated on first use, to keep imports fast

    @wraps(method)
    def asked(self: OperationSender, *args: Any, **given: Any) -> Any:
        return self._ask(row(), args, given)

    asked.row = row  # type: ignore[attr-defined]
    return cast(F, asked)


def list_operations(table: type) -> Iterator[Operation]:
    """Yield the operations of a table, in order."""
    return (member.row() for member in vars(table).values() if hasattr(member, "row"))
