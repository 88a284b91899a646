"""Evaluators that look at texts through an embedder: those of a batch together, and each case for itself.

A class says which texts it needs of a case, and what their vectors make of it: two steps of one generator.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

import orjson

from assay.collector.records import Case
from assay.evaluators.models._embedder import Embedder, embedder
from assay.evaluators.protocol import Metric
from assay.evaluators.protocol._own import entry_of

if TYPE_CHECKING:
    from assay.evaluators.models._encoding import Vector

Steps: TypeAlias = "Generator[Sequence[str], Mapping[str, Vector], Any]"
"""Yields the texts that it needs, gets their vectors, returns what an evaluator returns; may yield several times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding(ABC):
    """Base of the frozen dataclasses: `model` is whatever names an embedder (None: all-MiniLM-L6-v2).

    A class implements `_steps(case)`, and calls `Embedding.__post_init__(self)` in one of its own. `DOCUMENT` names the
    model of the document: its thresholds are that model's, and with another one nothing passes or fails until one is
    given (`threshold=`) or fitted.
    """

    DOCUMENT: ClassVar[str | None] = None

    model: Any = None
    _embedder: Embedder = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_embedder", embedder(self.model))

    @abstractmethod
    def _steps(self, case: Case) -> Steps:
        """Of one case."""

    def batch(self, cases: Sequence[Case]) -> list[Any]:
        """What each case comes to, or the exception that it raised; all texts of a step are embedded together."""
        came: list[Any] = [None] * len(cases)
        going: dict[int, tuple[Steps, Sequence[str]]] = {}
        for place, case in enumerate(cases):
            _advance(going, came, place, self._steps(case), None)
        while going:
            vectors = self._embedder.by_text([text for _, texts in going.values() for text in texts])
            for place, (steps, texts) in list(going.items()):
                _advance(going, came, place, steps, {text: vectors[text] for text in texts})
        return came

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """With the document's thresholds where the model is the document's."""
        known = entry_of(self)
        metrics = known.spec.metrics if known else ()
        if self.DOCUMENT in (None, self._embedder.name):
            return metrics
        return tuple(replace(metric, threshold=None) for metric in metrics)

    def _one(self, **fields: Any) -> Any:
        """What a batch of one comes to, of which these fields are known. Raises what it raises."""
        [came] = self.batch([cast(Case, SimpleNamespace(**fields))])
        if isinstance(came, BaseException):
            raise came
        return came

    @property
    def version(self) -> str:
        """8 hex digits over what its scores depend on: model and parameters."""
        return hashlib.sha256(orjson.dumps(self._identity(), default=repr)).hexdigest()[:8]

    def _identity(self) -> list[Any]:
        own = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("model", "_embedder")}
        return [dict(self._embedder.identity), own]


def _advance(
    going: dict[int, tuple[Steps, Sequence[str]]],
    came: list[Any],
    place: int,
    steps: Steps,
    vectors: Mapping[str, Vector] | None,
) -> None:
    """One step of one case: it asks for texts, is done, or has failed."""
    going.pop(place, None)
    try:
        going[place] = steps, steps.send(vectors)  # type: ignore[arg-type]  # None begins
    except StopIteration as done:
        came[place] = done.value
    except Exception as error:
        came[place] = error
