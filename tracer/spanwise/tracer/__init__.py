"""Capture: `@trace`, spans, delivery. Imports nothing of the other folders."""

from typing import TYPE_CHECKING

from spanwise.tracer.lazy import lazy

if TYPE_CHECKING:
    from spanwise.tracer._ambient import session, tags, user
    from spanwise.tracer._decorate import trace
    from spanwise.tracer._feedback import feedback
    from spanwise.tracer._instrument import instrument, tracer_provider, uninstrument
    from spanwise.tracer._propagate import carry, extract, inject
    from spanwise.tracer._run import Run, current_run, span
    from spanwise.tracer._runtime import Stats, configure, flush, shutdown, stats
    from spanwise.tracer._tally import FlushResult
else:
    __getattr__, __dir__ = lazy(
        __name__,
        _ambient="session tags user",
        _decorate="trace",
        _feedback="feedback",
        _instrument="instrument tracer_provider uninstrument",
        _propagate="carry extract inject",
        _run="Run current_run span",
        _runtime="Stats configure flush shutdown stats",
        _tally="FlushResult",
    )

__all__ = [
    "FlushResult",
    "Run",
    "Stats",
    "carry",
    "configure",
    "current_run",
    "extract",
    "feedback",
    "flush",
    "inject",
    "instrument",
    "session",
    "shutdown",
    "span",
    "stats",
    "tags",
    "trace",
    "tracer_provider",
    "uninstrument",
    "user",
]
