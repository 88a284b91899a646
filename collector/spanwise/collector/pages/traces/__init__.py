"""Traces: the list with its charts, one trace with its runs, and feedback that readers add."""

from spanwise.collector.pages.traces._feedback import add_feedback
from spanwise.collector.pages.traces._list import PAGE, charts, traces
from spanwise.collector.pages.traces._trace import part, trace

__all__ = ["PAGE", "add_feedback", "charts", "part", "trace", "traces"]
