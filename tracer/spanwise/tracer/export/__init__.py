"""Export pipeline: tail sampling, queue, background delivery, conventions, OTLP/HTTP client and disk spool.

Modules, in the order in which data flows:

- `tail_sampling`: Tail sampling: spans of unsampled traces wait in memory and are exported if one of them failed.
- `span_queue`: Bounded queue of ended spans and feedback, with eviction by priority.
- `delivery_lifecycle`: Delivery lifecycle: background thread, export interval, flush, shutdown at exit and SIGTERM,
  and fork.
- `batch_exporter`: Batch exporter: splits queued spans into batches, sends and retries them, spools them when
  offline.
- `span_sanitizer`: Sanitization of ended spans: content removal, redaction of secrets and size limits.
- `conventions`: Conventions of exported spans: Spanwise's compact form, OpenInference, and OpenTelemetry GenAI.
- `external_exporters`: OpenTelemetry span exporters of the application, each with a thread and a bounded queue.
- `otlp_encoding`: OTLP protobuf encoding of spans, feedback and process events.
- `otlp_http_client`: OTLP/HTTP client: request thread, compression, authentication, response status and error
  messages.
- `disk_spool`: Disk spool: segment files with requests that could not be sent, file locks, expiry and replay.
- `delivery_stats`: Delivery statistics: span counts by outcome, and reports of counts and open spans to the
  collector.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "delivery_lifecycle",
    "delivery_stats",
    "disk_spool",
    "otlp_encoding",
    "otlp_http_client",
    "tail_sampling",
]
