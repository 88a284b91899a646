"""Joining an existing OpenTelemetry set-up: its provider makes our spans, and we deliver its spans too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry.context.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from spanwise.tracer import attributes as names
from spanwise.tracer._errors import ours
from spanwise.tracer._span import Local, count_ended, count_started, new_local, open_local
from spanwise.tracer._undecided import Outlet

Put = Callable[[ReadableSpan], None]


class JoinedProcessor(SpanProcessor):
    """Hands a copy of every span of the joined provider to delivery, with the counts of its trace."""

    def __init__(self, put: Put, outlet: Outlet, resource: Resource, active: bool = True) -> None:
        self._put, self._outlet = put, outlet
        self.identify(resource)
        self.active = active  # a provider cannot forget a processor; `configure` switches an old one off

    def identify(self, resource: Resource) -> None:
        """Say which process it is."""
        self._resource = resource
        self._merged: tuple[Resource, Resource] | None = None  # the provider's; with our identity: one for all

    @ours("joined")
    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Count the span on its trace."""
        if self.active:
            context = span.get_span_context()
            local = open_local(context.trace_id)
            if local is None:
                local = new_local(context.trace_id, self._put, self._identified(span.resource))
                local.account = self._outlet.account
                self._outlet.begin()
            span._spanwise_local = local  # type: ignore[attr-defined]
            count_started(local, context.span_id)
            self._outlet.account.young.add(span)

    @ours("joined")
    def _on_ending(self, span: Span) -> None:
        """Nothing can be changed any more, but the live span is at hand: remember what to add to its copy."""
        local = getattr(span, "_spanwise_local", None)
        if local is not None:
            self._outlet.account.young.discard(span)
            self._put_copy(span._readable_span(), local)

    def _put_copy(self, span: ReadableSpan, local: Local) -> None:
        extra = count_ended(local, span.context.span_id)
        local.sink(_copy(span, extra, self._identified(span.resource)))

    def _identified(self, resource: Resource) -> Resource:
        """Project and environment are on the resource, which in a joined set-up is not ours."""
        merged = self._merged
        if merged is None or merged[0] is not resource:
            own = self._resource.attributes
            kept = [key for key in (names.PROJECT, names.ENVIRONMENT) if key in own]
            kept += [names.INSTANCE] if names.INSTANCE not in resource.attributes else []
            merged = self._merged = resource, resource.merge(Resource({key: own[key] for key in kept}))
            self._outlet.account.resource = merged[1]
        return merged[1]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Delivery has its own flush."""
        return True


def _copy(span: ReadableSpan, extra: dict[str, Any], resource: Resource) -> ReadableSpan:
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
