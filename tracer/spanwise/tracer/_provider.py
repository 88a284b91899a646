"""Our own TracerProvider: third-party instrumentations that are given it make spans of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from weakref import WeakValueDictionary

from opentelemetry import baggage
from opentelemetry import trace as otel
from opentelemetry.context.context import Context
from opentelemetry.sdk import trace as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind

from spanwise.tracer import _context, _sampling
from spanwise.tracer import attributes as names
from spanwise.tracer._context import AMBIENT_KEY, ORIGIN_KEY, OTEL_KEY, OWN_KEY, Remote, from_baggage
from spanwise.tracer._encode import FeedbackEvent
from spanwise.tracer._errors import ours
from spanwise.tracer._span import Clock, LiveSpan, Local, new_local, open_local
from spanwise.tracer._undecided import Outlet, Undecided

Sink = Callable[[ReadableSpan], None]


class CaptureSink(Protocol):
    """Where the spans and feedback of a captured trace go."""

    def add_span(self, span: ReadableSpan) -> None:
        """Keep an ended span."""

    def add_feedback(self, event: FeedbackEvent) -> None:
        """Keep a feedback."""


class Spans:
    """Starts spans: decides whose child each one is, and where it goes when it ends."""

    def __init__(self, outlet: Outlet, resource: Resource, sample_rate: float, off: bool = False) -> None:
        self.lead_to(outlet)
        self.resource = resource
        self._threshold = _sampling.threshold(sample_rate)
        self._ot = _sampling.member(self._threshold)
        self.off = off  # instrumentations that hold our provider get spans that record nothing
        self.extra: list[SpanProcessor] = []  # a user's own processors
        self.captures: WeakValueDictionary[int, CaptureSink] = WeakValueDictionary()  # by trace id

    def lead_to(self, outlet: Outlet) -> None:
        """Say where spans go that end."""
        self._outlet, self.sink = outlet, outlet.put

    def start(
        self,
        name: str,
        attributes: dict[str, Any],
        scope: InstrumentationScope,
        ctx: Context,
        start_time: int | None = None,
    ) -> LiveSpan:
        """Start a span as a child of the nearest span of ours in the context. `attributes` becomes the span's own.

        If that span has ended with its trace and `ctx` is the current context, `_context.live` replaces the context.
        A context that the caller chose itself is taken as it is.
        """
        parent = ctx.get(OTEL_KEY)
        is_open = type(parent) is LiveSpan and parent._end_time is None and parent.local.epoch == Clock.epoch
        if not is_open and (parent is not None or OWN_KEY in ctx) and ctx is _context.get_current():
            ctx = _context.live()
        given = ctx.get(AMBIENT_KEY)
        if given is not None:
            attributes = merged(given, attributes)
        if is_open:
            return self._child(parent, name, attributes, scope, start_time)  # type: ignore[arg-type]
        return self._start(name, attributes, scope, ctx, start_time)

    def _start(
        self, name: str, attributes: dict[str, Any], scope: InstrumentationScope, ctx: Context, start_time: int | None
    ) -> LiveSpan:
        if OTEL_KEY not in ctx and OWN_KEY not in ctx:  # nobody's, as most are
            return self._local_root(name, attributes, scope, ctx, start_time, None, None)
        parent = _context.parent(ctx)
        if isinstance(parent, LiveSpan) and parent.local.epoch == Clock.epoch:
            span = self._child(parent, name, attributes, scope, start_time)
            span.hidden = parent.hidden
            return span
        if isinstance(parent, LiveSpan):  # of the process that forked us
            parent = Remote(parent.local.trace_id, parent.span_id, parent.local.sampled, parent.local.ot)
        return self._local_root(name, attributes, scope, ctx, start_time, parent, _context.foreign(ctx))

    def _child(
        self,
        parent: LiveSpan,
        name: str,
        attributes: dict[str, Any],
        scope: InstrumentationScope,
        start_time: int | None,
    ) -> LiveSpan:
        parent.has_children = True
        if parent.ambient is None:
            return LiveSpan(name, parent.local, parent.span_id, attributes, scope, start_time)
        span = LiveSpan(name, parent.local, parent.span_id, merged(parent.ambient, attributes), scope, start_time)
        span.ambient = parent.ambient
        return span

    def _local_root(
        self,
        name: str,
        attributes: dict[str, Any],
        scope: InstrumentationScope,
        ctx: Context,
        start_time: int | None,
        remote: Remote | None,
        foreign: SpanContext | None,
    ) -> LiveSpan:
        trace_id = remote.trace_id if remote else Clock.bits(128) or 1
        hidden = foreign is not None or _foreign_provider(self)
        local = open_local(trace_id) if remote else None
        if local is None:
            local = self._local(trace_id, remote, foreign)
        given = from_baggage(baggage.get_all(ctx)) if remote else None
        if given and ctx is _context.get_current():  # an instrumentation has extracted it
            _context.attach(_context.with_private_baggage(ctx))
        if remote and remote.marked:
            given = {**(given or {}), names.MONITOR: True}
        if given:
            attributes = merged(given, attributes)
        span = LiveSpan(name, local, remote.span_id if remote else 0, attributes, scope, start_time)
        span.hidden = hidden
        span.parent_remote, span.ambient = remote is not None, given or None
        if foreign is not None and not (remote and foreign.trace_id == trace_id):
            _note_foreign(span, foreign)
        if remote is None and (origin := ctx.get(ORIGIN_KEY)) is not None:
            span.add_link(origin)  # type: ignore[arg-type]
        return span

    def _local(self, trace_id: int, remote: Remote | None, foreign: SpanContext | None) -> Local:
        """Begin this process's part of a trace."""
        captured = self.captures.get(trace_id) if remote is not None else None
        if captured is not None:
            return new_local(trace_id, captured.add_span, self.resource)
        sampled, ot = True, _sampling.ALWAYS
        if self._threshold or remote is not None or foreign is not None:
            sampled, ot = self._sampled(trace_id, remote, foreign)
        local = new_local(trace_id, self._ended if self.extra else self.sink, self.resource, sampled, ot)
        if sampled:
            local.account = self._outlet.account
            self._outlet.begin()
        else:
            local.undecided = undecided = Undecided(self._outlet)
            local.sink = undecided.put if not self.extra else lambda span: self._ended(span, undecided.put)
        return local

    def _sampled(self, trace_id: int, remote: Remote | None, foreign: SpanContext | None) -> tuple[bool, str]:
        """Whether the head takes a trace, and the member `ot` that says so."""
        if remote is not None:
            return remote.sampled, _sampling.inherited(remote.sampled, trace_id, remote.ot)
        ot = foreign.trace_state.get(_sampling.KEY, "") if foreign is not None and foreign.trace_state else ""
        if ot:
            return _sampling.decided(self._threshold, trace_id, ot)
        sampled = _sampling.randomness(trace_id) >= self._threshold
        return sampled, self._ot if sampled else ""

    def announce(self, span: LiveSpan, ctx: Context) -> None:
        """Tell the user's own processors of a started span."""
        for processor in self.extra:
            processor.on_start(span, ctx)  # type: ignore[arg-type]

    def _ended(self, span: ReadableSpan, sink: Sink | None = None) -> None:
        for processor in self.extra:
            processor.on_end(span)
        (sink or self.sink)(span)


def merged(given: Any, attributes: dict[str, Any]) -> dict[str, Any]:
    """A span's own attributes over those of everything around it; tags add up."""
    both = {**given, **attributes}
    if names.TAGS in given and names.TAGS in attributes:
        both[names.TAGS] = tuple(dict.fromkeys((*given[names.TAGS], *attributes[names.TAGS])))
    return both


def _note_foreign(span: LiveSpan, context: SpanContext) -> None:
    span._attributes[names.FOREIGN_TRACE] = f"{context.trace_id:032x}"
    span._attributes[names.FOREIGN_SPAN] = f"{context.span_id:016x}"
    span.add_link(context)


def _foreign_provider(spans: Spans) -> bool:
    """Whether somebody else's SDK is the global provider. The getter costs 0.8 µs, the variable nothing."""
    provider = getattr(otel, "_TRACER_PROVIDER", None)
    return isinstance(provider, sdk.TracerProvider) and getattr(provider, "spans", None) is not spans


class Tracer(sdk.Tracer):
    """A tracer whose spans are ours; `provider` and `scope` are set by the provider."""

    provider: Provider
    scope: InstrumentationScope

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Any = None,
        links: Sequence[Link] | None = (),
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> otel.Span:
        """Start a span, as the OpenTelemetry API has it. Never raises into the instrumentation that asks."""
        span = self._start_span(name, context, kind, attributes, links, start_time)
        if isinstance(span, LiveSpan) and not (record_exception and set_status_on_exception):
            span.notes = record_exception, set_status_on_exception
        return span or otel.INVALID_SPAN

    @ours("span")
    def _start_span(
        self, name: str, context: Context | None, kind: SpanKind, attributes: Any, links: Any, start_time: int | None
    ) -> otel.Span:
        spans = self.provider.spans
        if spans.off:
            return otel.INVALID_SPAN
        ctx = context if context is not None else _context.get_current()
        span = spans.start(name, dict(attributes or {}), self.scope, ctx, start_time)
        span.hidden = False
        span._kind = kind
        span._links = (*span._links, *(link for link in links or () if link.context.is_valid))
        spans.announce(span, ctx)
        return span


class Provider(sdk.TracerProvider):
    """A TracerProvider for third-party instrumentations; never registered globally.

    It outlives a `configure`, which gives it other `spans`: who instruments first and configures then loses nothing.
    """

    def __init__(self, spans: Spans) -> None:
        super().__init__(sampler=ALWAYS_ON, resource=spans.resource, shutdown_on_exit=False)
        self.spans = spans
        self._own: dict[InstrumentationScope, Tracer] = {}

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> otel.Tracer:
        """A tracer under an instrumentation scope."""
        version = instrumenting_library_version or ""
        scope = InstrumentationScope(instrumenting_module_name or "", version, schema_url, attributes)
        if scope not in self._own:
            self._own[scope] = self._new(scope)
        return self._own[scope]

    def _new(self, scope: InstrumentationScope) -> Tracer:
        theirs = super().get_tracer(scope.name, scope.version, scope.schema_url, scope.attributes)
        tracer = Tracer.__new__(Tracer)
        tracer.__dict__.update(theirs.__dict__)
        tracer.provider, tracer.scope = self, scope
        return tracer

    def add_span_processor(self, span_processor: SpanProcessor) -> None:
        """Let a processor of the user's see every span of the traces that start from now on, unredacted."""
        self.spans.extra.append(span_processor)
