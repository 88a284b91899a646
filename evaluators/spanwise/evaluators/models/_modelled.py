"""Evaluators that look at texts through an embedder: those of a batch together, and each case for itself."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from spanwise.evaluators.models._embedder import Embedder, embedder
from spanwise.evaluators.models._stepwise import Stepwise

if TYPE_CHECKING:
    from spanwise.evaluators.models._encoding import Vector

Steps: TypeAlias = "Generator[Sequence[str], Mapping[str, Vector], Any]"
"""Yields the texts that it needs, gets their vectors, returns what an evaluator returns; may yield several times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding(Stepwise[str, "Vector"]):
    """Base of the frozen dataclasses: `model` is whatever names an embedder (None: all-MiniLM-L6-v2).

    A class implements `_steps(case)`, and calls `Embedding.__post_init__(self)` in one of its own.
    """

    model: Any = None
    _embedder: Embedder = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_embedder", embedder(self.model))

    def _replies(self, asked: Sequence[str]) -> Mapping[str, Vector]:
        return self._embedder.by_text(asked)

    def _load(self) -> None:
        """The first text loads it: a case that has none needs no model."""

    @property
    def _model(self) -> Mapping[str, Any]:
        return self._embedder.identity
