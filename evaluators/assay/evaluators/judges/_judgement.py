"""One evaluator's judgement of one case: its questions, what they cost, and the feedback that comes of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from assay.collector.records import JSON, Case
from assay.evaluators.judges._ask import Answer, Ask
from assay.evaluators.judges._judge import Judge
from assay.evaluators.judges._prompts import Prompt
from assay.evaluators.protocol import Unjudged


class Judgement:
    """`async with Judgement("faithfulness", judge, case) as judgement:` ask as often as needed, return `row(…)`.

    It is a trace of its own, of kind evaluator, with a run per question; `judge_trace_id` of the feedback is its id.
    What is raised inside bears what was found out so far.
    """

    def __init__(self, evaluator: str, judge: Judge, case: Case) -> None:
        self._evaluator = evaluator
        self._judge = judge
        self._case = case
        self.answers: list[tuple[Prompt, Answer]] = []
        self.trace_id: str | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        if isinstance(error, Unjudged):
            error.metadata = {**self.metadata(), **error.metadata}
            error.judge_trace_id = self.trace_id

    async def ask(
        self,
        prompt: Prompt,
        values: Mapping[str, str],
        schema: Mapping[str, JSON] | None = None,
        *,
        sample: int = 0,
        logprobs: int = 0,
    ) -> Answer:
        """One question. Raises `ParseFailure` and other `Unjudged`, `Skip` when a budget is used up."""
        ask = Ask(messages=prompt.messages(values), schema=schema, name=prompt.id, sample=sample, logprobs=logprobs)
        answer = await self._judge.ask(ask)
        self.answers.append((prompt, answer))
        return answer

    def row(self, score: Any = None, *, comment: str | None = None, **more: Any) -> dict[str, Any]:
        """What an evaluator returns: a score and why, what it took, and where it can be seen.

        `more` are fields of feedback (`key`, `label`, …); `metadata` among them stand beside those of the judge.
        """
        metadata = {**(more.pop("metadata", None) or {}), **self.metadata()}
        return {"score": score, "comment": comment, "metadata": metadata, "judge_trace_id": self.trace_id, **more}

    def metadata(self) -> dict[str, Any]:
        """Model, endpoint, prompts with their hashes, tokens, cost, what was noted, how many answers were cached."""
        return {"judge": {**self._judge.identity, "prompts": sorted({prompt.label for prompt, _ in self.answers})}}
