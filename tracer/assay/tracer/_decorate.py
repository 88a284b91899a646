"""`@trace`: decide at decoration time what kind of callable it is, so that a call costs one span."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar, overload

from opentelemetry import trace as otel
from opentelemetry.context.context import Context

from assay.tracer import _attributes as names
from assay.tracer import _context, _errors
from assay.tracer._bind import Bind, binder
from assay.tracer._documents import readable
from assay.tracer._json import cut_text, to_json
from assay.tracer._run import JSON_MIME, TEXT_MIME, template
from assay.tracer._runtime import Runtime, current

P = ParamSpec("P")
R = TypeVar("R")


class Spec(NamedTuple):
    """What was decided at decoration time."""

    name: str
    template: dict[str, Any]
    bind: Bind | None  # None: inputs are not captured
    outputs: bool
    documents: bool


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
) -> Decorator: ...


def trace(function: Any = None, /, **options: Any) -> Any:
    """Record every call of a function as a span: inputs, outputs, errors, and what it calls in turn.

    `kind` is one of chain, llm, retriever, tool, agent, embedding, reranker, guardrail, evaluator. What a retriever
    returns is read as documents.
    """
    if function is None:
        return functools.partial(_trace, **options)
    return _trace(function, **options)


def _trace(
    function: Any, *, name: str | None = None, kind: str = "chain", capture_inputs: bool = True,
    capture_outputs: bool = True, tags: Sequence[str] = (), metadata: Mapping[str, object] | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> Any:  # fmt: skip
    if not callable(function):
        raise TypeError(f"@trace takes a callable, not {function!r}")
    spec = Spec(
        name or str(getattr(function, "__name__", type(function).__name__)),
        template(kind, tags, metadata, attributes),
        binder(function) if capture_inputs else None,
        capture_outputs,
        kind == "retriever",
    )
    wrap = _async if inspect.iscoroutinefunction(function) else _sync
    return functools.wraps(function)(wrap(function, spec))


def _sync(function: Callable[..., R], spec: Spec) -> Callable[..., R]:
    def traced(*args: Any, **kwargs: Any) -> R:
        call = begin(spec, args, kwargs)
        if call is None:
            return function(*args, **kwargs)
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            failed(call, error)
            raise
        ended(spec, call, result)
        return result

    return traced


def _async(function: Callable[..., Awaitable[R]], spec: Spec) -> Callable[..., Awaitable[R]]:
    async def traced(*args: Any, **kwargs: Any) -> R:
        call = begin(spec, args, kwargs)
        if call is None:
            return await function(*args, **kwargs)
        try:
            result = await function(*args, **kwargs)
        except BaseException as error:
            failed(call, error)
            raise
        ended(spec, call, result)
        return result

    return traced


class Call(NamedTuple):
    """One call on its way."""

    runtime: Runtime
    span: otel.Span
    token: Any
    previous: Context


def begin(spec: Spec, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call | None:
    """Start the span of a call and make it current. None if nothing is recorded."""
    try:
        runtime = current()
        if runtime.off:
            return None
        attributes = spec.template.copy()
        if spec.bind is not None and runtime.content:
            attributes[names.INPUT_VALUE] = to_json(spec.bind(args, kwargs), runtime.limit)
            attributes[names.INPUT_MIME] = JSON_MIME
        previous = _context.get_current()
        span, ctx = runtime.open(spec.name, attributes, previous)
        return Call(runtime, span, _context.attach(ctx), previous)
    except Exception as error:
        _errors.note("trace", error)
        return None


def ended(spec: Spec, call: Call, result: object) -> None:
    """End the span of a call that returned."""
    try:
        _context.detach(call.token, call.previous)
        if spec.outputs and call.runtime.content:
            _outputs(spec, call, result)
        call.span.end()
    except Exception as error:
        _errors.note("trace", error)


def _outputs(spec: Spec, call: Call, result: object) -> None:
    known = getattr(call.span, "_attributes", None)
    if known is None or names.OUTPUT_VALUE in known:
        return
    if type(result) is str:
        known[names.OUTPUT_VALUE] = cut_text(result, call.runtime.limit)
        known[names.OUTPUT_MIME] = TEXT_MIME
    else:
        known[names.OUTPUT_VALUE] = to_json(readable(result) if spec.documents else result, call.runtime.limit)
        known[names.OUTPUT_MIME] = JSON_MIME


def failed(call: Call, error: BaseException) -> None:
    """End the span of a call that raised."""
    try:
        _context.detach(call.token, call.previous)
        call.runtime.fail(call.span, error)
        call.span.end()
    except Exception as ours:
        _errors.note("trace", ours)
