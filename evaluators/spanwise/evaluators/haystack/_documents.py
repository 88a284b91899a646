"""Answers and documents against those that were expected: no judge, only counting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from spanwise.collector.records import Document
from spanwise.evaluators.builtin import retrieval
from spanwise.evaluators.haystack._component import as_component, as_dict
from spanwise.evaluators.protocol import Skip, documents_of

Documents = list[list[Any]]  # a type that a pipeline's connection can be checked against


class RecallMode(Enum):
    """How recall is counted."""

    SINGLE_HIT = "single_hit"
    MULTI_HIT = "multi_hit"

    def __str__(self) -> str:
        return self.value

    @staticmethod
    def from_str(string: str) -> RecallMode:
        """The mode of that name. Raises `ValueError`."""
        try:
            return RecallMode(string)
        except ValueError:
            raise ValueError(f"mode is one of 'single_hit', 'multi_hit', not {string!r}") from None


@as_component(score=float, individual_scores=list[int])
@dataclass
class AnswerExactMatchEvaluator:
    """Predicted answers that are equal to the expected ones, position by position."""

    def run(self, ground_truth_answers: list[str], predicted_answers: list[str]) -> dict[str, Any]:
        """`individual_scores` (0 or 1 each) and `score`, their mean. Raises `ValueError` for empty or unequal lists."""
        _check("answers", ground_truth_answers, predicted_answers)
        scores = [int(truth == answer) for truth, answer in zip(ground_truth_answers, predicted_answers, strict=True)]
        return {"individual_scores": scores, "score": sum(scores) / len(scores)}

    def to_dict(self) -> dict[str, Any]:
        """Plain values from which `from_dict` makes it again."""
        return as_dict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AnswerExactMatchEvaluator:
        """The evaluator from what `to_dict` gave."""
        return cls(**data.get("init_parameters", {}))


@as_component(score=float, individual_scores=list[float])
@dataclass
class DocumentMAPEvaluator:
    """The mean over questions of the average precision of the retrieved documents."""

    document_comparison_field: str = "content"

    def run(self, ground_truth_documents: Documents, retrieved_documents: Documents) -> dict[str, Any]:
        """`individual_scores` and `score`, their mean. Raises `ValueError` for empty or unequal lists."""
        score = partial(retrieval.average_precision, by=self.document_comparison_field)
        return _over(score, ground_truth_documents, retrieved_documents)

    def to_dict(self) -> dict[str, Any]:
        """Plain values from which `from_dict` makes it again."""
        return as_dict(self, document_comparison_field=self.document_comparison_field)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> DocumentMAPEvaluator:
        """The evaluator from what `to_dict` gave."""
        return cls(**data.get("init_parameters", {}))


@as_component(score=float, individual_scores=list[float])
@dataclass
class DocumentMRREvaluator:
    """The mean over questions of 1 / rank of the first expected document."""

    document_comparison_field: str = "content"

    def run(self, ground_truth_documents: Documents, retrieved_documents: Documents) -> dict[str, Any]:
        """`individual_scores` and `score`, their mean. Raises `ValueError` for empty or unequal lists."""
        score = partial(retrieval.reciprocal_rank, by=self.document_comparison_field)
        return _over(score, ground_truth_documents, retrieved_documents)

    def to_dict(self) -> dict[str, Any]:
        """Plain values from which `from_dict` makes it again."""
        return as_dict(self, document_comparison_field=self.document_comparison_field)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> DocumentMRREvaluator:
        """The evaluator from what `to_dict` gave."""
        return cls(**data.get("init_parameters", {}))


@as_component(score=float, individual_scores=list[float])
@dataclass
class DocumentNDCGEvaluator:
    """The mean over questions of the normalised discounted cumulative gain; gains are the expected documents' scores,
    else 1.
    """

    document_comparison_field: str = "content"

    def run(self, ground_truth_documents: Documents, retrieved_documents: Documents) -> dict[str, Any]:
        """`individual_scores` and `score`, their mean. Raises `ValueError` for empty or unequal lists."""
        score = partial(retrieval.ndcg, by=self.document_comparison_field)
        return _over(score, ground_truth_documents, retrieved_documents)

    @staticmethod
    def validate_inputs(gt_docs: Documents, ret_docs: Documents) -> None:
        """Raises `ValueError` for empty or unequal lists, or where only some expected documents have scores."""
        _check("documents", gt_docs, ret_docs)
        for documents in map(documents_of, gt_docs):
            if len({document.score is None for document in documents}) > 1:
                raise ValueError("either all or none of the documents of ground_truth_documents have a score")

    def calculate_dcg(self, gt_docs: Sequence[Any], ret_docs: Sequence[Any]) -> float:
        """The discounted cumulative gain of the retrieved documents."""
        return retrieval.gain(ret_docs, gt_docs, by=self.document_comparison_field)

    def calculate_idcg(self, gt_docs: Sequence[Any]) -> float:
        """The discounted cumulative gain of the best ranking."""
        return retrieval.ideal_gain(gt_docs, by=self.document_comparison_field)

    def to_dict(self) -> dict[str, Any]:
        """Plain values from which `from_dict` makes it again."""
        return as_dict(self, document_comparison_field=self.document_comparison_field)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> DocumentNDCGEvaluator:
        """The evaluator from what `to_dict` gave."""
        return cls(**data.get("init_parameters", {}))


@as_component(score=float, individual_scores=list[float])
@dataclass
class DocumentRecallEvaluator:
    """The mean over questions of the share of expected documents retrieved, or of whether any was."""

    mode: str | RecallMode = RecallMode.SINGLE_HIT
    document_comparison_field: str = "content"

    def __post_init__(self) -> None:
        self.mode = RecallMode.from_str(str(self.mode))

    def run(self, ground_truth_documents: Documents, retrieved_documents: Documents) -> dict[str, Any]:
        """`individual_scores` and `score`, their mean. Raises `ValueError` for empty or unequal lists."""
        score = partial(retrieval.recall, mode=_name(self.mode), by=self.document_comparison_field)
        return _over(score, ground_truth_documents, retrieved_documents)

    def to_dict(self) -> dict[str, Any]:
        """Plain values from which `from_dict` makes it again."""
        return as_dict(self, mode=str(self.mode), document_comparison_field=self.document_comparison_field)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> DocumentRecallEvaluator:
        """The evaluator from what `to_dict` gave."""
        return cls(**data.get("init_parameters", {}))


def _name(mode: str | RecallMode) -> retrieval.Mode:
    return "single_hit" if str(mode) == "single_hit" else "multi_hit"


def _over(score: Callable[..., float], wanted: Documents, retrieved: Documents) -> dict[str, Any]:
    _check("documents", wanted, retrieved)
    pairs = zip(wanted, retrieved, strict=True)
    scores = [_or_zero(score, documents_of(given), documents_of(truths)) for truths, given in pairs]
    return {"score": sum(scores) / len(scores), "individual_scores": scores}


def _or_zero(score: Callable[..., float], retrieved: Sequence[Document], wanted: Sequence[Document]) -> float:
    try:
        return score(retrieved, wanted)
    except Skip:  # nothing is expected, or can be compared: 0 in Haystack
        return 0.0


def _check(what: str, truths: Sequence[Any], given: Sequence[Any]) -> None:
    if not truths or not given:
        raise ValueError(f"the lists of expected and given {what} must not be empty")
    if len(truths) != len(given):
        raise ValueError(f"{len(truths)} lists of expected {what} for {len(given)} given ones: they must be as many")
