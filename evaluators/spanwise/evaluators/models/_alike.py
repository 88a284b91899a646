"""How alike two texts are: the cosine of their vectors (bi-encoder), or what a cross-encoder says of both together.

Which of the two a model is stands in its configuration, as Haystack reads it: one that classifies is a cross-encoder.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp
from pathlib import Path
from typing import Any

from spanwise.collector.records import Case
from spanwise.evaluators.builtin._texts import text_of
from spanwise.evaluators.models._cosine import cosine
from spanwise.evaluators.models._embedder import Embedder, embedder
from spanwise.evaluators.models._find import Place, find, is_offline, loading
from spanwise.evaluators.models._pairs import Pair, PairScorer, pair_scorer
from spanwise.evaluators.models._stepwise import Steps, Stepwise

CLASSIFIES = "ForSequenceClassification"
_OF_PAIRS = frozenset(inspect.signature(PairScorer).parameters)  # what else is said is said of an embedder


class Comparer:
    """Similarities of pairs by whatever names an embedder or a pair scorer. Nothing is loaded before the first pair."""

    def __init__(self, model: Any = None, **options: Any) -> None:
        self._given, self._options = model, options

    @property
    def identity(self) -> Mapping[str, Any]:
        """What its similarities depend on."""
        return self.model.identity if isinstance(self._given, PairScorer) else self._as_embedder().identity

    @cached_property
    def model(self) -> Embedder | PairScorer:
        """The bi-encoder or cross-encoder; of a name its configuration says which. Raises `NoModel`."""
        cross = _is_cross(self._given, self._options.get("token"))
        return pair_scorer(self._given, **self._options) if cross else self._as_embedder()

    def each(self, pairs: Sequence[Pair]) -> dict[Pair, float | Exception]:
        """The similarity of each pair, or why there is none: a `Skip` where the vector of a text is zero.

        A cosine is in [-1, 1], what a cross-encoder says in [0, 1]: through a sigmoid where it gives logits.
        """
        if isinstance(self.model, PairScorer):
            said = self.model.each(pairs)
            logits = self.model.gives_logits
            return {pair: row if isinstance(row, Exception) else _share(row[0], logits) for pair, row in said.items()}
        vectors = self.model.by_text([text for pair in pairs for text in pair])
        return {pair: _cosine(vectors[pair[0]], vectors[pair[1]]) for pair in pairs}

    def _as_embedder(self) -> Embedder:
        return embedder(self._given, **self._options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparing(Stepwise[Pair, float]):
    """Base of the frozen dataclasses that compare the answer with the reference, both as wholes.

    `model` is whatever names an embedder or a pair scorer (None: all-MiniLM-L6-v2).
    """

    model: Any = None
    _comparer: Comparer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_comparer", Comparer(self.model))
        self._comparer.identity  # noqa: B018 (what names no model is said now)

    def __call__(self, outputs: Any, reference_outputs: Any) -> Any:
        return self._one(outputs=outputs, reference_outputs=reference_outputs)

    def _steps(self, case: Case) -> Steps[Pair, float]:
        pair = text_of(case.outputs), text_of(case.reference_outputs)
        replies = yield [pair]
        return replies[pair]

    def _replies(self, asked: Sequence[Pair]) -> Mapping[Pair, float | Exception]:
        return self._comparer.each(asked)

    def _load(self) -> None:
        self._comparer.model.load()

    @property
    def _model(self) -> Mapping[str, Any]:
        return self._comparer.identity


def sigmoid(score: float) -> float:
    """The share of a logit, in [0, 1]; 0 for one so low that its exponential is no number."""
    return 1 / (1 + exp(-score)) if score > -700 else 0.0


def _is_cross(given: Any, token: str | None = None) -> bool:
    if isinstance(given, PairScorer | Embedder):
        return isinstance(given, PairScorer)
    if isinstance(given, Mapping):
        return given.keys() <= _OF_PAIRS and _is_cross(given.get("model"), token)
    if isinstance(given, str | os.PathLike):
        return _classifies(find(given), token)
    return hasattr(given, "predict") and not hasattr(given, "encode")  # a function is one of texts


def _classifies(place: Place, token: str | None) -> bool:
    if place.preset is not None:
        return place.preset.use == "pairs"
    if place.local and not (Path(place.where) / "config.json").is_file():
        return False  # a folder of sentence-transformers that holds its parts below it
    with loading(place, f"comparing texts with {place.name}"):
        from transformers import PretrainedConfig

        described, _ = PretrainedConfig.get_config_dict(place.where, token=token, local_files_only=is_offline())
    return any(str(name).endswith(CLASSIFIES) for name in described.get("architectures") or ())


def _cosine(one: Any, other: Any) -> float | Exception:
    try:
        return cosine(one, other)
    except Exception as error:  # a `Skip`, of this pair alone
        return error


def _share(score: float, is_logit: bool) -> float | Exception:
    if is_logit:
        return sigmoid(score)
    if not -1 <= score <= 1:
        return ValueError(f"a cross-encoder's similarity is from 0 to 1, not {score!r}")
    return score
