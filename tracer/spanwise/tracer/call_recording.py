"""Recording of one call: argument binding, inputs, outputs or error, start and end of its span.

`start_call`, `finish_call` and `fail_call` handle the span alone. `enter_call` and `leave_call` also change the
current span. The functions run for every traced call and therefore use `try … except` instead of the slower
`error_boundary`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any, NamedTuple, TypeAlias

from opentelemetry import trace as otel
from opentelemetry.context.context import Context

from spanwise.tracer import attribute_names as names
from spanwise.tracer import internal_errors
from spanwise.tracer.content.documents import convert_documents
from spanwise.tracer.content.serialization import to_json, truncate_text
from spanwise.tracer.otel import trace_context
from spanwise.tracer.otel.live_span import mark_ok
from spanwise.tracer.process_runtime import Runtime, get_runtime
from spanwise.tracer.run_handle import JSON_MIME, TEXT_MIME


class TraceSpec(NamedTuple):
    """Options of a traced function, resolved when the function is decorated."""

    name: str
    template: dict[str, Any]
    bind: ArgumentBinder | None  # None: inputs are not captured
    outputs: bool
    documents: bool
    reduce: Callable[[list[Any]], Any] | None


class TracedCall(NamedTuple):
    """Call with an open span.

    `inside` is the context in which the span is current; `token` restores the previous context.
    """

    runtime: Runtime
    span: otel.Span
    inside: Context
    token: Any = None


def start_call(spec: TraceSpec, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TracedCall | None:
    """Start the span of a call. Return None if nothing is recorded."""
    try:
        runtime = get_runtime()
        if runtime.off:
            return None
        attributes = spec.template.copy()
        if spec.bind is not None and runtime.content and not runtime.may_skip:
            attributes[names.INPUT_VALUE] = to_json(spec.bind(args, kwargs), runtime.limit)
            attributes[names.INPUT_MIME] = JSON_MIME
        span, inside = runtime.open(spec.name, attributes, trace_context.get_current())
        if runtime.may_skip and spec.bind is not None and runtime.content and span.is_recording():
            span.set_attribute(names.INPUT_VALUE, to_json(spec.bind(args, kwargs), runtime.limit))
            span.set_attribute(names.INPUT_MIME, JSON_MIME)
        return TracedCall(runtime, span, inside)
    except Exception as error:
        internal_errors.record_error("trace", error)
        return None


def finish_call(spec: TraceSpec, call: TracedCall, result: object) -> None:
    """Record the return value of a call and end its span."""
    try:
        try:
            if spec.outputs and call.runtime.content and call.span.is_recording():
                record_outputs(spec, call, result)
            # only for a joined provider: the delivery thread sets the status of Spanwise's own spans
            if call.runtime.joined is not None:
                mark_ok(call.span)
        finally:
            call.span.end()
    except Exception as error:
        internal_errors.record_error("trace", error)


@internal_errors.error_boundary("trace")
def fail_call(call: TracedCall, error: BaseException) -> None:
    """Record the exception that a call raised and end its span."""
    try:
        call.runtime.fail(call.span, error)
    finally:
        call.span.end()


def enter_call(spec: TraceSpec, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TracedCall | None:
    """Start the span of a call and make it current. Return None if nothing is recorded."""
    call = start_call(spec, args, kwargs)
    if call is None:
        return None
    runtime, span, inside, _ = call
    return TracedCall(runtime, span, inside, trace_context.attach(inside))  # `_replace` takes twice as long


def leave_call(call: TracedCall) -> None:
    """Restore the context that was current before `enter_call`. The span stays open."""
    try:
        trace_context.detach(call.token)
    except Exception as error:
        internal_errors.record_error("trace", error)


def record_outputs(spec: TraceSpec, call: TracedCall, result: object) -> None:
    """Record a return value as outputs, unless the function has set outputs itself."""
    if names.OUTPUT_VALUE in (getattr(call.span, "_attributes", None) or ()):
        return
    if type(result) is str:
        set_output_attributes(call, truncate_text(result, call.runtime.limit), TEXT_MIME)
    else:
        set_output_attributes(
            call, to_json(convert_documents(result) if spec.documents else result, call.runtime.limit), JSON_MIME
        )


def set_output_attributes(call: TracedCall, text: str, mime: str) -> None:
    """Set the attributes for the outputs and their MIME type. Earlier values are replaced."""
    call.span.set_attribute(names.OUTPUT_VALUE, text)
    call.span.set_attribute(names.OUTPUT_MIME, mime)


ArgumentBinder: TypeAlias = Callable[[tuple[Any, ...], Mapping[str, Any]], dict[str, Any]]

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def make_argument_binder(function: Callable[..., Any]) -> ArgumentBinder:
    """Return a function that converts `(args, kwargs)` of a call to `{parameter: value}`.

    The result includes default values and omits a leading `self` or `cls`. Arguments that do not match the signature
    are recorded as well, although the call itself will raise: positional arguments under `args`, keyword arguments
    under their names.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some builtins have no signature
        return _bind_unmatched
    skip = int(bool(parameters) and parameters[0].kind in _POSITIONAL and parameters[0].name in ("self", "cls"))
    return _make_signature_binder(parameters[skip:], skip)


def _bind_unmatched(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {"args": args, **kwargs} if args else dict(kwargs)


def _make_signature_binder(parameters: list[Parameter], skip: int) -> ArgumentBinder:
    positional = tuple(p.name for p in parameters if p.kind in _POSITIONAL)
    var_positional = next((p.name for p in parameters if p.kind is Parameter.VAR_POSITIONAL), None)
    var_keyword = next((p.name for p in parameters if p.kind is Parameter.VAR_KEYWORD), None)
    defaults = {p.name: p.default for p in parameters if p.default is not Parameter.empty}
    keywords = {p.name for p in parameters if p.kind is not Parameter.POSITIONAL_ONLY} - {var_positional, var_keyword}
    order = [p.name for p in parameters]
    exact_count = len(positional) + skip if len(order) == len(positional) else -1

    def bind(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if len(args) == exact_count and not kwargs:
            return dict(zip(positional, args[skip:] if skip else args, strict=True))
        positional_args = args[skip:]
        values = {**defaults, **dict(zip(positional, positional_args, strict=False))}
        if var_positional is not None:
            values[var_positional] = positional_args[len(positional) :]
        unknown = {k: v for k, v in kwargs.items() if k not in keywords}
        values.update((k, v) for k, v in kwargs.items() if k in keywords)
        if var_keyword is not None:
            values[var_keyword] = unknown
        elif unknown or (var_positional is None and len(positional_args) > len(positional)):
            return _bind_unmatched(positional_args, kwargs)
        return {name: values[name] for name in order if name in values}

    return bind
