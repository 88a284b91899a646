"""Databricks' judges: yes or no with a rationale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from assay.collector.records import Case
from assay.evaluators.judges._base import Judged
from assay.evaluators.judges._prompts import Prompt
from assay.evaluators.judges._rating import yes_or_no
from assay.evaluators.judges._values import texts_of
from assay.evaluators.protocol import Metric, builtin, value_of
from assay.evaluators.protocol.standards import OUTCOMES, TRANSPARENT, VALID

NOT_GIVEN: Mapping[str, str] = {"inputs": "(not given)"}  # what a judgement can do without, and what stands for it


def _metric(id: str) -> tuple[Metric, ...]:
    return (Metric(id, threshold=0.5, primary=True),)


def values_of(case: Case, prompt: Prompt) -> dict[str, str]:
    """What a prompt asks for, as texts; the request may be missing. Raises `Skip` naming anything else that is."""
    missing = {name: words for name, words in NOT_GIVEN.items() if value_of(case, name) is None}
    asked = (name for name in prompt.asked if name not in missing)
    return {**missing, **texts_of(case, asked)}


@builtin(
    "correctness",
    metrics=_metric("correctness"),
    standards=(VALID, OUTCOMES),
    source="Databricks: correctness",
    canonical="by hand",
    judge=True,
    kind="model",
    example='get("correctness", judge=scripted({"rationale": "It says 4.", "rating": "yes"})), '
    'inputs="What is 2 + 2?", outputs="It is 4, as always.", reference_outputs="4"',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Correctness(Judged):
    """Whether the answer supports the facts of the expected one.

    `reference_outputs` should hold the facts that an answer must have, and no others: what the answer says beyond them
    is fine, and so are small omissions and inaccuracies that leave the meaning intact. The request is shown to the
    judge where there is one.
    """

    PROMPT: ClassVar[str] = "correctness"

    async def __call__(self, case: Case, outputs: Any, reference_outputs: Any, inputs: Any = None) -> dict[str, Any]:
        return await yes_or_no("correctness", self._judge, self._prompt, case, values_of(case, self._prompt))


@builtin(
    "relevance_to_query",
    metrics=_metric("relevance_to_query"),
    standards=(VALID,),
    source="Databricks: relevance_to_query",
    canonical="by hand",
    judge=True,
    kind="model",
    example='get("relevance_to_query", judge=scripted({"rationale": "It is about tea.", "rating": "no"})), '
    'inputs="How is coffee made?", outputs="Tea comes from Asia."',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class RelevanceToQuery(Judged):
    """Whether the answer is relevant to what was asked, be it right or wrong."""

    PROMPT: ClassVar[str] = "relevance_to_query"

    async def __call__(self, case: Case, inputs: Any, outputs: Any) -> dict[str, Any]:
        return await yes_or_no("relevance_to_query", self._judge, self._prompt, case)


@builtin(
    "groundedness_judge",
    metrics=_metric("groundedness_judge"),
    standards=(VALID, TRANSPARENT),
    source="Databricks: groundedness",
    canonical="by hand",
    judge=True,
    kind="model",
    llm=False,
    example='get("groundedness_judge", judge=scripted({"rationale": "1912 is not there.", "rating": "no"})), '
    'inputs="When was it built?", outputs="It was built in 1912.", documents=["The tower is 40 m high."]',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class GroundednessJudge(Judged):
    """Whether the retrieved context supports all or almost all of the answer: no hallucinations.

    H2O's `groundedness` compares embeddings; this one asks a judge. A case whose retrieval found nothing is judged: an
    answer that claims nothing is supported by nothing.
    """

    PROMPT: ClassVar[str] = "groundedness_judge"

    async def __call__(self, case: Case, outputs: Any, documents: Any, inputs: Any = None) -> dict[str, Any]:
        return await yes_or_no("groundedness_judge", self._judge, self._prompt, case, values_of(case, self._prompt))
