"""Tracer provider for instrumentations, parent selection, and joining of an existing OpenTelemetry provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from weakref import WeakValueDictionary

from opentelemetry import baggage
from opentelemetry import trace as otel
from opentelemetry.context.context import Context
from opentelemetry.sdk import trace as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind

from spanwise.tracer import attribute_names as names
from spanwise.tracer.export.span_encoding import FeedbackEvent
from spanwise.tracer.export.span_queue import DeliveryTarget, PendingTrace
from spanwise.tracer.internal_errors import error_boundary
from spanwise.tracer.otel import live_span, trace_context
from spanwise.tracer.otel.live_span import (
    Clock,
    LiveSpan,
    LocalTrace,
    begin_local_trace,
    count_ended,
    count_started,
    get_local_trace,
)
from spanwise.tracer.otel.trace_context import (
    AMBIENT_KEY,
    ORIGIN_KEY,
    OTEL_KEY,
    OWN_KEY,
    RemoteParent,
    read_baggage_attributes,
)

SpanSink = Callable[[ReadableSpan], None]


class CaptureSink(Protocol):
    """Destination of the spans and feedback of a captured trace."""

    def add_span(self, span: ReadableSpan) -> None:
        """Store an ended span."""

    def add_feedback(self, event: FeedbackEvent) -> None:
        """Store a feedback event."""


class SpanFactory:
    """Factory of spans. It selects the parent of each span and the destination to which the ended span is passed."""

    def __init__(self, delivery: DeliveryTarget, resource: Resource, sample_rate: float, off: bool = False) -> None:
        self.set_delivery(delivery)
        self.resource = resource
        self._threshold = live_span.compute_threshold(sample_rate)
        self._ot = live_span.format_member(self._threshold)
        self.off = off  # True: instrumentations that use the provider get spans that record nothing
        self.extra: list[SpanProcessor] = []  # span processors of the user
        self.captures: WeakValueDictionary[int, CaptureSink] = WeakValueDictionary()  # by trace id

    def set_delivery(self, delivery: DeliveryTarget) -> None:
        """Set the destination of ended spans."""
        self._delivery, self.sink = delivery, delivery.put

    def start(
        self,
        name: str,
        attributes: dict[str, Any],
        scope: InstrumentationScope,
        ctx: Context,
        start_time: int | None = None,
    ) -> LiveSpan:
        """Start a span as a child of the nearest Spanwise span in the context.

        If the parent has ended together with its trace and `ctx` is the current context, `get_live_context` replaces
        the context. A context that the caller chose is used unchanged. The span takes ownership of `attributes`.
        """
        parent = ctx.get(OTEL_KEY)
        is_open = type(parent) is LiveSpan and parent._end_time is None and parent.local.epoch == Clock.epoch
        if not is_open and (parent is not None or OWN_KEY in ctx) and ctx is trace_context.get_current():
            ctx = trace_context.get_live_context()
        inherited = ctx.get(AMBIENT_KEY)
        if inherited is not None:
            attributes = merge_attributes(inherited, attributes)
        if is_open:
            return self._child(parent, name, attributes, scope, start_time)  # type: ignore[arg-type]
        return self._start(name, attributes, scope, ctx, start_time)

    def _start(
        self, name: str, attributes: dict[str, Any], scope: InstrumentationScope, ctx: Context, start_time: int | None
    ) -> LiveSpan:
        if OTEL_KEY not in ctx and OWN_KEY not in ctx:  # the usual case: there is no current span
            return self._local_root(name, attributes, scope, ctx, start_time, None, None)
        parent = trace_context.find_parent(ctx)
        if isinstance(parent, LiveSpan) and parent.local.epoch == Clock.epoch:
            span = self._child(parent, name, attributes, scope, start_time)
            span.hidden = parent.hidden
            return span
        if isinstance(parent, LiveSpan):  # the parent is a span of the process that forked this one
            parent = RemoteParent(parent.local.trace_id, parent.span_id, parent.local.sampled, parent.local.ot)
        return self._local_root(
            name, attributes, scope, ctx, start_time, parent, trace_context.find_foreign_context(ctx)
        )

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
        span = LiveSpan(
            name, parent.local, parent.span_id, merge_attributes(parent.ambient, attributes), scope, start_time
        )
        span.ambient = parent.ambient
        return span

    def _local_root(
        self,
        name: str,
        attributes: dict[str, Any],
        scope: InstrumentationScope,
        ctx: Context,
        start_time: int | None,
        remote: RemoteParent | None,
        foreign: SpanContext | None,
    ) -> LiveSpan:
        trace_id = remote.trace_id if remote else Clock.bits(128) or 1
        hidden = foreign is not None or _has_foreign_provider(self)
        local = get_local_trace(trace_id) if remote else None
        if local is None:
            local = self._local(trace_id, remote, foreign)
        inherited = read_baggage_attributes(baggage.get_all(ctx)) if remote else None
        # an instrumentation has extracted the baggage of a request: hide its private entries
        if inherited and ctx is trace_context.get_current():
            trace_context.attach(trace_context.with_private_baggage(ctx))
        if remote and remote.marked:
            inherited = {**(inherited or {}), names.MONITOR: True}
        if inherited:
            attributes = merge_attributes(inherited, attributes)
        span = LiveSpan(name, local, remote.span_id if remote else 0, attributes, scope, start_time)
        span.hidden = hidden
        span.parent_remote, span.ambient = remote is not None, inherited or None
        if foreign is not None and not (remote and foreign.trace_id == trace_id):
            span._attributes[names.FOREIGN_TRACE] = f"{foreign.trace_id:032x}"
            span._attributes[names.FOREIGN_SPAN] = f"{foreign.span_id:016x}"
            span.add_link(foreign)
        if remote is None and (origin := ctx.get(ORIGIN_KEY)) is not None:
            span.add_link(origin)  # type: ignore[arg-type]
        return span

    def _local(self, trace_id: int, remote: RemoteParent | None, foreign: SpanContext | None) -> LocalTrace:
        """Begin this process's part of a trace."""
        captured = self.captures.get(trace_id) if remote is not None else None
        if captured is not None:
            return begin_local_trace(trace_id, captured.add_span, self.resource)
        sampled, ot = True, live_span.ALWAYS_MEMBER
        if self._threshold or remote is not None or foreign is not None:
            sampled, ot = self._sampled(trace_id, remote, foreign)
        local = begin_local_trace(trace_id, self._ended if self.extra else self.sink, self.resource, sampled, ot)
        if sampled:
            local.account = self._delivery.account
            self._delivery.begin()
        else:
            local.undecided = undecided = PendingTrace(self._delivery)
            local.sink = undecided.put if not self.extra else lambda span: self._ended(span, undecided.put)
        return local

    def _sampled(self, trace_id: int, remote: RemoteParent | None, foreign: SpanContext | None) -> tuple[bool, str]:
        """Return whether head sampling keeps a trace, and the member `ot` that records the decision."""
        if remote is not None:
            return remote.sampled, live_span.inherit_member(remote.sampled, trace_id, remote.ot)
        ot = (
            foreign.trace_state.get(live_span.TRACESTATE_KEY, "") if foreign is not None and foreign.trace_state else ""
        )
        if ot:
            return live_span.sample_new_trace(self._threshold, trace_id, ot)
        sampled = live_span.get_randomness(trace_id) >= self._threshold
        return sampled, self._ot if sampled else ""

    def announce(self, span: LiveSpan, ctx: Context) -> None:
        """Report a started span to the span processors of the user."""
        for processor in self.extra:
            processor.on_start(span, ctx)  # type: ignore[arg-type]

    def _ended(self, span: ReadableSpan, sink: SpanSink | None = None) -> None:
        for processor in self.extra:
            processor.on_end(span)
        (sink or self.sink)(span)


def merge_attributes(inherited: Any, attributes: dict[str, Any]) -> dict[str, Any]:
    """Merge inherited attributes with those of a span, which take precedence. Tags are combined."""
    both = {**inherited, **attributes}
    if names.TAGS in inherited and names.TAGS in attributes:
        both[names.TAGS] = tuple(dict.fromkeys((*inherited[names.TAGS], *attributes[names.TAGS])))
    return both


def _has_foreign_provider(spans: SpanFactory) -> bool:
    """Return whether another SDK is the global provider.

    Reads OpenTelemetry's variable, because the getter would cost 0.8 µs.
    """
    provider = getattr(otel, "_TRACER_PROVIDER", None)
    return isinstance(provider, sdk.TracerProvider) and getattr(provider, "spans", None) is not spans


class Tracer(sdk.Tracer):
    """Tracer that creates Spanwise spans. The provider sets `provider` and `scope`."""

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
        """Start a span, as specified by the OpenTelemetry API. Never raises into the calling instrumentation."""
        span = self._start_span(name, context, kind, attributes, links, start_time)
        if isinstance(span, LiveSpan) and not (record_exception and set_status_on_exception):
            span.records_exceptions, span.sets_error_status = record_exception, set_status_on_exception
        return span or otel.INVALID_SPAN

    @error_boundary("span")
    def _start_span(
        self, name: str, context: Context | None, kind: SpanKind, attributes: Any, links: Any, start_time: int | None
    ) -> otel.Span:
        spans = self.provider.spans
        if spans.off:
            return otel.INVALID_SPAN
        ctx = context if context is not None else trace_context.get_current()
        span = spans.start(name, dict(attributes or {}), self.scope, ctx, start_time)
        span.hidden = False
        span._kind = kind
        span._links = (*span._links, *(link for link in links or () if link.context.is_valid))
        spans.announce(span, ctx)
        return span


class Provider(sdk.TracerProvider):
    """Tracer provider for third-party instrumentations. It is never registered globally.

    The provider survives `configure`, which replaces `spans`. Instrumentations that are enabled before `configure`
    therefore keep working.
    """

    def __init__(self, spans: SpanFactory) -> None:
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
        """Return a tracer for an instrumentation scope."""
        version = instrumenting_library_version or ""
        scope = InstrumentationScope(instrumenting_module_name or "", version, schema_url, attributes)
        if scope not in self._own:
            base = super().get_tracer(scope.name, scope.version, scope.schema_url, scope.attributes)
            tracer = Tracer.__new__(Tracer)
            tracer.__dict__.update(base.__dict__)
            tracer.provider, tracer.scope = self, scope
            self._own[scope] = tracer
        return self._own[scope]

    def add_span_processor(self, span_processor: SpanProcessor) -> None:
        """Add a span processor of the user. It receives every span of the traces that start from now on, unredacted."""
        self.spans.extra.append(span_processor)


class ExternalProviderProcessor(SpanProcessor):
    """Span processor that passes a copy of every span of a joined provider to delivery. Local roots get their trace's
    counts.
    """

    def __init__(self, put: SpanSink, delivery: DeliveryTarget, resource: Resource, active: bool = True) -> None:
        self._put, self._delivery = put, delivery
        self.identify(resource)
        self.active = active  # a provider cannot remove a processor, so `configure` deactivates the old one

    def identify(self, resource: Resource) -> None:
        """Set the resource of this process, whose attributes are added to those of the provider."""
        self._resource = resource
        # the provider's resource, and the result of merging it with Spanwise's attributes
        self._merged: tuple[Resource, Resource] | None = None

    @error_boundary("joined")
    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Count the span on its trace."""
        if self.active:
            context = span.get_span_context()
            local = get_local_trace(context.trace_id)
            if local is None:
                local = begin_local_trace(context.trace_id, self._put, self._identified(span.resource))
                local.account = self._delivery.account
                self._delivery.begin()
            span._spanwise_local = local  # type: ignore[attr-defined]
            count_started(local, context.span_id)
            self._delivery.account.unreported.add(span)

    @error_boundary("joined")
    def _on_ending(self, span: Span) -> None:
        """Pass a copy of the ending span to delivery. The span itself can no longer be changed."""
        local = getattr(span, "_spanwise_local", None)
        if local is not None:
            self._delivery.account.unreported.discard(span)
            ended = span._readable_span()
            extra = count_ended(local, ended.context.span_id)
            local.sink(_copy_span(ended, extra, self._identified(ended.resource)))

    def _identified(self, resource: Resource) -> Resource:
        """Return the provider's resource with Spanwise's project, environment and instance id."""
        merged = self._merged
        if merged is None or merged[0] is not resource:
            own = self._resource.attributes
            kept = [key for key in (names.PROJECT, names.ENVIRONMENT) if key in own]
            kept += [names.INSTANCE] if names.INSTANCE not in resource.attributes else []
            merged = self._merged = resource, resource.merge(Resource({key: own[key] for key in kept}))
            self._delivery.account.resource = merged[1]
        return merged[1]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Return True without flushing: `flush` of `process_runtime` flushes the delivery."""
        return True


def _copy_span(span: ReadableSpan, extra: dict[str, Any], resource: Resource) -> ReadableSpan:
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=resource,
        attributes={**(span.attributes or {}), **extra},
        events=span.events,
        links=span.links,
        kind=span.kind,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )
