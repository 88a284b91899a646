"""How alike texts are in meaning, by the vectors of an embedding model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from assay.collector.records import Case
from assay.evaluators.builtin._texts import text_of
from assay.evaluators.models._cosine import cosine
from assay.evaluators.models._modelled import Embedding, Steps
from assay.evaluators.protocol import Metric, builtin
from assay.evaluators.protocol.standards import OUTCOMES, VALID


@builtin(
    "semantic_similarity",
    metrics=(Metric("semantic_similarity", primary=True),),
    standards=(VALID, OUTCOMES),
    source="Laminar: semantic similarity",
    canonical="numpy",
    model=True,
    gpu=True,
    kind="model",
    example='get("semantic_similarity", model=lambda texts: [[len(text), 1] for text in texts]), '
    'outputs="It is Paris.", reference_outputs="Paris"',
)
@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticSimilarity(Embedding):
    """(cos + 1) / 2 of answer and reference, in [0, 1]."""

    def __call__(self, outputs: Any, reference_outputs: Any) -> Any:
        """Of one case."""
        return one(self, Case(outputs=outputs, reference_outputs=reference_outputs))

    def _steps(self, case: Case) -> Steps:
        texts = [text_of(case.outputs), text_of(case.reference_outputs)]
        vectors = yield texts
        return (cosine(*(vectors[text] for text in texts)) + 1) / 2


def one(evaluator: Embedding, case: Case) -> Any:
    """What a batch of one comes to. Raises what the case raises."""
    [came] = evaluator.batch([case])
    if isinstance(came, BaseException):
        raise came
    return came
