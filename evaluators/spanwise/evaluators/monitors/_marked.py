"""The mark of what a monitor makes itself: no rule takes it, in whatever process it goes on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from spanwise.collector.records import Run
from spanwise.tracer import attributes as names


def marked_runs(runs: Iterable[Run]) -> list[Run]:
    """Judgements begin in no context; their runs get the mark before they are stored."""
    return [replace(run, resource={**run.resource, names.MONITOR: True}) for run in runs]
