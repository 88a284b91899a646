"""Queries: filters compiled to SQL, query plans, lists, traces and the change feed.

Modules, in the order in which data flows:

- `filter_sql`: Filters compiled to SQL conditions, and the choice of the index that leads a query.
- `record_lists`: Lists of feedback, sessions and distinct values, and pages sorted by a number.
- `trace_queries`: Trace queries: lists of summaries, whole traces, large traces read lazily, tree and pages of runs.
- `change_feed`: Change feed: heads of traces in the order of their last change, and the values that filters compare.
- `table_records`: Source records of flat tables (see `spanwise.collector.stores.flat_tables`), in pages of limited size.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "change_feed",
    "filter_sql",
    "record_lists",
    "table_records",
    "trace_queries",
]
