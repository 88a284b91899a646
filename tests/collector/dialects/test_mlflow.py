"""MLflow's spans, native and in GenAI's words, from the bytes that its SDK sent."""

from __future__ import annotations

import httpx
import pytest

from collector.dialects.vendors import ANSWER, QUESTION, Kept, kept, run
from collector.otlp import PROTOBUF, request, span
from looped_cases import loop_over
from spanwise.collector.records import Document, Usage
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore


@pytest.fixture(scope="module")
def native(tmp_path_factory) -> Kept:
    return kept(tmp_path_factory.mktemp("mlflow"), "mlflow/native.jsonl.gz")


@pytest.fixture(scope="module")
def genai(tmp_path_factory) -> Kept:
    return kept(tmp_path_factory.mktemp("mlflow"), "mlflow/genai.jsonl.gz")


@pytest.mark.process
def test_inputs_and_outputs(native):
    assert (native.one("answer").inputs, native.one("answer").outputs) == ({"question": QUESTION}, ANSWER)
    assert (native.one("track").inputs, native.one("track").outputs) == ({"number": "parcel"}, "on its way")
    assert (native.one("judge").outputs, native.one("fails").outputs) == (0.5, None)


def test_kinds(native):
    assert {one.name: one.kind for one in native} == {
        "answer": "chain",
        "Embeddings": "embedding",
        "retrieve": "retriever",
        "rerank": "reranker",
        "agent": "agent",
        "Completions": "llm",
        "track": "tool",
        "judge": "evaluator",
        "parse": "chain",
        "own": "llm",
        "fails": "chain",
    }


def test_documents_have_ids_and_the_scores_of_their_metadata(native):
    first = Document("Parcels take three days.", "d1", 0.9, {"doc_uri": "u1", "score": 0.9})
    second = Document("Parcels are insured.", "d2", 0.4, {"doc_uri": "u2", "score": 0.4})
    assert (native.one("retrieve").documents, native.one("rerank").documents) == ((first, second), (first,))


def test_a_models_calls(native):
    called, told, failed = native.all("Completions")
    assert [(one.model, one.usage) for one in (called, told)] == [("gpt-4o-mini", Usage(21, 9))] * 2
    assert called.inputs["messages"] == [{"role": "user", "content": QUESTION}]
    assert told.outputs["choices"][0]["message"]["content"] == ANSWER
    assert (failed.model, failed.error) == ("broken", "BadRequestError: Error code: 400 - no such model")


def test_tokens_and_cost(native):
    own = native.one("own")
    assert (own.model, own.usage, own.cost) == ("own-1", Usage(7, 2, {"cache_read.input_tokens": 3}), 0.75)
    assert "0.25" in str(own.attributes["mlflow.llm.cost"])  # what its input has cost
    assert (native.one("Embeddings").model, native.one("Embeddings").usage) == ("text-embedding-3-small", Usage(4, 0))
    assert sum(one.usage.total_tokens for one in native if one.usage) == 30 + 30 + 9 + 4


def test_session_user_and_tags_are_the_roots(native, genai):
    for root in (native.one("answer"), genai.one("CHAIN")):
        assert (root.session_id, root.user_id, root.metadata) == ("conversation-7", "ann", {"shop": "eu"})
        assert root.project == "shop"


def test_its_ids_are_opentelemetrys(native):
    for one in native:
        assert one.attributes["mlflow.traceRequestId"] == f'"tr-{one.trace_id}"'


def test_attributes_of_a_program_stay(native):
    assert (native.one("answer").attributes["tier"], native.one("answer").attributes["limits"]) == (
        '"gold"',
        '{"day": 3}',
    )


def test_in_genais_words_the_operation_is_the_type(genai):
    kinds = {one.attributes["gen_ai.operation.name"]: one.kind for one in genai}
    assert kinds == {
        "CHAIN": "chain",
        "embeddings": "embedding",
        "RETRIEVER": "retriever",
        "RERANKER": "reranker",
        "invoke_agent": "agent",
        "chat": "llm",
        "execute_tool": "tool",
        "EVALUATOR": "evaluator",
        "PARSER": "chain",
        "UNKNOWN": "chain",
    }


def test_in_genais_words_a_models_calls(genai):
    called, told = genai.all("chat gpt-4o-mini")
    assert [(one.model, one.usage) for one in (called, told)] == [("gpt-4o-mini", Usage(21, 9))] * 2
    assert called.inputs == [{"role": "user", "parts": [{"type": "text", "content": QUESTION}]}]
    assert told.outputs[0]["parts"] == [{"type": "text", "content": ANSWER}]
    assert genai.one("chat").model == "broken"
    tool = genai.one("execute_tool track")
    assert (tool.inputs, tool.outputs) == ({"number": "parcel"}, "on its way")


@pytest.mark.parametrize("kind", ["AGENT", "CHAIN", "RETRIEVER"])
def test_a_sum_of_the_calls_below_is_not_counted_again(kind):
    said = '{"input_tokens": 7, "output_tokens": 2}'
    found = run(mlflow__spanType=f'"{kind}"', mlflow__chat__tokenUsage=said, gen_ai__usage__input_tokens=7)
    assert (found.usage, found.attributes["mlflow.chat.tokenUsage"]) == (None, said)


@loop_over(
    ("said", "session"), [('"a"', "a"), ("a", "a"), ('"', '"'), ('""', '""'), ('"a" "b"', '"a" "b"'), ("7", "7")]
)
def test_a_session_is_json_or_a_text(said, session):
    assert run("mlflow.tracing.fluent", session__id=said).session_id == session
    assert run("other", session__id=said).session_id == said


@loop_over(
    ("name", "value"),
    [
        ("mlflow.spanType", "CHAIN ME"),
        ("mlflow.spanType", ["CHAIN"]),
        ("mlflow.spanType", '{"a": 1}'),
        ("mlflow.llm.model", "3"),
        ("mlflow.chat.tokenUsage", '"many"'),
        ("mlflow.chat.tokenUsage", '{"input_tokens": true}'),
        ("mlflow.llm.cost", "null"),
        ("mlflow.spanOutputs", "null"),
        ("mlflow.traceTag", "no name"),
    ],
)
def test_nonsense_stays_where_it_is(name, value):
    found = run(**{"mlflow.traceRequestId": '"tr-1"', name: value})
    assert found.attributes.get(name, found.model) == value


@pytest.mark.parametrize("kind", ["AGENT", "CHAIN"])
def test_what_stands_around_calls_does_not_cost_the_same_again(kind):
    found = run(**{"mlflow.spanType": f'"{kind}"', "mlflow.llm.cost": '{"total_cost": 0.75}'})
    assert (found.cost, found.attributes["mlflow.llm.cost"]) == (None, '{"total_cost": 0.75}')


@pytest.mark.process
def test_its_header_does_not_matter(tmp_path):
    headers = {"content-type": PROTOBUF, "x-mlflow-experiment-id": "0", "x-mlflow-run-id": "r"}
    with SQLiteStore(tmp_path / "a.db") as store, Server(store) as server:
        answer = httpx.post(f"{server.url}/v1/traces", content=request(span()), headers=headers)
        assert (answer.status_code, store.count()["traces"]) == (200, 1)
