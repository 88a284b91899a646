"""What is said of an evaluator beside its code: needs, metrics, standards, sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from spanwise.collector.records import Source
from spanwise.evaluators.protocol._metric import Metric

FIRST = "1"
Need = Literal["yes", "optional", "no"]
COLUMNS: Mapping[str, frozenset[str]] = {
    "question": frozenset({"inputs"}),
    "expected": frozenset({"reference_outputs", "expected_documents"}),
    "context": frozenset({"documents"}),
    "actual": frozenset({"outputs"}),
    "conditions": frozenset({"conditions", "guidelines"}),
    "trace": frozenset({"trace", "run", "root_run"}),
}
DATABRICKS: Mapping[str, str] = {  # its columns, and the fields of a case that they are
    "request": "inputs",
    "response": "outputs",
    "expected_response": "reference_outputs",
    "retrieved_context": "documents",
    "expected_retrieved_context": "expected_documents",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What the registry says of an evaluator. `needs` are the arguments that cases must have, `uses` those they may."""

    id: str
    group: str
    metrics: tuple[Metric, ...]
    needs: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    version: str = FIRST  # a number that changes whenever results change; part of the version of every feedback
    standards: tuple[str, ...] = ()
    source: str = ""  # the document that defines it
    canonical: str = ""  # the implementation whose numbers it gives
    llm: bool = True  # makes sense for a model alone
    rag: bool = True  # makes sense for retrieval and generation
    judge: bool = False
    agent: bool = False
    model: bool = False
    gpu: bool = False
    summary: bool = False
    kind: Source = "code"
    example: str = ""  # arguments of `score(…)`, as code

    @property
    def needed(self) -> dict[str, Need]:
        """The table of needs: which columns of a test case, and which machinery."""
        columns = {name: self._need(fields) for name, fields in COLUMNS.items()}
        machinery = {"judge": self.judge, "agent": self.agent, "model": self.model, "gpu": self.gpu}
        return columns | {name: "yes" if needed else "no" for name, needed in machinery.items()}

    def _need(self, fields: frozenset[str]) -> Need:
        return "yes" if fields & set(self.needs) else "optional" if fields & set(self.uses) else "no"
