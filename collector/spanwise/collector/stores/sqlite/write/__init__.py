"""Writing batches: encoding of runs, span rows, trace summaries, amendments and feedback.

Modules, in the order in which data flows:

- `run_codec`: Encoding of runs as compressed rows and back.
- `span_writer`: Span writer: inserts batches, merges duplicate and amended spans, and assigns integer keys.
- `trace_cache`: Trace cache of the writer: summaries of recent traces, loaded from and saved to the database.
- `span_tree`: Span tree for incremental summaries: nodes, orphaned spans and local roots, loaded on demand.
- `incremental_summary`: Incremental trace summary. Adding a span costs O(1), independent of the size of the trace.
- `side_tables`: Side tables of the span writer: senders, open runs, pending amendments, response ids, tombstones.
- `feedback_table`: Feedback table: rows, current and superseded feedback, replacement of scores, cursors of
  forwarding.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "feedback_table",
    "incremental_summary",
    "run_codec",
    "side_tables",
    "span_tree",
    "span_writer",
    "trace_cache",
]
