"""Export pipeline: tail sampling, queue, background delivery, conventions, OTLP/HTTP client and disk spool.

Modules, in the order in which data flows:

- `span_queue`: Queue of ended spans and feedback, with eviction by priority; tail sampling; counts of spans by
  outcome.
- `delivery_lifecycle`: Delivery lifecycle: background thread, export interval, flush, shutdown at exit and SIGTERM,
  and fork.
- `batch_exporter`: Batch exporter: splits queued spans into batches, sends and retries them, spools them when
  offline.
- `span_sanitizer`: Sanitization of ended spans: content removal, redaction of secrets and size limits.
- `span_encoding`: Encoding of spans: conventions of their attributes, and OTLP protobuf of spans, feedback and
  process events.
- `external_exporters`: OpenTelemetry span exporters of the application, each with a thread and a bounded queue.
- `otlp_http_client`: OTLP/HTTP client: request thread, compression, authentication, response status and error
  messages.
- `disk_spool`: Disk spool: segment files with requests that could not be sent, file locks, expiry, replay and
  management.
"""

from typing import TYPE_CHECKING

from spanwise.tracer.module_loading import lazy

if TYPE_CHECKING:
    from spanwise.tracer.export.batch_exporter import Batch, Exporter, split_into_batches
    from spanwise.tracer.export.span_sanitizer import SpanSanitizer
else:
    __getattr__, __dir__ = lazy(
        __name__,
        batch_exporter="Batch Exporter split_into_batches",
        span_sanitizer="SpanSanitizer",
    )

__all__ = [
    "Batch",
    "Exporter",
    "SpanSanitizer",
    "split_into_batches",
]


# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "delivery_lifecycle",
    "disk_spool",
    "otlp_http_client",
    "span_encoding",
    "span_queue",
]
