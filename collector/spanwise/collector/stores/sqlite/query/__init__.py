"""Queries: filters compiled to SQL, query plans, lists, traces and the change feed.

Modules, in the order in which data flows:

- `filter_sql`: Filters compiled to SQL conditions.
- `query_plan`: Query plans: choice of the index that leads a query over traces.
- `sorted_lists`: Traces and sessions sorted by a number, page by page.
- `trace_queries`: Trace queries: lists of summaries, whole traces, large traces read lazily, tree and pages of runs.
- `feedback_and_sessions`: Lists of feedback, scores of rules and experiments, and sessions; row counts.
- `trace_values`: Values of stored traces that filters compare (see `spanwise.collector.filter_evaluation`).
- `table_records`: Source records of flat tables (see `spanwise.collector.stores.flat_tables`), in pages of limited size.
- `change_feed`: Change feed: heads of traces in the order of their last change.
- `distinct_values`: Distinct values of a field, for filter menus.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "change_feed",
    "distinct_values",
    "feedback_and_sessions",
    "filter_sql",
    "query_plan",
    "table_records",
    "trace_queries",
]
