"""OTLP ingest: HTTP receiver, bounded request bodies, decoding in worker processes, and the sink to the store.

Modules, in the order in which data flows:

- `http_receiver`: OTLP/HTTP receiver: ASGI applications for /v1/traces, /v1/logs and /v1/metrics.
- `request_body`: Request bodies: bounded reading, gzip and deflate decompression, and the memory of pending bodies.
- `ingest_pipeline`: Ingest pipeline: decodes a request, counts its items and hands them to the sinks, for HTTP and
  gRPC.
- `offload`: Offloading of large requests from the event loop: priority lanes and a thread pool.
- `decode_pool`: Decoding of requests in the server, in a thread or in a worker process; start, timeouts and restart of
  workers.
- `decode_protocol`: Messages between the server and a decode worker process.
- `decode_worker`: Decode worker: main loop of a process that decodes requests for the server that started it.
- `request_decoder`: Decoding of one OTLP request: codec interface, item-by-item recovery, and the decoded items with
  refusals.
- `otlp_signals`: OTLP signals (traces, logs, metrics): their codecs, and the conversion of each item to a record.
- `protobuf_decoder`: Protobuf decoder of OTLP: columnar fast path, generic path, and splitting a damaged request by
  item.
- `json_decoder`: JSON decoder of OTLP: typed messages, repair of invalid JSON, and conversion to raw spans and log
  records.
- `store_sink`: Sink of the pipeline that writes decoded items to the store, within the sender's project.
- `responses`: OTLP responses: success, partial success and errors, with HTTP status and gRPC code.
- `limits`: Limits of requests, JSON bodies, ids, names and texts, and the size thresholds for large requests.
- `ingest_errors`: Errors that refuse a request (permanent or retryable) or a single item of one.
"""

from typing import TYPE_CHECKING

from spanwise.tracer.lazy_imports import lazy

if TYPE_CHECKING:
    from spanwise.collector.ingest.decode_pool import MAX_DECODERS, default_decoder_count
    from spanwise.collector.ingest.http_receiver import PATH_PREFIXES, PATHS, SIGNALS, Receiver
    from spanwise.collector.ingest.ingest_errors import ItemRefused, PermanentError, RequestRefused, RetryableError
    from spanwise.collector.ingest.limits import (
        MAX_COST,
        MAX_TOKENS,
        Limits,
        check_amendment,
        check_feedback_names,
        check_ids,
        check_json,
        truncate_fields,
    )
    from spanwise.collector.ingest.otlp_signals import HOPS_HEADER, Request, parse_hops
    from spanwise.collector.ingest.request_body import ClientDisconnected, RequestBody
    from spanwise.collector.ingest.responses import PROTOBUF_TYPE, encode_error
    from spanwise.collector.ingest.store_sink import Sink, scope_or_refuse
else:
    __getattr__, __dir__ = lazy(
        __name__,
        responses="PROTOBUF_TYPE encode_error",
        request_body="ClientDisconnected RequestBody",
        limits="Limits MAX_COST MAX_TOKENS check_amendment check_feedback_names check_ids check_json truncate_fields",
        decode_pool="MAX_DECODERS default_decoder_count",
        ingest_errors="ItemRefused PermanentError RequestRefused RetryableError",
        store_sink="Sink scope_or_refuse",
        http_receiver="PATHS PATH_PREFIXES Receiver SIGNALS",
        otlp_signals="HOPS_HEADER Request parse_hops",
    )

__all__ = [  # noqa: RUF022 (in plain order, as everywhere)
    "RequestBody",
    "ClientDisconnected",
    "HOPS_HEADER",
    "ItemRefused",
    "Sink",
    "Limits",
    "MAX_DECODERS",
    "MAX_COST",
    "MAX_TOKENS",
    "PATHS",
    "PROTOBUF_TYPE",
    "PermanentError",
    "PATH_PREFIXES",
    "Receiver",
    "Request",
    "RequestRefused",
    "RetryableError",
    "SIGNALS",
    "responses",
    "default_decoder_count",
    "truncate_fields",
    "check_amendment",
    "check_ids",
    "check_json",
    "check_feedback_names",
    "parse_hops",
    "encode_error",
    "scope_or_refuse",
]

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "json_decoder",
    "limits",
    "otlp_signals",
    "request_decoder",
]
