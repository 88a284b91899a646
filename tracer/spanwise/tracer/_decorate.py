"""`@trace`: decide at decoration time what kind of callable it is, so that a call costs one span."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from spanwise.tracer._bind import binder
from spanwise.tracer._call import Call, Spec, enter, fail, finish, leave, start
from spanwise.tracer._elsewhere import OPTIONS
from spanwise.tracer._run import template
from spanwise.tracer._streams import follow
from spanwise.tracer.hints import no_option

# Attribute of what `trace` returns, which is its value too: `functools.wraps` gives it to wrappers, who are another
MARK = "__spanwise_traced__"

P = ParamSpec("P")
R = TypeVar("R")


class Decorator(Protocol):
    """What `trace(…)` with options returns."""

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]:
        """Trace a callable."""


@overload
def trace(function: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def trace(
    *,
    name: str | None = None,
    kind: str = "chain",
    capture_inputs: bool = True,
    capture_outputs: bool = True,
    tags: Sequence[str] = (),
    metadata: Mapping[str, object] | None = None,
    attributes: Mapping[str, Any] | None = None,
    reduce: Callable[[list[Any]], Any] | None = None,
) -> Decorator: ...


def trace(function: Any = None, /, **options: Any) -> Any:
    """Record every call of a function as a span: inputs, outputs, errors, and what it calls in turn.

    `kind` is one of chain, llm, retriever, tool, agent, embedding, reranker, guardrail, evaluator. What a retriever
    returns is read as documents. A generator's outputs are what it yields, or what `reduce` makes of the list of it.
    Raises `TypeError` for a class or an unknown option, `ValueError` for an unknown kind; the traced function itself
    behaves as before.
    """
    _check(options)
    if function is None:
        return functools.partial(_trace, **options)
    return _trace(function, **options)


def _check(options: Mapping[str, Any]) -> None:
    """Options are `_decorate`'s, but that name would tell people nothing."""
    known = _decorate.__kwdefaults__ or {}
    for name in options:
        if name not in known:
            raise no_option("@trace", name, known, OPTIONS)


def _trace(function: Any, **options: Any) -> Any:
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(_decorate(function.__func__, **options))
    return _decorate(function, **options)


def _decorate(
    function: Any,
    *,
    name: str | None = None,
    kind: str = "chain",
    capture_inputs: bool = True,
    capture_outputs: bool = True,
    tags: Sequence[str] = (),
    metadata: Mapping[str, object] | None = None,
    attributes: Mapping[str, Any] | None = None,
    reduce: Callable[[list[Any]], Any] | None = None,
) -> Any:
    if not callable(function) or inspect.isclass(function):
        hint = f"; a kind is named: @trace(kind={function!r})" if isinstance(function, str) else ""
        raise TypeError(f"@trace takes a function, a method or an object with __call__, not {function!r}{hint}")
    spec = Spec(
        name or _name(function),
        template(kind, tags, metadata, attributes),
        binder(function) if capture_inputs else None,
        capture_outputs,
        kind == "retriever",
        reduce,
    )
    traced = functools.update_wrapper(_wrapper(function, spec), function)
    setattr(traced, MARK, traced)
    return traced


def _name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _wrapper(function: Any, spec: Spec) -> Any:
    """The wrapper for the kind of callable that it is."""
    inner = _innermost(function)
    if inspect.iscoroutinefunction(inner):
        return _async(function, spec)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        return _StreamFunction(function, inner, spec)
    return _sync(function, spec)


def _innermost(function: Any) -> Any:
    """What decides the kind: the function behind partials, and the `__call__` of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _sync(function: Callable[..., Any], spec: Spec) -> Callable[..., Any]:
    def traced(*args: Any, **kwargs: Any) -> Any:
        call = enter(spec, args, kwargs)
        if call is None:
            return function(*args, **kwargs)
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            leave(call)
            fail(call, error)
            raise
        leave(call)
        if (stream := follow(spec, call, result)) is not None:
            return stream
        finish(spec, call, result)
        return result

    return traced


def _async(function: Callable[..., Awaitable[Any]], spec: Spec) -> Callable[..., Awaitable[Any]]:
    async def traced(*args: Any, **kwargs: Any) -> Any:
        call = enter(spec, args, kwargs)
        if call is None:
            return await function(*args, **kwargs)
        try:
            result = await function(*args, **kwargs)
        except BaseException as error:
            leave(call)
            fail(call, error)
            raise
        leave(call)
        if (stream := follow(spec, call, result)) is not None:
            return stream
        finish(spec, call, result)
        return result

    return traced


class _StreamFunction:
    """A traced generator function: its span starts with the call, in the caller's context.

    It shows the original's code object, so that `inspect.isgeneratorfunction` and `isasyncgenfunction` stay true
    (frameworks decide by them how to treat a handler).
    """

    def __init__(self, function: Any, inner: Any, spec: Spec) -> None:
        self._function, self._spec = function, spec
        for name in ("__code__", "__defaults__", "__kwdefaults__", "__annotations__"):
            setattr(self, name, getattr(inner, name, None))

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        call = start(self._spec, args, kwargs)
        if call is None:
            return self._function(*args, **kwargs)
        return follow(self._spec, call, self._made(call, args, kwargs))

    def _made(self, call: Call, args: Any, kwargs: Any) -> Any:
        try:
            return self._function(*args, **kwargs)
        except BaseException as error:  # the arguments do not fit
            fail(call, error)
            raise

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> str:
        return str(self.__qualname__)  # type: ignore[attr-defined]  # pickled by name, as functions are
