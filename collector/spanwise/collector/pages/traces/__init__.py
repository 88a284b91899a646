"""Trace pages: the list with charts, one trace with its runs, and human feedback.

Modules, in the order in which data flows:

- `trace_list`: Trace list page: filter form, charts over time, feedback per trace.
- `trace_overview`: Overview of a trace: question, answer and documents, the side panel, and its neighbours in the
  list.
- `trace_detail`: Trace page: overview, tree of runs, selected run, feedback form, rule decisions.
- `tree_rows`: Rows of the run tree: positions on the time axis, totals per subtree, filters, folds, errors, JSON.
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

# Modules that other packages may import; the others are internal
SHARED_MODULES = [
    "trace_list",
]
