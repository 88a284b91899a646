"""Evaluators that look at pairs of texts through a pair scorer: how far a text supports another."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias

from spanwise.collector.records import Case
from spanwise.evaluators.models._pairs import Pair, PairScorer, pair_scorer
from spanwise.evaluators.models._stepwise import Stepwise

Row: TypeAlias = tuple[float, ...]  # one score, or entailment, neutral and contradiction
Support: TypeAlias = Generator[Sequence[Pair], Mapping[Pair, Row], list[float]]
MOST = 100_000  # pairs of a case: hours on a CPU
_TOGETHER = 4096  # pairs of a case whose texts are in memory at once


@dataclass(frozen=True, slots=True, kw_only=True)
class OfPairs(Stepwise[Pair, Row]):
    """Base of the frozen dataclasses: `model` is whatever names a pair scorer (None: the class' `PRESET`).

    A class calls `OfPairs.__post_init__(self)` in one of its own.
    """

    model: Any = None
    _scorer: PairScorer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_scorer", pair_scorer(self.PRESET if self.model is None else self.model))

    def _replies(self, asked: Sequence[Pair]) -> Mapping[Pair, Row | Exception]:
        return self._scorer.each(asked)

    def _load(self) -> None:
        self._scorer.load()

    @property
    def _model(self) -> Mapping[str, Any]:
        return self._scorer.identity

    def _supports(self, context: Sequence[str], texts: Sequence[str]) -> Support:
        """Of each text how far the context supports it: the most that a window of the context does.

        A text that is itself too long for the model is as well supported as its least supported window. Raises
        `ValueError` for more than `MOST` pairs.
        """
        firsts, seconds = self._scorer.parts(context, texts)
        pairs = ((first, second) for parts in seconds for second in parts for first in firsts)
        said: dict[Pair, float] = {}
        if (number := len(firsts) * sum(map(len, seconds))) > MOST:
            raise ValueError(
                f"{number:,} pairs of what was retrieved and the answer are to be scored: {MOST:,} at most"
            )
        while some := list(islice(pairs, _TOGETHER)):
            replies = yield some
            said |= {pair: support_of(row, self._scorer.name) for pair, row in replies.items()}
        return [min(max(said[first, second] for first in firsts) for second in parts) for parts in seconds]


def support_of(row: Row, name: str) -> float:
    """The probability of entailment, or the one score. Raises `ValueError` for a score that is no probability."""
    if not 0 <= row[0] <= 1:
        raise ValueError(f"{name!r} gave {row[0]!r} for a pair: a model of support gives a probability, from 0 to 1")
    return row[0]


def chunks_of(case: Case) -> list[str]:
    """The texts of what was retrieved, without those that are blank."""
    return [content for document in case.documents or () if (content := document.content or "").strip()]
