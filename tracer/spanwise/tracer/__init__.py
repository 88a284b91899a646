"""Tracing of Python functions: decorator, spans, propagation, and export over OTLP.

Modules, in the order in which data flows:

- `decorator`: `@trace` decorator: options, and wrappers for functions, coroutines and generator functions.
- `call_recording`: Recording of one call: argument binding, inputs, outputs or error, start and end of its span.
- `streaming`: Tracing of streamed results: generators, coroutines, other iterators and streaming responses.
- `run_handle`: `Run` handle, `span(…)` blocks, `current_run()` and feedback on a run.
- `propagation`: Propagation of session, user and tags to child spans, and of traces to other processes (W3C headers).
- `propagation_targets`: Propagation targets: the destination hosts that receive session, user and tags as baggage.
- `integrations`: Integrations: activation of OpenInference, OpenTelemetry, Pydantic AI and MCP instrumentations.
- `process_runtime`: Process-wide tracer runtime: `configure`, `flush`, `shutdown`, `stats` and resource detection.
- `configuration`: Settings from `configure`, `SPANWISE_*` and `OTEL_*` environment variables and defaults; user cache
  directory.
- `trace_capture`: In-memory capture of one trace, for experiments and judges.
- `testing`: Test kit: spans in memory, deterministic ids and clock, and a pytest fixture.
- `spool_management`: Management of the spool directory: listing, sending and deleting unsent requests.
- `attribute_names`: Attribute names of spans, resources and events: OpenInference, OpenTelemetry GenAI and
  `spanwise.*`.
- `suggestions`: Suggestions in error messages: similar names, and equivalents of other tracing SDKs' options.
- `internal_errors`: Internal errors of the tracer: counted, logged once, never raised into the application.
- `backoff`: Exponential backoff and the `Retry-After` header.
- `http_connections`: Outgoing HTTP connections: URL checks, certificate authorities, suppressed instrumentation.
- `lazy_imports`: Lazy imports of the names that a package exports.
- `source_loader`: Loader of Python files that users edit and run: evaluations and rules. It always reads the source.
"""

from typing import TYPE_CHECKING

from spanwise.tracer.lazy_imports import lazy

if TYPE_CHECKING:
    from spanwise.tracer.decorator import trace
    from spanwise.tracer.export.delivery_stats import FlushResult
    from spanwise.tracer.integrations import instrument, tracer_provider, uninstrument
    from spanwise.tracer.process_runtime import Stats, configure, flush, shutdown, stats
    from spanwise.tracer.propagation import carry, extract, inject, session, tags, user
    from spanwise.tracer.run_handle import Run, current_run, feedback, span
else:
    __getattr__, __dir__ = lazy(
        __name__,
        propagation="carry extract inject session tags user",
        decorator="trace",
        run_handle="Run current_run feedback span",
        integrations="instrument tracer_provider uninstrument",
        process_runtime="Stats configure flush shutdown stats",
        **{"export.delivery_stats": "FlushResult"},
    )

__all__ = [
    "FlushResult",
    "Run",
    "Stats",
    "carry",
    "configure",
    "current_run",
    "extract",
    "feedback",
    "flush",
    "inject",
    "instrument",
    "session",
    "shutdown",
    "span",
    "stats",
    "tags",
    "trace",
    "tracer_provider",
    "uninstrument",
    "user",
]

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "attribute_names",
    "backoff",
    "call_recording",
    "configuration",
    "http_connections",
    "lazy_imports",
    "process_runtime",
    "propagation",
    "propagation_targets",
    "source_loader",
    "spool_management",
    "suggestions",
    "testing",
    "trace_capture",
]
