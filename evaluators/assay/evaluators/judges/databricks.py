"""Databricks' judges: yes or no with a rationale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from assay.collector.records import Case
from assay.evaluators.judges._base import Judged
from assay.evaluators.judges._rating import yes_or_no
from assay.evaluators.protocol import Metric, builtin
from assay.evaluators.protocol.standards import VALID


@builtin(
    "relevance_to_query",
    metrics=(Metric("relevance_to_query", primary=True),),
    standards=(VALID,),
    source="Databricks: relevance_to_query",
    judge=True,
    kind="model",
)
@dataclass(frozen=True, slots=True, kw_only=True)
class RelevanceToQuery(Judged):
    """Whether the answer is relevant to what was asked."""

    PROMPT: ClassVar[str] = "relevance_to_query"

    async def __call__(self, case: Case, inputs: Any, outputs: Any) -> dict[str, Any]:
        return await yes_or_no("relevance_to_query", self._judge, self._prompt, case)
