"""Evaluators against ground truth: exact match, MAP, MRR, nDCG, recall, semantic similarity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, partial
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from spanwise.evaluators.builtin import retrieval
from spanwise.evaluators.haystack.llm_evaluators import component, component_dict, register_component
from spanwise.evaluators.interface import Skip, to_documents
from spanwise.evaluators.models.cross_encoder import PairScorer
from spanwise.evaluators.models.embedding_model import Embedder
from spanwise.evaluators.models.similarity import TextComparer, cosine, sigmoid

Documents = list[list[Any]]  # type that allows pipelines to check connections
P = ParamSpec("P")
R = TypeVar("R")


class ClassOrInstanceMethod(Generic[P, R]):
    """Decorator of a method that can also be called on the class, which then gets an instance with default parameters.

    Some methods of Haystack's evaluators are static in version 2 and belong to instances in version 3.
    """

    def __init__(self, method: Callable[Concatenate[Any, P], R]) -> None:
        self.__wrapped__ = method
        self.__doc__ = method.__doc__

    def __get__(self, instance: object | None, owner: type) -> Callable[P, R]:
        return MethodType(self.__wrapped__, owner() if instance is None else instance)


class RecallMode(Enum):
    """Definition of recall: one hit is enough, or the share of hits."""

    SINGLE_HIT = "single_hit"
    MULTI_HIT = "multi_hit"

    def __str__(self) -> str:
        return self.value

    @staticmethod
    def from_str(string: str) -> RecallMode:
        """Return the mode with that name. Raises `ValueError`."""
        try:
            return RecallMode(string)
        except ValueError:
            raise ValueError(f"mode must be 'single_hit' or 'multi_hit', got {string!r}") from None


@register_component(score=float, individual_scores=list[int])
@dataclass
class AnswerExactMatchEvaluator:
    """Share of predicted answers that equal the expected ones, compared position by position."""

    def run(self, ground_truth_answers: list[str], predicted_answers: list[str]) -> dict[str, Any]:
        """Return `individual_scores` (0 or 1 each) and `score`, their mean. Raises `ValueError` for empty or unequal
        lists.
        """
        _check_lists("answers", ground_truth_answers, predicted_answers)
        scores = [int(truth == answer) for truth, answer in zip(ground_truth_answers, predicted_answers, strict=True)]
        return {"individual_scores": scores, "score": sum(scores) / len(scores)}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for `from_dict`."""
        return component_dict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AnswerExactMatchEvaluator:
        """Create the evaluator from the values of `to_dict`."""
        return cls(**data.get("init_parameters", {}))


@register_component(score=float, individual_scores=list[float])
@dataclass
class DocumentMAPEvaluator:
    """Mean over questions of the average precision of the retrieved documents."""

    document_comparison_field: str = "content"

    def run(self, ground_truth_documents: Documents, retrieved_documents: Documents) -> dict[str, Any]:
        """Return `individual_scores` and `score`, their mean. Raises `ValueError` for empty or unequal lists."""
        score = partial(retrieval.average_precision, by=self.document_comparison_field)
        return _score_questions(score, ground_truth_documents, retrieved_documents)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for `from_dict`."""
        return component_dict(self, document_comparison_field=self.document_comparison_field)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> DocumentMAPEvaluator:
        """Create the evaluator from the values of `to_dict`."""
        return cls(**data.get("init_parameters", {}))


@register_component(score=float, individual_scores=list[float])
@dataclass
class DocumentMRREvaluator:
    """Mean over questions of 1 / rank of the first expected document."""

    document_comparison_field: str = "content"

    def run(self, ground_truth_documents: Documents, retrieved_documents: Documents) -> dict[str, Any]:
        """Return `individual_scores` and `score`, their mean. Raises `ValueError` for empty or unequal lists."""
        score = partial(retrieval.reciprocal_rank, by=self.document_comparison_field)
        return _score_questions(score, ground_truth_documents, retrieved_documents)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for `from_dict`."""
        return component_dict(self, document_comparison_field=self.document_comparison_field)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> DocumentMRREvaluator:
        """Create the evaluator from the values of `to_dict`."""
        return cls(**data.get("init_parameters", {}))


@register_component(score=float, individual_scores=list[float])
@dataclass
class DocumentNDCGEvaluator:
    """Mean over questions of the normalised discounted cumulative gain. Gains are the scores of the expected documents,
    else 1.

    `calculate_dcg` and `calculate_idcg` can also be called on the class. They then compare the contents of documents.
    """

    document_comparison_field: str = "content"

    def run(self, ground_truth_documents: Documents, retrieved_documents: Documents) -> dict[str, Any]:
        """Return `individual_scores` and `score`, their mean. Raises `ValueError` for empty or unequal lists."""
        score = partial(retrieval.ndcg, by=self.document_comparison_field)
        return _score_questions(score, ground_truth_documents, retrieved_documents)

    @staticmethod
    def validate_inputs(gt_docs: Documents, ret_docs: Documents) -> None:
        """Raise `ValueError` for empty or unequal lists, and if only some expected documents have scores."""
        _check_lists("documents", gt_docs, ret_docs)
        for documents in map(to_documents, gt_docs):
            if len({document.score is None for document in documents}) > 1:
                raise ValueError("either all or none of the documents of ground_truth_documents have a score")

    @ClassOrInstanceMethod
    def calculate_dcg(self, gt_docs: Sequence[Any], ret_docs: Sequence[Any]) -> float:
        """Return the discounted cumulative gain of the retrieved documents."""
        return retrieval.discounted_gain(ret_docs, gt_docs, by=self.document_comparison_field)

    @ClassOrInstanceMethod
    def calculate_idcg(self, gt_docs: Sequence[Any]) -> float:
        """Return the discounted cumulative gain of the best ranking."""
        return retrieval.ideal_discounted_gain(gt_docs, by=self.document_comparison_field)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for `from_dict`."""
        return component_dict(self, document_comparison_field=self.document_comparison_field)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> DocumentNDCGEvaluator:
        """Create the evaluator from the values of `to_dict`."""
        return cls(**data.get("init_parameters", {}))


@register_component(score=float, individual_scores=list[float])
@dataclass
class DocumentRecallEvaluator:
    """Mean over questions of recall: the share of expected documents retrieved, or 1 if any was retrieved."""

    mode: str | RecallMode = RecallMode.SINGLE_HIT
    document_comparison_field: str = "content"

    def __post_init__(self) -> None:
        self.mode = RecallMode.from_str(str(self.mode))

    def run(self, ground_truth_documents: Documents, retrieved_documents: Documents) -> dict[str, Any]:
        """Return `individual_scores` and `score`, their mean. Raises `ValueError` for empty or unequal lists."""
        mode: retrieval.HitMode = "single_hit" if str(self.mode) == "single_hit" else "multi_hit"
        score = partial(retrieval.recall, mode=mode, by=self.document_comparison_field)
        return _score_questions(score, ground_truth_documents, retrieved_documents)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for `from_dict`."""
        return component_dict(self, mode=str(self.mode), document_comparison_field=self.document_comparison_field)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> DocumentRecallEvaluator:
        """Create the evaluator from the values of `to_dict`."""
        return cls(**data.get("init_parameters", {}))


def _score_questions(score: Callable[..., float], expected: Documents, retrieved: Documents) -> dict[str, Any]:
    _check_lists("documents", expected, retrieved)
    scores = []
    for truths, documents in zip(expected, retrieved, strict=True):
        try:
            scores.append(score(to_documents(documents), to_documents(truths)))
        except Skip:  # no document is expected, or none can be compared: 0 in Haystack
            scores.append(0.0)
    return {"score": sum(scores) / len(scores), "individual_scores": scores}


def _check_lists(name: str, truths: Sequence[Any], lists: Sequence[Any]) -> None:
    if not truths or not lists:
        raise ValueError(f"the lists of expected and given {name} must not be empty")
    if len(truths) != len(lists):
        raise ValueError(f"expected and given {name} must have the same length, got {len(truths)} and {len(lists)}")


SAS_MODEL = "sentence-transformers/paraphrase-multilingual-mpnet-base-v2"


def _environment_token() -> Any:
    """Return Haystack's `Secret` that reads HF_API_TOKEN or HF_TOKEN. Return None without Haystack: the hub's client
    then reads HF_TOKEN itself.
    """
    if component is None:
        return None
    from haystack.utils import Secret

    return Secret.from_env_var(["HF_API_TOKEN", "HF_TOKEN"], strict=False)


_DEFAULT_TOKEN = _environment_token()


@register_component(score=float, individual_scores=list[float])
class SASEvaluator:
    """Semantic similarity of predicted answers to the expected ones, compared position by position.

    `model` is a folder or a model of the Hugging Face hub. Its configuration determines whether it is a
    bi-encoder (cosine similarity) or a cross-encoder. `device` is Haystack's `ComponentDevice` or a device name
    of torch. `token` is a `Secret` or a text. Only weights in safetensors are loaded.
    """

    def __init__(
        self, model: str = SAS_MODEL, batch_size: int = 32, device: Any = None, token: Any = _DEFAULT_TOKEN
    ) -> None:
        self._model, self._batch_size, self._device, self._token = model, batch_size, device, token

    @cached_property
    def _comparer(self) -> TextComparer:
        device = self._device.to_torch_str() if hasattr(self._device, "to_torch_str") else self._device
        token = self._token.resolve_value() if hasattr(self._token, "resolve_value") else self._token
        return TextComparer(
            self._model,
            batch_size=self._batch_size,
            device=None if device is None else str(device),
            token=None if token is None else str(token),
        )

    def warm_up(self) -> None:
        """Load the model. Raises `NoModel`."""
        self._comparer.model.load()

    def run(
        self,
        ground_truth_answers: list[str] | None = None,
        predicted_answers: list[str] | None = None,
        ground_truths_answers: list[str] | None = None,
    ) -> dict[str, Any]:
        """Return `individual_scores` and `score`, their mean. Empty lists give [0.0] and 0.0, as in Haystack.

        `ground_truths_answers` is the name that the example in Haystack's documentation uses for
        `ground_truth_answers`. Raises `ValueError` for a missing list, lists of unequal length, and an answer that
        is None. Raises `NoModel`.
        """
        truths = ground_truths_answers if ground_truth_answers is None else ground_truth_answers
        if truths is None or predicted_answers is None:
            raise ValueError("ground_truth_answers and predicted_answers are both needed, a list of texts each")
        if len(truths) != len(predicted_answers):
            raise ValueError(
                "expected and predicted answers must have the same length, "
                f"got {len(truths)} and {len(predicted_answers)}"
            )
        for name, answers in (("ground_truth_answers", truths), ("predicted_answers", predicted_answers)):
            if wrong := [answer for answer in answers if not isinstance(answer, str)]:
                raise ValueError(f"{name} must be texts, got {wrong[0]!r:.100}")
        if not truths:
            return {"score": 0.0, "individual_scores": [0.0]}
        scores = _pair_scores(self._comparer.model, list(zip(predicted_answers, truths, strict=True)))
        return {"score": sum(scores) / len(scores), "individual_scores": scores}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for `from_dict`. Raises `ValueError` for a token that is not read from a variable."""
        if isinstance(self._token, str):
            raise ValueError("a token given as text cannot be serialized; use HF_TOKEN or Secret.from_env_var(…)")
        known = {"model": self._model, "batch_size": self._batch_size}
        return component_dict(self, **known, device=_to_plain_value(self._device), token=_to_plain_value(self._token))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SASEvaluator:
        """Create the evaluator from the values of `to_dict`."""
        parameters = dict(data.get("init_parameters", {}))
        # only devices and tokens that are serialized objects of Haystack need a conversion
        objects = {name: parameters[name] for name in ("device", "token") if isinstance(parameters.get(name), Mapping)}
        if objects and component is None:
            parameters |= dict.fromkeys(objects)
        elif objects:
            from haystack.utils import ComponentDevice, Secret

            makers = {"device": ComponentDevice.from_dict, "token": Secret.from_dict}
            parameters |= {name: makers[name](dict(value)) for name, value in objects.items()}
        return cls(**parameters)


def _pair_scores(model: Embedder | PairScorer, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Return the scores of pairs. If any score of a cross-encoder is above 1, all pass through a sigmoid: this is how
    Haystack detects logits.
    """
    if isinstance(model, PairScorer):
        scores = model.score(pairs)
        return list(map(sigmoid, scores)) if any(score > 1 for score in scores) else scores
    vectors = model.by_text([text for pair in pairs for text in pair])
    scores = []
    for predicted, truth in pairs:
        try:
            scores.append(cosine(vectors[predicted], vectors[truth]))
        except Skip:  # a vector of zeros has no cosine; sentence-transformers returns 0
            scores.append(0.0)
    return scores


def _to_plain_value(value: Any) -> Any:
    return value.to_dict() if hasattr(value, "to_dict") else value
