"""Trace pages: the list with charts, one trace with its runs, and human feedback.

Modules, in the order in which data flows:

- `trace_list`: Trace list page: filter form, charts over time, feedback per trace.
- `trace_detail`: Trace page: waterfall, selected run, feedback form, rule decisions.
"""

from spanwise.collector.pages.traces.trace_detail import add_feedback, trace, value_page
from spanwise.collector.pages.traces.trace_list import TRACES_PER_PAGE, charts, traces

__all__ = ["TRACES_PER_PAGE", "add_feedback", "charts", "trace", "traces", "value_page"]
