"""Laminar's judging pipeline: nodes by name, a whole number from 1 to 5, whatever quotes a model writes."""

import pytest

from looped_cases import loop_over
from spanwise.evaluators import get_evaluator, score
from spanwise.evaluators.judges import scripted

NODES = {"question": "When was it built?", "search": ["Built in 1912."], "answer": "In 1912.", "cost": 3}
GOOD = {"reasoning": "It says when.", "score": 5}


def judged(*said, outputs=NODES, prompt=None, fields=None, **parameters):
    judge = scripted(*said)
    (feedback,) = score(
        get_evaluator("pipeline_judge", judge=judge, prompt=prompt, **parameters), outputs=outputs, **fields or {}
    )
    return feedback, [ask.messages[1]["content"] for ask in judge.backend.asked]


def test_a_score_with_its_reasoning():
    feedback, _ = judged(GOOD)
    assert (feedback.key, feedback.score, feedback.comment) == ("pipeline_judge", 5.0, "It says when.")
    assert get_evaluator("pipeline_judge", judge=scripted(GOOD)).metrics[0].range == (1.0, 5.0)


def test_nodes_come_by_name_and_more_than_are_asked_for_are_fine():
    _, (asked,) = judged(GOOD)
    assert all(text in asked for text in ("When was it built?", "Built in 1912.", "In 1912."))
    assert '"cost"' not in asked


def test_a_node_that_is_missing_is_an_error_that_names_it():
    feedback, asked = judged(GOOD, outputs={"question": "Why?", "answer": "So."})
    assert feedback.error == "the prompt names 'search', which the case lacks; its outputs are 'question', 'answer'"
    assert asked == []


def test_where_outputs_are_no_dict_the_case_has_the_nodes():
    _, (asked,) = judged(GOOD, outputs="In 1912.", fields={"inputs": "When?", "documents": ["Built in 1912."]})
    assert all(text in asked for text in ("When?", "Built in 1912.", "In 1912."))


def test_a_prompt_of_ones_own_names_its_own_nodes():
    own = "Rate {{summary}} from 1 to 10, for {{ reader }}."
    outputs = {"summary": "short", "reader": "Ann"}
    feedback, (asked,) = judged({"reasoning": "", "score": 9}, outputs=outputs, prompt=own, maximum=10)
    assert (feedback.score, feedback.comment) == (9.0, None)
    assert "short" in asked
    assert "Ann" in asked


@loop_over("said", [0, 6, 3.5, "good", None, True])
def test_what_is_outside_the_scale_is_a_parse_failure(said):
    feedback, _ = judged(*[{"reasoning": "so", "score": said}] * 3)
    assert (feedback.outcome, feedback.score) == ("error", None)
    assert feedback.error.startswith("parse failure: ")


def test_the_same_prompt_with_another_range_is_refused():
    with pytest.raises(ValueError, match="another range needs prompt="):
        get_evaluator("pipeline_judge", judge=scripted(GOOD), maximum=10)
    with pytest.raises(ValueError, match="maximum must exceed minimum"):
        get_evaluator("pipeline_judge", judge=scripted(GOOD), prompt="{{answer}}", minimum=5)
