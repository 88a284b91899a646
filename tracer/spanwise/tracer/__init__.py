"""Tracing of Python functions: decorator, spans, propagation, and export over OTLP.

Modules, in the order in which data flows:

- `decorator`: `@trace` decorator: options, and wrappers for functions, coroutines and generator functions.
- `run_recording`: Recording of runs: `span(…)` blocks, calls of decorated functions, the `Run` handle and feedback on
  a run.
- `streaming`: Tracing of streamed results: generators, coroutines, other iterators and streaming responses.
- `propagation`: Propagation of session, user and tags to child spans, and of traces to other processes (W3C headers).
- `http_connections`: Outgoing HTTP connections: URL checks, certificate authorities, backoff, and the hosts that
  receive baggage.
- `integrations`: Integrations: activation of OpenInference, OpenTelemetry, Pydantic AI and MCP instrumentations.
- `process_runtime`: Process-wide tracer runtime: `configure`, `flush`, `shutdown`, `stats` and resource detection.
- `configuration`: Settings from `configure`, `SPANWISE_*` and `OTEL_*` environment variables and defaults; user cache
  directory.
- `trace_capture`: In-memory capture of one trace, for experiments and judges.
- `testing`: Test kit: spans in memory, deterministic ids and clock, and a pytest fixture.
- `attribute_names`: Attribute names of spans, resources and events: OpenInference, OpenTelemetry GenAI and
  `spanwise.*`.
- `suggestions`: Suggestions in error messages: similar names, and equivalents of other tracing SDKs' options.
- `internal_errors`: Internal errors of the tracer: counted, logged once, never raised into the application.
- `module_loading`: Loading of modules: lazy imports of the names that a package exports, and Python files that users
  edit.
"""

from typing import TYPE_CHECKING

from spanwise.tracer.module_loading import lazy

if TYPE_CHECKING:
    from spanwise.tracer.decorator import trace
    from spanwise.tracer.export.span_queue import FlushResult
    from spanwise.tracer.integrations import instrument, tracer_provider, uninstrument
    from spanwise.tracer.process_runtime import Stats, configure, flush, shutdown, stats
    from spanwise.tracer.propagation import carry, extract, inject, session, tags, user
    from spanwise.tracer.run_recording import Run, current_run, feedback, span
else:
    __getattr__, __dir__ = lazy(
        __name__,
        propagation="carry extract inject session tags user",
        decorator="trace",
        run_recording="Run current_run feedback span",
        integrations="instrument tracer_provider uninstrument",
        process_runtime="Stats configure flush shutdown stats",
        **{
            "export.span_queue": "FlushResult",
        },
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
    "configuration",
    "export.disk_spool",
    "http_connections",
    "internal_errors",
    "module_loading",
    "process_runtime",
    "propagation",
    "run_recording",
    "suggestions",
    "testing",
    "trace_capture",
]
