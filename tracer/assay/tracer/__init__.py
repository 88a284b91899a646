"""Capture: `@trace`, spans, delivery. Imports nothing of the other folders."""

from assay.tracer._ambient import session, tags, user
from assay.tracer._decorate import trace
from assay.tracer._delivery import Flushed
from assay.tracer._run import Run, current_run, span
from assay.tracer._runtime import Stats, configure, flush, stats

__all__ = [
    "Flushed",
    "Run",
    "Stats",
    "configure",
    "current_run",
    "flush",
    "session",
    "span",
    "stats",
    "tags",
    "trace",
    "user",
]
