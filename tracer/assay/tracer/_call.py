"""One traced call: from its arguments to its outcome. Nothing in here raises into the caller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from opentelemetry import trace as otel
from opentelemetry.context.context import Context

from assay.tracer import _context, _errors
from assay.tracer import attributes as names
from assay.tracer._bind import Bind
from assay.tracer._documents import readable
from assay.tracer._json import cut_text, to_json
from assay.tracer._run import JSON_MIME, TEXT_MIME
from assay.tracer._runtime import Runtime, current


class Spec(NamedTuple):
    """What was decided at decoration time."""

    name: str
    template: dict[str, Any]
    bind: Bind | None  # None: inputs are not captured
    outputs: bool
    documents: bool
    reduce: Callable[[list[Any]], Any] | None


class Call(NamedTuple):
    """A call whose span is open; `inside` is the context in which it is current, `token` gives back the one before."""

    runtime: Runtime
    span: otel.Span
    inside: Context
    token: Any = None


def opened(spec: Spec, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call | None:
    """Start the span of a call. None if nothing is recorded."""
    try:
        runtime = current()
        if runtime.off:
            return None
        attributes = spec.template.copy()
        if spec.bind is not None and runtime.content and not runtime.may_skip:
            attributes[names.INPUT_VALUE] = to_json(spec.bind(args, kwargs), runtime.limit)
            attributes[names.INPUT_MIME] = JSON_MIME
        span, inside = runtime.open(spec.name, attributes, _context.get_current())
        if runtime.may_skip and spec.bind is not None and runtime.content and span.is_recording():
            span.set_attribute(names.INPUT_VALUE, to_json(spec.bind(args, kwargs), runtime.limit))
            span.set_attribute(names.INPUT_MIME, JSON_MIME)
        return Call(runtime, span, inside)
    except Exception as error:
        _errors.note("trace", error)
        return None


def begin(spec: Spec, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call | None:
    """Start the span of a call and make it current. None if nothing is recorded."""
    call = opened(spec, args, kwargs)
    return call and call._replace(token=_context.attach(call.inside))


def ended(spec: Spec, call: Call, result: object) -> None:
    """End the span of a call that returned."""
    try:
        _context.detach(call.token)
        finish(spec, call, result)
    except Exception as error:
        _errors.note("trace", error)


def failed(call: Call, error: BaseException) -> None:
    """End the span of a call that raised."""
    try:
        _context.detach(call.token)
        fail(call, error)
    except Exception as ours:
        _errors.note("trace", ours)


def finish(spec: Spec, call: Call, result: object) -> None:
    """Record what came out and end the span; the context is given back already."""
    try:
        if spec.outputs and call.runtime.content and call.span.is_recording():
            outputs(spec, call, result)
    finally:
        call.span.end()


def fail(call: Call, error: BaseException) -> None:
    """Record what was raised and end the span."""
    try:
        call.runtime.fail(call.span, error)
    finally:
        call.span.end()


def outputs(spec: Spec, call: Call, result: object) -> None:
    """Record outputs, unless the function has set its own."""
    if names.OUTPUT_VALUE in (getattr(call.span, "_attributes", None) or ()):
        return
    if type(result) is str:
        put_outputs(call, cut_text(result, call.runtime.limit), TEXT_MIME)
    else:
        put_outputs(call, to_json(readable(result) if spec.documents else result, call.runtime.limit), JSON_MIME)


def put_outputs(call: Call, text: str, mime: str) -> None:
    """Set the two attributes of outputs."""
    call.span.set_attribute(names.OUTPUT_VALUE, text)
    call.span.set_attribute(names.OUTPUT_MIME, mime)
