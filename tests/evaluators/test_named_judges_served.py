"""The documents' judges through openai's client, against a scripted server: what each verdict and malady becomes."""

import json

import pytest

from evaluators.judge_server import Reply, completion, serving
from spanwise.evaluators import Judge, evaluate, get_evaluator, score
from spanwise.evaluators.judges.llm_client.openai_backend import clear_capabilities

CASE = {
    "inputs": "When was it built?",
    "outputs": "In 1912.",
    "reference_outputs": "1912",
    "documents": ["Built in 1912."],
    "guidelines": ["Be brief"],
}
RATED = {"yes": {"rationale": "So it is.", "rating": "yes"}, "no": {"rationale": "It is not.", "rating": "no"}}
RELEVANT = {"yes": {"relevant_statements": ["Built in 1912."]}, "no": {"relevant_statements": []}}
FAITHFUL = {
    "yes": {"statements": ["In 1912."], "statement_scores": [1]},
    "no": {"statements": ["In 1912."], "statement_scores": [0]},
}
SCORED = {"yes": {"reasoning": "All of it.", "score": 5}, "no": {"reasoning": "Nothing.", "score": 1}}
JUDGES = {  # parameters, what is replied, and the scores of yes and no
    "correctness": ({}, RATED, (True, False)),
    "relevance_to_query": ({}, RATED, (True, False)),
    "groundedness_judge": ({}, RATED, (True, False)),
    "guideline_adherence": ({}, RATED, (True, False)),
    "global_guideline_adherence": ({"global_guidelines": "Be kind"}, RATED, (True, False)),
    "safety": ({}, RATED, (True, False)),
    "context_sufficiency": ({}, RATED, (True, False)),
    "chunk_relevance": ({}, RATED, (1.0, 0.0)),
    "custom_judge": ({"assessment_name": "custom_judge", "prompt": "{response}"}, RATED, (True, False)),
    "haystack_context_relevance": ({}, RELEVANT, (1.0, 0.0)),
    "haystack_faithfulness": ({}, FAITHFUL, (1.0, 0.0)),
    "pipeline_judge": ({}, SCORED, (5.0, 1.0)),
}


@pytest.fixture(autouse=True)
def _nothing_known():
    """Ports come again."""
    clear_capabilities()


def made(id, server):
    judge = Judge(model="m", base_url=server.url, api_key="key", cache=False)
    return get_evaluator(id, judge=judge, **JUDGES[id][0])


def judged(id, *said):
    with serving(list(said)) as server:
        (feedback,) = score(made(id, server), **CASE)
        return feedback, server.bodies


@pytest.mark.parametrize("id", JUDGES)
@pytest.mark.parametrize(("verdict", "place"), [("yes", 0), ("no", 1)])
def test_verdicts(id, verdict, place):
    feedback, (body,) = judged(id, JUDGES[id][1][verdict])
    assert feedback.score == JUDGES[id][2][place]
    assert feedback.metadata["judge"]["model"] == "m"
    assert body["response_format"]["json_schema"]["strict"] is True


@pytest.mark.parametrize("id", JUDGES)
def test_curly_quotes_and_fences_are_read(id):
    reply = "```json\n" + json.dumps(JUDGES[id][1]["yes"]).replace('"', "”") + "\n```"
    assert judged(id, reply, reply)[0].score == JUDGES[id][2][0]


@pytest.mark.parametrize("id", JUDGES)
@pytest.mark.parametrize(
    "malady",
    [
        "I would rather not say.",
        Reply(body=completion(None, refusal="I cannot judge this.")),
        Reply(body=completion("", finish="content_filter")),
        400,
    ],
    ids=["words", "refusal", "filter", "refused"],
)
def test_no_malady_becomes_a_verdict(id, malady):
    feedback, _ = judged(id, *[malady] * 8)
    assert (feedback.outcome, feedback.score, feedback.label) == ("error", None, None)
    assert feedback.error


@pytest.mark.parametrize(("id", "why"), [("correctness", "rationale"), ("pipeline_judge", "reasoning")])
def test_a_verdict_that_the_reasons_quote_is_none(id, why):
    quoted = {**JUDGES[id][1]["no"], why: f"The answer says: {json.dumps(JUDGES[id][1]['yes'])}, score: 5, rating: yes"}
    feedback, _ = judged(id, quoted)
    assert feedback.score == JUDGES[id][2][1]


def test_rows_of_an_experiment_keep_their_outcomes_apart(store):
    def say(request):
        text = json.dumps(request.body)
        return 401 if "<failed>" in text else RATED["no" if "<no>" in text else "yes"]

    rows = [{"request": f"<{row}>", "response": "a", "expected_response": "b"} for row in ("yes", "no", "failed")]
    with serving(say) as server:
        said = evaluate(
            [*rows, {"request": "<skip>", "response": "a"}], None, [made("correctness", server)], store=store
        )
        table = said.databricks()
    assert table["response/llm_judged/correctness/rating"] == ["yes", "no", None, None]
    assert table["response/llm_judged/correctness/rating/percentage"] == 0.5
    assert [message is None for message in table["response/llm_judged/correctness/error_message"]] == [
        True,
        True,
        False,
        True,
    ]
    summary = said.summary()["correctness"]
    assert (summary.n, summary.failed, summary.skipped) == (2, 1, 1)


@pytest.mark.process
def test_haystacks_components_ask_an_endpoint():
    from spanwise.evaluators.haystack import FaithfulnessEvaluator

    with serving([FAITHFUL["yes"]]) as server:
        judge = Judge(model="m", base_url=server.url, api_key="key", cache=False)
        evaluator = FaithfulnessEvaluator(progress_bar=False, chat_generator=judge)
        said = evaluator.run(questions=["When?"], contexts=[["Built in 1912."]], predicted_answers=["In 1912."])
    assert (said["score"], said["results"][0]["statements"]) == (1.0, ["In 1912."])
    assert said["meta"] == [
        {"model": "scripted-1", "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}}
    ]
