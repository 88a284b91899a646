"""A dry run asks nobody, so it needs no key."""

from __future__ import annotations

import pytest

from spanwise.evaluators import Judge, estimate, get_evaluator
from spanwise.evaluators.judges import NoJudge

CASE = {"inputs": "The capital of France?", "outputs": "It is Paris.", "reference_outputs": "Paris"}


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPANWISE_JUDGE", "SPANWISE_JUDGE_URL", "SPANWISE_JUDGE_KEY", "OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_calls_and_cost_are_told_without_a_key() -> None:
    told = estimate([get_evaluator("correctness", judge=Judge(model="gpt-4o-mini"))], [CASE, CASE])
    assert told.total.calls == 2
    assert 0 < (told.total.usd or 0) <= (told.total.usd_at_most or 0)


def test_without_a_model_it_is_refused() -> None:
    with pytest.raises(NoJudge, match="there is no default model"):
        estimate([get_evaluator("correctness")], [CASE])
