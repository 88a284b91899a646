"""One traced call: from its arguments to its outcome. Nothing in here raises into the caller.

Two pairs: `start` and `finish` (or `fail`) are about the span alone; `enter` and `leave` also make it the current one.
`try … except` and not `ours`, for every call passes here (see `_errors.ours`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from opentelemetry import trace as otel
from opentelemetry.context.context import Context

from spanwise.tracer import _context, _errors
from spanwise.tracer import attributes as names
from spanwise.tracer._bind import Bind
from spanwise.tracer._documents import readable
from spanwise.tracer._json import cut_text, to_json
from spanwise.tracer._run import JSON_MIME, TEXT_MIME
from spanwise.tracer._runtime import Runtime, current
from spanwise.tracer._span import mark_ok


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


def start(spec: Spec, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call | None:
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


def finish(spec: Spec, call: Call, result: object) -> None:
    """Record what a call returned, and end its span."""
    try:
        try:
            if spec.outputs and call.runtime.content and call.span.is_recording():
                set_outputs(spec, call, result)
            if call.runtime.joined is not None:  # of our own spans the delivery thread sees to it
                mark_ok(call.span)
        finally:
            call.span.end()
    except Exception as error:
        _errors.note("trace", error)


@_errors.ours("trace")
def fail(call: Call, error: BaseException) -> None:
    """Record what a call raised, and end its span."""
    try:
        call.runtime.fail(call.span, error)
    finally:
        call.span.end()


def enter(spec: Spec, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call | None:
    """Start the span of a call and make it current. None if nothing is recorded."""
    call = start(spec, args, kwargs)
    if call is None:
        return None
    runtime, span, inside, _ = call
    return Call(runtime, span, inside, _context.attach(inside))  # `_replace` takes twice as long


def leave(call: Call) -> None:
    """Make current again what was before `enter`; the span stays open."""
    try:
        _context.detach(call.token)
    except Exception as error:
        _errors.note("trace", error)


def set_outputs(spec: Spec, call: Call, result: object) -> None:
    """Record outputs, unless the function has set its own."""
    if names.OUTPUT_VALUE in (getattr(call.span, "_attributes", None) or ()):
        return
    if type(result) is str:
        put_outputs(call, cut_text(result, call.runtime.limit), TEXT_MIME)
    else:
        put_outputs(call, to_json(readable(result) if spec.documents else result, call.runtime.limit), JSON_MIME)


def put_outputs(call: Call, text: str, mime: str) -> None:
    """Set the two attributes of outputs, over what was there."""
    call.span.set_attribute(names.OUTPUT_VALUE, text)
    call.span.set_attribute(names.OUTPUT_MIME, mime)
