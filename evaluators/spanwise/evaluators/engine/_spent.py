"""What judges were asked over an experiment, and what that cost: never part of what its tasks cost."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from spanwise.collector.records import Feedback


@dataclass(slots=True)
class Spent:
    """Questions that models answered, and answers that were known; tokens; US dollars, None until some are known.

    `unpriced` counts calls whose cost is not known: it is no part of `cost`. `texts_cut` counts texts of which a judge
    saw a part.
    """

    calls: int = 0
    cached: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    unpriced: int = 0
    texts_cut: int = 0

    @property
    def tokens(self) -> int:
        """In and out."""
        return self.input_tokens + self.output_tokens

    @property
    def known_cost(self) -> float | None:
        """US dollars; None where nothing but answers from the cache is known to have cost nothing."""
        return None if self.unpriced and not self.cost else self.cost

    def __bool__(self) -> bool:
        return bool(self.calls or self.cached)

    def add(self, feedback: Feedback, counted: set[Hashable]) -> None:
        """Count the judgement behind a feedback, unless it is among those `counted`: it may give several keys."""
        judge = feedback.metadata.get("judge")
        if feedback.source != "model" or not isinstance(judge, Mapping):
            return
        judgement = feedback.judge_trace_id or (feedback.target.trace_id, feedback.evaluator)
        if judgement in counted:
            return
        counted.add(judgement)
        calls = int(_number(judge.get("calls")))
        self.calls += calls
        self.cached += int(_number(judge.get("cached")))
        self.input_tokens += int(_number(judge.get("input_tokens")))
        self.output_tokens += int(_number(judge.get("output_tokens")))
        left_out = judge.get("left_out")
        self.texts_cut += len(left_out) if isinstance(left_out, Mapping) else 0
        if judge.get("cost") is not None:
            self.cost = (self.cost or 0.0) + _number(judge["cost"])
        else:
            self.unpriced += calls

    def totals(self) -> dict[str, object]:
        """What is recorded with the experiment; nothing where no judge was asked."""
        known = {name: getattr(self, name) for name in self.__slots__} | {"cost": self.known_cost}
        return {f"judge_{name}": value for name, value in known.items() if value is not None} if self else {}

    def __str__(self) -> str:
        parts = [f"{self.calls:,} calls of judges"]
        parts += [f"{self.cached:,} answers known before"] * bool(self.cached)
        parts += [f"{self.tokens:,} tokens"] * bool(self.tokens)
        parts += [] if self.known_cost is None else [f"${self.known_cost:,.4f}"]
        if self.unpriced:
            parts.append("cost unknown" if self.known_cost is None else f"cost of {self.unpriced:,} of these unknown")
        if self.texts_cut:
            parts.append(f"{self.texts_cut:,} text{'s' if self.texts_cut > 1 else ''} cut before judging")
        return " · ".join(parts)


def _number(value: Any) -> float:
    """Metadata may be anybody's."""
    return value if isinstance(value, int | float) and isfinite(value) and value >= 0 else 0
