"""OpenTelemetry SDK layer: tracer provider, spans, context and head sampling.

Modules, in the order in which data flows:

- `provider`: Tracer provider for instrumentations, parent selection, and joining of an existing OpenTelemetry
  provider.
- `head_sampling`: Head sampling: OpenTelemetry's consistent probability sampling and its `ot` tracestate member.
- `trace_context`: Trace context: parent lookup, current span, private baggage and the vendor's tracestate entry.
- `thread_context`: Context inheritance by threads, timers and tasks of thread pools.
- `live_span`: Recording span, span counts per local trace, and id and clock sources.
- `exit_lock`: Lock with a bounded wait, for the time when the interpreter exits.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "exit_lock",
    "head_sampling",
    "live_span",
    "provider",
    "thread_context",
    "trace_context",
]
