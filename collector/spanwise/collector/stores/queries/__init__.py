"""Shared parts of the trace backends: their operations, and logic on records that does not depend on the database.

Modules, in the order in which data flows:

- `trace_operations`: Operations that all trace backends implement alike, in terms of the query functions of a backend.
- `measure_query`: Query for the sums of a measure of traces, block by block: its filter, and the records of its answer.
- `filter_columns`: Columns and expressions that filters compare, in all backends.
- `list_pages`: Pages of lists: traces and sessions sorted by a number, records of sessions, and of the runs of experiments.
- `trace_reader`: Reader of traces: lists of summaries, whole traces, large traces decoded lazily, tree and pages of runs.
- `table_reader`: Reader of the source records of flat tables, in pages of limited size.
- `change_pages`: Limits and cursors of the pages of the change feed, in all backends.
- `filter_reader`: Reader of the values that filters compare, for the filters of rules and for `explain`.
- `feedback_records`: Feedback of all trace backends: columns of a row, replacement of a rule's feedback, and feedback to forward.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "change_pages",
    "feedback_records",
    "filter_columns",
    "filter_reader",
    "list_pages",
    "measure_query",
    "table_reader",
    "trace_operations",
    "trace_reader",
]
