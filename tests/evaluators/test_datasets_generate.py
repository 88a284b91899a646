"""Examples that a model writes."""

import asyncio

import pytest

from evaluators.judge_server import Reply, completion, error, serving
from lazy_modules import LazyModule
from spanwise.collector.records import Document, Example
from spanwise.evaluators import Judge, datasets
from spanwise.evaluators.interface import Unjudged
from spanwise.evaluators.judges import scripted

openai = LazyModule("openai")

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


def test_a_judge_writes_them_and_is_named():
    judge = scripted(REPLY)
    assert [example.metadata["model"] for example in datasets.generate(["text"], judge)] == ["scripted", "scripted"]
    (ask,) = judge.asked
    assert (ask.schema, len(ask.messages)) == (None, 1)


def test_a_name_is_a_model_where_judges_are(monkeypatch):
    with serving([REPLY]) as server:
        monkeypatch.setenv("SPANWISE_JUDGE_URL", server.url)
        (first, _) = datasets.generate(["text"], "small")
    assert (first.metadata["model"], server.bodies[0]["model"]) == ("small", "small")
    assert not {"temperature", "seed", "response_format"} & server.bodies[0].keys()


def test_a_client_of_ones_own_is_asked_as_it_is():
    with serving([REPLY]) as server, openai.OpenAI(base_url=server.url, api_key="mine") as client:
        (first, _) = datasets.generate(["text"], "small", client=client)
    assert first.metadata["model"] == "small"
    assert server.requests[0].headers["authorization"] == "Bearer mine"


@pytest.mark.parametrize(
    "said", [completion("", refusal="I will not."), completion(""), completion("[{", finish="length")]
)
def test_a_refusal_and_an_end_too_soon_cost_one_document(said):
    problems = []
    with serving([Reply(body=said), REPLY]) as server:
        judge = Judge(model="small", base_url=server.url)
        assert len(datasets.generate(["a", "b"], judge, on_error=problems.append)) == 2
    assert "the model's reply contains no examples" in str(problems[0])


def test_where_nobody_answers_it_ends():
    with serving([error(401)]) as server, pytest.raises(Unjudged, match=r"refused the key \(401\)"):
        datasets.generate(["a", "b"], Judge(model="small", base_url=server.url), on_error=print)


def test_it_works_inside_a_running_loop():
    async def inside():
        return datasets.generate(["text"], scripted(REPLY))

    assert len(asyncio.run(inside())) == 2
