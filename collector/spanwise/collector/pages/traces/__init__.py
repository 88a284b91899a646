"""Trace pages: the list with charts, one trace with its runs, and human feedback.

Modules, in the order in which data flows:

- `trace_list`: Trace list page: filter form, charts over time, feedback per trace.
- `trace_detail`: Trace page: overview, tree of runs, selected run, feedback form, rule decisions.
- `tree_rows`: Rows of the run tree: positions on the time axis, totals per subtree, filters, folds, errors.
- `trace_overview`: Overview of a trace: question, answer, and the documents between them.
"""

from spanwise.collector.pages.traces.trace_detail import add_feedback, media_page, trace, value_page
from spanwise.collector.pages.traces.trace_list import TRACES_PER_PAGE, charts, load_overview, suggestions, traces

__all__ = [
    "TRACES_PER_PAGE",
    "add_feedback",
    "charts",
    "load_overview",
    "media_page",
    "suggestions",
    "trace",
    "traces",
    "value_page",
]
