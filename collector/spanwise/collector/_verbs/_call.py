"""A request of the API, read off a function's signature: which argument travels where, and what comes back.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cached_property
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    Required,
    TypedDict,
    Union,
    Unpack,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from spanwise.collector._verbs._forms import REQUIRED, change_of, form
from spanwise.collector.filters import Filter
from spanwise.collector.records import Page

Method = Literal["GET", "POST", "PATCH", "DELETE"]
Needs = Literal["open", "read", "write", "ingest", "feedback", "admin"]
Place = Literal["path", "query", "filter", "conditions", "field", "body"]
PAGE, LONGEST = 1000, 10_000  # items of one page, and of a list that has no pages
PLACEHOLDER = re.compile(r"{(\w+)(?::path)?}")


@dataclass(frozen=True)
class Sent:
    """One argument as it travels: `kind` is its type there, `alias` its name in a query string."""

    name: str
    place: Place
    kind: Any
    default: Any
    alias: str
    many: bool = False  # *records: one of them or a list

    @cached_property
    def record(self) -> Any:
        """The type of the record that it is, None given apart; None if it is none."""
        return next((kind for kind in kinds(self.kind) if is_dataclass(kind)), None)

    @cached_property
    def is_list(self) -> bool:
        """Whether it is a sequence of anything but characters."""
        return get_origin(self.kind) is Sequence

    @cached_property
    def empty_is_none(self) -> bool:
        """Whether None has to be said, because leaving the argument out says something else."""
        return self.default not in (None, REQUIRED) and NoneType in kinds(self.kind)


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request. `signature` is the function's without the store."""

    function: Callable[..., Any]
    signature: inspect.Signature
    method: Method
    path: str
    tag: str
    needs: Needs  # what a key must allow
    says: str  # to readers of the API
    sent: tuple[Sent, ...]
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
            f"*{parameter.name}" if parameter.kind in _SPREAD else parameter.name for parameter in parameters
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
    def listed(self) -> Sent | None:
        """The list that is the only argument, so that it can be sent in batches."""
        return self.sent[0] if len(self.sent) == 1 and self.sent[0].is_list else None

    @cached_property
    def paged(self) -> bool:
        """Whether it answers a `Page`, after which another one comes."""
        return get_origin(self.returns) is Page

    @property
    def most(self) -> int:
        """The highest `limit` of one request."""
        return PAGE if self.paged else LONGEST

    @cached_property
    def whole(self) -> Sent | None:
        """The argument that is the body, if one is."""
        return next((sent for sent in self.sent if sent.place == "body"), None)

    @cached_property
    def fields(self) -> tuple[Sent, ...]:
        """The arguments that are fields of the body."""
        return tuple(sent for sent in self.sent if sent.place == "field")

    @cached_property
    def takes(self) -> Any:
        """The type of the body; None if there is none."""
        if self.whole:
            return self.whole.kind
        fields = [(field.name, field.kind, field.default) for field in self.fields]
        return form(self.name.title().replace("_", ""), fields) if fields else None

    @cached_property
    def answers(self) -> Any:
        """The type of the answer: what is returned, or a count, or what was sent if nothing is returned."""
        if self.count or (self.returns is None and self.listed):
            return dict[str, int]
        return self.takes if self.returns is None else self.returns


class How(TypedDict, total=False):
    """What a request says beside method and path.

    `wire` is {argument: (type, default)} where they travel narrower or wider than they are called, `alias` their names
    in a query string. `needs`: if it is not said, a GET needs a key that may read, others one that may write. `says`:
    else the first paragraph of the docstring, without what it raises. `count`: else a DELETE answers how many were
    "deleted", and others what is returned. `batch` and `patient`: see `Call`.
    """

    tag: Required[str]
    needs: Needs
    says: str
    wire: Mapping[str, tuple[Any, Any]]
    alias: Mapping[str, str]
    count: str
    batch: int
    patient: bool


def call_of(function: Callable[..., Any], request: str, **how: Unpack[How]) -> Call:
    """The request of a function. `request` is a method and a path: `"GET /api/things/{name:path}"`."""
    method, path = cast(tuple[Method, str], request.split())
    signature, hints = inspect.signature(function), get_type_hints(function)
    parameters = list(signature.parameters.values())[1:]
    travelling = [_travelling(parameter, hints, how.get("wire", {})) for parameter in parameters]
    return Call(
        function=function,
        signature=signature.replace(parameters=parameters),
        method=method,
        path=path,
        tag=how["tag"],
        needs=how.get("needs", "read" if method == "GET" else "write"),
        says=how.get("says") or _said(function),
        sent=_sent(travelling, method, path, how.get("alias", {}), hints["return"]),
        returns=None if hints["return"] is NoneType else hints["return"],
        count=how.get("count", "deleted" if method == "DELETE" else ""),
        batch=how.get("batch", 1),
        patient=how.get("patient", False),
    )


def _said(function: Callable[..., Any]) -> str:
    return inspect.cleandoc(function.__doc__ or "").split("\n\n")[0].partition(" Raises ")[0]


def kinds(kind: Any) -> tuple[Any, ...]:
    """The types of a union; of any other type itself."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _travelling(
    parameter: inspect.Parameter, hints: Mapping[str, Any], wire: Mapping[str, tuple[Any, Any]]
) -> inspect.Parameter:
    kind, default = wire.get(parameter.name, (hints[parameter.name], parameter.default))
    return parameter.replace(annotation=kind, default=default)


def _sent(
    parameters: Sequence[inspect.Parameter], method: Method, path: str, alias: Mapping[str, str], returns: Any
) -> tuple[Sent, ...]:
    in_path = PLACEHOLDER.findall(path)
    spread = any(parameter.kind in _SPREAD for parameter in parameters)
    alone = spread or len(parameters) - len(in_path) == 1
    sent = []
    for parameter in parameters:
        place = "path" if parameter.name in in_path else _place(parameter, method, alone, spread)
        kind = _body(parameter, returns) if place == "body" else parameter.annotation
        default = REQUIRED if parameter.default is parameter.empty else parameter.default
        name = alias.get(parameter.name, parameter.name)
        sent.append(Sent(parameter.name, place, kind, default, name, parameter.kind is parameter.VAR_POSITIONAL))
    return tuple(sent)


def _place(parameter: inspect.Parameter, method: Method, alone: bool, spread: bool) -> Place:
    if method in ("GET", "DELETE"):
        if parameter.kind in _SPREAD:
            return "conditions"
        return "filter" if Filter in kinds(parameter.annotation) else "query"
    if spread and parameter.kind not in _SPREAD:
        return "query"
    whole = parameter.kind in _SPREAD or not all(map(_is_scalar, kinds(parameter.annotation)))
    return "body" if alone and whole else "field"


def _is_scalar(kind: Any) -> bool:
    return kind in (str, int, float, bool, NoneType) or get_origin(kind) is Literal


def _body(parameter: inspect.Parameter, returns: Any) -> Any:
    kind: Any = parameter.annotation
    if parameter.kind is parameter.VAR_POSITIONAL:
        return kind | list[kind]
    return change_of(returns) if parameter.kind is parameter.VAR_KEYWORD else kind


_SPREAD = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
