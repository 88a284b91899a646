"""OTLP collector: records, ingest, stores, API, pages and client.

Modules, in the order in which data flows:

- `server`: HTTP server process: uvicorn with limits on connections, headers, bodies and idle time.
- `security`: Security of HTTP and gRPC requests: authentication, authorization and browser sessions.
- `prometheus_metrics`: Prometheus metrics of the collector and of monitoring rules.
- `query_scheduler`: Query scheduler: concurrency limits, fair queueing and cancellation of queries from requests.
- `request_context`: Context variables of the current request: its caller for the audit log, its query's deadline.
- `record_corrections`: Corrections of incoming records: impossible timestamps, and names from before the product was
  renamed.
- `filters`: Trace filter: conditions, parsing of their values, the grammar of query strings and command lines; sort
  orders.
- `filter_evaluation`: Evaluation of filters on single traces: whether a trace passes, and the result of each condition.
- `rule_policy`: Rule policy: filter, sampling rate, eligibility and validation of a monitoring rule.
- `store_connection`: Opening a store by URL or path, on demand, or as an async store; default location, store
  arguments.
- `address_parsing`: Parsing of addresses: database file names, host names, ports, origins and URLs.
- `record_encoding`: JSON encoding and decoding of records, shared by server, client and stores.
- `formatting`: Human-readable formatting of numbers, durations, times and error messages.
- `terminal_escaping`: Escaping of control characters in untrusted text that is printed to a terminal.
- `errors`: Exception hierarchy, and the error message for a missing optional dependency.
"""

from typing import TYPE_CHECKING

from spanwise.collector import errors
from spanwise.tracer.module_loading import lazy

if TYPE_CHECKING:
    from spanwise.collector.address_parsing import check_database_path
    from spanwise.collector.store_connection import AsyncStore, aio, connect, default_location, describe
else:
    __getattr__, __dir__ = lazy(
        __name__,
        store_connection="AsyncStore aio connect default_location describe",
        address_parsing="check_database_path",
    )

__all__ = ["AsyncStore", "aio", "check_database_path", "connect", "default_location", "describe", "errors"]

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "address_parsing",
    "filters",
    "formatting",
    "prometheus_metrics",
    "query_scheduler",
    "record_corrections",
    "record_encoding",
    "rule_policy",
    "security",
    "server",
    "store_connection",
    "terminal_escaping",
]
