"""Haystack's semantic answer similarity (SAS): a bi-encoder or a cross-encoder over lists of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from spanwise.evaluators.haystack._component import as_component, as_dict, component
from spanwise.evaluators.models._alike import Comparer, sigmoid
from spanwise.evaluators.models._cosine import cosine
from spanwise.evaluators.models._embedder import Embedder
from spanwise.evaluators.models._pairs import PairScorer
from spanwise.evaluators.protocol import Skip

MODEL = "sentence-transformers/paraphrase-multilingual-mpnet-base-v2"


def _of_environment() -> Any:
    """Haystack's secret of two variables. Without Haystack None: the hub's client reads HF_TOKEN itself."""
    if component is None:
        return None
    from haystack.utils import Secret

    return Secret.from_env_var(["HF_API_TOKEN", "HF_TOKEN"], strict=False)


_TOKEN = _of_environment()


@as_component(score=float, individual_scores=list[float])
class SASEvaluator:
    """How alike predicted answers are to the expected ones, position by position.

    `model` is a folder or a model of the hub; its configuration says whether it is a bi-encoder (cosines) or a
    cross-encoder. `device` is Haystack's `ComponentDevice` or a name as torch has them, `token` a `Secret`, or a text.
    Only weights in safetensors are loaded.
    """

    def __init__(self, model: str = MODEL, batch_size: int = 32, device: Any = None, token: Any = _TOKEN) -> None:
        self._model, self._batch_size, self._device, self._token = model, batch_size, device, token

    @cached_property
    def _comparer(self) -> Comparer:
        device, token = _device(self._device), _revealed(self._token)
        return Comparer(self._model, batch_size=self._batch_size, device=device, token=token)

    def warm_up(self) -> None:
        """Load the model. Raises `NoModel`."""
        self._comparer.model.load()

    def run(
        self,
        ground_truth_answers: list[str] | None = None,
        predicted_answers: list[str] | None = None,
        ground_truths_answers: list[str] | None = None,
    ) -> dict[str, Any]:
        """`individual_scores` and `score`, their mean; 0.0 and [0.0] for empty lists, as there.

        `ground_truths_answers` is what the example in Haystack's documentation calls `ground_truth_answers`. Raises
        `ValueError` for a list that is missing, lists of unequal length, and an answer that is None; `NoModel`.
        """
        truths = ground_truths_answers if ground_truth_answers is None else ground_truth_answers
        if truths is None or predicted_answers is None:
            raise ValueError("ground_truth_answers and predicted_answers are both needed, a list of texts each")
        _check(truths, predicted_answers)
        if not truths:
            return {"score": 0.0, "individual_scores": [0.0]}
        scores = _scores(self._comparer.model, list(zip(predicted_answers, truths, strict=True)))
        return {"score": sum(scores) / len(scores), "individual_scores": scores}

    def to_dict(self) -> dict[str, Any]:
        """Plain values from which `from_dict` makes it again. Raises `ValueError` for a token that is no variable."""
        known = {"model": self._model, "batch_size": self._batch_size}
        return as_dict(self, **known, device=_plain(self._device), token=_plain_token(self._token))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SASEvaluator:
        """The evaluator from what `to_dict` gave."""
        parameters = dict(data.get("init_parameters", {}))
        return cls(**{**parameters, **_restored(parameters)})


def _scores(model: Embedder | PairScorer, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Of a cross-encoder all scores go through a sigmoid where one is above 1: that is how Haystack tells logits."""
    if isinstance(model, PairScorer):
        scores = model.score(pairs)
        return list(map(sigmoid, scores)) if any(score > 1 for score in scores) else scores
    vectors = model.by_text([text for pair in pairs for text in pair])
    return [_cosine(vectors[one], vectors[other]) for one, other in pairs]


def _cosine(one: Any, other: Any) -> float:
    try:
        return cosine(one, other)
    except Skip:  # the vector of a text is zero: 0 in sentence-transformers
        return 0.0


def _check(truths: Sequence[Any], predicted: Sequence[Any]) -> None:
    if len(truths) != len(predicted):
        raise ValueError(f"{len(truths)} expected answers for {len(predicted)} predicted ones: they must be as many")
    for what, answers in (("ground_truth_answers", truths), ("predicted_answers", predicted)):
        if wrong := [answer for answer in answers if not isinstance(answer, str)]:
            raise ValueError(f"{what} are texts, not {wrong[0]!r:.100}")


def _device(given: Any) -> str | None:
    named = given.to_torch_str() if hasattr(given, "to_torch_str") else given
    return None if named is None else str(named)


def _revealed(token: Any) -> str | None:
    value = token.resolve_value() if hasattr(token, "resolve_value") else token
    return None if value is None else str(value)


def _plain(value: Any) -> Any:
    return value.to_dict() if hasattr(value, "to_dict") else value


def _plain_token(token: Any) -> Any:
    if isinstance(token, str):
        raise ValueError("a token is not written down: leave it to HF_TOKEN, or give Secret.from_env_var(…)")
    return _plain(token)


def _restored(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Device and token that were plain values, as Haystack's objects; what is None or a name stays so."""
    plain = {name: parameters[name] for name in ("device", "token") if isinstance(parameters.get(name), Mapping)}
    if not plain:
        return {}
    if component is None:
        return dict.fromkeys(plain)
    from haystack.utils import ComponentDevice, Secret

    makers = {"device": ComponentDevice.from_dict, "token": Secret.from_dict}
    return {name: makers[name](dict(value)) for name, value in plain.items()}
