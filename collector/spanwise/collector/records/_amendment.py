"""What is said of a run in another message than its span."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spanwise.collector.records._values import JSON


@dataclass(frozen=True, slots=True)
class Amendment:
    """Fields of a run whose content came in another message than its span; `TraceStore.amend` says which there are.

    Whoever knows no span names a response of a model instead, by which the run is found that bears its id in the
    attribute `gen_ai.response.id`; both ids are empty then. With `project` it is for a run of that project alone.
    """

    trace_id: str
    span_id: str
    fields: Mapping[str, JSON]
    response_id: str | None = None
    project: str | None = None
