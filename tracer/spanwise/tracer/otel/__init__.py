"""OpenTelemetry SDK layer: tracer provider, spans, context and head sampling.

Modules, in the order in which data flows:

- `provider`: Tracer provider for instrumentations, parent selection, and joining of an existing OpenTelemetry
  provider.
- `live_span`: Recording span: head sampling, span counts per local trace, id and clock sources, lock with a bounded
  wait.
- `trace_context`: Trace context: parent lookup, current span, private baggage, tracestate entry, and inheritance by
  threads.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "live_span",
    "provider",
    "trace_context",
]
