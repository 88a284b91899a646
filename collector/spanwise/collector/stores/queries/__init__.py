"""Shared parts of the trace backends: their operations, and logic on records that does not depend on the database.

Modules, in the order in which data flows:

- `feedback_records`: Feedback of all trace backends: columns of a row, replacement of a rule's feedback, and feedback to forward.
- `measure_query`: Query for the sums of a measure of traces, block by block: its filter, and the records of its answer.
- `trace_operations`: Operations that all trace backends implement alike, in terms of the query functions of a backend.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "feedback_records",
    "measure_query",
    "trace_operations",
]
