"""Recording of runs: `span(…)` blocks, calls of decorated functions, the `Run` handle and feedback on a run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Token
from inspect import Parameter
from types import TracebackType
from typing import Any, Literal, NamedTuple, Never, TypeAlias

import orjson
from opentelemetry import trace as otel
from opentelemetry.context.context import Context

from spanwise.tracer import attribute_names as names
from spanwise.tracer import internal_errors
from spanwise.tracer.content.documents import convert_documents
from spanwise.tracer.content.model_calls import build_usage_attributes
from spanwise.tracer.content.serialization import to_json, truncate_text
from spanwise.tracer.export.span_encoding import FeedbackEvent
from spanwise.tracer.internal_errors import error_boundary, warn_once
from spanwise.tracer.otel import trace_context
from spanwise.tracer.otel.live_span import Clock, LiveSpan, mark_ok
from spanwise.tracer.process_runtime import Runtime, get_runtime
from spanwise.tracer.suggestions import OPTION_EQUIVALENTS, make_unknown_option_error, suggest_kind

# `Run` handle, `span(…)` blocks, `current_run()` and feedback on a run.

JSON_MIME, TEXT_MIME = "application/json", "text/plain"
_SPAN_OPTIONS = ("kind", "inputs", "tags", "metadata", "attributes")  # options of `span`


class Run:
    """Handle for one span. All methods can be called at any time, even if nothing is being traced."""

    __slots__ = ("_runtime", "_span")

    def __init__(self, span: otel.Span, runtime: Runtime) -> None:
        self._span = span
        self._runtime = runtime

    @property
    def span(self) -> otel.Span:
        """Return the underlying OpenTelemetry span."""
        return self._span

    @property
    def trace_id(self) -> str:
        """Return the trace id as 32 hex digits. Outside of a trace it is empty, and a warning is logged once."""
        return self._id("trace_id", 32)

    @property
    def span_id(self) -> str:
        """Return the span id as 16 hex digits. Outside of a trace it is empty, and a warning is logged once."""
        return self._id("span_id", 16)

    def _id(self, name: str, digits: int) -> str:
        id: int = getattr(self._span.get_span_context(), name)
        if not id and not self._runtime.off:
            warn_once("no_run", f"current_run().{name} is empty, because it was read outside of any run")
        return f"{id:0{digits}x}" if id else ""

    def set_name(self, name: str) -> None:
        """Rename the run."""
        self._span.update_name(name)

    def set_inputs(self, inputs: object) -> None:
        """Record or replace the inputs, which can be any value."""
        self._set_content(names.INPUT_VALUE, names.INPUT_MIME, inputs)

    def set_outputs(self, outputs: object) -> None:
        """Record or replace the outputs, which can be any value. They take precedence over the return value."""
        self._set_content(names.OUTPUT_VALUE, names.OUTPUT_MIME, outputs)

    def set_documents(self, documents: Sequence[object]) -> None:
        """Record the retrieved documents of a run whose outputs are something else.

        Documents are strings, dicts or document objects.
        """
        if self._runtime.content and self._span.is_recording():
            self._set_guarded(
                names.DOCUMENTS_JSON, lambda: to_json(convert_documents(list(documents)), self._runtime.limit)
            )

    def set_tags(self, *tags: str | Iterable[str]) -> None:
        """Add tags. A list, tuple or set adds each of its items."""
        known = self._get_attribute(names.TAGS) or ()
        groups = (tag if isinstance(tag, (list, tuple, set, frozenset)) else (tag,) for tag in tags)
        self._set_guarded(
            names.TAGS, lambda: tuple(dict.fromkeys((*known, *(str(tag) for group in groups for tag in group))))
        )

    def set_metadata(self, metadata: Mapping[str, object] | None = None, /, **more: object) -> None:
        """Add metadata. A new value replaces an earlier value of the same key."""
        self._set_guarded(
            names.METADATA,
            lambda: to_json(
                {**orjson.loads(self._get_attribute(names.METADATA) or "{}"), **(metadata or {}), **more},
                self._runtime.limit,
            ),
        )

    def set_model(self, model: str) -> None:
        """Record the name of the model that produced the response."""
        self._set_guarded(names.REQUEST_MODEL, lambda: str(model))

    def set_prompt(
        self,
        name: str,
        *,
        version: str | int | None = None,
        template: str | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> None:
        """Record the prompt that the run uses, such as one of a prompt registry: its name, and if known its version.

        Traces can be filtered and grouped by both. `template` is the text with placeholders, `variables` the values
        filled in for them; like inputs, they are recorded only if content is captured.
        """
        self._set_guarded(names.PROMPT_NAME, lambda: str(name))
        if version is not None:
            self._set_guarded(names.PROMPT_VERSION, lambda: str(version))
            self._set_guarded(names.PROMPT_TEMPLATE_VERSION, lambda: str(version))
        if self._runtime.content and self._span.is_recording():
            limit = self._runtime.limit
            if template is not None:
                self._set_guarded(names.PROMPT_TEMPLATE, lambda: truncate_text(str(template), limit))
            if variables is not None:
                self._set_guarded(names.PROMPT_VARIABLES, lambda: to_json(dict(variables), limit))

    def set_usage(
        self,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        *,
        cost: float | None = None,
        **details: Any,
    ) -> None:
        """Record the token counts, and the cost in US dollars, of this one model call.

        Input tokens include cached tokens, and output tokens include reasoning tokens. `details` are further counts
        such as `cache_read`. The field names of OpenAI, Anthropic and Gemini are accepted as well:
        `set_usage(**response.usage.model_dump())` records the reported usage, converted to this definition.
        """
        given: dict[str, Any] = build_usage_attributes(input_tokens, output_tokens, details)
        if cost is not None:
            given[names.COST] = cost
        self._span.set_attributes(given)

    def set_attribute(self, key: str, value: object) -> None:
        """Record any other attribute. Values that OpenTelemetry does not support are converted to JSON text."""
        with error_boundary("attribute"):
            if isinstance(value, str):
                value = str.__str__(value)  # convert a subclass of `str` to a plain string
            elif not isinstance(value, (int, float)):
                value = to_json(value, self._runtime.limit)
            self._span.set_attribute(key, value)

    def record_exception(self, error: BaseException) -> None:
        """Record an exception that the run has handled. The status of the run does not change."""
        self._span.record_exception(error)

    def feedback(
        self,
        key: str,
        value: float | bool | str | None = None,
        *,
        comment: str | None = None,
        label: str | None = None,
        source: Literal["code", "model", "human"] = "code",
        author: str | None = None,
        metadata: Mapping[str, object] | None = None,
        outcome: Literal["score", "error", "skip"] = "score",
        error: str | None = None,
        evaluator: str | None = None,
        version: str | None = None,
    ) -> None:
        """Attach feedback to this run. A number or bool is a score, a string is a label.

        Feedback of an evaluator names it with its version. Its outcome "error" comes with the error's message, and
        "skip" with the reason as comment.
        """
        with error_boundary("feedback"):
            context = self._span.get_span_context()
            if not context.is_valid:
                return
            attributes = build_feedback_attributes(
                key, value, comment, label, source, author, metadata, limit=self._runtime.limit
            )
            given = {
                names.FEEDBACK_OUTCOME: None if outcome == "score" else outcome,
                names.FEEDBACK_ERROR: error,
                names.FEEDBACK_EVALUATOR: evaluator,
                names.FEEDBACK_VERSION: version,
            }
            attributes |= {name: text for name, text in given.items() if text is not None}
            resource = self._runtime.resource.attributes
            event = FeedbackEvent(context.trace_id, context.span_id, Clock.now(), attributes, resource)
            captured = self._runtime.spans.captures.get(event.trace_id)
            undecided = self._span.local.undecided if isinstance(self._span, LiveSpan) else None
            if captured is not None:
                captured.add_feedback(event)
            else:
                (self._runtime.delivery if undecided is None else undecided).put(event)

    def _set_content(self, key: str, mime: str, value: object) -> None:
        if self._runtime.content and self._span.is_recording():
            is_text = type(value) is str
            limit = self._runtime.limit
            self._set_guarded(key, lambda: truncate_text(value, limit) if is_text else to_json(value, limit))  # type: ignore[arg-type]
            self._span.set_attribute(mime, TEXT_MIME if is_text else JSON_MIME)

    def _get_attribute(self, key: str) -> Any:
        return (getattr(self._span, "attributes", None) or {}).get(key)

    @error_boundary("attribute")
    def _set_guarded(self, key: str, make: Any) -> None:
        self._span.set_attribute(key, make())


def current_run() -> Run:
    """Return the handle of the current run. Outside of any run, methods of the handle do nothing."""
    own = trace_context.find_parent(trace_context.get_current())
    runtime = get_runtime()
    if isinstance(own, LiveSpan):
        return Run(own, runtime)
    return Run(otel.get_current_span() if runtime.joined else otel.INVALID_SPAN, runtime)


class span:
    """Context manager that opens a span around a block: `with span("name", kind="tool") as run:` (or `async with`).

    `kind` is one of chain, llm, retriever, tool, agent, embedding, reranker, guardrail, evaluator. Raises `TypeError`
    for an unknown option, and `ValueError` for an unknown kind.
    """

    __slots__ = ("_inputs", "_name", "_run", "_template", "_token")

    def __init__(
        self,
        name: str,
        *,
        kind: str = "chain",
        inputs: object = None,
        tags: Sequence[str] = (),
        metadata: Mapping[str, object] | None = None,
        attributes: Mapping[str, Any] | None = None,
        **others: Never,
    ) -> None:
        if others:
            raise make_unknown_option_error("span()", next(iter(others)), _SPAN_OPTIONS, OPTION_EQUIVALENTS)
        self._name = name
        self._inputs = inputs
        self._template = build_initial_attributes(kind, tags, metadata, attributes)

    def __enter__(self) -> Run:
        runtime = get_runtime()
        self._token: Token[Context] | None = None
        self._run = Run(otel.INVALID_SPAN, runtime)
        if not runtime.off:
            with error_boundary("span"):
                opened, ctx = runtime.open(self._name, dict(self._template), trace_context.get_current())
                self._run = Run(opened, runtime)
                if self._inputs is not None:
                    self._run.set_inputs(self._inputs)
                self._token = trace_context.attach(ctx)
        return self._run

    @error_boundary("span")
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._token is not None:
            trace_context.detach(self._token)
            if error is not None:
                self._run._runtime.fail(self._run.span, error)
            elif self._run._runtime.joined is not None:
                mark_ok(self._run.span)
            self._run.span.end()

    async def __aenter__(self) -> Run:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, tb)


def build_initial_attributes(
    kind: str, tags: Sequence[str], metadata: Mapping[str, object] | None, attributes: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the attributes that every span of one decorator or block starts with.

    Raises `ValueError` for an unknown kind.
    """
    if kind not in names.KINDS:
        raise ValueError(f"kind must be one of {', '.join(names.KINDS)}, got {kind!r}{suggest_kind(kind)}")
    fixed: dict[str, Any] = {**(attributes or {}), names.KIND: kind.upper()}
    if tags:
        fixed[names.TAGS] = (tags,) if isinstance(tags, str) else tuple(map(str, tags))
    if metadata:
        fixed[names.METADATA] = to_json(dict(metadata), 1 << 20)
    return fixed


_HEX_ID = re.compile(r"(?=.*[1-9a-f])[0-9a-f]+")  # OpenTelemetry uses all zeros for an invalid id


def feedback(
    trace_id: str,
    key: str,
    value: float | bool | str | None = None,
    *,
    span_id: str | None = None,
    comment: str | None = None,
    label: str | None = None,
    source: Literal["code", "model", "human"] = "human",
    author: str | None = None,
    metadata: Mapping[str, object] | None = None,
) -> None:
    """Attach feedback to a trace, or to one of its spans, by id. A number or bool is a score, a string is a label.

    Use it for feedback that arrives later or in another process. The id is the value of `current_run().trace_id`.
    Feedback is delivered like spans, through the queue and the spool. Raises `ValueError` for an invalid id.
    """
    trace, span = _parse_id("trace_id", trace_id, 32), 0 if span_id is None else _parse_id("span_id", span_id, 16)
    with error_boundary("feedback"):
        runtime = get_runtime()
        if not runtime.off:
            attributes = build_feedback_attributes(
                key, value, comment, label, source, author, metadata, limit=runtime.limit
            )
            if not span:
                attributes[names.FEEDBACK_SCOPE] = "trace"
            runtime.delivery.put(FeedbackEvent(trace, span, Clock.now(), attributes, runtime.resource.attributes))


def build_feedback_attributes(
    key: str, value: Any, comment: Any, label: Any, source: str, author: Any, metadata: Any, *, limit: int
) -> dict[str, Any]:
    """Return the attributes of a feedback event."""
    is_label = isinstance(value, str)
    attributes = {
        names.EVALUATION_NAME: str(key),
        names.EVALUATION_SCORE: None if is_label or value is None else float(value),
        names.EVALUATION_LABEL: value if is_label else label,
        names.EVALUATION_EXPLANATION: comment,
        names.FEEDBACK_BOOLEAN: True if isinstance(value, bool) else None,
        names.FEEDBACK_SOURCE: source,
        names.FEEDBACK_AUTHOR: author,
        names.FEEDBACK_METADATA: to_json(metadata, limit) if metadata else None,
    }
    return {name: given for name, given in attributes.items() if given is not None}


def _parse_id(name: str, given: object, digits: int) -> int:
    text = str(given).replace("-", "").lower()  # an id may be written as a UUID
    if len(text) != digits or not _HEX_ID.fullmatch(text):
        remedy = f"use current_run().{name} inside the run, or .{name} of a streamed result"
        raise ValueError(f"{name} must be {digits} hex digits that are not all zeros, got {given!r}; {remedy}")
    return int(text, 16)


# Recording of one call: argument binding, inputs, outputs or error, start and end of its span.
#
# `start_call`, `finish_call` and `fail_call` handle the span alone. `enter_call` and `leave_call` also change the
# current span. The functions run for every traced call and therefore use `try … except` instead of the slower
# `error_boundary`.


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
