"""Writing batches: encoding of runs, span rows, trace summaries, amendments and feedback.

Modules, in the order in which data flows:

- `run_codec`: Encoding of runs as compressed rows and back, with sampling probability and monitor mark of a span.
- `span_writer`: Span writer: inserts batches, merges duplicate and amended spans, and assigns integer keys.
- `trace_cache`: Trace cache of the writer: summaries of recent traces, loaded from and saved to the database.
- `trace_summary`: Trace summary: definition of a trace's totals (root, tokens, cost, completeness) over all of its
  spans.
- `incremental_summary`: Incremental trace summary. Adding a span costs O(1), independent of the size of the trace.
- `span_nodes`: Span tree for incremental summaries: nodes, orphaned spans and local roots, loaded on demand.
- `pending_amendments`: Amendments that wait for their run, and the index of model response ids.
- `sender_records`: Tables about the senders of spans: resources, processes, open runs, destinations, and values for
  filter menus.
- `tombstones`: Tombstones: ids of deleted traces, whose late spans are rejected.
- `feedback_table`: Feedback table: rows, current and superseded feedback, replacement of a rule's earlier scores.
- `forwarding_state`: Forwarding state: cursor of each outlet over the feedback table.
"""

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "feedback_table",
    "forwarding_state",
    "incremental_summary",
    "pending_amendments",
    "run_codec",
    "sender_records",
    "span_nodes",
    "span_writer",
    "trace_cache",
    "trace_summary",
]
