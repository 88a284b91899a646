"""What evaluators look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spanwise.collector.records._dataset import Example
from spanwise.collector.records._run import Document, Run, Trace
from spanwise.collector.records._values import JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What an evaluator's arguments are taken from: one finished run of a task, one live trace, or a session.

    `spanwise.evaluators.case_of` makes them all, and says what each field holds.
    """

    example: Example | None = None
    trace: Trace | None = None
    inputs: JSON = None
    outputs: JSON = None
    reference_outputs: JSON = None
    documents: tuple[Document, ...] | None = None  # (): a retrieval found nothing; None: none ran
    expected_documents: tuple[Document, ...] | None = None
    conditions: JSON = None
    guidelines: JSON = None
    history: JSON = None
    metadata: Mapping[str, JSON] = field(default_factory=dict)

    @property
    def run(self) -> Run | None:
        """The root run of the trace, if there is a trace."""
        return self.trace.root if self.trace else None
