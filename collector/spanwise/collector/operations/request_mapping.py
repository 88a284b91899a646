"""Mapping of a function signature to an HTTP request: path, query, body and response.

The function takes the store first: a verb of a Protocol, or a handler of the API. Its other arguments travel

- in the path, if the path names them;
- of a GET or DELETE in the query string: a record as JSON, a list by repeating the name, None by leaving it out (or by
  an empty text, if the default is not None); a `Filter` and its `**conditions` as the conditions of a query string;
- of a POST or PATCH in the body: a record, a list or a mapping that is the only argument is the body, others are fields
  of it by name. `*records` is one record or a list of them, `**fields` are the changes that the returned record allows:
  these are the body, and what else there is goes in the query string.
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
    """Some fields of a record; those that are left out are `UNSET`."""


def define_body(name: str, fields: Iterable[tuple[str, Any, Any]]) -> type[msgspec.Struct]:
    """A body with fields of (name, type, default); fields that it does not know are passed over."""
    return msgspec.defstruct(name, list(fields), kw_only=True, module=__name__)


@cache
def define_changes(record: type) -> type[RecordChanges]:
    """A body with some of the `CHANGEABLE` fields of a record; another field is refused."""
    kinds, unset = get_type_hints(record), msgspec.UNSET
    made = msgspec.defstruct(
        f"{record.__name__}Change",
        [(name, _changeable_type(kinds[name]) | msgspec.UnsetType, unset) for name in CHANGEABLE_FIELDS[record]],
        bases=(RecordChanges,),
        forbid_unknown_fields=True,
        module=__name__,
        namespace={"__doc__": f"Fields of a {record.__name__.lower()} that may change."},
    )
    return cast(type[RecordChanges], made)


def _changeable_type(kind: Any) -> Any:
    """What a field may be changed by: another value, or, where it is a record itself, some fields of it."""
    return dict[str, Any] if is_dataclass(kind) else kind


def get_changed_fields(change: RecordChanges) -> dict[str, Any]:
    """The fields that a body named, out of all that may change."""
    return {name: value for name, value in msgspec.structs.asdict(change).items() if value is not msgspec.UNSET}


Method = Literal["GET", "POST", "PATCH", "DELETE"]
RequiredPermission = Literal["open", "read", "write", "ingest", "feedback", "admin"]
ArgumentPlace = Literal["path", "query", "filter", "conditions", "field", "body"]
MAX_PAGE_SIZE, MAX_LIST_SIZE = 1000, 10_000  # items of one page, and of a list that has no pages
PATH_PLACEHOLDER = re.compile(r"{(\w+)(?::path)?}")


@dataclass(frozen=True)
class Argument:
    """One argument as it travels: `kind` is its type there, `alias` its name in a query string."""

    name: str
    place: ArgumentPlace
    kind: Any
    default: Any
    alias: str
    many: bool = False  # *records: one of them or a list

    @cached_property
    def record(self) -> Any:
        """The type of the record that it is, None given apart; None if it is none."""
        return next((kind for kind in get_union_members(self.kind) if is_dataclass(kind)), None)

    @cached_property
    def is_list(self) -> bool:
        """Whether it is a sequence of anything but characters."""
        return get_origin(self.kind) is Sequence

    @cached_property
    def empty_is_none(self) -> bool:
        """Whether None has to be said, because leaving the argument out says something else."""
        return self.default not in (None, REQUIRED) and NoneType in get_union_members(self.kind)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A request. `signature` is the function's without the store."""

    function: Callable[..., Any]
    signature: inspect.Signature
    method: Method
    path: str
    tag: str
    needs: RequiredPermission  # what a key must allow
    says: str  # to readers of the API
    sent: tuple[Argument, ...]
    returns: Any  # the function's, None if it returns nothing
    count: str  # the name under which a number, or whether there was one, is answered; "" if what is returned is
    batch: int  # so many items in one request, of a list that is the only argument
    patient: bool  # may take as long as it takes

    @property
    def name(self) -> str:
        """The function's."""
        return self.function.__name__

    @cached_property
    def names(self) -> frozenset[str]:
        """Of all arguments; those that are spread bear a star, as no name that is given does."""
        parameters = self.signature.parameters.values()
        return frozenset(
            f"*{parameter.name}" if parameter.kind in _VARIADIC_KINDS else parameter.name for parameter in parameters
        )

    @cached_property
    def positional(self) -> tuple[str, ...]:
        """Of the arguments that can be given by position."""
        parameters = self.signature.parameters.values()
        return tuple(parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD)

    @cached_property
    def defaults(self) -> Mapping[str, Any]:
        """Of the arguments that can be left out."""
        parameters = self.signature.parameters.values()
        return {
            parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty
        }

    @cached_property
    def listed(self) -> Argument | None:
        """The list that is the only argument, so that it can be sent in batches."""
        return self.sent[0] if len(self.sent) == 1 and self.sent[0].is_list else None

    @cached_property
    def paged(self) -> bool:
        """Whether it answers a `Page`, after which another one comes."""
        return get_origin(self.returns) is Page

    @property
    def most(self) -> int:
        """The highest `limit` of one request."""
        return MAX_PAGE_SIZE if self.paged else MAX_LIST_SIZE

    @cached_property
    def whole(self) -> Argument | None:
        """The argument that is the body, if one is."""
        return next((sent for sent in self.sent if sent.place == "body"), None)

    @cached_property
    def fields(self) -> tuple[Argument, ...]:
        """The arguments that are fields of the body."""
        return tuple(sent for sent in self.sent if sent.place == "field")

    @cached_property
    def takes(self) -> Any:
        """The type of the body; None if there is none."""
        if self.whole:
            return self.whole.kind
        fields = [(field.name, field.kind, field.default) for field in self.fields]
        return define_body(self.name.title().replace("_", ""), fields) if fields else None

    @cached_property
    def answers(self) -> Any:
        """The type of the answer: what is returned, or a count, or what was sent if nothing is returned."""
        if self.count or (self.returns is None and self.listed):
            return dict[str, int]
        return self.takes if self.returns is None else self.returns


class OperationOptions(TypedDict, total=False):
    """What a request says beside method and path.

    `wire` is {argument: (type, default)} where they travel narrower or wider than they are called, `alias` their names
    in a query string. `needs`: if it is not said, a GET needs a key that may read, others one that may write. `says`:
    else the first paragraph of the docstring, without what it raises. `count`: else a DELETE answers how many were
    "deleted", and others what is returned. `batch` and `patient`: see `Call`.
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
    """The request of a function. `request` is a method and a path: `"GET /api/things/{name:path}"`."""
    method, path = cast(tuple[Method, str], request.split())
    signature, hints = inspect.signature(function), get_type_hints(function)
    parameters = list(signature.parameters.values())[1:]
    travelling = [_wire_parameter(parameter, hints, how.get("wire", {})) for parameter in parameters]
    return Operation(
        function=function,
        signature=signature.replace(parameters=parameters),
        method=method,
        path=path,
        tag=how["tag"],
        needs=how.get("needs", "read" if method == "GET" else "write"),
        says=how.get("says") or _docstring_summary(function),
        sent=_list_arguments(travelling, method, path, how.get("alias", {}), hints["return"]),
        returns=None if hints["return"] is NoneType else hints["return"],
        count=how.get("count", "deleted" if method == "DELETE" else ""),
        batch=how.get("batch", 1),
        patient=how.get("patient", False),
    )


def _docstring_summary(function: Callable[..., Any]) -> str:
    return inspect.cleandoc(function.__doc__ or "").split("\n\n")[0].partition(" Raises ")[0]


def get_union_members(kind: Any) -> tuple[Any, ...]:
    """The types of a union; of any other type itself."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _wire_parameter(
    parameter: inspect.Parameter, hints: Mapping[str, Any], wire: Mapping[str, tuple[Any, Any]]
) -> inspect.Parameter:
    kind, default = wire.get(parameter.name, (hints[parameter.name], parameter.default))
    return parameter.replace(annotation=kind, default=default)


def _list_arguments(
    parameters: Sequence[inspect.Parameter], method: Method, path: str, alias: Mapping[str, str], returns: Any
) -> tuple[Argument, ...]:
    in_path = PATH_PLACEHOLDER.findall(path)
    spread = any(parameter.kind in _VARIADIC_KINDS for parameter in parameters)
    alone = spread or len(parameters) - len(in_path) == 1
    sent = []
    for parameter in parameters:
        place = "path" if parameter.name in in_path else _argument_place(parameter, method, alone, spread)
        kind = _body_type(parameter, returns) if place == "body" else parameter.annotation
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


def _body_type(parameter: inspect.Parameter, returns: Any) -> Any:
    kind: Any = parameter.annotation
    if parameter.kind is parameter.VAR_POSITIONAL:
        return kind | list[kind]
    return define_changes(returns) if parameter.kind is parameter.VAR_KEYWORD else kind


_VARIADIC_KINDS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


F = TypeVar("F", bound=Callable[..., Any])


class OperationSender(Protocol):
    """What a class needs so that the verbs of a table work as its methods."""

    def _ask(self, call: Operation, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        """Send a request with the arguments of the verb; what its answer says the verb returns."""


def store_operation(method: F, request: str, **how: Unpack[OperationOptions]) -> F:
    """A verb of a Protocol, by a request: `dataset = verb(ControlStore.dataset, "GET /api/datasets/{name:path}", …)`.

    `how` is what `call_of` takes. To type checkers the method is the Protocol's.
    """
    row = cache(
        partial(describe_operation, method, request, **how)
    )  # read when first needed, so that the import stays cheap

    @wraps(method)
    def asked(self: OperationSender, *args: Any, **given: Any) -> Any:
        return self._ask(row(), args, given)

    asked.row = row  # type: ignore[attr-defined]
    return cast(F, asked)


def list_operations(table: type) -> Iterator[Operation]:
    """The requests of a table's verbs, in their order."""
    return (member.row() for member in vars(table).values() if hasattr(member, "row"))
