"""The RAGAS family's arithmetic is that of ragas 0.4.3, given the same verdicts (tests/fixtures/ragas)."""

import json
from pathlib import Path

import pytest

from looped_cases import loop_over
from spanwise.evaluators import get_evaluator, score
from spanwise.evaluators.judges import scripted

FIXTURES = Path(__file__).parents[1] / "fixtures" / "ragas"
CASES = json.loads((FIXTURES / "cases.json").read_text("utf-8"))
FIGURES = json.loads((FIXTURES / "figures.json").read_text("utf-8"))
FIELDS = {
    "user_input": "inputs",
    "response": "outputs",
    "reference": "reference_outputs",
    "retrieved_contexts": "documents",
}
YES_NO = {True: "yes", False: "no"}


def replies(case):
    """A judge's replies with the verdicts of a case, whatever they are asked in."""
    holds = {
        f"{number}. {statement}": verdict
        for name in ("", "expected_")
        for statement, verdict in zip(case.get(f"{name}statements", ()), case.get(f"{name}verdicts", ()), strict=False)
        for number in range(1, 20)
    }
    left = list(case.get("verdicts", ()))

    def reply(ask):
        said = ask.messages[-1]["content"]
        if ask.name == "statements":
            return {"statements": case["statements" if "an answer" in said else "expected_statements"]}
        if ask.name == "context_precision":
            return {"reason": "so", "verdict": YES_NO[left.pop(0)]}
        if ask.name == "answer_relevancy":
            asked = enumerate(case["questions"], 1)
            return {str(n): {"question": question, "noncommittal": YES_NO[flag]} for n, (question, flag) in asked}
        if ask.name == "context_recall":
            verdicts = [left.pop(0) for _ in ask.schema["required"]]
        else:
            verdicts = [holds[line] for line in said.splitlines() if line in holds]
        return {str(n): {"reason": "so", "verdict": YES_NO[verdict]} for n, verdict in enumerate(verdicts, 1)}

    return scripted(reply)


def parameters(case):
    if case["metric"] not in ("answer_correctness", "answer_relevancy"):
        return {}
    own = {"embed": lambda texts: [case["vectors"][text] for text in texts]}
    if "weights" in case:
        own["weights"] = case["weights"]
    return own if case["metric"] == "answer_correctness" else {**own, "questions": len(case["questions"])}


@loop_over(
    ("case", "wanted"),
    list(zip(CASES, FIGURES, strict=True)),
    ids=[f"{case['metric']}-{place}" for place, case in enumerate(CASES)],
)
def test_the_score_is_that_of_ragas(case, wanted):
    fields = {FIELDS[name]: value for name, value in case["sample"].items()}
    found = score(get_evaluator(case["metric"], judge=replies(case), **parameters(case)), **fields)[0]
    assert found.outcome == ("skip" if wanted is None else "score"), found.error
    assert found.score == (None if wanted is None else pytest.approx(wanted, abs=2e-10))
