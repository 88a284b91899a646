"""Trace backend on ClickHouse: any number of collectors share one database.

Modules, in the order in which data flows:

- `backend`: Trace backend on ClickHouse: the operations, each in terms of the modules that implement it.
- `inserter`: Inserter: a thread that collects the runs of many requests, and writes them together.
- `span_rows`: Rows of spans and summaries: encoding of runs as columns, and decoding of facts, runs and summaries.
- `span_writer`: Span writer: inserts batches of spans, merges versions and amendments, and writes summaries.
- `amendments`: Amendments: fields of runs that arrive outside their spans, before or after them.
- `senders`: Tables about the senders of spans: open runs, processes, and destinations of traced calls.
- `feedback_rows`: Rows of feedback: encoding of feedback as columns, and decoding.
- `feedback_writer`: Feedback writer: stores, replaces and deletes feedback, also that of rules, without transactions.
- `deletion`: Deletion of traces and of what refers to them, tombstones, and retention.
- `change_feed`: Change feed: heads of traces in the order of their last change, and of those of a past period.
- `filter_values`: Values of traces that filters compare, for the filters of rules and for `explain`.
- `trace_queries`: Trace queries: lists of summaries, whole traces, large traces decoded lazily, tree and pages of runs.
- `record_lists`: Record lists: sorted traces, sessions, feedback, scores, values for filter menus.
- `aggregation`: Aggregates over the traces of a filter: buckets, scores in them, sums of measures.
- `table_records`: Source records of the flat tables.
- `filter_sql`: Filters compiled to SQL conditions.
- `text_search`: Full-text search: searchable words of a span, and the SQL condition of a search.
- `trace_copy`: Copies of traces, feedback and records of senders out of and into a ClickHouse database, with their
  numbers.
- `connection`: Connection to a ClickHouse server, with the errors of the store; open database with its tables and clock.
- `schema`: Tables of the ClickHouse database: definitions for one server and for a cluster, and the schema version.
"""

from typing import TYPE_CHECKING

from spanwise.tracer.module_loading import lazy

if TYPE_CHECKING:
    from spanwise.collector.stores.clickhouse.backend import ClickHouseTraces
else:
    __getattr__, __dir__ = lazy(__name__, backend="ClickHouseTraces")

__all__ = ["ClickHouseTraces"]

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "connection",
    "deletion",
    "feedback_rows",
    "filter_values",
    "inserter",
    "schema",
    "span_rows",
    "span_writer",
]
