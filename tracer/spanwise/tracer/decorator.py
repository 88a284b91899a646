"""`@trace` decorator: options, and wrappers for functions, coroutines and generator functions."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from spanwise.tracer.run_recording import (
    TraceSpec,
    build_initial_attributes,
    enter_call,
    fail_call,
    finish_call,
    leave_call,
    make_argument_binder,
    start_call,
)
from spanwise.tracer.streaming import wrap_stream
from spanwise.tracer.suggestions import OPTION_EQUIVALENTS, make_unknown_option_error

# Attribute that `trace` sets on the wrapper that it returns. Its value is this wrapper. `functools.wraps` copies the
# attribute to outer wrappers, which are recognised because the value is another object.
TRACED_MARK = "__spanwise_traced__"

P = ParamSpec("P")
R = TypeVar("R")


class Decorator(Protocol):
    """Type of the decorator that `trace(…)` returns if it is called with options."""

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]:
        """Wrap a callable so that its calls are traced."""


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
    """Record every call of a function as a span with inputs, outputs, errors and child spans.

    `kind` is one of chain, llm, retriever, tool, agent, embedding, reranker, guardrail, evaluator. The return value
    of a retriever is parsed as documents. The outputs of a generator are the list of items that it yields, or the
    result of `reduce` for that list.

    Raises `TypeError` for a class or an unknown option, and `ValueError` for an unknown kind. The behavior of the
    traced function does not change.
    """
    _check_options(options)
    if function is None:
        return functools.partial(_trace_callable, **options)
    return _trace_callable(function, **options)


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise `TypeError` for an unknown option.

    Python's own message would name `_decorate`, a function that users do not know.
    """
    known = _decorate.__kwdefaults__ or {}
    for name in options:
        if name not in known:
            raise make_unknown_option_error("@trace", name, known, OPTION_EQUIVALENTS)


def _trace_callable(function: Any, **options: Any) -> Any:
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
        hint = f"; to set the kind, write @trace(kind={function!r})" if isinstance(function, str) else ""
        raise TypeError(f"@trace takes a function, a method or an object with __call__, got {function!r}{hint}")
    target = function  # the innermost function of partials
    while isinstance(target, functools.partial):
        target = target.func
    spec = TraceSpec(
        name or str(getattr(target, "__name__", type(target).__name__)),
        build_initial_attributes(kind, tags, metadata, attributes),
        make_argument_binder(function) if capture_inputs else None,
        capture_outputs,
        kind == "retriever",
        reduce,
    )
    # the function that determines the kind of wrapper; for a callable object this is its `__call__`
    inner = target if inspect.isroutine(target) else type(target).__call__
    wrapper: Any
    if inspect.iscoroutinefunction(inner):
        wrapper = _wrap_async(function, spec)
    elif inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        wrapper = _GeneratorFunction(function, inner, spec)
    else:
        wrapper = _wrap_sync(function, spec)
    traced = functools.update_wrapper(wrapper, function)
    setattr(traced, TRACED_MARK, traced)
    return traced


def _wrap_sync(function: Callable[..., Any], spec: TraceSpec) -> Callable[..., Any]:
    def traced(*args: Any, **kwargs: Any) -> Any:
        call = enter_call(spec, args, kwargs)
        if call is None:
            return function(*args, **kwargs)
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            leave_call(call)
            fail_call(call, error)
            raise
        leave_call(call)
        if (stream := wrap_stream(spec, call, result)) is not None:
            return stream
        finish_call(spec, call, result)
        return result

    return traced


def _wrap_async(function: Callable[..., Awaitable[Any]], spec: TraceSpec) -> Callable[..., Awaitable[Any]]:
    async def traced(*args: Any, **kwargs: Any) -> Any:
        call = enter_call(spec, args, kwargs)
        if call is None:
            return await function(*args, **kwargs)
        try:
            result = await function(*args, **kwargs)
        except BaseException as error:
            leave_call(call)
            fail_call(call, error)
            raise
        leave_call(call)
        if (stream := wrap_stream(spec, call, result)) is not None:
            return stream
        finish_call(spec, call, result)
        return result

    return traced


class _GeneratorFunction:
    """Traced generator function. Its span starts with the call, in the caller's context.

    The object has the attribute `__code__` of the original function. `inspect.isgeneratorfunction` and
    `isasyncgenfunction` therefore return the same result as for the original. Frameworks use them to decide how to treat a
    handler.
    """

    def __init__(self, function: Any, inner: Any, spec: TraceSpec) -> None:
        self._function, self._spec = function, spec
        for name in ("__code__", "__defaults__", "__kwdefaults__", "__annotations__"):
            setattr(self, name, getattr(inner, name, None))

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        call = start_call(self._spec, args, kwargs)
        if call is None:
            return self._function(*args, **kwargs)
        try:
            generator = self._function(*args, **kwargs)
        except BaseException as error:  # the arguments do not match the signature
            fail_call(call, error)
            raise
        return wrap_stream(self._spec, call, generator)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> str:
        return str(self.__qualname__)  # type: ignore[attr-defined]  # pickled by name, as functions are
