"""What judges were asked over an experiment, and what that cost: never part of what its tasks cost."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from assay.collector.records import Feedback


@dataclass(slots=True)
class Spent:
    """Questions that models answered, and answers that were known; tokens; US dollars, None until some are known."""

    calls: int = 0
    cached: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None

    @property
    def tokens(self) -> int:
        """In and out."""
        return self.input_tokens + self.output_tokens

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
        self.calls += int(_number(judge.get("calls")))
        self.cached += int(_number(judge.get("cached")))
        self.input_tokens += int(_number(judge.get("input_tokens")))
        self.output_tokens += int(_number(judge.get("output_tokens")))
        if judge.get("cost") is not None:
            self.cost = (self.cost or 0.0) + _number(judge["cost"])

    def totals(self) -> dict[str, object]:
        """What is recorded with the experiment; nothing where no judge was asked."""
        known = {name: getattr(self, name) for name in self.__slots__ if getattr(self, name) is not None}
        return {f"judge_{name}": value for name, value in known.items()} if self else {}

    def __str__(self) -> str:
        parts = [f"{self.calls:,} calls of judges"]
        parts += [f"{self.cached:,} answers known before"] * bool(self.cached)
        parts += [f"{self.tokens:,} tokens"] * bool(self.tokens)
        parts += [] if self.cost is None else [f"${self.cost:,.4f}"]
        return " · ".join(parts)


def _number(value: Any) -> float:
    """Metadata may be anybody's."""
    return value if isinstance(value, int | float) and isfinite(value) and value >= 0 else 0
