"""Examples that a model writes."""

import pytest

from assay.collector.records import Document, Example
from assay.evaluators import datasets

REPLY = 'Sure: ```json\n[{"question": "Where is Paris?", "answer": "In France"}, {"question": "How big?", "answer": "Big"}]\n```'


def test_questions_about_a_document_expect_it():
    prompts = []

    def model(prompt):
        prompts.append(prompt)
        return REPLY

    first, second = datasets.generate([Document("Paris is in France.", "d1", 0.9)], model, per_source=2)
    assert (first.inputs, first.reference_outputs) == ({"question": "Where is Paris?"}, "In France")
    assert second.expected_documents == (Document("Paris is in France.", "d1"),)
    assert first.metadata == {"generated": True}
    assert "Paris is in France." in prompts[0]


def test_variations_point_to_the_example_that_they_vary():
    seed = Example(inputs={"q": "1+1"}, reference_outputs="2")
    (varied,) = datasets.generate([seed], lambda prompt: '[{"inputs": {"q": "2+2"}, "reference_outputs": "4"}]')
    assert (varied.inputs, varied.reference_outputs, varied.base_id) == ({"q": "2+2"}, "4", seed.id)


def test_the_same_question_comes_once():
    assert len(datasets.generate(["text", "text"], lambda prompt: REPLY)) == 2


@pytest.mark.parametrize("reply", ["I cannot", "[1, 2]", '[{"answer": "no question"}]', "[{broken"])
def test_a_reply_without_examples_is_shown(reply):
    with pytest.raises(datasets.ModelSaid, match="the model's reply"):
        datasets.generate(["text"], lambda prompt: reply)


def test_a_bad_reply_may_be_left_out():
    replies, problems = iter(["no", REPLY]), []
    assert len(datasets.generate(["a", "b"], lambda prompt: next(replies), on_error=problems.append)) == 2
    assert len(problems) == 1
