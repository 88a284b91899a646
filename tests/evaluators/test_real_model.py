"""A real model judges, behind an endpoint that somebody serves: SPANWISE_REAL_MODEL=http://… pytest -m real_model

docs/judges.md says how to serve a small one on a machine without a GPU; benchmarks/real_judge.py measures it.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from spanwise.evaluators import get_evaluator, judge, score
from spanwise.evaluators.judges import Answer, Ask, Judge

pytestmark = pytest.mark.real_model

SCHEMA = {
    "type": "object",
    "properties": {"rationale": {"type": "string"}, "rating": {"type": "string", "enum": ["yes", "no"]}},
    "required": ["rationale", "rating"],
    "additionalProperties": False,
}


@pytest.fixture
def real() -> Judge:
    """The judge that answers, nothing cached, with time for a model on a busy CPU."""
    url = os.environ.get("SPANWISE_REAL_MODEL")
    if not url:
        pytest.skip("SPANWISE_REAL_MODEL names no endpoint, as http://127.0.0.1:8080/v1")
    return Judge(model="real", base_url=url, deadline=600, concurrency=1, max_tokens=512, cache=False)


def answer(real: Judge, **more: Any) -> Answer:
    question: tuple[dict[str, str], ...] = (
        {"role": "user", "content": "Is Rome in Italy? Say why, and rate yes or no."},
    )
    return asyncio.run(real.ask(Ask(messages=question, schema=SCHEMA, **more)))


def test_a_reply_is_bound_to_the_schema_with_reasons_first(real: Judge) -> None:
    said = answer(real)
    assert list(said.value) == ["rationale", "rating"]
    assert said.value["rating"] == "yes"
    assert said.notes == ()
    assert said.usage is not None
    assert said.usage.output_tokens > 5


def test_the_same_question_has_the_same_answer(real: Judge) -> None:
    assert answer(real).text == answer(real).text


def test_log_probabilities_come_with_their_alternatives(real: Judge) -> None:
    said = answer(real, logprobs=5)
    assert "".join(token.text for token in said.logprobs) == said.text
    assert all(token.logprob <= 0 for token in said.logprobs)
    assert max(len(token.top) for token in said.logprobs) == 5


@pytest.mark.parametrize(("outputs", "expected"), [("It is Canberra.", True), ("It is Sydney.", False)])
def test_an_answer_is_compared_with_the_expected_one(real: Judge, outputs: str, expected: bool) -> None:
    correct = get_evaluator("correctness", judge=real)
    (said,) = score(correct, inputs="What is Australia's capital?", outputs=outputs, reference_outputs="Canberra")
    assert (said.score, said.error) == (expected, None)


def test_a_judge_of_ones_own_keeps_to_its_rubric(real: Judge) -> None:
    rubric = {1: "rude", 2: "cold", 3: "neutral", 4: "friendly", 5: "very friendly"}
    friendly = judge("friendly", "How friendly is this answer?\n{outputs}", scale=rubric, judge=real)
    (said,) = score(friendly, outputs="Thank you so much for asking! Gladly: we open at nine. Have a lovely day!")
    assert said.score in rubric
    assert said.comment


def test_statements_are_judged_one_by_one(real: Judge) -> None:
    (said, *_) = score(
        get_evaluator("faithfulness", judge=real),
        inputs="When does the library open?",
        outputs="The library opens at nine.",
        documents=["The library opens at nine and closes at six."],
    )
    assert said.outcome == "score", said.error
