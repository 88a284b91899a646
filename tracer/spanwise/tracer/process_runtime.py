"""Process-wide tracer runtime: `configure`, `flush`, `shutdown`, `stats` and resource detection."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  (see `Runtime`)
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from opentelemetry import trace as otel
from opentelemetry.context.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import Link, SpanContext

from spanwise.tracer import attribute_names as names
from spanwise.tracer import configuration, http_connections, internal_errors
from spanwise.tracer.configuration import Capture, Convention, Redactor, Settings
from spanwise.tracer.export.delivery_lifecycle import (
    Delivery,
    close_all,
    close_on_sigterm,
    flush_all,
    set_thread_context_inheritance,
)
from spanwise.tracer.export.span_queue import FlushResult
from spanwise.tracer.otel import trace_context
from spanwise.tracer.otel.live_span import (
    SCOPE,
    Clock,
    LiveSpan,
    begin_local_trace,
    is_cancellation,
    mark_exception_recorded,
)
from spanwise.tracer.otel.provider import (
    CaptureSink,
    ExternalProviderProcessor,
    Provider,
    SpanFactory,
    merge_attributes,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter


class Runtime:
    """Runtime that one call of `configure` creates: settings, delivery, span factory and provider.

    In a forked child, OpenTelemetry's provider starts threads of an executor. Therefore this module imports the
    executor's module first: its fork handler, which releases a lock in the child, must run before the provider's
    handler.
    """

    def __init__(
        self, settings: Settings, joined: TracerProvider | None = None, resource: Resource | None = None
    ) -> None:
        self.settings = settings
        self.delivery = Delivery(settings)
        self._resource = resource or _make_resource(settings)
        self.resource = self.delivery.finisher.resource(self._resource)
        self.off = settings.capture == "none"
        self.spans = SpanFactory(self.delivery, self.resource, settings.sample_rate, self.off)
        self.provider = Provider(self.spans)
        self.content = settings.capture == "full"
        self.limit = settings.max_value_bytes
        self.may_skip = joined is not None  # True: the provider's sampler may decide not to record a span
        self.joined = joined
        self._joined_tracer: otel.Tracer | None = None
        if joined is not None:
            self._processor = ExternalProviderProcessor(
                self._put_joined, self.delivery, self.resource, active=not self.off
            )
            joined.add_span_processor(self._processor)
            self._joined_tracer = joined.get_tracer(SCOPE.name, SCOPE.version)
        self._set_resource(self._resource)

    def complete(self) -> None:
        """Run the slow part of the set-up: the resource detectors, and the preparation of the process."""
        self._set_resource(_make_resource(self.settings))
        _prepare_process(self)

    def _put_joined(self, span: ReadableSpan) -> None:
        captured = self.spans.captures.get(span.context.trace_id)
        (captured.add_span if captured is not None else self.delivery.put)(span)

    def renew(self) -> None:
        """Set a new instance id in a forked child process."""
        self._set_resource(_add_instance_id(self._resource, self.settings))

    def _set_resource(self, resource: Resource) -> None:
        self._resource = resource
        self.resource = self.spans.resource = self.delivery.finisher.resource(resource)
        if self.joined is None:
            self.delivery.account.resource = self.resource
        else:
            self._processor.identify(self.resource)

    def take_over(self, provider: Provider) -> None:
        """Reuse the provider of the previous runtime, because instrumentations hold references to it."""
        self.spans.extra += provider.spans.extra
        provider.spans, self.provider = self.spans, provider

    def close(self, successor: Runtime) -> None:
        """Deliver everything that is queued.

        The successor delivers spans that are still open when they end, unless it records nothing.
        """
        if self.joined is not None:
            self._processor.active = False
        if not successor.off:
            self.delivery.successor = successor.delivery
        for worker in self.delivery.exporter.external:
            worker.shuts_down = worker.source not in successor.settings.exporters
        self.delivery.close()

    def open(self, name: str, attributes: dict[str, Any], ctx: Context) -> tuple[otel.Span, Context]:
        """Start a span and return it with the context in which it is current. `ctx` is the current context."""
        if self._joined_tracer is not None and not isinstance(ctx.get(trace_context.OTEL_KEY), LiveSpan):
            return self._open_joined(self._joined_tracer, name, attributes, ctx)
        span = self.spans.start(name, attributes, SCOPE, ctx)
        ctx = trace_context.get_current()  # `start` may have replaced the current context
        if self.spans.extra:
            self.spans.announce(span, ctx)
        return span, trace_context.with_span(ctx, span, span.hidden)

    def _open_joined(
        self, tracer: otel.Tracer, name: str, attributes: dict[str, Any], ctx: Context
    ) -> tuple[otel.Span, Context]:
        ctx = trace_context.get_live_context()
        inherited = ctx.get(trace_context.AMBIENT_KEY)
        origin = ctx.get(trace_context.ORIGIN_KEY) if trace_context.OTEL_KEY not in ctx else None
        links = [Link(origin)] if isinstance(origin, SpanContext) else None
        span = tracer.start_span(
            name, ctx, attributes=merge_attributes(inherited, attributes) if inherited else attributes, links=links
        )
        return span, otel.set_span_in_context(span, ctx)

    def fail(self, span: otel.Span, error: BaseException) -> None:
        """Record the exception that leaves a span. A cancellation is not an error."""
        if isinstance(span, LiveSpan):
            span.fail(error)
        elif is_cancellation(error):
            span.set_attribute(names.CANCELLED, True)
        elif span.is_recording():
            if mark_exception_recorded(error, span.get_span_context().trace_id):
                span.record_exception(error, escaped=True)
            span.set_status(otel.Status(otel.StatusCode.ERROR, internal_errors.describe_error(error)))

    def captured_root(self, name: str, attributes: dict[str, Any], sink: CaptureSink) -> LiveSpan:
        """Start the root span of a new trace that goes to `sink` instead of delivery."""
        local = begin_local_trace(Clock.bits(128) or 1, sink.add_span, self.resource)
        self.spans.captures[local.trace_id] = sink
        return LiveSpan(name, local, 0, attributes, SCOPE)


def _make_resource(settings: Settings) -> Resource:
    try:
        return _add_instance_id(Resource.create(_resource_attributes(settings)), settings)
    except RuntimeError:  # after the main thread has ended, the executor of the detectors cannot start threads
        return _make_resource_without_detectors(settings)


def _make_resource_without_detectors(settings: Settings) -> Resource:
    """Return the resource from the settings and OpenTelemetry's variables, without other detectors."""
    return _add_instance_id(OTELResourceDetector().detect().merge(Resource(_resource_attributes(settings))), settings)


def _resource_attributes(settings: Settings) -> dict[str, Any]:
    return {names.PROJECT: settings.project, names.ENVIRONMENT: settings.environment, **settings.resource}


def _add_instance_id(resource: Resource, settings: Settings) -> Resource:
    """Add the instance id of this process to the resource, unless the user has set one."""
    if names.INSTANCE in settings.resource or names.INSTANCE in OTELResourceDetector().detect().attributes:
        return resource
    return resource.merge(Resource({names.INSTANCE: _instance_id}))


_lock = threading.RLock()
_current: Runtime | None = None
# equal to `_current` after a call from the main thread, which alone can install signal handlers
_ready: Runtime | None = None
_making: Runtime | None = None  # incomplete runtime, for a signal handler that interrupts the creation
_instance_id = str(uuid4())


def _after_fork() -> None:
    global _instance_id
    _lock.release()
    _instance_id = str(uuid4())
    with internal_errors.error_boundary("fork"):
        for runtime in filter(None, (_current, _making)):
            runtime.renew()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_after_fork)


def get_runtime() -> Runtime:
    """Return the current runtime. If `configure` was not called, create it from the environment. Never raises."""
    return _ready or _get_or_create_runtime()


def _get_or_create_runtime() -> Runtime:
    global _ready
    in_main = threading.get_ident() == threading.main_thread().ident
    if _current is not None and not in_main:
        return _current
    with _lock:
        if _current is None and _making is None:
            settings = None
            with internal_errors.error_boundary("settings"):
                settings = configuration.resolve_settings()
            _create_runtime(settings or configuration.resolve_valid_settings())
        if in_main and _current is not None:
            _ready = _install_signal_handler(_current)
        return _current or _making or _get_or_create_runtime()


def _create_runtime(settings: Settings) -> None:
    """Create the runtime and make it current.

    A signal handler may call this function again before `_making` is set. Then the runtime of the inner call is used,
    and that of the outer call is discarded.
    """
    global _current, _making
    made = Runtime(settings, resource=_make_resource_without_detectors(settings))
    if _current is None and _making is None:
        _making = made
        http_connections.use_settings(settings.url, settings.project, settings.propagate_to)
        with internal_errors.error_boundary("settings"):
            made.complete()
        _current, _making = _current or made, None


def replace_runtime(runtime: Runtime | None) -> Runtime | None:
    """Install another runtime and return the previous one."""
    global _current, _ready
    with _lock:
        previous, _current, _ready = _current, runtime, None
    if runtime is not None:
        settings = runtime.settings
        http_connections.use_settings(settings.url, settings.project, settings.propagate_to)
    return previous


def configure(
    *,
    url: str | None = None,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    project: str | None = None,
    environment: str | None = None,
    capture: Capture | None = None,
    redact: Sequence[Redactor] | None = None,
    sample_rate: float | None = None,
    export_interval: float | None = None,
    max_value_bytes: int | None = None,
    spill_dir: str | None = None,
    resource: Mapping[str, Any] | None = None,
    provider: TracerProvider | None = None,
    threads: bool | None = None,
    sigterm: bool | None = None,
    propagate_to: Sequence[str] | None = None,
    conventions: Iterable[Convention] | None = None,
    exporters: Sequence[SpanExporter | Callable[[], SpanExporter]] | None = None,
) -> None:
    """Configure where spans are sent and what they contain.

    Without a call, the `SPANWISE_*` variables and the defaults apply.

    If no address is set, OpenTelemetry's `OTEL_EXPORTER_OTLP_*` variables apply (endpoint, headers, compression,
    timeout, certificate).

    - `headers` are sent with every request, for collectors that need other headers than `Authorization: Bearer`.
    - `redact` takes keys, compiled patterns and functions `(key, value) -> value`.
    - `export_interval` is the number of seconds between two exports. A full batch, `flush` and the end of the process
      do not wait for it.
    - `provider` joins an existing OpenTelemetry set-up: its sampler decides, and its other exporters receive the spans
      unredacted.
    - `threads=False` leaves the methods of `threading` unwrapped, so that threads do not inherit the context.
    - `sigterm=False` installs no signal handler.
    - `conventions` are those in which spans are written, `openinference` and `gen_ai`. By default, these are both for
      `exporters` and for an address of OpenTelemetry's variables. For other addresses, spans are written in the
      compact form for Spanwise's collectors, as with an empty set.
    - `exporters` are OpenTelemetry span exporters, or functions that make one. They receive all spans, redacted. If
      no address is configured, spans go to the exporters only.

    Raises `ValueError` for an invalid value.
    """
    settings = configuration.resolve_settings(
        url=url,
        api_key=api_key,
        headers=headers,
        project=project,
        environment=environment,
        capture=capture,
        redact=redact,
        sample_rate=sample_rate,
        export_interval=export_interval,
        max_value_bytes=max_value_bytes,
        spill_dir=spill_dir,
        resource=resource,
        threads=threads,
        sigterm=sigterm,
        propagate_to=propagate_to,
        conventions=conventions,
        exporters=exporters,
    )
    runtime = _prepare_process(Runtime(settings, provider))
    previous = replace_runtime(runtime)
    if previous is not None:
        runtime.take_over(previous.provider)
        previous.close(runtime)
    runtime.delivery.pick_up()


def _prepare_process(runtime: Runtime) -> Runtime:
    """Prepare the host process: context inheritance by threads, and the signal handler."""
    set_thread_context_inheritance(runtime.settings.threads and not runtime.off)
    return _install_signal_handler(runtime)


def _install_signal_handler(runtime: Runtime) -> Runtime:
    """Install the handler of SIGTERM. Does nothing outside of the main thread."""
    if runtime.settings.sigterm and not runtime.off:
        close_on_sigterm(close_all, lambda: get_runtime().delivery.hurry())
    return runtime


def flush(timeout: float = 30.0) -> FlushResult:
    """Deliver all ended spans. The result is true if the collector has acknowledged all of them.

    Waits at most `timeout` seconds. Spans that could not be delivered are counted in the result and, if possible,
    written to disk.
    """
    return flush_all(get_runtime().delivery, timeout)


def shutdown() -> None:
    """Deliver all ended spans and stop delivery, as at the end of the process.

    Undelivered spans are written to disk. Takes 0.8 s if the collector does not answer, and at most 5 s if it does.
    May be called repeatedly and from any thread. Spans that end afterwards are dropped and counted as `closed`, until
    `configure` is called again.
    """
    get_runtime().delivery.close()


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of spans and feedback in this process. `errors` counts internal errors by component."""

    delivered: int
    queued: int
    spilled: int
    dropped: Mapping[str, int]
    errors: Mapping[str, int]


def stats() -> Stats:
    """Return the counts since the start of the process or since `configure`."""
    delivery = get_runtime().delivery
    tally = delivery.exporter.tally
    return Stats(
        tally.delivered,
        delivery.pending(),
        tally.spilled,
        dict(delivery.dropped()),
        dict(internal_errors.counts),
    )
