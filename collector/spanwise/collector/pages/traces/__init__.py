"""Trace pages: the list with charts, one trace with its runs, and human feedback.

Modules, in the order in which data flows:

- `trace_list`: Trace list page: filter form, charts over time, feedback per trace.
- `trace_panel`: Side panel of the trace list: question, answer and scores of one trace.
- `neighbours`: Neighbours of a trace in the list from which it was opened.
- `trace_detail`: Trace page: overview, tree of runs, selected run, feedback form, rule decisions.
- `tree_rows`: Rows of the run tree: positions on the time axis, totals per subtree, filters, folds, errors, JSON.
- `tree_pickup`: Runs of a tree that a page has read, kept for the request of its script that follows.
- `trace_overview`: Overview of a trace: question, answer, and the documents between them.
- `trace_comparison`: Two traces side by side: totals, question, answer, documents, scores, and aligned runs.
"""

from spanwise.collector.pages.traces.trace_comparison import compare_traces
from spanwise.collector.pages.traces.trace_detail import (
    add_feedback,
    find_open_root,
    media_page,
    trace,
    tree,
    value_page,
)
from spanwise.collector.pages.traces.trace_list import TRACES_PER_PAGE, charts, load_overview, suggestions, traces
from spanwise.collector.pages.traces.trace_overview import find_exchange

__all__ = [
    "TRACES_PER_PAGE",
    "add_feedback",
    "charts",
    "compare_traces",
    "find_exchange",
    "find_open_root",
    "load_overview",
    "media_page",
    "suggestions",
    "trace",
    "traces",
    "tree",
    "value_page",
]
