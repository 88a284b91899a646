"""OTLP ingest: HTTP receiver, bounded request bodies, decoding in worker processes, and the sink to the store.

Modules, in the order in which data flows:

- `otlp_receiver`: OTLP receiver: HTTP endpoints, bounded request bodies, the pipeline that also serves gRPC, and
  responses.
- `decode_pool`: Decoding of requests off the event loop: priority lanes, threads, worker processes and their
  restarts.
- `otlp_signals`: OTLP signals (traces, logs, metrics): codecs, conversion of items to records, messages of decode
  workers.
- `decode_worker`: Decode worker: main loop of a process that decodes requests for the server that started it.
- `request_decoder`: Decoding of one OTLP request: limits, refusals, codec interface, and recovery item by item.
- `protobuf_decoder`: Protobuf decoder of OTLP: columnar fast path, generic path, and splitting a damaged request by
  item.
- `json_decoder`: JSON decoder of OTLP: typed messages, repair of invalid JSON, and conversion to raw spans and log
  records.
- `store_sink`: Sink of the pipeline that writes decoded items to the store, within the sender's project.
"""

from typing import TYPE_CHECKING

from spanwise.tracer.module_loading import lazy

if TYPE_CHECKING:
    from spanwise.collector.ingest.decode_pool import MAX_DECODERS, default_decoder_count
    from spanwise.collector.ingest.otlp_receiver import (
        PATH_PREFIXES,
        PATHS,
        PROTOBUF_TYPE,
        SIGNALS,
        ClientDisconnected,
        Receiver,
        RequestBody,
        encode_error,
    )
    from spanwise.collector.ingest.otlp_signals import HOPS_HEADER, Request, parse_hops
    from spanwise.collector.ingest.request_decoder import (
        MAX_COST,
        MAX_TOKENS,
        ItemRefused,
        Limits,
        PermanentError,
        RequestRefused,
        RetryableError,
        check_amendment,
        check_feedback_names,
        check_ids,
        check_json,
        truncate_fields,
    )
    from spanwise.collector.ingest.store_sink import CommitWaiter, Sink, StoreSink, scope_or_refuse
else:
    __getattr__, __dir__ = lazy(
        __name__,
        otlp_receiver="PROTOBUF_TYPE encode_error ClientDisconnected RequestBody PATHS PATH_PREFIXES Receiver SIGNALS",
        request_decoder="Limits MAX_COST MAX_TOKENS check_amendment check_feedback_names check_ids check_json truncate_fields ItemRefused PermanentError RequestRefused RetryableError",
        decode_pool="MAX_DECODERS default_decoder_count",
        store_sink="Sink scope_or_refuse CommitWaiter StoreSink",
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
    "otlp_receiver",
    "default_decoder_count",
    "truncate_fields",
    "check_amendment",
    "check_ids",
    "check_json",
    "check_feedback_names",
    "parse_hops",
    "encode_error",
    "scope_or_refuse",
    "CommitWaiter",
    "StoreSink",
]

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "decode_pool",
    "json_decoder",
    "otlp_signals",
    "protobuf_decoder",
    "request_decoder",
]
