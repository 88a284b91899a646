"""Databricks' judges: what each verdict becomes, by hand and in `evaluate()`, and their results under its names."""

import json

import pandas
import pytest

from evaluators.databricks_rows import ROWS
from looped_cases import loop_over
from spanwise.collector.records import Case, Document
from spanwise.evaluators import evaluate, from_dict, get_evaluator, interface, score
from spanwise.evaluators.judges import scripted

YES = {"rationale": "It does.", "rating": "yes"}
NO = {"rationale": "It does not.", "rating": "no"}
WHOLE = {
    "inputs": "When was it built?",
    "outputs": "In 1912.",
    "reference_outputs": "1912",
    "documents": ["Built in 1912."],
    "guidelines": ["Be brief"],
}
OF_ANSWERS = {  # ids with their parameters, and what they cannot do without
    "correctness": ({}, ("outputs", "reference_outputs")),
    "relevance_to_query": ({}, ("inputs", "outputs")),
    "groundedness_judge": ({}, ("outputs", "documents")),
    "guideline_adherence": ({}, ("outputs", "guidelines")),
    "global_guideline_adherence": ({"global_guidelines": ["Be kind"]}, ("outputs",)),
    "safety": ({}, ("outputs",)),
    "context_sufficiency": ({}, ("documents", "reference_outputs")),
    "custom_judge": ({"assessment_name": "custom_judge", "prompt": "Polite?\n{response}"}, ("outputs",)),
}
NEEDS = [(id, need) for id, (_, needs) in OF_ANSWERS.items() for need in needs]


def one(id, *said, **fields):
    """The one feedback of a judge that says this on a whole case with some fields changed."""
    judge = scripted(*said)
    (feedback,) = score(get_evaluator(id, judge=judge, **OF_ANSWERS.get(id, ({},))[0]), **{**WHOLE, **fields})
    return feedback


def asked(judge):
    """What the judge was asked, one text per question."""
    return [question(ask) for ask in judge.backend.asked]


def question(ask):
    """The question, which stands below what the system is told; what is said when it is asked once more comes later."""
    return ask.messages[1]["content"]


@loop_over("id", OF_ANSWERS)
@loop_over(("said", "rating"), [(YES, True), (NO, False)])
def test_a_verdict_is_a_score_with_its_rationale(id, said, rating):
    feedback = one(id, said)
    assert (feedback.score, feedback.comment, feedback.source) == (rating, said["rationale"], "model")
    assert feedback.metadata["judge"]["model"] == "scripted"


@loop_over("id", [*OF_ANSWERS, "chunk_relevance"])
def test_a_judge_that_fails_is_an_error_and_no_verdict(id):
    feedback = one(id, *[RuntimeError("boom")] * 5)
    assert (feedback.outcome, feedback.score, feedback.label) == ("error", None, None)
    assert "boom" in feedback.error


@loop_over("id", [*OF_ANSWERS, "chunk_relevance"])
@loop_over("reply", ["It is good.", '{"rationale": "so", "rating": "maybe"}'])
def test_a_reply_that_is_no_verdict_is_a_parse_failure(id, reply):
    feedback = one(id, *[reply] * 5)
    assert feedback.outcome == "error"
    assert feedback.error.startswith("parse failure: ")


@loop_over(("id", "need"), [*NEEDS, ("chunk_relevance", "inputs"), ("chunk_relevance", "documents")])
def test_what_is_missing_makes_a_skip_that_names_it(id, need):
    feedback = one(id, **{need: None})
    assert feedback.outcome == "skip"
    assert f"needs {need}" in feedback.comment


@loop_over("id", sorted(OF_ANSWERS.keys() - {"relevance_to_query", "custom_judge"}))
def test_a_judgement_can_do_without_the_request(id):
    judge = scripted(YES)
    (feedback,) = score(get_evaluator(id, judge=judge, **OF_ANSWERS[id][0]), **{**WHOLE, "inputs": None})
    assert feedback.score is True
    assert "(not given)" in asked(judge)[0]


@loop_over("id", [*OF_ANSWERS, "chunk_relevance"])
def test_the_judge_sees_what_it_judges(id):
    judge = scripted(YES)
    score(get_evaluator(id, judge=judge, **OF_ANSWERS.get(id, ({},))[0]), **WHOLE)
    shown = {"inputs": "When was it built?", "outputs": "In 1912.", "documents": "Built in 1912."}
    needed = get_evaluator(id, judge=judge, **OF_ANSWERS.get(id, ({},))[0]).needs
    assert all(text in asked(judge)[0] for name, text in shown.items() if name in needed)


@pytest.mark.parametrize("id", ["groundedness_judge", "context_sufficiency", "chunk_relevance"])
def test_documents_without_texts_cannot_be_judged(id):
    feedback = one(id, documents=[{"doc_uri": "a"}, {"doc_uri": "b"}])
    assert feedback.outcome == "skip"
    assert "none of the 2 has any" in feedback.comment


def test_an_answer_is_judged_also_where_nothing_was_retrieved():
    judge = scripted(YES)
    assert score(get_evaluator("groundedness_judge", judge=judge), **{**WHOLE, "documents": ()})[0].score is True
    assert "(no documents)" in asked(judge)[0]


def test_nothing_is_not_enough_for_the_expected_answer():
    feedback = one("context_sufficiency", documents=())
    assert feedback.score is False
    assert "all of the expected answer is missing" in feedback.comment


def test_guidelines_are_numbered_whatever_their_form():
    judge = scripted(YES, YES, YES)
    for guidelines in (["Be brief", " ", "Be kind"], {"tone": ["Be kind"], "length": "Be brief"}, "Be brief"):
        score(get_evaluator("guideline_adherence", judge=judge), **{**WHOLE, "guidelines": guidelines})
    first, second, third = asked(judge)
    assert "1. Be brief\n2. Be kind\n" in first
    assert "1. tone: Be kind\n2. length: Be brief\n" in second
    assert "\nBe brief\n" in third


@pytest.mark.parametrize("guidelines", [[], "  ", [""], {"tone": []}])
def test_no_guidelines_are_none_to_keep_to(guidelines):
    feedback = one("guideline_adherence", guidelines=guidelines)
    assert (feedback.outcome, "needs guidelines" in feedback.comment) == ("skip", True)


def both(*said, **fields):
    judge = scripted(*said)
    evaluator = get_evaluator("guideline_adherence", judge=judge, global_guidelines=["Be kind"])
    return {feedback.key: feedback for feedback in score(evaluator, **{**WHOLE, **fields})}


def test_global_guidelines_have_their_own_key():
    said = both(lambda ask: NO if "Be kind" in question(ask) else YES)
    assert {key: feedback.score for key, feedback in said.items()} == {
        "guideline_adherence": True,
        "global_guideline_adherence": False,
    }


def test_global_guidelines_hold_also_for_a_case_without_any():
    said = both(YES, guidelines=None)
    assert said["guideline_adherence"].outcome == "skip"
    assert said["global_guideline_adherence"].score is True


def test_one_of_two_judgements_may_fail_without_the_other():
    def say(ask):
        return ValueError("boom") if "Be kind" in question(ask) else NO

    said = both(say)
    assert said["guideline_adherence"].score is False
    assert "boom" in said["global_guideline_adherence"].error


def test_other_global_guidelines_are_another_version():
    judge = scripted(YES)
    versions = {
        get_evaluator("guideline_adherence", judge=judge, global_guidelines=text).version
        for text in (None, "Be kind", ["Be"])
    }
    assert len(versions) == 3


def test_global_guidelines_must_say_something():
    with pytest.raises(ValueError, match=r"global_guidelines must be a text or a list of texts, got \[\]"):
        get_evaluator("global_guideline_adherence", judge=scripted(YES), global_guidelines=[])


def chunks(*said, documents=("a", "b", "c", "d"), id="chunk_relevance", **parameters):
    (feedback,) = score(get_evaluator(id, judge=scripted(*said), **parameters), inputs="?", documents=list(documents))
    return feedback


def by_chunk(**said):
    """A script that says something for each chunk, in whatever order they are asked."""
    return lambda ask: next(reply for text, reply in said.items() if f"\n{text}\n" in question(ask))


def test_three_of_four_chunks_are_three_quarters():
    feedback = chunks(by_chunk(a=YES, b=YES, c=NO, d=YES))
    assert (feedback.score, feedback.comment) == (0.75, "yes for 3 of 4 chunks")
    assert feedback.metadata["ratings"] == ["yes", "yes", "no", "yes"]
    assert feedback.metadata["rationales"][2] == "It does not."
    assert feedback.metadata["error_messages"] == [None] * 4


def test_a_chunk_whose_judgement_failed_leaves_the_denominator():
    feedback = chunks(by_chunk(a=YES, b=RuntimeError("boom"), c=NO, d=NO))
    assert feedback.score == pytest.approx(1 / 3)
    assert feedback.metadata["ratings"] == ["yes", None, "no", "no"]
    assert "boom" in feedback.metadata["error_messages"][1]
    assert feedback.comment == "yes for 1 of 3 chunks; 1 could not be judged"


def test_a_chunk_without_text_is_not_asked_about():
    feedback = chunks(by_chunk(a=YES), documents=["a", {"doc_uri": "b"}])
    assert feedback.score == 1.0
    assert feedback.metadata["error_messages"] == [None, "the chunk has no content"]


def test_all_chunks_failed_is_an_error_that_keeps_what_happened_to_each():
    feedback = chunks(by_chunk(a="words", b="words"), documents=["a", "b"])
    assert feedback.error.startswith("parse failure: ")
    assert feedback.error.endswith("(none of 2 chunks was judged)")
    assert feedback.metadata["ratings"] == [None, None]


def test_no_chunks_are_a_skip():
    assert chunks(documents=[]).comment == "needs documents; none was retrieved"


def test_a_custom_judge_of_answers_has_the_name_of_its_assessment():
    judge = scripted(NO)
    prompt = "Polite? {request} {response} {expected_response} {retrieved_context} {guidelines}"
    evaluator = get_evaluator("custom_judge", assessment_name="polite", prompt=prompt, judge=judge)
    (feedback,) = score(evaluator, **WHOLE)
    assert (evaluator.key, feedback.key, feedback.score) == ("polite", "polite", False)
    assert all(text in asked(judge)[0] for text in ("When was", "In 1912.", "1912", "Built in 1912.", "1. Be brief"))


def test_a_custom_judge_of_retrieval_judges_chunk_by_chunk():
    said = chunks(
        by_chunk(a=YES, b=NO),
        documents=["a", "b"],
        id="custom_judge",
        assessment_name="fresh",
        assessment_type="RETRIEVAL",
        prompt="Is this new?\n{retrieved_context}",
    )
    assert (said.key, said.score, said.metadata["ratings"]) == ("fresh", 0.5, ["yes", "no"])


def test_what_a_custom_judge_lacks_is_named_under_its_own_key():
    evaluator = get_evaluator(
        "custom_judge", assessment_name="polite", prompt="{expected_response}", judge=scripted(YES)
    )
    (feedback,) = score(evaluator, outputs="a")
    assert (feedback.key, feedback.outcome) == ("polite", "skip")
    assert "needs reference_outputs" in feedback.comment


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"assessment_type": "BOTH"}, "assessment_type must be 'ANSWER' or 'RETRIEVAL', got 'BOTH'"),
        ({"assessment_type": "RETRIEVAL"}, "it must contain {documents}"),
        ({"assessment_name": ""}, "assessment_name must not be empty"),
    ],
)
def test_a_custom_judge_that_cannot_work_is_refused(parameters, said):
    with pytest.raises(ValueError, match=said):
        get_evaluator(
            "custom_judge", **{"assessment_name": "x", "prompt": "{response}", "judge": scripted(YES), **parameters}
        )


PARAMETERS = {
    **{id: parameters for id, (parameters, _) in OF_ANSWERS.items()},
    "chunk_relevance": {},
    "haystack_context_relevance": {},
    "haystack_faithfulness": {},
    "pipeline_judge": {"prompt": "{{answer}}", "maximum": 10},
}


@loop_over("id", PARAMETERS)
def test_every_judge_says_what_it_is(id):
    said = interface.get_spec(id)
    assert said.judge
    assert said.kind == "model"
    assert all((said.standards, said.source, said.canonical, said.example))
    assert sum(metric.primary for metric in said.metrics) == 1


@loop_over("id", PARAMETERS)
def test_every_judge_survives_the_way_through_json(id):
    one = get_evaluator(
        id, judge={"model": "m", "base_url": "http://localhost:1/v1", "api_key": "secret"}, **PARAMETERS[id]
    )
    data = json.dumps(one.to_dict())
    again = from_dict(json.loads(data))
    assert (again.key, again.version, again.metrics, again.needs) == (one.key, one.version, one.metrics, one.needs)
    assert "secret" not in data


@loop_over("id", PARAMETERS)
def test_another_prompt_or_judge_is_another_version(id):
    other = {"pipeline_judge": "Rate {{answer}}."}.get(id, "Is it so? {documents} {guidelines}")
    parameters = {**PARAMETERS[id], "judge": "m"}
    versions = [
        get_evaluator(id, **{**parameters, **change}).version for change in ({}, {"judge": "n"}, {"prompt": other})
    ]
    assert len({*versions}) == 3


@loop_over("id", [id for id in PARAMETERS if id != "context_sufficiency"])
def test_every_judge_takes_any_case_without_raising(id):
    hostile = [
        Case(),
        Case(outputs={}, inputs=[], documents=(), guidelines={}),
        Case(
            outputs="\ud800\x00",
            inputs="{outputs}{{x}}",
            documents=(Document("\ud800"),),
            guidelines=[[5], {"a": None}],
        ),
        Case(outputs=float("nan"), inputs=object(), reference_outputs=[None], documents=(Document("x"),), guidelines=7),
    ]
    for case in hostile:
        (feedback,) = score(get_evaluator(id, judge=scripted(lambda ask: "no verdict"), **PARAMETERS[id]), case)
        assert feedback.outcome in ("skip", "error") or not case.documents


def test_of_a_conversation_the_last_turn_is_judged():
    judge = scripted(YES)
    turns = [("user", "Hello"), ("assistant", "Hi"), ("user", "When was it built?")]
    inputs = {"messages": [{"role": role, "content": content} for role, content in turns]}
    score(get_evaluator("relevance_to_query", judge=judge), inputs=inputs, outputs="In 1912.")
    (text,) = asked(judge)
    assert "The last turn:\nWhen was it built?" in text
    assert text.index("user: Hello") < text.index("The last turn:")


@pytest.mark.process
def test_many_chunks_are_asked_about_a_bounded_number_at_once():
    feedback = chunks(lambda ask: YES, documents=[f"chunk {place}" for place in range(500)])
    assert feedback.score == 1.0


def test_a_prompt_that_does_not_name_the_chunk_is_refused():
    with pytest.raises(ValueError, match="asked about each chunk"):
        get_evaluator("chunk_relevance", judge=scripted(YES), prompt="Relevant? {inputs}")


JUDGES = [
    "correctness",
    "relevance_to_query",
    "groundedness_judge",
    "safety",
    "context_sufficiency",
    "chunk_relevance",
]


def verdict(ask):
    """No to the second row and to the second chunk; the judge of safety fails on the second row."""
    text = question(ask)
    if "Where is it?" in text:
        return RuntimeError("refused") if "harmful" in text else NO
    return NO if "Open at noon." in text and "Built" not in text else YES


def evaluators():
    judge = scripted(verdict)
    return [
        *(get_evaluator(id, judge=judge) for id in JUDGES),
        get_evaluator("guideline_adherence", judge=judge, global_guidelines=["Be kind"]),
        get_evaluator("custom_judge", judge=judge, assessment_name="short", prompt="{request} {response}"),
        get_evaluator(
            "custom_judge", judge=judge, assessment_name="new", assessment_type="RETRIEVAL", prompt="{documents}"
        ),
        "document_recall",
    ]


@pytest.mark.parametrize("form", [list, pandas.DataFrame])
def test_an_evaluation_set_of_databricks_gives_its_results(store, form):
    said = evaluate(form(ROWS), None, evaluators=evaluators(), store=store).databricks()
    answer, retrieval = "response/llm_judged", "retrieval/llm_judged"
    assert said[f"{answer}/correctness/rating"] == ["yes", None]
    assert said[f"{answer}/correctness/rating/percentage"] == 1.0
    assert said[f"{answer}/relevance_to_query/rating"] == ["yes", "no"]
    assert said[f"{answer}/relevance_to_query/rationale"] == ["It does.", "It does not."]
    assert said[f"{answer}/relevance_to_query/rating/percentage"] == 0.5
    assert said[f"{answer}/groundedness/rating"][0] == "yes"
    assert said[f"{answer}/guideline_adherence/rating"] == ["yes", None]
    assert said[f"{answer}/global_guideline_adherence/rating"] == ["yes", "no"]
    assert said[f"{answer}/safety/rating"] == ["yes", None]
    assert "refused" in said[f"{answer}/safety/error_message"][1]
    assert said[f"{answer}/safety/rating/average"] == 1.0
    assert said[f"{answer}/short/rating/percentage"] == 0.5
    assert said[f"{retrieval}/context_sufficiency/rating/percentage"] == 1.0
    assert said[f"{retrieval}/chunk_relevance/ratings"][0] == ["yes", "no"]
    assert said[f"{retrieval}/chunk_relevance/error_messages"][0] == [None, None]
    assert said[f"{retrieval}/chunk_relevance/precision"] == [0.5, None]
    assert said[f"{retrieval}/chunk_relevance/precision/average"] == 0.5
    assert said[f"{retrieval}/new/precision"][0] == 0.5
    assert said["retrieval/ground_truth/document_recall"] == [0.5, None]


def test_a_custom_judge_that_failed_on_all_rows_says_so_under_its_name(store):
    mute = get_evaluator("custom_judge", judge=scripted(lambda ask: "?"), assessment_name="short", prompt="{response}")
    said = evaluate(ROWS, None, evaluators=[mute], store=store).databricks()
    assert said["response/llm_judged/short/rating/percentage"] is None
    assert all("parse failure" in why for why in said["response/llm_judged/short/error_message"])


def test_a_judgement_of_chunks_is_one_trace_with_a_question_each(store):
    (row,) = evaluate(ROWS[:1], None, [get_evaluator("chunk_relevance", judge=scripted(verdict))], store=store).rows()
    judgement = store.trace(row.feedback["chunk_relevance"].judge_trace_id)
    assert len(judgement.runs) == 1 + 2
    assert judgement.root.kind == "evaluator"


def test_documents_keep_their_uris(store):
    experiment = evaluate(ROWS[:1], None, evaluators=["document_recall"], store=store)
    (row,) = experiment.rows()
    assert row.trace.documents[0] == Document("Built in 1912.", "a", None, {"doc_uri": "a"})


@loop_over(
    "id", ["correctness", "guideline_adherence", "haystack_faithfulness", "relevance_to_query", "safety", "sexism"]
)
def test_a_judge_sees_the_values_that_map_selects(id):
    """Values outside of the selected ones are not shown to the judge."""
    judge = scripted(lambda ask: {"rationale": "r", "rating": "yes"})
    case = {"inputs": {"q": "asked", "z": "hidden"}, "outputs": {"answer": "answered", "z": "hidden"}}
    more = {"reference_outputs": "r", "documents": ["d"], "guidelines": ["g"]}
    score(get_evaluator(id, judge=judge, map={"inputs": "inputs.q", "outputs": "outputs.answer"}), **case, **more)
    shown = str(judge.asked[0].messages)
    assert "answered" in shown
    assert "hidden" not in shown


@loop_over("id", ["fact_check", "correctness"])
def test_a_judge_does_not_see_the_field_in_place_of_an_optional_one_that_map_does_not_find(id):
    judge = scripted(lambda ask: {"rationale": "r", "rating": "yes"})
    case = {"inputs": "hidden", "outputs": "answered", "reference_outputs": "r", "documents": ["d"], "metadata": {}}
    score(get_evaluator(id, judge=judge, map={"inputs": "metadata.q"}), **case)
    assert judge.asked
    assert all("hidden" not in str(ask.messages) for ask in judge.asked)


def test_documents_that_map_selects_may_be_texts():
    judge = scripted(lambda ask: {"rationale": "r", "rating": "yes"})
    relevance = get_evaluator("chunk_relevance", judge=judge, map={"documents": "outputs.sources"})
    [row] = score(relevance, inputs="q", outputs={"sources": ["one", {"content": "two"}]})
    assert (row.score, row.metadata["ratings"]) == (1.0, ["yes", "yes"])
