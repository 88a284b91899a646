"""Databricks' call `evaluate(data=, model=, model_type="databricks-agent")`: its metrics and tables by its names."""

import pandas
import pytest

from evaluators.databricks_rows import ROWS
from evaluators.judge_server import serving
from looped_cases import loop_over
from spanwise.collector.records import Run, Trace
from spanwise.evaluators import Experiment, get_evaluator
from spanwise.evaluators.databricks import evaluate
from spanwise.evaluators.judges import scripted
from spanwise.tracer import trace

YES, NO = {"rationale": "It does.", "rating": "yes"}, {"rationale": "It does not.", "rating": "no"}
ANSWER, RETRIEVAL = "response/llm_judged", "retrieval/llm_judged"
SPARK = [
    {
        "request": "What is the difference between reduceByKey and groupByKey in Spark?",
        "response": "reduceByKey aggregates data before shuffling, whereas groupByKey shuffles all data.",
        "guidelines": ["The response must be in English", "The response must be clear, coherent, and concise"],
    }
]
GLOBAL = {"databricks-agent": {"global_guidelines": ["The response must be in English"]}}


def judged(data, *, judge=None, store, **options):
    judge = judge or scripted(lambda ask: YES)
    return evaluate(
        data=data, model_type="databricks-agent", judge=judge, store=store, progress=False, concurrency=1, **options
    )


def verdict(ask):
    text = ask.messages[1]["content"]
    if "Where is it?" in text:
        return RuntimeError("refused") if "harmful" in text else NO
    return NO if "Open at noon." in text and "Built" not in text else YES


@pytest.mark.parametrize("form", [list, pandas.DataFrame])
def test_the_call_of_the_document_gives_both_kinds_of_guidelines(store, form):
    result = judged(form(SPARK), store=store, evaluator_config=GLOBAL)
    assert isinstance(result, Experiment)
    for name in ("guideline_adherence", "global_guideline_adherence"):
        assert result.metrics[f"{ANSWER}/{name}/rating/percentage"] == 1.0
    [row] = result.tables["eval_results"].to_dict("records")
    assert row["request"] == SPARK[0]["request"]
    assert row["guidelines"] == SPARK[0]["guidelines"]
    assert row[f"{ANSWER}/global_guideline_adherence/rating"] == "yes"
    assert row[f"{ANSWER}/guideline_adherence/rationale"] == "It does."
    assert row[f"{ANSWER}/guideline_adherence/error_message"] is None


@pytest.mark.parametrize("form", [list, pandas.DataFrame])
def test_all_names_of_the_document_are_there(store, form):
    result = judged(form(ROWS), store=store, judge=scripted(verdict), evaluator_config=GLOBAL)
    assert result.metrics == {
        f"{ANSWER}/correctness/rating/percentage": 1.0,
        f"{ANSWER}/relevance_to_query/rating/percentage": 0.5,
        f"{ANSWER}/groundedness/rating/percentage": 1.0,
        f"{ANSWER}/guideline_adherence/rating/percentage": 1.0,
        f"{ANSWER}/global_guideline_adherence/rating/percentage": 0.5,
        f"{ANSWER}/safety/rating/average": 1.0,
        f"{RETRIEVAL}/chunk_relevance/precision/average": 0.5,
        f"{RETRIEVAL}/context_sufficiency/rating/percentage": 1.0,
        "retrieval/ground_truth/document_recall/average": 0.5,
    }
    table = result.tables["eval_results"]
    per_request = {f"{ANSWER}/{name}" for name in "correctness relevance_to_query groundedness safety".split()}
    per_request |= {f"{ANSWER}/guideline_adherence", f"{ANSWER}/global_guideline_adherence"}
    per_request |= {f"{RETRIEVAL}/context_sufficiency"}
    wanted = {f"{stem}/{field}" for stem in per_request for field in ("rating", "rationale", "error_message")}
    wanted |= {
        f"{RETRIEVAL}/chunk_relevance/{field}" for field in "ratings rationales error_messages precision".split()
    }
    wanted |= {"retrieval/ground_truth/document_recall", *ROWS[0]}
    assert set(table.columns) == wanted
    first, second = table.to_dict("records")
    assert first[f"{RETRIEVAL}/chunk_relevance/ratings"] == ["yes", "no"]
    assert first["retrieved_context"] == ROWS[0]["retrieved_context"]
    assert [first["request_id"], second["request_id"]] == ["r1", "r2"]
    assert table[f"{RETRIEVAL}/chunk_relevance/precision"].mean() == 0.5
    assert "refused" in second[f"{ANSWER}/safety/error_message"]
    assert second[f"{ANSWER}/safety/rating"] is None


def test_metrics_name_the_judges(store):
    config = {"databricks-agent": {"metrics": ["groundedness", "safety"]}}
    result = judged(ROWS, store=store, evaluator_config=config)
    assert set(result.metrics) == {f"{ANSWER}/groundedness/rating/percentage", f"{ANSWER}/safety/rating/average"}


def test_data_decide_on_the_judges_where_no_metrics_are_named(store):
    result = judged([{"request": "Why?", "response": "Because."}], store=store)
    assert set(result.metrics) == {f"{ANSWER}/relevance_to_query/rating/percentage", f"{ANSWER}/safety/rating/average"}


@loop_over(
    ("name", "told"),
    [
        ("correctness", "the metric 'correctness' needs expected_response, which the data do not have"),
        ("guideline_adherence", "needs guidelines"),
        ("global_guideline_adherence", "needs global_guidelines"),
        ("document_recall", "needs retrieved_context and expected_retrieved_context"),
        ("chunk_relevance", "needs retrieved_context"),
    ],
)
def test_a_metric_whose_columns_are_missing_is_refused(store, name, told):
    with pytest.raises(ValueError, match=told):
        judged(
            [{"request": "Why?", "response": "Because."}],
            store=store,
            evaluator_config={"databricks-agent": {"metrics": [name]}},
        )


def test_guidelines_for_all_requests_are_enough_for_the_judge_of_guidelines(store):
    config = {"databricks-agent": {"metrics": ["guideline_adherence"], "global_guidelines": ["Be kind"]}}
    result = judged([{"request": "Why?", "response": "Because."}], store=store, evaluator_config=config)
    assert set(result.metrics) == {f"{ANSWER}/global_guideline_adherence/rating/percentage"}


@trace(kind="retriever")
def search(request):
    return [{"content": "Built in 1912.", "doc_uri": "a"}]


def agent(request):
    search(request)
    return "In 1912."


async def later(request):
    return agent(request)


@pytest.mark.parametrize("model", [agent, later])
def test_a_model_answers_and_retrieves(store, model):
    data = [{name: ROWS[0][name] for name in ("request", "expected_response", "expected_retrieved_context")}]
    result = judged(data, store=store, model=model)
    assert result.metrics["retrieval/ground_truth/document_recall/average"] == 0.5
    assert result.metrics[f"{ANSWER}/groundedness/rating/percentage"] == 1.0
    [row] = result.tables["eval_results"].to_dict("records")
    assert (row["response"], row["retrieved_context"]) == ("In 1912.", [{"content": "Built in 1912.", "doc_uri": "a"}])


def test_a_model_without_retrieval_has_no_results_of_it(store):
    result = judged([{"request": "Why?"}], store=store, model=lambda request: "Because.")
    assert set(result.metrics) == {f"{ANSWER}/relevance_to_query/rating/percentage", f"{ANSWER}/safety/rating/average"}
    named = {"databricks-agent": {"metrics": ["groundedness"]}}
    result = judged([{"request": "Why?"}], store=store, model=lambda request: "Because.", evaluator_config=named)
    assert result.metrics == {f"{ANSWER}/groundedness/rating/percentage": None}


@pytest.mark.parametrize("is_async", [False, True])
def test_a_model_gets_a_request_of_messages_whole(store, is_async):
    asked = []

    def model(model_input):
        asked.append(model_input)
        return "Hello."

    async def model_later(model_input):
        return model(model_input)

    request = {"messages": [{"role": "user", "content": "Hi."}]}
    result = judged([{"request": request}], store=store, model=model_later if is_async else model)
    assert asked == [request]
    [row] = result.tables["eval_results"].to_dict("records")
    assert (row["request"], row["response"]) == (request, "Hello.")


def test_a_model_that_fails_leaves_its_row(store):
    def model(request):
        raise ConnectionError("no network")

    result = judged([{"request": "Why?"}], store=store, model=model)
    [row] = result.tables["eval_results"].to_dict("records")
    assert row["request"] == "Why?"
    assert "no network" in next(result.errors()).error


def test_a_trace_holds_what_the_other_columns_do_not(store):
    root = Run(trace_id="1" * 32, span_id="2" * 16, name="agent", inputs="Why?", outputs="Because.", end_ns=9)
    result = judged(
        pandas.DataFrame(
            [{"trace": Trace(root, (root,)), "expected_response": "So."}, {"request": "How?", "response": "So."}]
        ),
        store=store,
    )
    assert list(result.tables["eval_results"]["response"]) == ["Because.", "So."]
    assert result.metrics[f"{ANSWER}/correctness/rating/percentage"] == 1.0
    with pytest.raises(ValueError, match="the trace of row 1 must be a spanwise"):
        judged([{"trace": "tr-1"}], store=store)


def test_recall_of_documents_needs_no_request(store):
    data = [{name: ROWS[0][name] for name in ("retrieved_context", "expected_retrieved_context")}]
    assert judged(data, store=store).metrics == {"retrieval/ground_truth/document_recall/average": 0.5}
    with pytest.raises(ValueError, match="row 2 of the data has no request"):
        judged([ROWS[0], data[0]], store=store)


def test_custom_judges_are_extra_metrics(store):
    judge = scripted(lambda ask: YES)
    extra = [
        get_evaluator("custom_judge", judge=judge, assessment_name="short", prompt="Short? {response}"),
        get_evaluator(
            "custom_judge", judge=judge, assessment_name="new", assessment_type="RETRIEVAL", prompt="New? {documents}"
        ),
    ]
    config = {"databricks-agent": {"metrics": []}}
    result = judged(ROWS[:1], store=store, extra_metrics=extra, evaluator_config=config)
    assert result.metrics == {f"{ANSWER}/short/rating/percentage": 1.0, f"{RETRIEVAL}/new/precision/average": 1.0}


def test_the_judge_of_the_environment_is_asked(store, monkeypatch):
    with serving(lambda request: YES) as server:
        monkeypatch.setenv("SPANWISE_JUDGE", "m")
        monkeypatch.setenv("SPANWISE_JUDGE_URL", server.url)
        config = {"databricks-agent": {"metrics": ["safety"]}}
        result = evaluate(data=SPARK, evaluator_config=config, store=store, progress=False)
    assert result.metrics == {f"{ANSWER}/safety/rating/average": 1.0}
    assert len(server.requests) == 1


@loop_over(
    ("options", "told"),
    [
        ({"model_type": "question-answering"}, "unknown model_type 'question-answering'; expected 'databricks-agent'"),
        ({"evaluator_config": {"default": {}}}, "unknown name 'default' in evaluator_config"),
        ({"evaluator_config": {"databricks-agent": {"metric": []}}}, "unknown name 'metric'.*did you mean 'metrics'"),
        ({"evaluator_config": {"databricks-agent": {"metrics": ["safty"]}}}, "unknown name 'safty' in metrics"),
        ({"evaluator_config": {"databricks-agent": {"metrics": "safety"}}}, "metrics must be a list of names"),
        ({"evaluator_config": {"databricks-agent": {"metrics": []}}}, "no metric can be computed"),
        ({"data": "set.jsonl"}, "data must be a DataFrame or a list of dicts"),
        ({"data": ["Why?"]}, "row 1 is 'Why.'"),
        ({"data": []}, "data has no rows"),
        ({"model": "models:/agent/1"}, "model must be a function of the request"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(store, options, told):
    with pytest.raises(ValueError, match=told):
        evaluate(**{"data": SPARK, "store": store, "judge": scripted(lambda ask: YES), **options})
