"""Ratings weighted by log-probabilities: where the rating is found, and what its alternatives add."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any

import pytest

from spanwise.collector.records import Case
from spanwise.evaluators.judges import Answer, Completion, Token, scripted
from spanwise.evaluators.judges.prompt_templates import Prompt
from spanwise.evaluators.judges.ratings import (
    NO_LOGPROBS_NOTE,
    add_probabilities,
    ask_yes_no,
    compute_expected_score,
    compute_label_probabilities,
)

SCALE = (1, 2, 3, 4, 5)


def token(text: str, p: float = 1.0, **others: float) -> Token:
    """`others` are alternatives; a `_` in their names stands for a space."""
    tops = {text: log(p), **{name.replace("_", " "): log(share) for name, share in others.items()}}
    return Token(text, log(p), tops)


def answer(*tokens: Token) -> Answer:
    text = "".join(one.text for one in tokens)
    return Answer(value={}, text=text, model="m", logprobs=tokens)


def likely(tokens: list[Token], labels: Any = SCALE) -> Mapping[Any, float] | None:
    return compute_label_probabilities(answer(*tokens), labels)


def test_the_score_is_weighted_by_the_alternatives_of_its_token() -> None:
    four = Token("4", log(0.6), {"4": log(0.6), "5": log(0.3), "3": log(0.1)})
    weights = likely([token('{"rationale": "ok", "rating": '), four, token("}")])
    assert weights == pytest.approx({3: 0.1, 4: 0.6, 5: 0.3})
    assert compute_expected_score(weights, {n: float(n) for n in SCALE}) == pytest.approx(4.2)  # type: ignore[arg-type]


def test_alternatives_that_are_no_labels_or_under_one_percent_are_left_out() -> None:
    four = Token("4", log(0.5), {"4": log(0.5), "5": log(0.25), "good": log(0.2), "1": log(0.009)})
    assert likely([token('{"rating":'), four, token("}")]) == pytest.approx({4: 2 / 3, 5: 1 / 3})


def test_a_score_that_the_rationale_quotes_is_not_the_rating() -> None:
    quoted = Token("5", log(0.9), {"5": log(0.9), "1": log(0.1)})
    two = Token(" 2", log(0.8), {" 2": log(0.8), " 3": log(0.2)})
    tokens = [
        token('{"rationale": "it says \\"rating\\": '),
        quoted,
        token(' and score: 5", "rating":'),
        two,
        token("}"),
    ]
    assert likely(tokens) == pytest.approx({2: 0.8, 3: 0.2})


def test_a_rating_in_several_tokens_is_as_likely_as_all_of_them() -> None:
    one = Token("1", log(0.8), {"1": log(0.8), "9": log(0.2)})
    zero = Token("0", log(0.75), {"0": log(0.75), "}": log(0.25)})
    weights = likely([token('{"rating": '), one, zero, token("}")], tuple(range(1, 11)))
    assert weights == pytest.approx({1: 0.2, 9: 0.2, 10: 0.6})


def test_words_are_found_by_how_they_begin_whatever_their_case() -> None:
    y = Token('"Y', log(0.7), {'"Y': log(0.7), '"n': log(0.2), '"no': log(0.1)})
    weights = likely([token('{"rating":'), y, token("es"), token('"}')], ("yes", "no"))
    assert weights == pytest.approx({"yes": 0.7, "no": 0.3})


def test_a_reply_without_json_has_its_rating_in_its_last_label() -> None:
    last = Token(" 3", log(0.5), {" 3": log(0.5), " 4": log(0.5)})
    assert likely([token("Not a 5. Score:"), last, token(".")]) == pytest.approx({3: 0.5, 4: 0.5})


@pytest.mark.parametrize("tokens", [[], [token("nothing")], [token('{"rating": "maybe"}')]])
def test_without_log_probabilities_of_a_label_there_are_none(tokens: list[Token]) -> None:
    assert likely(tokens) is None


def test_a_log_probability_above_zero_or_endless_breaks_nothing() -> None:
    odd = Token("4", 0.5, {"4": 0.5, "5": float("-inf")})
    assert likely([token('{"rating": '), odd]) == pytest.approx({4: 1.0})


def test_what_is_missing_is_noted() -> None:
    assert add_probabilities({"notes": ["no seed"]}, None, 4) == {"notes": ["no seed", NO_LOGPROBS_NOTE]}


async def asked(*logprobs: Token) -> dict[str, Any]:
    said = Completion(text='{"rationale": "r", "rating": "yes"}', logprobs=logprobs)
    prompt = Prompt("polite", "Polite? {outputs}")
    return await ask_yes_no("polite", scripted(said), prompt, Case(outputs="hi"), logprobs=True)


def test_yes_or_no_says_how_likely_yes_was() -> None:
    import asyncio

    yes = Token("yes", log(0.75), {"yes": log(0.75), "no": log(0.25)})
    row = asyncio.run(asked(token('{"rationale": "r", "rating": "'), yes, token('"}')))
    assert row["score"] is True
    assert row["metadata"]["confidence"] == 0.75
    assert row["metadata"]["probabilities"] == {"yes": 0.75, "no": 0.25}


def test_yes_or_no_without_log_probabilities_stays_as_it_is_and_says_so() -> None:
    import asyncio

    row = asyncio.run(asked())
    assert row["score"] is True
    assert row["metadata"]["notes"] == [NO_LOGPROBS_NOTE]
