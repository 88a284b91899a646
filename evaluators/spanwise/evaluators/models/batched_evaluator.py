"""Base classes of evaluators that query a model for a batch of cases and isolate failing cases.

Each evaluator implements a generator for one case. The generator yields the model's inputs, receives the model's
replies, and returns the result.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from inspect import isroutine
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar, cast

import orjson

from spanwise.collector.records import Case
from spanwise.evaluators.interface import Metric, compute_fingerprint
from spanwise.evaluators.interface.evaluator_registry import find_registration
from spanwise.evaluators.models.cross_encoder import PairScorer, TextPair, pair_scorer
from spanwise.evaluators.models.embedding_model import Embedder, embedder
from spanwise.evaluators.models.model_resolution import NoModel

if TYPE_CHECKING:
    from spanwise.evaluators.models.disk_cache import Vector


Asked = TypeVar("Asked")
Reply = TypeVar("Reply")
ModelSteps: TypeAlias = Generator[Sequence[Asked], Mapping[Asked, Reply], Any]
"""Yields what it asks, gets the replies, returns what an evaluator returns; may yield several times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedEvaluator(ABC, Generic[Asked, Reply]):
    """Base class of frozen dataclasses that score a batch of cases with one model.

    The class variable `PRESET` names the default model, and `DEFAULT_MODEL` describes it with its limits. `DOCUMENT`
    names the model for which the source document chose its thresholds. With any other model, the metrics have no
    threshold until the user gives one (`threshold=`) or fits one.
    """

    DOCUMENT: ClassVar[str | None] = None
    PRESET: ClassVar[str]
    DEFAULT_MODEL: ClassVar[str]

    @abstractmethod
    def _steps(self, case: Case) -> ModelSteps[Asked, Reply]:
        """Yield the model's inputs for one case, receive the replies, and return the result."""

    @abstractmethod
    def _replies(self, asked: Sequence[Asked]) -> Mapping[Asked, Reply | Exception]:
        """Return the model's reply for each input, or the exception if the model fails for that input. Raises
        `NoModel`.
        """

    @abstractmethod
    def _load(self) -> None:
        """Load the model into memory. Raises `NoModel`."""

    @property
    @abstractmethod
    def _model(self) -> Mapping[str, Any]:
        """Return the model's properties that the scores depend on. The key `model` holds its name."""

    def batch(self, cases: Sequence[Case]) -> list[Any]:
        """Return for each case its result, or the exception that it raised.

        The cases advance together: one model call serves the same step of all cases.
        """
        results: list[Any] = [None] * len(cases)
        try:
            self._load()
        except NoModel as error:
            return [error] * len(cases)
        going: dict[int, tuple[ModelSteps[Asked, Reply], Sequence[Asked]]] = {}
        for place, case in enumerate(cases):
            _advance_case(going, results, place, self._steps(case), None)
        while going:
            replies = self._replies([one for _, asked in going.values() for one in asked])
            for place, (steps, asked) in list(going.items()):
                _advance_case(going, results, place, steps, {one: replies[one] for one in asked})
        return results

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Return the metrics, without thresholds if the model differs from `DOCUMENT`."""
        known = find_registration(self)
        metrics = known.spec.metrics if known else ()
        if self.DOCUMENT in (None, self._model["model"]):
            return metrics
        return tuple(replace(metric, threshold=None) for metric in metrics)

    @property
    def version(self) -> str:
        """Return 8 hex digits, a hash of the model and of the parameters that the scores depend on."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.init and one.name != "model"}
        return hashlib.sha256(orjson.dumps([dict(self._model), own], default=_stable_repr)).hexdigest()[:8]

    def _one(self, **known: Any) -> Any:
        """Score one case whose fields are the keyword arguments, and return the result. Raises the case's exception."""
        [result] = self.batch([cast(Case, SimpleNamespace(**known))])
        if isinstance(result, BaseException):
            raise result
        return result


def _stable_repr(value: object) -> str:
    """Return the fingerprint of a function, and the `repr` of other values without memory addresses.

    An address would change a version at each start of a process.
    """
    return compute_fingerprint(value) if isroutine(value) else re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _advance_case(
    going: dict[int, tuple[ModelSteps[Asked, Reply], Sequence[Asked]]],
    results: list[Any],
    place: int,
    steps: ModelSteps[Asked, Reply],
    replies: Mapping[Asked, Reply | Exception] | None,
) -> None:
    """Advance one case by one step, and record its next inputs, its result or its exception.

    If one of its replies is an exception, it is raised inside the case's generator.
    """
    going.pop(place, None)
    try:
        failed = next((one for one in (replies or {}).values() if isinstance(one, Exception)), None)
        asked = steps.throw(failed) if failed else steps.send(replies)  # type: ignore[arg-type]  # None begins
        going[place] = steps, asked
    except StopIteration as done:
        results[place] = done.value
    except Exception as error:
        results[place] = error


EmbeddingSteps: TypeAlias = "Generator[Sequence[str], Mapping[str, Vector], Any]"
"""Yields the texts that it needs, gets their vectors, returns what an evaluator returns; may yield several times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingEvaluator(BatchedEvaluator[str, "Vector"]):
    """Base class of frozen dataclasses that score with an embedder.

    `model` is any argument that `embedder` accepts (None: all-MiniLM-L6-v2). A subclass implements `_steps(case)`. If
    it defines `__post_init__`, it calls `EmbeddingEvaluator.__post_init__(self)`.
    """

    model: Any = None
    _embedder: Embedder = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_embedder", embedder(self.model))

    def _replies(self, asked: Sequence[str]) -> Mapping[str, Vector]:
        return self._embedder.by_text(asked)

    def _load(self) -> None:
        """Do nothing: the embedder loads the model with the first text, so cases without texts need no model."""

    @property
    def _model(self) -> Mapping[str, Any]:
        return self._embedder.identity


# the model's only score, or the probabilities of entailment, neutral and contradiction
PairScores: TypeAlias = tuple[float, ...]
SupportSteps: TypeAlias = Generator[Sequence[TextPair], Mapping[TextPair, PairScores], list[float]]
MAX_PAIRS = 100_000  # maximum pairs per case; scoring this many takes hours on a CPU
_PAIRS_PER_STEP = 4096  # maximum pairs of one case that are in memory as texts at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class PairEvaluator(BatchedEvaluator[TextPair, PairScores]):
    """Base class of frozen dataclasses that score with a pair scorer.

    `model` is any argument that `pair_scorer` accepts (None: the class's `PRESET`). If a subclass defines
    `__post_init__`, it calls `PairEvaluator.__post_init__(self)`.
    """

    model: Any = None
    _scorer: PairScorer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_scorer", pair_scorer(self.PRESET if self.model is None else self.model))

    def _replies(self, asked: Sequence[TextPair]) -> Mapping[TextPair, PairScores | Exception]:
        return self._scorer.each(asked)

    def _load(self) -> None:
        self._scorer.load()

    @property
    def _model(self) -> Mapping[str, Any]:
        return self._scorer.identity

    def _supports(self, context: Sequence[str], texts: Sequence[str]) -> SupportSteps:
        """Return, for each text, how strongly the context supports it: the maximum over all windows of the context.

        If a text is longer than the model's input, it is cut into windows, and its least supported window counts.
        Raises `ValueError` if there are more than `MAX_PAIRS` pairs.
        """
        firsts, seconds = self._scorer.parts(context, texts)
        pairs = ((first, second) for parts in seconds for second in parts for first in firsts)
        support: dict[TextPair, float] = {}
        if (number := len(firsts) * sum(map(len, seconds))) > MAX_PAIRS:
            raise ValueError(f"context and answer make {number:,} pairs to score, more than the limit of {MAX_PAIRS:,}")
        while some := list(islice(pairs, _PAIRS_PER_STEP)):
            replies = yield some
            support |= {pair: support_probability(row, self._scorer.name) for pair, row in replies.items()}
        return [min(max(support[first, second] for first in firsts) for second in parts) for parts in seconds]


def support_probability(row: PairScores, name: str) -> float:
    """Return a pair's probability of entailment, or its only score if the model is no NLI model.

    Raises `ValueError` if that score is not a probability.
    """
    if not 0 <= row[0] <= 1:
        raise ValueError(f"{name!r} returned {row[0]!r} for a pair; expected a probability from 0 to 1")
    return row[0]


def retrieved_chunks(case: Case) -> list[str]:
    """Return the texts of the retrieved documents, without blank ones."""
    return [content for document in case.documents or () if (content := document.content or "").strip()]
