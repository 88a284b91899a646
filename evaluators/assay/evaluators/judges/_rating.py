"""Ratings: the form of a verdict, and one question that asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.collector.records import JSON, Case
from assay.evaluators.judges._geval import TOP, noted, probabilities
from assay.evaluators.judges._judge import Judge
from assay.evaluators.judges._judgement import Judgement
from assay.evaluators.judges._prompts import Prompt
from assay.evaluators.judges._values import texts_of


def rating_schema(labels: Sequence[str | int]) -> dict[str, JSON]:
    """An object with a rationale, and then a rating that is one of the labels: the reason is written first."""
    return {
        "type": "object",
        "properties": {"rationale": {"type": "string"}, "rating": {"enum": list(labels)}},
        "required": ["rationale", "rating"],
        "additionalProperties": False,
    }


YES_NO = rating_schema(("yes", "no"))


async def yes_or_no(
    evaluator: str,
    judge: Judge,
    prompt: Prompt,
    case: Case,
    values: Mapping[str, str] | None = None,
    *,
    logprobs: bool = False,
) -> dict[str, Any]:
    """The feedback of a judge that says yes or no: True for yes, with its rationale as the comment.

    With `logprobs` its metadata say how likely either was, and how likely what it said (`confidence`).
    """
    async with Judgement(evaluator, judge, case) as judgement:
        given = texts_of(case, prompt.asked) if values is None else values
        answer = await judgement.ask(prompt, given, YES_NO, logprobs=TOP * logprobs)
        rating = answer.value["rating"]
        likely = noted({}, probabilities(answer, ("yes", "no")), rating) if logprobs else {}
        return judgement.row(rating == "yes", comment=answer.value["rationale"], metadata=likely)
